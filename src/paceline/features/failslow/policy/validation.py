"""Validation: which ranks and links are measured by themselves, and what the measurements say.

Only the suspects' groups are measured, where there are suspects: their ranks by matrix products,
their links by transfers, in the passes of rings and trees. Each component is compared with its own
measurement from the job's start. "No component found" is a result: the fault is over, or it is of a
kind that neither measurement shows, such as contention for a processor.

Reference: FALCON section 3.6 (arXiv:2410.12588).
Differs: FALCON compares with the median of the others, and throws its first measurements away.
Healthy links of one job differ by 1.5 times, so here the others are asked only where there is no
measurement from the start, and with a wider limit.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from statistics import median

import msgspec

from paceline.features.failslow.policy.passes import (
    Hop,
    ring_passes,
    share_passes,
    tree_of,
    tree_passes,
)
from paceline.features.failslow.policy.suspects import Against, Findings, Kind

OWN_LIMIT = 1.2
"""A component that takes so many times its own time from the start is slow."""
PEER_LIMIT = 1.6
"""A component that takes so many times the others' median is slow; healthy links of one kind differ
by 1.5 times."""
ALIKE = 0.1
"""Least part of the slowness of a rank's worst link that its others have if it is to blame."""


_Times = dict[tuple[int, ...], float]
"""Measured times in seconds, by rank or by link."""


class ValidationPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements that all ranks make at one step boundary."""

    ranks: tuple[int, ...]
    """Ranks that time matrix products, all at once."""
    passes: tuple[tuple[Hop, ...], ...]
    """Transfers of one pass are at the same time."""


class Measurements(msgspec.Struct, frozen=True, kw_only=True):
    """Times of a validation, or of the measurements at the job's start."""

    products_s: dict[int, float]
    """Seconds that a matrix product took, by rank."""
    hops: tuple[tuple[Hop, float], ...] = ()
    """Links, and the time of a transfer over each."""


class SlowComponent(msgspec.Struct, frozen=True, kw_only=True):
    """A rank that computes slowly, the link between two, or all measured links of one rank."""

    kind: Kind
    ranks: tuple[int, ...]
    """Computation: one. Link: its two ends, or the one whose links are all slow."""
    seconds: float
    reference_s: float
    against: Against

    @property
    def ratio(self) -> float:
        """How many times the reference it takes."""
        return self.seconds / self.reference_s


class ValidationResult(msgspec.Struct, frozen=True, kw_only=True):
    """Outcome of a validation."""

    slow: tuple[SlowComponent, ...] = ()
    """The slowest first; empty: no component found."""
    well: tuple[tuple[int, ...], ...] = ()
    """Ranks, and links by their ends, that could be compared and are not slow."""
    absent: tuple[int, ...] = ()
    """Ranks of the plan that have no measurement."""
    products: dict[int, float] = {}
    """Ratio of each rank's matrix product time to that at the job's start, by rank."""


def plan_validation(findings: Findings, groups: Iterable[Sequence[int]]) -> ValidationPlan:
    """Choose what to measure.

    Of a suspected rank, the rank and one to compare it with in each of its groups; of a suspected
    group, its ranks and links. What could not be compared is measured with them. Where nothing at
    all is suspected, everything is.

    Args:
        findings: what the profile says.
        groups: all groups of the job.
    """
    everything = list(dict.fromkeys(tuple(group) for group in groups if len(group) > 1))
    suspects = findings.suspects
    chosen = [one.ranks for one in suspects if one.kind == "link"] + [*findings.lone_groups]
    ranks = {one.ranks[0] for one in suspects if one.kind == "computation"}
    ranks.update(findings.lone_ranks, *(chosen or ()))
    for one in suspects:
        if one.kind == "computation":
            ranks.update(_company(one.ranks[0], everything, ranks))
    if not ranks:
        chosen = everything
        ranks = set(chain.from_iterable(everything))
    passes = tuple(map(tuple, _passes(chosen)))
    return ValidationPlan(ranks=tuple(sorted(ranks)), passes=passes)


def _company(rank: int, groups: Iterable[tuple[int, ...]], chosen: set[int]) -> Iterable[int]:
    """Yield ranks to compare one with: the next one in its largest group, if none is chosen yet."""
    own = [group for group in groups if rank in group]
    if not own or any(chosen - {rank}):
        return
    largest = max(own, key=len)
    yield largest[(largest.index(rank) + 1) % len(largest)]


def _passes(groups: Iterable[Sequence[int]]) -> list[list[Hop]]:
    """Measure rings, then what trees add; a transfer between two ranks is a group of two."""
    rings, trees = [], []
    for group in groups:
        ring = ring_passes(group)
        known = {frozenset(hop) for hop in chain.from_iterable(ring)}
        tree = tree_passes(tree_of(group))
        rings.append(ring)
        trees.append([[hop for hop in one if frozenset(hop) not in known] for one in tree])
    return [*share_passes(rings), *share_passes(trees)]


def judge(
    plan: ValidationPlan, measured: Measurements, baseline: Measurements | None = None
) -> ValidationResult:
    """Compare each component with itself at the start, or else with the others.

    A rank that is short of a processor sends as slowly as it computes: its links are held against
    so much longer times.
    """
    absent = tuple(rank for rank in plan.ranks if rank not in measured.products_s)
    products_s = {} if baseline is None else baseline.products_s
    own_s: _Times = {(rank,): seconds for rank, seconds in products_s.items()}
    known: _Times = {} if baseline is None else dict(baseline.hops)
    times: _Times = {(rank,): seconds for rank, seconds in measured.products_s.items()}
    slow = list(_above("computation", times, own_s))
    ratios = {one.ranks[0]: one.ratio for one in slow}
    hops: _Times = {hop: each for hop, each in measured.hops if not set(hop) & set(absent)}
    links = list(_above("link", hops, known, ratios))
    not_well = {one.ranks for one in [*slow, *links]}
    slow += _joined(links, hops)
    return ValidationResult(
        slow=tuple(sorted(slow, key=lambda one: -one.ratio)),
        well=tuple(
            name
            for found, own in ((times, own_s), (hops, known))
            for name in found
            if (name in own or len(found) > 1)
            and name not in not_well
            and not (len(name) > 1 and ratios.keys() & set(name))
        ),
        absent=absent,
        products={
            rank: seconds / products_s[rank]
            for rank, seconds in measured.products_s.items()
            if rank in products_s
        },
    )


def _above(
    kind: Kind,
    times: _Times,
    own_s: _Times,
    allowed: Mapping[int, float] | None = None,
) -> Iterable[SlowComponent]:
    """Find what is above its limit; ``allowed``: ranks that may take so many times as long."""
    for ranks, seconds in times.items():
        others = [each for name, each in times.items() if name != ranks]
        if ranks in own_s:
            against: Against = "baseline"
            reference_s, limit = own_s[ranks], OWN_LIMIT
        elif others:
            against, reference_s, limit = "peers", median(others), PEER_LIMIT
        else:
            continue
        if seconds > limit * reference_s * max((allowed or {}).get(rank, 1.0) for rank in ranks):
            yield SlowComponent(
                kind=kind, ranks=ranks, seconds=seconds, reference_s=reference_s, against=against
            )


def _joined(slow: list[SlowComponent], hops: Iterable[tuple[int, ...]]) -> list[SlowComponent]:
    """Blame a rank for its links where all that were measured, to two others at least, are slow.

    One cause slows them about alike: a link that is a little slow beside a very slow one, as on a
    busy machine, is another matter. Of the two directions of a link the slower one is kept.
    """
    neighbours: dict[int, set[int]] = defaultdict(set)
    worst: dict[int, float] = defaultdict(float)
    for one, other in hops:
        neighbours[one].add(other)
        neighbours[other].add(one)
    for each in slow:
        for rank in each.ranks:
            worst[rank] = max(worst[rank], each.ratio)
    lame: dict[int, set[int]] = defaultdict(set)
    for each in slow:
        for rank in each.ranks:
            if each.ratio >= ALIKE * worst[rank]:
                lame[rank].update(set(each.ranks) - {rank})
    blamed = {rank for rank, ends in lame.items() if len(ends) > 1 and ends == neighbours[rank]}
    kept: dict[tuple[int, ...], SlowComponent] = {}
    for each in slow:
        at_fault = sorted(blamed.intersection(each.ranks), key=lambda rank: -len(lame[rank]))
        ranks = tuple(at_fault[:1]) or tuple(sorted(each.ranks))
        named = msgspec.structs.replace(each, ranks=ranks)
        if ranks not in kept or named.ratio > kept[ranks].ratio:
            kept[ranks] = named
    return list(kept.values())

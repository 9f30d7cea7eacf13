"""Suspects: the ranks that compute too long, and the groups whose transfers take too long.

A rank or a group is compared with itself at the job's start, where there is such a baseline, else
with the others at its position. The job's step waits for the slowest, so what counts is the time
above the reference as a part of the step. "Nothing stands out" is a result, and so are both kinds
at once.

Reference: FALCON section 3.4 (arXiv:2410.12588), groups above 1.1 times the median of their like.
Differs: waits are no part of a transfer; computing is looked at in addition, so that a rank that is
late because another held it up is no suspect; baselines come first. The references leave the
suspect itself out.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Literal

import msgspec

from paceline.policy.failslow.profile import ProfileSummary, RankTimes, Transfer, shape_of

SHARE = 0.05
"""Least part of a step that a rank must compute longer than its reference."""
LINK_SHARE = 0.03
"""The same for the transfers of a group, which repeat more exactly."""
LINK_RATIO = 1.1
"""Least transfer time over its reference (FALCON)."""
PERSISTENT = 0.75
"""Least part of the steps in which a suspect computes longer than its reference."""
EXPLAINS = 0.08
"""Least part of a slowdown since the baseline that a suspect must account for: on a busy machine
all ranks scatter, while one thing makes the job slow."""
APART = 4.0
"""Standard deviations of the others' changes since the baseline by which a rank's own must exceed
their middle: what a busy machine takes from each rank differs."""
_LEAST_APART = 0.01
_SIGMAS = 2.0

Kind = Literal["computation", "link"]
Against = Literal["baseline", "peers"]


class Suspect(msgspec.Struct, frozen=True, kw_only=True):
    """A rank, or a group's links, with the evidence."""

    kind: Kind
    ranks: tuple[int, ...]
    seconds: float
    """Computation: of one unit of work. Link: of one transfer."""
    reference_s: float
    against: Against
    lost: float
    """Part of a step."""
    waited_for_s: float = 0.0
    """What others waited in a step for a rank."""
    op: str = ""
    """The transfer that takes longest above its reference."""
    num_bytes: int = 0

    @property
    def ratio(self) -> float:
        """How many times the reference it takes."""
        return self.seconds / self.reference_s if self.reference_s else math.inf


class Imbalance(msgspec.Struct, frozen=True, kw_only=True):
    """A stage of the pipeline all of whose ranks compute longer than the other stages.

    That is how the job is divided, as a rule: no component is to blame.
    """

    stage: int
    ranks: tuple[int, ...]
    seconds: float
    reference_s: float
    lost: float
    """Part of a step, per micro-batch in flight: the stage sets the pipeline's pace."""


class Findings(msgspec.Struct, frozen=True, kw_only=True):
    """What a window says."""

    suspects: tuple[Suspect, ...] = ()
    """Those that cost most of a step first; empty: nothing stands out."""
    imbalances: tuple[Imbalance, ...] = ()
    lone_ranks: tuple[int, ...] = ()
    """Ranks that cannot be compared, so only validation tells."""
    lone_groups: tuple[tuple[int, ...], ...] = ()
    """The same for groups, where their transfers matter."""
    shared: float | None = None
    """How many times as long as in the baseline the middle one of all ranks computes. None: no
    longer than it did."""


def find_suspects(now: ProfileSummary, baseline: ProfileSummary | None = None) -> Findings:
    """Find what is slow in a window.

    Args:
        now: the window.
        baseline: the same job while it was healthy; None: it was slow from its first step, or
            nobody knows.
    """
    slow_ranks, lone_ranks = _slow_ranks(now, baseline)
    slow_groups, lone_groups = _slow_groups(now, baseline)
    least = 0.0 if baseline is None else EXPLAINS * (1.0 - baseline.step_s / now.step_s)
    found = [one for one in [*slow_ranks, *slow_groups] if one.lost >= least]
    shared = 1.0 if baseline is None else median(_changes(now, baseline).values())
    return Findings(
        suspects=tuple(sorted(found, key=lambda one: -one.lost)),
        imbalances=tuple(_imbalances(now)),
        lone_ranks=tuple(lone_ranks),
        lone_groups=tuple(lone_groups),
        shared=shared if shared > LINK_RATIO else None,
    )


def _changes(now: ProfileSummary, baseline: ProfileSummary) -> dict[int, float]:
    """By rank: how many times as long it computes as in the baseline."""
    own = baseline.ranks
    return {
        rank: median(times.computing_s) / before_s
        for rank, times in now.ranks.items()
        if rank in own and (before_s := median(own[rank].computing_s))
    } or {-1: 1.0}


def _slow_ranks(
    now: ProfileSummary, baseline: ProfileSummary | None
) -> tuple[list[Suspect], list[int]]:
    own = {} if baseline is None else baseline.ranks
    changes = {} if baseline is None else _changes(now, baseline)
    like: dict[str, dict[int, float]] = defaultdict(dict)
    for rank, times in now.ranks.items():
        like[times.position][rank] = median(times.computing_s)
    found: list[Suspect] = []
    lone: list[int] = []
    for rank, times in now.ranks.items():
        against: Against = "baseline" if rank in own else "peers"
        if rank in own:
            others = [each for name, each in changes.items() if name != rank] or [1.0]
            common = median(others)
            if changes.get(rank, 1.0) < common + APART * _scatter(others):
                continue
            # What all ranks have in common, as a busy machine, is no rank's fault.
            reference_s = median(own[rank].computing_s) * max(1.0, common)
        elif len(like[times.position]) > 1:
            reference_s = median(
                each for name, each in like[times.position].items() if name != rank
            )
        else:
            lone.append(rank)
            continue
        lost = _lost(times, reference_s) / now.step_s
        if lost >= SHARE and _is_persistent(times, reference_s):
            found.append(
                Suspect(
                    kind="computation",
                    ranks=(rank,),
                    seconds=median(times.computing_s),
                    reference_s=reference_s,
                    against=against,
                    lost=lost,
                    waited_for_s=times.waited_for_s,
                )
            )
    return found, lone


def _scatter(values: Sequence[float]) -> float:
    middle = median(values)
    return max(1.4826 * median(abs(each - middle) for each in values), _LEAST_APART)


def _lost(times: RankTimes, reference_s: float) -> float:
    """The time of a step that a rank computes longer than its reference."""
    return (median(times.computing_s) - reference_s) * times.work


def _is_persistent(times: RankTimes, reference_s: float) -> bool:
    """Whether a rank is above its reference in most steps, and by more than chance."""
    count = len(times.computing_s)
    middle = median(times.computing_s)
    above = sum(each > reference_s for each in times.computing_s)
    scatter = 1.4826 * median(abs(each - middle) for each in times.computing_s)
    return above >= PERSISTENT * count and middle - reference_s > _SIGMAS * scatter / count**0.5


def _slow_groups(
    now: ProfileSummary, baseline: ProfileSummary | None
) -> tuple[list[Suspect], list[tuple[int, ...]]]:
    own = {_key(one): one.seconds for one in (baseline.transfers if baseline else ())}
    like: dict[tuple[str, str, int], list[Transfer]] = defaultdict(list)
    for one in now.transfers:
        like[shape_of(one.group), one.op, one.num_bytes].append(one)
    found: dict[tuple[int, ...], list[Suspect]] = defaultdict(list)
    lone: list[tuple[int, ...]] = []
    for one in now.transfers:
        others = [
            other.seconds
            for other in like[shape_of(one.group), one.op, one.num_bytes]
            if other.group != one.group
        ]
        known_s = own.get(_key(one))
        if known_s is None and not others:
            if one.per_step * one.seconds >= LINK_SHARE * now.step_s:
                lone.append(one.group)
            continue
        reference_s = median(others) if known_s is None else known_s
        if one.seconds > LINK_RATIO * reference_s:
            found[one.group].append(
                Suspect(
                    kind="link",
                    ranks=one.group,
                    seconds=one.seconds,
                    reference_s=reference_s,
                    against="peers" if known_s is None else "baseline",
                    lost=(one.seconds - reference_s) * one.per_step / now.step_s,
                    op=one.op,
                    num_bytes=one.num_bytes,
                )
            )
    whole = (_together(each) for each in found.values())
    return [one for one in whole if one.lost >= LINK_SHARE], list(dict.fromkeys(lone))


def _key(one: Transfer) -> tuple[tuple[int, ...], str, int]:
    return one.group, one.op, one.num_bytes


def _together(parts: Sequence[Suspect]) -> Suspect:
    """Make one suspect of a group's kinds of transfers: the evidence of the worst, all losses."""
    worst = max(parts, key=lambda one: one.lost)
    return msgspec.structs.replace(worst, lost=sum(one.lost for one in parts))


def _imbalances(now: ProfileSummary) -> Iterable[Imbalance]:
    """Find stages whose fastest rank computes longer than the slowest usual one of the others."""
    stages: dict[int, list[int]] = defaultdict(list)
    for rank, times in now.ranks.items():
        if times.stage is not None:
            stages[times.stage].append(rank)
    least = {
        stage: min(median(now.ranks[rank].computing_s) for rank in ranks)
        for stage, ranks in stages.items()
    }
    for stage, ranks in stages.items():
        others = [each for name, each in least.items() if name != stage]
        if not others:
            continue
        reference_s = median(others)
        work = median(now.ranks[rank].work for rank in ranks)
        lost = (least[stage] - reference_s) * work / now.step_s
        if lost >= SHARE and len(ranks) > 1:
            yield Imbalance(
                stage=stage,
                ranks=tuple(ranks),
                seconds=least[stage],
                reference_s=reference_s,
                lost=lost,
            )

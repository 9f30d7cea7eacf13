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
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Literal

import msgspec

from paceline.features.failslow.policy.profile import ProfileSummary, RankTimes, Transfer, shape_of

SHARE = 0.05
"""Least part of a step that a rank must compute longer than its reference."""
LINK_SHARE = 0.03
"""Least part of a step that transfers of a group must take longer: these repeat more exactly."""
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
BUSY = 0.3
"""Part of a slowdown since the baseline. A machine is busy if most of its ranks wait so much longer
for a processor in each step."""
CROWDED = 3.0
"""Times what the middle rank of a machine waits longer for a processor: as much may be taken from
each rank before it is the rank's own."""
_LEAST_APART = 0.01
_SIGMAS = 2.0

_Wait = tuple[float, float]
"""Seconds of waiting for a processor in a step: now, and at the job's start."""
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
    start_s: float | None = None
    """Computation: at the job's start, if that is known; the reference may be longer, by what all
    ranks have in common."""
    starved_s: _Wait | None = None
    """Computation: what it waits for a processor in a step, and did at the start. None: not known.
    """
    throttled_s: float = 0.0
    """Computation: the part of that wait, now, for which its quota was used up, where that quota
    had been cut."""
    lost: float
    """Part of a step."""
    op: str = ""
    """The transfer that takes longest above its reference."""
    num_bytes: int = 0

    @property
    def ratio(self) -> float:
        """How many times the reference it takes."""
        return self.seconds / self.reference_s if self.reference_s else math.inf


class BusyMachine(msgspec.Struct, frozen=True, kw_only=True):
    """A machine whose processors others use, too."""

    machine: str
    ranks: tuple[int, ...]
    starved_s: float
    """Time of a step that its middle rank waits for a processor."""
    start_s: float
    """Time for which it waited for one in the baseline."""


class Findings(msgspec.Struct, frozen=True, kw_only=True):
    """Findings from one window, against the baseline."""

    suspects: tuple[Suspect, ...] = ()
    """Suspects, those that cost most of a step first; empty: nothing stands out."""
    lone_ranks: tuple[int, ...] = ()
    """Ranks that cannot be compared, so only validation tells."""
    lone_groups: tuple[tuple[int, ...], ...] = ()
    """Groups that cannot be compared, where their transfers matter."""
    shared: float | None = None
    """Ratio of the time that the middle one of all ranks computes to that of the baseline. None: it
    computes no longer than it did."""
    busy: tuple[BusyMachine, ...] = ()
    """Machines most of whose ranks wait longer for a processor than in the baseline."""
    recovered: tuple[int, ...] = ()
    """Ranks that were suspected a moment ago, and are no more."""

    def after(self, before: "Findings") -> "Findings":
        """Return these of a moment later, with the ranks that are suspected no more."""
        slow, was = (
            {one.ranks[0] for one in each.suspects if one.kind == "computation"}
            for each in (self, before)
        )
        return msgspec.structs.replace(self, recovered=tuple(sorted(was - slow)))


def find_suspects(now: ProfileSummary, baseline: ProfileSummary | None = None) -> Findings:
    """Find what is slow in a window.

    Args:
        now: the window.
        baseline: the same job while it was healthy; None: it was slow from its first step, or
            nobody knows.
    """
    waits = {} if baseline is None else _waits(now, baseline)
    slow_ranks, lone_ranks = _slow_ranks(now, baseline, waits)
    slow_groups, lone_groups = _slow_groups(now, baseline)
    least = 0.0 if baseline is None else EXPLAINS * (1.0 - baseline.step_s / now.step_s)
    found = [one for one in [*slow_ranks, *slow_groups] if one.lost >= least]
    shared = 1.0 if baseline is None else median(_changes(now, baseline).values())
    return Findings(
        suspects=tuple(sorted(found, key=lambda one: -one.lost)),
        lone_ranks=tuple(lone_ranks),
        lone_groups=tuple(lone_groups),
        shared=shared if shared > LINK_RATIO else None,
        busy=tuple(_busy_machines(waits, now.step_s - baseline.step_s)) if baseline else (),
    )


def _waits(now: ProfileSummary, baseline: ProfileSummary) -> dict[str, dict[int, _Wait]]:
    """Return each rank's waits for a processor, now and in the baseline, by machine and rank."""
    waits: dict[str, dict[int, _Wait]] = defaultdict(dict)
    for rank, times in now.ranks.items():
        own = baseline.ranks.get(rank)
        if own is not None and times.starved_s is not None and own.starved_s is not None:
            waits[times.machine][rank] = times.starved_s, own.starved_s
    return waits


def _longer_s(waits: Mapping[int, _Wait]) -> float:
    """Return how much longer a machine's middle rank waits; 0: it is the only rank."""
    return median(now_s - start_s for now_s, start_s in waits.values()) if len(waits) > 1 else 0.0


def _busy_machines(
    waits: Mapping[str, Mapping[int, _Wait]], slower_s: float
) -> Iterable[BusyMachine]:
    """Find machines on which most ranks wait longer for a processor: a quota does so to its own."""
    for machine, each in waits.items():
        if _longer_s(each) >= BUSY * slower_s > 0.0:
            yield BusyMachine(
                machine=machine,
                ranks=tuple(each),
                starved_s=median(now_s for now_s, _ in each.values()),
                start_s=median(start_s for _, start_s in each.values()),
            )


def _changes(now: ProfileSummary, baseline: ProfileSummary) -> dict[int, float]:
    """Return the ratio of each rank's computing time to its time in the baseline, by rank."""
    own = baseline.ranks
    return {
        rank: median(times.computing_s) / before_s
        for rank, times in now.ranks.items()
        if rank in own and (before_s := median(own[rank].computing_s))
    } or {-1: 1.0}


def _slow_ranks(
    now: ProfileSummary,
    baseline: ProfileSummary | None,
    waits: Mapping[str, Mapping[int, _Wait]],
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
        start_s, starved_s = None, None
        if rank in own:
            others = [each for name, each in changes.items() if name != rank] or [1.0]
            common = median(others)
            if changes.get(rank, 1.0) < common + APART * _scatter(others):
                continue
            # What all ranks have in common, as a busy machine, is no rank's fault.
            start_s = median(own[rank].computing_s)
            reference_s = start_s * max(1.0, common)
            starved_s = waits[times.machine].get(rank) if times.machine in waits else None
            if starved_s is not None:
                common_s = CROWDED * max(_longer_s(waits[times.machine]), 0.0)
                longer_s = min(starved_s[0] - starved_s[1], common_s) / times.work
                reference_s = max(reference_s, start_s + longer_s)
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
                    start_s=start_s,
                    starved_s=starved_s,
                    throttled_s=times.throttled_s,
                    lost=lost,
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

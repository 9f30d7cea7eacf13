"""Profile of each rank and group from the calls of a few steps: computing, waiting, transfers.

A call lasts from a rank's arrival in it until its end, so it has two parts. The last rank to arrive
waits for nobody: its time is the *transfer*, what is above it is another rank's *wait*. Only
durations are compared, since clocks of two machines differ.

Ranks are comparable at the same *position*: members of groups of the same shapes, at the same place
of their pipeline. Shapes are the groups' sizes and strides.

Reference: FALCON section 3.4 (arXiv:2410.12588); NVIDIA's and ByteDance's analysers leave waits out
in the same way.
Differs: FALCON patches the framework for its layout; here it follows from the groups themselves.
"""

from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise
from statistics import median

import msgspec

_MEETING = ("allreduce", "allgather", "reducescatter", "alltoall", "barrier")
"""Collectives that no rank leaves before all have arrived. A broadcast's root may."""
_BETWEEN_TWO = ("send", "recv")
_AT_ONCE_S = 5e-4
"""A wait that is not longer found its call at its end."""


class TimedCall(msgspec.Struct, frozen=True, array_like=True):
    """One rank's part of one collective, or of one transfer between two ranks."""

    rank: int
    group: tuple[int, ...]
    """Ranks; of a transfer between two: sender, receiver."""
    op: str
    num_bytes: int
    seq: int
    """Running number among the calls of these ranks: the same on each of them."""
    start_s: float
    end_s: float
    blocked_s: float | None = None
    """Time before its end in which the rank did nothing else. None: all of it; nothing of a send,
    which a script starts and computes on."""


class ProfileWindow(msgspec.Struct, frozen=True, kw_only=True):
    """The calls of a few whole steps, the same steps on all ranks."""

    calls: tuple[TimedCall, ...]
    steps: dict[int, tuple[tuple[float, float], ...]]
    """Start and end of each step on the rank's own clock, by rank."""
    each: int = 1
    """Steps that each of these is made of: of short ones a few in a row count as one."""
    computing_s: dict[int, tuple[float, ...]] = {}
    """Seconds of computing in each step, by rank, for ranks that measure it. For any other rank it
    is the step without the time inside calls."""
    work: dict[int, float] = {}
    """Micro-batches or tokens of a step, by rank; 1 where missing."""
    same_clock: bool = False
    """All ranks are on one machine."""
    starved_s: dict[int, float] = {}
    """Seconds of a step in which a rank was ready to run and had no processor, by rank; missing:
    not known."""
    throttled_s: dict[int, float] = {}
    """The part of that for which the rank's quota was used up, where it had been cut, by rank."""
    machines: dict[int, str] = {}
    """Machine on which a rank runs, by rank."""


class RankTimes(msgspec.Struct, frozen=True, kw_only=True):
    """One rank in a window."""

    position: str
    stage: int | None
    """Place in its pipeline; None: it is in none."""
    computing_s: tuple[float, ...]
    """Per unit of work, by step."""
    work: float
    starved_s: float | None = None
    """Time of a step in which it could run and had no processor; None: not known."""
    throttled_s: float = 0.0
    """The part of that for which its quota was used up, where that quota had been cut."""
    machine: str = ""


class Transfer(msgspec.Struct, frozen=True, kw_only=True):
    """Calls of one kind in one group."""

    group: tuple[int, ...]
    op: str
    num_bytes: int
    per_step: float
    """Calls of a step."""
    seconds: float
    """Median time of one call, without waits."""


class ProfileSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Summary of a window; a baseline is one from the job's start."""

    step_s: float
    ranks: dict[int, RankTimes]
    transfers: tuple[Transfer, ...]


def summarise(window: ProfileWindow) -> ProfileSummary:
    """Reduce a window to the times of its ranks and groups.

    Raises:
        ValueError: there is no step, or ranks differ in their number of steps.
    """
    counts = {len(spans) for spans in window.steps.values()}
    if len(counts) != 1 or 0 in counts:
        raise ValueError(f"got {sorted(counts)} steps of the ranks, expected the same, at least 1")
    calls = _whole_calls(window.calls)
    stages = _stages(calls)
    shapes = _shapes(calls)
    inside = _inside(window.calls)
    ranks = {}
    for rank in sorted(window.steps):
        computing_s = window.computing_s.get(rank)
        if computing_s is None:
            computing_s = _outside(inside[rank], window.steps[rank])
        place = stages.get(rank)
        work = window.work.get(rank, 1.0)
        unit = work * window.each
        where = "" if place is None else f"; stage {place[0]} of {place[1]}"
        ranks[rank] = RankTimes(
            position=", ".join(sorted(shapes[rank])) + where,
            stage=None if place is None else place[0],
            computing_s=tuple(each / unit for each in computing_s),
            work=work,
            starved_s=window.starved_s.get(rank),
            throttled_s=window.throttled_s.get(rank, 0.0),
            machine=window.machines.get(rank, ""),
        )
    lengths = [end - start for spans in window.steps.values() for start, end in spans]
    return ProfileSummary(
        step_s=median(lengths) / window.each,
        ranks=ranks,
        transfers=_transfers(calls, counts.pop() * window.each, window.same_clock),
    )


_Kind = tuple[tuple[int, ...], str, int]
"""Group, operation, bytes."""
_Calls = dict[_Kind, dict[tuple[int, int], list[TimedCall]]]
"""Calls on each of the group's ranks, in the group's order, by kind and number."""


def _name(op: str) -> str:
    """Return an operation's plain name, whichever interface it came through."""
    name = op.lower().replace("_", "")
    found = (each for each in _MEETING if each in name)
    if any(each in name for each in _BETWEEN_TWO):
        return "transfer"
    return next(found, op)


def _whole_calls(calls: Iterable[TimedCall]) -> _Calls:
    """Sort calls by kind and number; those that some rank did not record are left out."""
    seen: dict[_Kind, dict[tuple[int, int], dict[int, TimedCall]]]
    seen = defaultdict(lambda: defaultdict(dict))
    for call in sorted(calls, key=lambda call: call.start_s):
        if len(call.group) < 2:
            continue
        numbered = seen[call.group, _name(call.op), call.num_bytes]
        again = 0  # two groups of the same ranks have the same numbers
        while call.rank in numbered[call.seq, again]:
            again += 1
        numbered[call.seq, again][call.rank] = call
    return {
        kind: {
            seq: [on[rank] for rank in kind[0]]
            for seq, on in sorted(numbered.items())
            if on.keys() == set(kind[0])
        }
        for kind, numbered in seen.items()
    }


def _duration(call: TimedCall) -> float:
    return call.end_s - call.start_s


def _transfers(calls: _Calls, steps: int, same_clock: bool) -> tuple[Transfer, ...]:
    return tuple(
        Transfer(
            group=group,
            op=op,
            num_bytes=num_bytes,
            per_step=len(numbered) / steps,
            seconds=median(_transfer_s(parts, op, same_clock) for parts in numbered.values()),
        )
        for (group, op, num_bytes), numbered in sorted(calls.items())
        if numbered and (op in _MEETING or op == "transfer")
    )


def _transfer_s(parts: list[TimedCall], op: str, same_clock: bool) -> float:
    """The time of one call that nobody spent waiting for another rank.

    A small message leaves its sender before it arrives. Where ranks share a clock, the receiver's
    end tells; else the slow link of such a message shows in validation alone. A receiver that
    computes first asks late for the end, and gets it at once; the transfer was over before.
    """
    if op != "transfer" or not same_clock:
        return min(map(_duration, parts))
    receiver = next(each for each in parts if each.rank == each.group[1])
    has_waited = receiver.blocked_s is None or receiver.blocked_s > _AT_ONCE_S
    end_s = receiver.end_s if has_waited else min(each.end_s for each in parts)
    return max(end_s - max(each.start_s for each in parts), 0.0)


def _inside(calls: Iterable[TimedCall]) -> dict[int, list[tuple[float, float]]]:
    """Return the spans in which calls kept a rank from computing, by rank, in order."""
    inside: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for call in calls:
        blocked_s = call.blocked_s
        if blocked_s is None:
            blocked_s = 0.0 if "send" in call.op else _duration(call)
        inside[call.rank].append((call.end_s - blocked_s, call.end_s))
    for spans in inside.values():
        spans.sort()
    return inside


def _outside(
    inside: list[tuple[float, float]], steps: Iterable[tuple[float, float]]
) -> tuple[float, ...]:
    """Return the time of each step that is in none of these spans."""
    found = []
    for start_s, end_s in steps:
        free_s, until_s = 0.0, start_s
        for from_s, to_s in inside:
            if to_s > start_s and from_s < end_s:
                free_s += max(from_s - until_s, 0.0)
                until_s = max(until_s, to_s)
        found.append(free_s + max(end_s - until_s, 0.0))
    return tuple(found)


def _shapes(calls: _Calls) -> dict[int, set[str]]:
    """Return the shapes of each rank's groups, by rank, pipelines apart."""
    shapes: dict[int, set[str]] = defaultdict(set)
    for group, op, _ in calls:
        for rank in group if op in _MEETING else ():
            shapes[rank].add(shape_of(group))
    return shapes


def shape_of(group: tuple[int, ...]) -> str:
    """Name the size and the stride of a group."""
    strides = {after - before for before, after in pairwise(group)}
    return f"{len(group)} ranks by " + " and ".join(map(str, sorted(strides)))


def _stages(calls: _Calls) -> dict[int, tuple[int, int]]:
    """Return each rank's place in its chain of transfers, and the chain's length, by rank."""
    chains: dict[int, set[int]] = {}
    for group, op, _ in calls:
        if op == "transfer":
            joined = set(group).union(*(chains.get(rank, ()) for rank in group))
            chains.update(dict.fromkeys(joined, joined))
    return {rank: (sorted(chain).index(rank), len(chain)) for rank, chain in chains.items()}

"""Answers of the ranks of a script, put together for the policies that look at all of them."""

from collections import deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from paceline.features.failslow.call_ring import OPS
from paceline.features.failslow.policy.gaps import NotProfiled
from paceline.features.failslow.policy.profile import ProfileWindow, TimedCall
from paceline.features.failslow.policy.validation import Measurements
from paceline.features.failslow.wire import CallsTold, RankMeasured

WINDOW_STEPS = 20
"""Most steps of a profile; where steps are short, most parts of a few steps in a row."""
MOST_HEARTBEATS = 64
"""Heartbeats of a rank whose word on waits for processors is kept."""
MOST_WORDS = 200
"""Characters of an error in a diagnosis, at most."""


class ProcessorWait(NamedTuple):
    """Time in which a process could run and had no processor, in each of some steps."""

    starved_s: float = 0.0
    """All of it; 0: not known."""
    throttled_s: float = 0.0
    """The part for which the node's quota was used up, where its machine has cut that quota."""


class ProcessorWaits:
    """Recent waits of each rank of a script for a processor, heartbeat by heartbeat."""

    def __init__(self) -> None:
        self._noted: dict[int, deque[tuple[int, int, ProcessorWait]]] = {}
        """Heartbeats of each rank: newest step, number of steps, and the wait in each step."""

    def add(self, rank: int, last: int, steps: int, wait: ProcessorWait) -> None:
        """Note what a heartbeat says of the newest steps."""
        self._noted.setdefault(rank, deque(maxlen=MOST_HEARTBEATS)).append((last, steps, wait))

    def since(self, first: Mapping[int, int]) -> dict[int, ProcessorWait]:
        """Return by rank what it waited in a step, on average from its first one on."""
        found = {}
        for rank, step in first.items():
            recent = [each for each in self._noted.get(rank, ()) if each[0] >= step]
            if recent:
                steps = sum(count for _, count, _ in recent)
                starved_s = sum(count * wait.starved_s for _, count, wait in recent) / steps
                throttled_s = sum(count * wait.throttled_s for _, count, wait in recent) / steps
                found[rank] = ProcessorWait(starved_s, throttled_s)
        return found


def window_of(
    told: Mapping[int, CallsTold],
    waits: ProcessorWaits,
    machines: Mapping[int, str],
    each: int = 1,
) -> ProfileWindow | NotProfiled:
    """Make a window of what agents have told, of the newest steps that all ranks have noted.

    Where ranks differ in their numbers of steps, it is of the newest of each rank.

    Or say why there is none. Where no call's end is seen, as on GPUs, nobody knows what a rank
    computed and for what it waited.

    Args:
        told: by rank.
        waits: of all ranks for processors.
        machines: on which ranks run, by rank.
        each: steps in a row that count as one, where there are so many.
    """
    if not told:
        return NotProfiled.UNTOLD
    every = [call for one in told.values() for call in one.noted.calls]
    if every and not any(call.end_s for call in every):
        return NotProfiled.BLIND
    by_step = {rank: {step.step: step for step in one.noted.steps} for rank, one in told.items()}
    common = set.intersection(*map(set, by_step.values()))
    parts = {rank: _parts(common or steps, each) for rank, steps in by_step.items()}
    count = min((WINDOW_STEPS, *map(len, parts.values())))
    if not count:
        return window_of(told, waits, machines) if each > 1 else NotProfiled.NO_STEP
    parts = {rank: own[-count:] for rank, own in parts.items()}
    wanted = {
        rank: {n for first, last in own for n in range(first, last + 1)}
        for rank, own in parts.items()
    }
    calls = [
        TimedCall(
            rank=rank,
            group=group.ranks,
            op=OPS[call.op],
            num_bytes=call.num_bytes,
            seq=call.seq,
            start_s=call.start_s,
            end_s=call.end_s,
            blocked_s=call.end_s - call.wait_s if call.wait_s else None,
        )
        for rank, one in told.items()
        for call in one.noted.calls
        if call.end_s and call.step in wanted[rank] and (group := one.noted.groups[call.group])
    ]
    spans = {
        rank: tuple(
            (steps[first].start_s, steps[last].start_s + steps[last].took_s)
            for first, last in parts[rank]
        )
        for rank, steps in by_step.items()
    }
    waited = waits.since({rank: own[0][0] for rank, own in parts.items()})
    return ProfileWindow(
        calls=tuple(calls),
        steps=spans,
        each=each,
        same_clock=True,
        starved_s={rank: wait.starved_s for rank, wait in waited.items()},
        throttled_s={rank: wait.throttled_s for rank, wait in waited.items()},
        machines=dict(machines),
    )


def _parts(steps: Iterable[int], each: int) -> list[tuple[int, int]]:
    """Divide steps into parts of so many in a row: the first and the last step of each."""
    found: list[tuple[int, int]] = []
    first = before = -2
    for step in sorted(steps):
        if step != before + 1:
            first = step
        if step - first + 1 == each:
            found.append((first, step))
            first = step + 1
        before = step
    return found


def measurements_of(measured: Mapping[int, RankMeasured], ranks: Mapping[str, int]) -> Measurements:
    """Put the ranks' measurements together; of a link's two ends the slower one counts."""
    products: dict[int, float] = {}
    hops: dict[tuple[int, int], float] = {}
    for rank, message in measured.items():
        speed = message.speed
        if speed is None:
            continue
        products[rank] = 1e9 / (speed.matmul_flops * speed.cpu_share)
        for link in speed.links:
            hop = (min(rank, ranks[link.node]), max(rank, ranks[link.node]))
            hops[hop] = max(hops.get(hop, 0.0), 1e6 / link.bytes_per_s)
    return Measurements(products_s=products, hops=tuple(hops.items()))


def unmeasured(measured: Mapping[int, RankMeasured], ranks: Iterable[int]) -> dict[int, str]:
    """Say of each rank that came to a meeting, and has no measurement, why."""
    silent = {rank: "has not said what it measured" for rank in ranks if rank not in measured}
    failed = {rank: each.error for rank, each in measured.items() if each.speed is None}
    return silent | {
        rank: f"was not measured: {' '.join(error.split())[:MOST_WORDS] or 'it does not say why'}"
        for rank, error in failed.items()
    }

"""Workers that end for want of a device's memory, and start again when there is some. Pure.

The last resort of the law in `memory`: a guaranteed job spills, and each
opportunistic worker has no more than its minimum, or what lives across its steps. The worker whose
job came last ends then. It comes back when the guaranteed job is gone, or has let go of enough.
"""

import math
from collections.abc import Iterator

from msgspec.structs import replace

from paceline.features.sharing.policy.division import MemoryDivision
from paceline.features.sharing.policy.memory_facts import MemoryFacts, MemoryState, MemoryWorker
from paceline.features.sharing.wire import MemoryLimit


def evict(
    state: MemoryState, facts: MemoryFacts, division: MemoryDivision
) -> tuple[MemoryState, tuple[MemoryLimit, ...]]:
    """Have one worker end, or some come back.

    Args:
        state: of this look, but for what is of workers that are away.
        facts: of all workers.
        division: of those that are not away.
    """
    starved = _starved(division)
    if starved is None:
        return _bring_back(replace(state, starved_since_s=math.inf), facts, division)
    since_s = min(state.starved_since_s, facts.now_s)
    if facts.now_s - since_s < division.rules.starved_s:
        return replace(state, starved_since_s=since_s), ()
    last = max(division.others, key=lambda worker: (worker.since_s, worker.name))
    _, before_s = state.away.get(last.name, (0.0, division.rules.away_s / 2))
    stays_s = min(2 * before_s, division.rules.most_away_s)
    away = {**state.away, last.name: (facts.now_s, stays_s)}
    ended = MemoryLimit(
        worker=last.name,
        cause="no room",
        seen_bytes=int(division.shares[starved.name].lacks),
        by=starved.name,
        room_bytes=int(facts.room),
    )
    return replace(state, starved_since_s=math.inf, away=away), (ended,)


def _starved(division: MemoryDivision) -> MemoryWorker | None:
    """The guaranteed worker that spills though nobody has anything to spare."""
    if not division.facts.is_steady or not division.others or division.free >= division.least / 4:
        return None
    if any(division.spare(worker) > 0 for worker in division.others):
        return None
    shares = ((worker, division.shares[worker.name]) for worker in division.kept)
    return next((one for one, share in shares if share.lacks and not share.owed), None)


def _bring_back(
    state: MemoryState, facts: MemoryFacts, division: MemoryDivision
) -> tuple[MemoryState, tuple[MemoryLimit, ...]]:
    back = tuple(_back(state, facts, division))
    here = {worker.name for worker in facts.workers}
    away = {name: since for name, since in state.away.items() if name in here}
    return replace(state, away=away), back


def reserve(state: MemoryState, facts: MemoryFacts, division: MemoryDivision) -> None:
    """Have the others let go of what the next worker that comes back needs.

    Only without a guaranteed job, which gives nothing up for others.
    """
    if not division.kept:
        needs = [_needs(worker, division) for worker in _waiting(state, facts, division)]
        if needs:
            division.reserve(needs[0])


def _back(
    state: MemoryState, facts: MemoryFacts, division: MemoryDivision
) -> Iterator[MemoryLimit]:
    """Find workers for which there is room."""
    free = division.free + division.reserved
    for worker in _waiting(state, facts, division):
        needs = _needs(worker, division)
        if free >= needs - 1.0:  # limits are whole bytes
            free -= needs
            yield MemoryLimit(
                worker=worker.name,
                limit_bytes=int(needs),
                cause="return",
                seen_bytes=int(worker.floor),
                room_bytes=int(facts.room),
            )


def _waiting(
    state: MemoryState, facts: MemoryFacts, division: MemoryDivision
) -> list[MemoryWorker]:
    """Find workers that may come back, that of the job that came first first."""

    def stays(worker: MemoryWorker) -> bool:
        since_s, stays_s = state.away.get(worker.name, (-math.inf, 0.0))
        return bool(division.kept) and facts.now_s - since_s < stays_s

    waiting = (worker for worker in facts.workers if worker.is_away and not stays(worker))
    return sorted(waiting, key=lambda worker: (worker.since_s, worker.name))


def _needs(worker: MemoryWorker, division: MemoryDivision) -> float:
    return min(division.rules.slack * worker.floor, division.facts.room)

"""The device coordinator's law of memory: how a device's memory is divided among jobs.

A lone job has no limit. When a guaranteed job comes, opportunistic ones keep what lives across
their steps (or the minimum that their spec says) until it runs steadily. From there on

    1. what a guaranteed job spills is given to it first, and taken from those with most to spare;
    2. what nobody has is given to opportunistic jobs that spill;
    3. a limit that a job has not come near for a while falls to what the job used, and a bit more;
       each time that was wrong, the while doubles, so limits do not swing;
    4. opportunistic jobs of which one spills exchange memory in small steps, which stay if the sum
       of their speeds rises (`paceline.features.sharing.policy.climb`);
    5. a guaranteed job that spills, though all others have their least, has one of them end until
       there is room again (`paceline.features.sharing.policy.eviction`).

A limit rises only by what others have let go of: limits in effect count, not orders.

Pure: `decide_memory` is a function of the state and of what the workers say.

Reference: AntMan sections 3.2, 3.3 (OSDI 2020), which has no formulas.
"""

import math

from msgspec.structs import replace

from paceline.features.sharing.policy.climb import climb
from paceline.features.sharing.policy.division import MemoryDivision
from paceline.features.sharing.policy.eviction import evict, reserve
from paceline.features.sharing.policy.memory_facts import MemoryFacts, MemoryRules, MemoryState
from paceline.features.sharing.wire import MemoryLimit


def decide_memory(
    state: MemoryState, facts: MemoryFacts, rules: MemoryRules
) -> tuple[MemoryState, tuple[MemoryLimit, ...]]:
    """Take in what workers say; the new state, and the limits that change."""
    if not facts.room or len({worker.job for worker in facts.workers}) < 2:
        return _free(facts)
    here = replace(facts, workers=tuple(one for one in facts.workers if not one.is_away))
    division = MemoryDivision(state, here, rules)
    division.take_in(state.shares)
    division.admit()
    division.squeeze()
    division.serve_kept()
    reserve(state, facts, division)
    division.serve_others()
    division.lower()
    after, told = climb(state, division)
    after, moved = evict(
        replace(after, starved_since_s=state.starved_since_s, away=state.away), facts, division
    )
    return after, (*told, *moved)


def _free(facts: MemoryFacts) -> tuple[MemoryState, tuple[MemoryLimit, ...]]:
    """Lift all limits: nobody must be cared for."""
    limited = [
        worker
        for worker in facts.workers
        if facts.room and (worker.ordered < math.inf or worker.is_away)
    ]
    told = [
        MemoryLimit(worker=worker.name, cause="alone", room_bytes=int(facts.room))
        for worker in limited
    ]
    return MemoryState(), tuple(told)

"""The device coordinator's law of memory, against a simple model of jobs that need some."""

import math
import random
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.features.sharing.gate_page import _DECISION_BYTES
from paceline.features.sharing.policy.memory import decide_memory
from paceline.features.sharing.policy.memory_facts import (
    MemoryFacts,
    MemoryRules,
    MemoryState,
    MemoryWorker,
)
from paceline.features.sharing.wire import GateMode, MemoryCause, MemoryLimit, SharingDecision

RULES = MemoryRules()
GIB = float(2**30)
ROOM = 16 * GIB
LEAST = RULES.least_of(ROOM)
LOOK_S = 0.1


class Worker:
    """A job whose mini-batches need memory, and are slower by what of it is spilled."""

    def __init__(
        self,
        name: str,
        needs: Callable[[float], float] | float,
        *,
        kept: bool = False,
        stays: float = 0.5 * GIB,
        batch_s: float = 0.3,
        slowed: float = 1.0,
        minimum: float = 0.0,
        came_s: float = 0.0,
    ) -> None:
        self.name, self.kept, self.stays, self.batch_s = name, kept, stays, batch_s
        self.slowed, self.minimum, self.came_s = slowed, minimum, came_s
        self.away = False
        self.needs = needs if callable(needs) else lambda _now_s: needs
        self.ordered, self.limit, self.device, self.peak = 0.0, math.inf, 0.0, 0.0
        self.looks = self.batches = self.spilled = self.lacks = 0.0
        self._ends_s = math.inf

    def advance(self, now_s: float) -> None:
        """Let the mini-batch that is over be followed by another one."""
        if self.away:
            self._ends_s = now_s
            return
        self._ends_s = self._ends_s if self.looks else now_s - 1e-6
        while self._ends_s < now_s:
            needs = self.needs(now_s)
            self.limit = max(self.ordered or math.inf, self.device)
            self.device = min(self.stays, needs, self.limit)
            self.peak = min(needs, self.limit)
            self.lacks = needs - self.peak
            self.spilled += 2 * self.lacks  # some of it more than once
            self.looks, self.batches = self.looks + 1, self.batches + 1
            self._ends_s += self.batch_s * (1 + self.slowed * self.lacks / needs)

    def seen(self) -> MemoryWorker:
        return MemoryWorker(
            name=f"{self.name}/worker-0",
            job=self.name,
            is_kept=self.kept,
            since_s=self.came_s,
            is_away=self.away,
            minimum=self.minimum,
            ordered=self.ordered,
            looks=self.looks,
            limit=self.limit,
            device=self.device,
            peak=self.peak,
            spilled=self.spilled,
            batches=self.batches,
        )


class Device:
    """A device that workers come to and leave."""

    def __init__(self, *workers: Worker) -> None:
        self.workers = list(workers)
        self.now_s, self.state = 0.0, MemoryState()
        self.told: list[tuple[float, MemoryLimit]] = []
        self.steady_s = 0.0

    def run(self, seconds: float) -> None:
        """Let time pass, with looks of the device coordinator."""
        for _ in range(round(seconds / LOOK_S)):
            self.now_s += LOOK_S
            for worker in self.workers:
                worker.advance(self.now_s)
            self.look()

    def look(self) -> None:
        facts = MemoryFacts(
            now_s=self.now_s,
            room=ROOM,
            workers=tuple(worker.seen() for worker in self.workers),
            is_steady=self.now_s >= self.steady_s,
        )
        self.state, told = decide_memory(self.state, facts, RULES)
        for limit in told:
            worker = next(one for one in self.workers if limit.worker.startswith(f"{one.name}/"))
            worker.away = limit.cause == "no room"
            if not worker.away:
                worker.ordered = math.inf if limit.limit_bytes is None else float(limit.limit_bytes)
            self.told.append((self.now_s, limit))

    def come(self, worker: Worker, steady_after_s: float = 0.0) -> None:
        self.look_before_it_starts(worker)
        self.steady_s = self.now_s + steady_after_s

    def look_before_it_starts(self, worker: Worker) -> None:
        self.workers.append(worker)
        self.look()

    def causes(self, since_s: float = -1.0) -> list[MemoryCause]:
        return [limit.cause for at_s, limit in self.told if at_s > since_s]

    @property
    def held(self) -> float:
        here = [one for one in self.workers if not one.away]
        return sum(max(one.ordered, one.limit if one.looks else 0.0) for one in here)


def test_a_lone_job_has_no_limit() -> None:
    alone = Worker("b", 20 * GIB)
    device = Device(alone)
    device.run(1.0)
    assert alone.limit == math.inf and device.causes() == ["alone"]
    device.run(60.0)
    assert device.causes() == ["alone"]


def test_a_guaranteed_job_gets_what_it_needs_and_others_what_is_left() -> None:
    other, kept = Worker("b", 20 * GIB), Worker("a", 10 * GIB, kept=True)
    device = Device(other)
    device.run(5.0)
    device.come(kept, steady_after_s=10.0)
    assert other.ordered == other.stays, "squeezed"
    device.run(3.0)
    assert kept.limit >= ROOM - other.stays - LEAST and not kept.lacks
    device.run(40.0)
    assert kept.limit == pytest.approx(RULES.slack * 10 * GIB)
    assert other.limit == pytest.approx(ROOM - kept.limit)
    assert {"arrival", "unused", "room"} <= set(device.causes())
    settled_s = device.now_s
    device.run(300.0)
    assert not device.causes(settled_s), "nothing swings"
    device.workers.remove(kept)
    device.run(1.0)
    assert other.limit == math.inf
    assert device.causes(settled_s) == ["alone"]


def test_what_a_guaranteed_job_spills_is_taken_from_others() -> None:
    kept = Worker("a", lambda now_s: (4 if now_s < 60 else 9) * GIB, kept=True)
    others = [Worker("b", 20 * GIB), Worker("c", 3 * GIB, minimum=2 * GIB)]
    device = Device(kept, *others)
    device.run(59.0)
    assert kept.limit == pytest.approx(RULES.slack * 4 * GIB)
    device.run(1.5)
    assert kept.lacks
    device.run(1.5)
    assert not kept.lacks, "within few mini-batches"
    assert device.causes(59.5)[0] == "spill"
    spilling = next(told for at_s, told in device.told if at_s > 60)
    assert spilling.worker == "b/worker-0", "it has most to spare"
    assert spilling.by == "a/worker-0" and spilling.seen_bytes
    assert others[1].ordered >= others[1].minimum


def test_the_job_that_came_last_ends_if_all_have_their_least_and_comes_back() -> None:
    kept = Worker("a", lambda now_s: (4 if now_s < 60 else 12) * GIB, kept=True)
    first = Worker("b", 20 * GIB, minimum=3 * GIB, came_s=1.0)
    last = Worker("c", 20 * GIB, minimum=3 * GIB, came_s=2.0)
    device = Device(kept, first, last)
    device.run(60.0)
    assert "no room" not in device.causes()
    device.run(RULES.starved_s - 1.0)
    assert kept.lacks and not last.away, "it may pass"
    device.run(5.0)
    assert last.away and not first.away and first.ordered >= first.minimum
    ended = next(told for _, told in device.told if told.cause == "no room")
    assert ended.by == "a/worker-0" and ended.seen_bytes
    device.run(3.0)
    assert not kept.lacks
    device.run(300.0)
    assert last.away, "there is no room for it yet"
    assert device.held <= ROOM + 1
    device.workers.remove(kept)
    device.run(5.0)
    assert not last.away and device.held <= ROOM + 1
    assert device.causes().count("no room") == device.causes().count("return") == 1


def test_an_ended_job_comes_back_when_the_guaranteed_one_needs_less_and_stays_away_longer() -> None:
    kept = Worker("a", lambda now_s: (15.5 if now_s % 400 < 100 else 4) * GIB, kept=True)
    other = Worker("b", 20 * GIB, minimum=3 * GIB)
    device = Device(kept, other)
    device.run(3000.0)
    ended = [at_s for at_s, told in device.told if told.cause == "no room"]
    back = [at_s for at_s, told in device.told if told.cause == "return"]
    assert len(ended) >= 2 and len(back) >= 1
    assert all(later - at_s > RULES.away_s for at_s, later in zip(ended, back, strict=False))
    stayed = [later - at_s for at_s, later in zip(ended, back, strict=False)]
    assert stayed == sorted(stayed) or max(stayed) >= RULES.away_s * 4
    assert device.held <= ROOM + 1


def test_a_lone_job_that_was_ended_comes_back_at_once() -> None:
    kept = Worker("a", 15.5 * GIB, kept=True)
    other = Worker("b", 20 * GIB, minimum=3 * GIB)
    device = Device(kept, other)
    device.run(60.0)
    assert other.away
    device.workers.remove(kept)
    device.run(0.5)
    assert not other.away and other.ordered == math.inf


def test_a_job_that_needs_more_now_and_then_is_lowered_ever_later() -> None:
    kept = Worker("a", lambda now_s: (8 if now_s % 40 < 5 else 2) * GIB, kept=True)
    device = Device(kept, Worker("b", 20 * GIB))
    device.run(900.0)
    lowered = [
        at_s for at_s, told in device.told if told.worker[0] == "a" and told.cause == "unused"
    ]
    assert sum(at_s < 300 for at_s in lowered) >= 2
    assert not [at_s for at_s in lowered if at_s > 400]


def test_memory_goes_where_it_makes_jobs_faster() -> None:
    eager, easy = Worker("b", 20 * GIB, slowed=3.0), Worker("c", 20 * GIB, slowed=0.1)
    device = Device(eager, easy)
    device.run(5.0)
    shared = eager.limit
    assert shared == pytest.approx(ROOM / 2), "at first"
    device.run(600.0)
    assert eager.limit > shared + 3 * RULES.step * ROOM
    assert "climb" in device.causes()
    settled_s = device.now_s
    device.run(1200.0)
    assert device.held <= ROOM + 1
    assert len(device.causes(settled_s)) < 30, "what was wrong is rarely tried again"


def test_what_does_not_help_is_taken_back() -> None:
    one, two = Worker("b", 20 * GIB), Worker("c", 20 * GIB)
    device = Device(one, two)
    device.run(5.0)
    limits = one.limit, two.limit
    device.run(120.0)
    assert "worse" in device.causes()
    assert (one.limit, two.limit) == limits


def test_a_new_device_coordinator_goes_on_with_the_orders() -> None:
    device = Device(Worker("a", 6 * GIB, kept=True), Worker("b", 20 * GIB))
    device.run(60.0)
    device.state, before_s = MemoryState(), device.now_s
    device.steady_s = device.now_s + 3.0
    device.run(60.0)
    assert not device.causes(before_s)


def test_a_guaranteed_job_that_begins_again_has_others_squeezed() -> None:
    other = Worker("b", 20 * GIB)
    device = Device(Worker("a", 6 * GIB, kept=True), other)
    device.run(60.0)
    device.steady_s, before_s = device.now_s + 3.0, device.now_s
    device.run(1.0)
    assert other.limit == other.stays and device.causes(before_s)[0] == "squeeze"


def test_jobs_that_share_no_memory_have_no_limits() -> None:
    workers = tuple(Worker(name, GIB).seen() for name in "ab")
    facts = MemoryFacts(now_s=0.0, room=0.0, workers=workers)
    assert decide_memory(MemoryState(), facts, RULES) == (MemoryState(), ())


def test_a_decision_has_room_on_the_page() -> None:
    limit = MemoryLimit(
        worker=f"{'j' * 48}/worker-10",
        limit_bytes=2**60,
        cause="squeeze",
        seen_bytes=2**60,
        by=f"{'g' * 48}/worker-10",
        room_bytes=2**60,
    )
    decision = SharingDecision(
        cause="memory", mode=GateMode.GAP, duty=1 / 3, guaranteed="g" * 48, memory=limit
    )
    assert len(msgspec.json.encode(decision)) < _DECISION_BYTES - 4
    assert decision.allowed.endswith("1.07e+09 GiB of 1.07e+09 GiB of memory")
    assert "does not run steadily yet" in decision.why


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    others=st.lists(st.floats(0.1, 20.0), min_size=1, max_size=4),
    with_kept=st.booleans(),
)
def test_limits_never_add_up_to_more_than_there_is(
    seed: int, others: list[float], with_kept: bool
) -> None:
    drawn = random.Random(seed)

    def needs(most: float) -> Callable[[float], float]:
        periods = [drawn.uniform(0.1, most) * GIB for _ in range(5)]
        return lambda now_s: periods[int(now_s / 7.0) % 5]

    device = Device()
    workers = [
        Worker(name, needs(most), stays=0.05 * GIB, batch_s=drawn.uniform(0.05, 0.8))
        for name, most in zip("bcde", others)
    ]
    if with_kept:
        workers.insert(drawn.randrange(len(workers) + 1), Worker("a", needs(20), kept=True))
    for worker in workers:
        device.come(worker, steady_after_s=drawn.uniform(0.0, 4.0))
        device.run(drawn.uniform(2.0, 5.0))
    for _ in range(150):
        device.run(0.3)
        if len(device.workers) > 1:
            floors = sum(worker.device for worker in device.workers)
            assert device.held <= ROOM + floors
            for worker in device.workers:
                assert 0 < worker.ordered < math.inf
    taken = [told for _, told in device.told if told.worker[0] == "a"]
    assert {told.cause for told in taken} <= {"alone", "arrival", "spill", "unused"}

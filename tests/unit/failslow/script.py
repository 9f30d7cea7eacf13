"""A script whose ranks answer the watch as real ones do; what a test changes makes them slow."""

from collections.abc import Iterable

import msgspec

from paceline.base.numbering import Inc
from paceline.features.failslow.call_ring import CallGroup, NotedCall, NotedStep, RingContents
from paceline.features.failslow.events import (
    DiagnosedEvent,
    RestartAdvisedEvent,
)
from paceline.features.failslow.policy.planned import CurePlanned
from paceline.features.failslow.protocol.answers import ProcessorWait
from paceline.features.failslow.protocol.meeting import Rank, TellRank
from paceline.features.failslow.protocol.watch import AskAgent, FailSlowAct, FailSlowWatch
from paceline.features.failslow.wire import (
    AtMeeting,
    CallsTold,
    GoOn,
    Measure,
    MeetAt,
    NodeSpeed,
    RankMeasured,
)
from paceline.wire.events.base import Event
from paceline.wire.messages.agent import StepsTook
from paceline.wire.messages.base import Link
from paceline.wire.step_ledger import Mark

SIZE = 4
COMPUTE_S, TRANSFER_S = 0.2, 0.05
HEARTBEAT_S = 0.5


class Script:
    """Ranks that all-reduce once in a step; what a test changes makes them slow."""

    def __init__(self, *, meets: bool = True, size: int = SIZE) -> None:
        self.watch = FailSlowWatch(meets=meets, first_meeting=100)
        self.size, self.now_s, self.step = size, 0.0, 0
        self.compute_s = dict.fromkeys(range(size), COMPUTE_S)
        self.starved_s = dict.fromkeys(range(size), 0.001)
        self.throttled_s = dict.fromkeys(range(size), 0.0)
        """Of a step, in which a rank has no processor."""
        self.transfer_s = TRANSFER_S
        self.link_bytes_per_s = dict.fromkeys(((a, a + 1) for a in range(size - 1)), 1e9)
        self.flops = dict.fromkeys(range(size), 1e9)
        self.events: list[Event] = []
        self.meetings: list[MeetAt] = []
        self.answers: set[int] = set(range(size))
        """Ranks whose agents tell their calls."""
        self.steps: set[int] = set(range(size))
        """Ranks that make steps."""
        self.comes: set[int] = set(range(size))
        """Ranks that come to meetings."""
        self.saves_every = 0
        """Steps; 0: it never saves."""
        self.plans: list[CurePlanned] = []
        self.amount = 0
        """Numbers in a batch; 0: not known."""
        self.infers = False
        """Steps are taken from calls."""
        self.lateness = 0
        """Steps by which the next meeting is missed."""
        self.ahead = dict.fromkeys(range(size), 0)
        """By rank: how many steps it made before the others began."""
        self.stands: set[int] = set()
        self._history: list[tuple[int, float, dict[int, float]]] = []
        self._due: dict[int, MeetAt] = {}
        self._untold_s = 0.0
        self._untold: list[StepsTook] = []
        self.begin(1)

    def begin(self, first_inc: int) -> None:
        self.first_inc = first_inc
        self.watch.begin(
            {rank: Rank(f"worker-{rank}", self.inc(rank)) for rank in range(self.size)}, self.now_s
        )

    def inc(self, rank: int) -> Inc:
        return Inc(self.first_inc + rank)

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self._one_step()

    def _one_step(self) -> None:
        self.step += 1
        took_s = max(self.compute_s.values()) + self.transfer_s
        self._history.append((self.step, self.now_s, dict(self.compute_s)))
        self.now_s += took_s
        saves = bool(self.saves_every) and self.step % self.saves_every == 0
        marks = Mark.CHECKPOINT if saves else Mark.NONE
        self._untold.append(StepsTook(self.step, 1, took_s, marks, self.amount))
        self._untold_s += took_s
        if self._untold_s >= HEARTBEAT_S:
            self._tell()
        self._meet()
        self._do(self.watch.tick(self.now_s))

    def _tell(self) -> None:
        told, self._untold, self._untold_s = tuple(self._untold), [], 0.0
        for rank in sorted(self.steps):
            own = [msgspec.structs.replace(one, last=one.last + self.ahead[rank]) for one in told]
            wait = ProcessorWait(self.starved_s[rank], self.throttled_s[rank])
            self._do(self.watch.took(f"worker-{rank}", own, self.now_s, wait))

    def _meet(self) -> None:
        for rank in [*self._due]:
            meeting = self._due[rank]
            if self.step < meeting.step:
                continue
            del self._due[rank]
            late = self.step > meeting.step
            if rank in self.comes:
                if not late:
                    self.stands.add(rank)
                came = AtMeeting(self.inc(rank), meeting.meeting, self.step, late)
                self._do(self.watch.at_meeting(f"worker-{rank}", came, self.now_s))
        while self.stands:  # all wait, so the clock alone goes on
            self.now_s += 0.2
            self._tell()
            self._do(self.watch.tick(self.now_s))

    def _do(self, acts: Iterable[FailSlowAct]) -> None:
        for act in acts:
            match act:
                case AskAgent(node=node, message=question):
                    rank = int(node.rpartition("-")[2])
                    if rank in self.answers:
                        noted = self._noted(rank, question.from_step)
                        told = CallsTold(node, question.inc, question.asked, noted)
                        self._do(self.watch.told(told, self.now_s))
                case TellRank(inc=inc, message=MeetAt() as meeting):
                    self.meetings.append(meeting)
                    self._due[inc - self.first_inc] = meeting
                    if self.lateness:
                        self._due[inc - self.first_inc] = msgspec.structs.replace(
                            meeting, step=self.step - 1
                        )
                        self.lateness -= 1
                case TellRank(inc=inc, message=Measure() as order):
                    self.now_s += 0.1
                    rank = inc - self.first_inc
                    done = RankMeasured(
                        inc, order.meeting, self._speed(rank, order), self._error(rank)
                    )
                    self._do(self.watch.has_measured(f"worker-{rank}", done, self.now_s))
                case TellRank(inc=inc, message=GoOn()):
                    self.stands.discard(inc - self.first_inc)
                case Event():
                    self.events.append(act)
                case CurePlanned():
                    self.plans.append(act)
                case _:
                    raise AssertionError(act)

    def _noted(self, rank: int, first: int) -> RingContents:
        calls, steps = [], []
        for number, start_s, compute_s in self._history:
            step = number + self.ahead[rank]
            if step < first:
                continue
            end_s = start_s + max(compute_s.values()) + self.transfer_s
            steps.append(NotedStep(step, start_s, end_s - start_s))
            call = NotedCall(0, 0, 1 << 20, step, start_s + compute_s[rank], end_s, number)
            calls.append(call)
        group = CallGroup("0", tuple(range(self.size)), "gloo")
        return RingContents((group,), tuple(calls), tuple(steps), self.infers)

    def _error(self, rank: int) -> str:
        """Why a rank measures nothing; empty: it does."""
        return ""

    def _speed(self, rank: int, order: Measure) -> NodeSpeed | None:
        pairs = [pair for one in order.passes for pair in one if rank in pair]
        links = tuple(
            Link(order.names[sum(pair) - rank], self.link_bytes_per_s.get(pair, 1e9), 1e-4)
            for pair in pairs
        )
        flops = self.flops[rank]
        return NodeSpeed(threads=1, matmul_flops=flops, copy_bytes_per_s=1e9, links=links)

    def seen(self, kind: type[Event]) -> list[Event]:
        return [event for event in self.events if isinstance(event, kind)]

    def diagnosis(self) -> DiagnosedEvent:
        (found,) = self.seen(DiagnosedEvent)
        assert isinstance(found, DiagnosedEvent)
        return found


def advised(script: Script) -> RestartAdvisedEvent:
    (found,) = script.seen(RestartAdvisedEvent)
    assert isinstance(found, RestartAdvisedEvent)
    return found

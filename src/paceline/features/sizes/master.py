"""The search for the job's size in a master: shows the loop the job, has its changes carried out.

What the loop remembers is journalled whenever it orders something or hears what became of it. So
the next master goes on with the change, or with its trial.
"""

import logging
from collections.abc import Iterable
from functools import partial
from typing import assert_never

import msgspec

from paceline.base.errors import ConfigError
from paceline.features.sizes.events import (
    SizeChangedEvent,
    SizeJudgedEvent,
    SizeKeptEvent,
    SizePlannedEvent,
)
from paceline.features.sizes.log import VERDICT_WORDS, log_of, size_words
from paceline.features.sizes.loop import SizeLoop, SizingKept, Steered, by_another_clock
from paceline.features.sizes.memory import MemoryWatch
from paceline.features.sizes.orders import SizeOrders
from paceline.features.sizes.policy.plan import Hold
from paceline.features.sizes.policy.steering_state import (
    AnySteeringAct,
    ApplyPlan,
    ChangeUnderWay,
    JudgePlan,
    ResizeFailed,
    ResizeInEffect,
    SteeringRules,
    SteeringState,
    TakeBack,
)
from paceline.features.sizes.seen import SizeWindows
from paceline.features.sizes.spec import bounds_of
from paceline.master.asking import PolicyAnswer, PolicyRaised
from paceline.master.feature_port import Core, MasterPart
from paceline.wire.events.base import Event
from paceline.wire.messages.agent import NodeFacts

_AVOIDED = 10.0
"""Times between two changes for which one that did not work out is not tried again at first."""
_log = logging.getLogger(__name__)
_decode = msgspec.msgpack.Decoder(SizingKept).decode


class SizesPart(MasterPart):
    """The size of one job, where its spec names a resource policy; and the memory of its nodes."""

    def __init__(self, core: Core) -> None:
        self._core, self._spec = core, core.spec.resources
        self._memory = MemoryWatch(core)
        self._orders = SizeOrders(core)
        self._windows = SizeWindows(core, bounds_of(core.spec))
        self._loop: SizeLoop | None = None
        self._before: SteeringState | None = None
        """State that a former master left, until the loop has it."""
        self._was_late = False
        """True: an event has said that the policy was late; it is said once."""

    def apply(self, record: msgspec.Raw) -> None:
        """Go on where a former master has ended."""
        kept = _decode(record)
        self._before = by_another_clock(kept, self._core.steady(), self._core.wall())

    def kept(self) -> list[SizingKept]:
        state = self._loop.state if self._loop is not None else self._before
        return [self._kept(state)] if state is not None else []

    def _kept(self, state: SteeringState) -> SizingKept:
        return SizingKept(state=state, at_s=self._core.steady(), wall_s=self._core.wall())

    def begin(self) -> None:
        """Ask the policy that the spec names from now on; without it the job cannot go on."""
        if self._spec.policy == "none":
            return
        rules = SteeringRules(
            settle_s=self._spec.settle_s,
            between_s=self._spec.between_s,
            ask_s=self._spec.between_s,
            avoid_s=_AVOIDED * self._spec.between_s,
        )
        job, args = self._core.job, self._core.spec.resources_args
        try:
            self._loop = SizeLoop(self._spec.policy, args, rules, log_of(job), self._core.wall)
        except ConfigError as error:
            self._core.fail(str(error))
            return
        if self._before is not None:
            self._loop.state = self._before

    def at_once(self, event: Event) -> None:
        self._memory.note(event)
        self._windows.disturb()

    def reported(self, node: str, facts: NodeFacts, now_s: float) -> None:
        self._memory.heartbeat(node, facts, now_s)

    def tick(self, now_s: float) -> None:
        if not self._core.scene.is_ending():
            self._steer(now_s)
            self._memory.tick(now_s)

    def _steer(self, now_s: float) -> None:
        """Show the loop the job when a window is over; go on with a change."""
        loop = self._loop
        if loop is None:
            return
        ended = self._windows.tick(now_s)
        if loop.question.missed(now_s) is not None and not self._was_late:
            self._was_late = True
            self._fail(f"has not answered for {loop.question.late_s:g} s")
        if loop.state.change is not None:
            self._windows.disturb()
            self._carry_on(loop, loop.state.change, now_s)
        elif ended and not loop.question.is_open:
            seen = self._windows.observe(now_s, self._orders.size)
            if seen is not None:
                no, decide = loop.ask(self._memory.completed(seen), now_s)
                self._core.ask(decide, partial(self._answered, loop, no))

    def _answered(
        self, loop: SizeLoop, no: int, answer: PolicyAnswer[Steered] | PolicyRaised, _: float
    ) -> None:
        """The loop has taken in an observation."""
        if isinstance(answer, PolicyAnswer):
            before = loop.state
            self._do(loop, before, loop.answered(no, answer.value))
            return
        self._loop, self._before = None, loop.state
        _log.error("resource_policy_failed\n%s", answer.traceback)
        last = answer.traceback.strip().rpartition("\n")[2]
        self._fail(f"failed: {last}")

    def _fail(self, how: str) -> None:
        self._core.tell(SizeKeptEvent(cause=f"policy {self._spec.policy} {how}"))

    def _do(self, loop: SizeLoop, before: SteeringState, acts: Iterable[AnySteeringAct]) -> None:
        if (loop.state.change, loop.state.trial) != (before.change, before.trial):
            self._core.keep(self._kept(loop.state))
        now_s = self._core.steady()
        for act in acts:
            match act:
                case ApplyPlan(plan=plan, origin=origin):
                    self._core.tell(SizePlannedEvent(plan=plan.describe(origin)))
                    self._orders.begin(plan.target, plan.nodes, now_s)
                case TakeBack():
                    slower = 1.0 - act.after.per_s / act.before.per_s if act.before.per_s else 0.0
                    back = f"the last change is taken back, with which it was {slower:.0%} slower"
                    self._core.tell(SizePlannedEvent(plan=back))
                    self._orders.begin(act.target, act.nodes, now_s)
                case JudgePlan():
                    self._core.tell(
                        SizeJudgedEvent(
                            before_per_s=act.before.per_s,
                            after_per_s=act.after.per_s,
                            expected_per_s=act.plan.expected_per_s,
                            found=VERDICT_WORDS[act.verdict],
                        )
                    )
                case Hold():
                    pass  # in the log, for people who ask
                case _:
                    assert_never(act)

    # ------------------------------------------------------------------ a change

    def _carry_on(self, loop: SizeLoop, change: ChangeUnderWay, now_s: float) -> None:
        orders = self._orders
        if not orders.is_under_way:  # a former master has begun it
            target = change.origin if change.back else change.plan.target
            orders.begin(target, change.nodes_before if change.back else change.plan.nodes, now_s)
        why, before = orders.go_on(now_s), loop.state
        if why is not None:
            detail = orders.detail
            orders.give_up(change.origin, change.nodes_before)
            self._core.tell(SizeKeptEvent(cause=f"a change was given up: {detail}"))
            fact = ResizeFailed(now_s=now_s, size=orders.size, why=why, detail=detail)
            self._do(loop, before, loop.changed(fact))
        elif orders.is_done:
            size, took_s = orders.size, now_s - orders.begun_s
            orders.end()
            self._windows.changed(change.origin.kinds(size), took_s)
            self._core.tell(SizeChangedEvent(size=size_words(size), took_s=took_s))
            self._do(loop, before, loop.changed(ResizeInEffect(now_s=now_s, size=size)))

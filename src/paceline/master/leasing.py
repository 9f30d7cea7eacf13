"""Leasing of what workers train on: feeds that are opened, sizes of leases, plans."""

from typing import assert_never

from paceline.master.awaited_chief import LoopGate
from paceline.master.first_samples import FirstSamples
from paceline.master.jobnow import contribution
from paceline.master.parts import MasterParts
from paceline.master.training_core import TrainingCore
from paceline.protocol.records import Planned
from paceline.protocol.samples.grant_size import (
    Sizing,
    lease_samples,
    lease_steps,
    plan_lead,
    planned_speed,
)
from paceline.protocol.samples.plans import GlobalAction
from paceline.wire.events.state import FeedCompleteEvent, FeedOpenedEvent, PlanEvent
from paceline.wire.messages.feeds import Feed
from paceline.wire.messages.node import (
    AgreeOn,
    AskPlace,
    InNoStep,
    LeaseRequest,
    LoopLeft,
    OpenFeed,
)


class Leasing:
    """The feeds of one job: sizes its leases by what nodes measure."""

    def __init__(self, parts: MasterParts, core: TrainingCore) -> None:
        self._spec, self._roster = parts.spec, parts.members.roster
        self._monitor, self._outbox = parts.monitor, parts.outbox
        self._state, self._do = core.state, core.do
        self._first = FirstSamples()
        self._gate = LoopGate(parts, core, self._open)

    def asked(
        self, name: str, message: OpenFeed | LoopLeft | AskPlace | AgreeOn | InNoStep, now_s: float
    ) -> None:
        """Answer a script that opens a feed, asks how far the model is in it, or meets others."""
        match message:
            case OpenFeed():
                self._gate.came(name, message, now_s)
            case LoopLeft():
                self._state.loop_left(message)
            case AgreeOn():
                self._do(self._state.meet(message))
            case InNoStep():
                self._do(self._state.in_no_step(message.inc))
            case AskPlace():
                self._do(self._state.place_asked(message))
            case _:
                assert_never(message)

    def _open(self, name: str, message: OpenFeed) -> None:
        """Open a feed; again: only say so.

        A worker of another machine that reads other data than the job has trained on is left out.
        """
        feed, node = message.feed, self._roster.nodes[name]
        self._first.readers.add(name)
        if self._state.known_feed(feed) is None:
            number = self._state.number_of(feed)
            self._outbox.tell(FeedOpenedEvent(feed=number, purpose=feed.purpose))
        who = f"{name} on {node.agent.host}" if node.agent.host else name
        late = node.agent.is_remote and bool(self._state.ledger.done)
        spared = (late or node.by_itself) and self._spec.traits.lives == "singly"
        self._do(self._state.open_feed(message, who, spared=spared))

    def complete(self, feed: int) -> None:
        """Say that every sample of a feed is in the model, and in a cut on disk."""
        self._outbox.tell(FeedCompleteEvent(feed=feed))

    def lease(self, node: str, request: LeaseRequest, now_s: float) -> None:
        """Lease samples to a worker; a request that is not answered comes again."""
        begun = bool(self._state.grants or self._state.ledger.done)
        workers = self._roster.wanted_workers()
        if self._spec.traits.has_servers and not begun and self._first.await_any(workers, now_s):
            return
        if request.feed in self._state.ledger.feeds:
            # Each worker repeats its last one all the time, which is answered without a size.
            is_new = self._state.is_new(request)
            sizing = self._sizing(node, request) if is_new else Sizing(samples=0)
            self._do(self._state.request(request, sizing))

    def carry_out(self, action: GlobalAction) -> None:
        """Set a global action going.

        Raises:
            ConfigError: it cannot be; the message says why.
        """
        self._do(self._state.carry_out(action, plan_lead(self._monitor.step_s())))

    def planned(self, record: Planned) -> None:
        """Report a plan that is about to be journalled."""
        self._outbox.tell(PlanEvent(plan_no=record.plan.no, step=record.step))

    def _sizing(self, node: str, request: LeaseRequest) -> Sizing:
        """Return how much this worker should get now."""
        feed = self._state.ledger.feeds[request.feed]
        share, own = self._state.share_of(request.inc), self._monitor.speed(node)
        workers = self._state.training_workers()
        speeds = map(self._monitor.speed, workers.values())
        num_workers = max(1, len(workers))
        together = self._spec.mode == "bsp" or feed.purpose != "train"
        batch_size = feed.batch_size if together else contribution(feed, self._roster)
        return Sizing(
            samples=lease_samples(
                speed=planned_speed(own, share, speeds),
                batch_size=batch_size,
                remaining=self._state.ledger.num_to_do(request.feed, request.ends),
                num_workers=num_workers,
                shard_size=self._spec.data.shard_size,
                held=self._held(request, feed),
                share=share,
            ),
            steps=lease_steps(self._monitor.step_s(), complete=self._is_complete()),
            speed=own,
            batch_size=0 if together else batch_size,
        )

    def _is_complete(self) -> bool:
        present = set(self._state.training_workers().values())
        return all(node.name in present for node in self._roster.wanted_workers())

    def _held(self, request: LeaseRequest, feed: Feed) -> int:
        """Samples that the worker still has, if it asks before it runs out (asynchronous)."""
        if request.starving or (self._spec.mode == "bsp" and feed.purpose == "train"):
            return 0
        return self._state.ledger.lease_size(request.inc, feed.feed)

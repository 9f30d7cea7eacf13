"""The edge around `MasterState`: takes in messages, carries out what it orders.

Handling a message never waits. What needs more than the message has rooms of its own: sizes of
leases and plans (`leasing`), cuts (`cut_keeping`), evaluations, epochs; what one kind of holder
alone needs is in `paceline.master.holding`.
"""

from collections.abc import Callable, Iterable
from typing import assert_never

from paceline.base.numbering import Inc
from paceline.master.cut_keeping import CutKeeping
from paceline.master.epochs import Epochs
from paceline.master.evaluations import Evaluations
from paceline.master.holding.edge import RESEND_S, HolderEdge
from paceline.master.leasing import Leasing
from paceline.master.parts import MasterParts
from paceline.master.training_core import TrainingCore
from paceline.protocol.acts import (
    Fail,
    FeedDone,
    Instruction,
    Moved,
    NotMoved,
    Seal,
    Send,
    WorkerRefused,
    WriteAhead,
)
from paceline.protocol.holding.group.profiling import Profiling
from paceline.protocol.records import Planned, Records
from paceline.protocol.training import MasterState
from paceline.wire.events.nodes import FencedEvent
from paceline.wire.messages.group import Profiled
from paceline.wire.messages.node import (
    AgreeOn,
    AskCut,
    AskPlace,
    Copied,
    CutDelayed,
    EvaluateResult,
    GiveBack,
    InNoStep,
    LeaseRequest,
    LoopLeft,
    NodeUp,
    OpenFeed,
)

TrainingTakes = (
    LeaseRequest
    | OpenFeed
    | LoopLeft
    | AskPlace
    | AgreeOn
    | InNoStep
    | GiveBack
    | AskCut
    | Copied
    | CutDelayed
    | Profiled
    | EvaluateResult
)
"""Messages of processes about the training of any job; the others are for its `HolderEdge`."""

MANY = 100
EACH_S = 0.005
"""Number of unanswered messages from which on each adds so many seconds until all of them are sent
again."""

ForNodes = Moved | NotMoved | WorkerRefused
"""Findings of the training that concern a node's life."""


class Training:
    """Feeds messages to the state machine and carries out its instructions.

    Args:
        parts: of the master.
        edge: what is done for the job's kind of holder alone.
        fail: ends the job for a reason.
        for_nodes: takes what concerns a node's life.
    """

    def __init__(
        self,
        parts: MasterParts,
        edge: HolderEdge,
        fail: Callable[[str], None],
        for_nodes: Callable[[ForNodes], None],
    ) -> None:
        self.edge, edge.training = edge, self
        spec = parts.spec
        self.state = MasterState(
            edge.holder, mode=spec.mode, samples=spec.samples, whole_steps=spec.deterministic
        )
        self.members, self.monitor, self.outbox = parts.members, parts.monitor, parts.outbox
        self.fail, self._for_nodes = fail, for_nodes
        core = TrainingCore(self.state, edge, self.do, fail)
        self.leasing = Leasing(parts, core)
        self.cuts = CutKeeping(parts, core)
        self._evaluations = Evaluations(parts, core)
        self.epochs = Epochs(parts, core, self.cuts, self._evaluations)
        self.profiling = Profiling()
        self._last_resend_s = 0.0
        #: Since when many messages are unanswered, or when they were sent again; None: few are.
        self._many_since_s: float | None = None

    def resume(self, *, ended: bool = False) -> None:
        """Go on after the journal was applied; ``ended``: the job had come to an end, in order."""
        self.epochs.resume(ended=ended)
        self._evaluations.resume()
        self.do(self.state.resume())
        # A fence may have been under way, or a life have ended, when the master died.
        # One without a lease counts, too: in SSP its clock would hold the others back.
        for inc in sorted(self.known() - self.state.gone):
            node = self.members.roster.node_of(inc)
            if node is None or not node.life.is_alive:
                self.outbox.tell(FencedEvent(inc=inc, before_restart=True))
                self.worker_lost(inc)

    def known(self) -> set[Inc]:
        """Workers of which the journal tells that they take part."""
        return set(self.state.grants) | set(self.state.ledger.leases) | self.edge.known()

    # ------------------------------------------------------------------ facts

    def handle(self, node: str, message: NodeUp, now_s: float) -> None:
        """A message of a live process of ``node``."""
        if self.edge.handle(node, message, now_s) or not isinstance(message, TrainingTakes):
            return
        match message:
            case LeaseRequest():
                self.leasing.lease(node, message, now_s)
            case OpenFeed() | LoopLeft() | AskPlace() | AgreeOn() | InNoStep():
                self.leasing.asked(node, message, now_s)
            case GiveBack():
                self.do(self.state.given_back(message))
            case AskCut():
                self.do(self.state.cut_wanted(message))
            case Copied():
                self.do(self.state.copy_said(message))
                self.cuts.note_copied(now_s)
            case CutDelayed():
                self.cuts.delayed(message.cut_no, message.reason, now_s)
            case Profiled():
                self.profiling.heard(message)
                self.monitor.profiled(node, message)
            case EvaluateResult():
                self._evaluations.handle(message)
            case _:
                assert_never(message)

    def worker_up(self, inc: Inc) -> None:
        """A worker's process is there."""
        node = self.members.roster.node_of(inc)
        self.do(self.state.worker_up(inc, node.name if node is not None else ""))

    def worker_lost(self, inc: Inc) -> None:
        """Have nothing of this worker count from here on."""
        node = self.members.roster.node_of(inc)
        returned = node is not None and node.life.returned
        self.profiling.lost(inc)
        self.do(self.state.worker_lost(inc, returned=returned))

    def stop(self) -> None:
        """Ask all workers to leave; those who hold the state keep it before."""
        self.edge.before_stop()
        self.do(self.state.stop())

    def tick(self, now_s: float, *, cuts: bool, asked: bool = False) -> None:
        """Repeat what is unanswered; ask for a cut when one is due (``cuts``) or ``asked`` for."""
        if now_s - self._last_resend_s >= RESEND_S:
            self._last_resend_s = now_s
            self.do(self._unanswered(now_s))
        self.edge.watch(now_s)
        self.cuts.tick(now_s, wanted=cuts, asked=asked)

    def _unanswered(self, now_s: float) -> list[Instruction]:
        """Return what to say again, and what else is due.

        Messages are seldom lost. Where many are unanswered, nodes have had no time to answer: all
        of a group that forms. Their answers must not wait until all has been said once more.
        """
        again = [*self.state.resend(), *self.profiling.resend()]
        num = sum(isinstance(one, Send) for one in again)
        since_s = self._many_since_s
        if num > MANY and (since_s is None or now_s - since_s < num * EACH_S):
            self._many_since_s = now_s if since_s is None else since_s
            return [one for one in again if not isinstance(one, Send)]
        self._many_since_s = now_s if num > MANY else None
        return again

    def close(self) -> None:
        """The job has ended: nobody will read what was evaluated."""
        self._evaluations.delete()

    # ------------------------------------------------------------------ instructions

    def do(self, instructions: Iterable[Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case Send(inc=inc, message=message):
                    self.outbox.to_process(inc, message)
                case WriteAhead(record=record):
                    self._before_record(record)
                    self.outbox.record(record)
                case Seal():
                    self.cuts.seal(instruction)
                case Moved() | NotMoved() | WorkerRefused():
                    self._for_nodes(instruction)
                case FeedDone(feed=feed):
                    self.leasing.complete(feed)
                case Fail(reason=reason):
                    self.fail(reason)
                case _:
                    assert_never(instruction)

    def _before_record(self, record: Records) -> None:
        self.edge.before_record(record)
        self.cuts.before_record(record)
        if isinstance(record, Planned):
            self.leasing.planned(record)

"""The exchange thread's half of a worker's side of the parameter servers.

What arrives from servers and master goes into the pure `WorkerState`, and what that decides is
carried out: messages and tensors are left to be sent. Gradients are kept until the leader has them
in the order. All is done with the lock of the `Exchange` held.
"""

import logging
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import assert_never

from paceline.protocol.holding.servers.agreeing import refusal
from paceline.protocol.holding.servers.worker import WorkerState
from paceline.protocol.holding.servers.worker_acts import (
    ConnectServer,
    DropWork,
    EndProcess,
    Instruction,
    OfferAgain,
    PullDone,
    Remapped,
    ToMaster,
    ToServer,
    Withdraw,
)
from paceline.runtime.holding.servers.exports import Exports
from paceline.runtime.holding.servers.initial import InitialWriter
from paceline.runtime.holding.servers.partition import Contribution, Partition
from paceline.runtime.holding.servers.pulling import Pulling, Pushed
from paceline.runtime.holding.servers.works import Works
from paceline.runtime.process.asking import Asking, CutAsker
from paceline.runtime.process.exchange import Exchange
from paceline.runtime.process.process import Fenced, Process, Stopped
from paceline.runtime.script.evaluation_results import EvaluationResults
from paceline.wire.messages.data import (
    Data,
    Differs,
    Exported,
    Held,
    MapIs,
    Ordered,
    Part,
    Pull,
    Pulled,
    Refused,
)
from paceline.wire.messages.node import (
    AgreedOn,
    CutMade,
    Evaluated,
    FeedOpened,
    GivenBack,
    Grant,
    LoopLeft,
    NewEpoch,
    NewMap,
    NewRate,
    NodeDown,
    NodeUp,
    PlaceIs,
    Recall,
    Stop,
    WriteInitial,
)
from paceline.wire.schema import ModelSchema

RESEND_S = 0.5
"""What is unanswered this long is asked again."""
PATIENCE, MAX_PATIENCE_S = 4.0, 5.0
"""A server's answer is late after so many round trips, and after so many seconds at most."""

_log = logging.getLogger(__name__)


class WorkerEdge:
    """`Owner` of a worker's exchange; `ServerTrainer` adds what the training thread calls."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.spec = process.spec
        self.state = WorkerState(process.inc, mode=self.spec.mode, samples=self.spec.samples)
        self.leases = self.state.leases
        self._works = Works(self.spec, process.num_workers, self.leases)
        self.schema = ModelSchema()
        self.partition: Partition | None = None
        self._initial = InitialWriter(process)
        #: By seq, until the leader has it in the order.
        self._contributions: dict[int, Contribution] = {}
        self._pushed = Pushed()
        self._pulling: Pulling | None = None
        #: The servers of the map before this one.
        self._connected: tuple[int, ...] = ()
        #: BSP: the step whose dense parameters the script has.
        self._loaded_step = 0
        self._exports = Exports(self.state, self._until, self._send)
        self._results = EvaluationResults(self.leases, self._until, process)
        self._asking = Asking(process)
        self._asker = CutAsker(process.inc)
        #: Of the last pull.
        self._round_trip_s = 0.0
        self._insist_at_s = 0.0
        #: The loop that the script has left, while it has come to no other one.
        self._out_of: LoopLeft | None = None
        #: A stop was heeded: what is under way is brought to its end.
        self._leaving = False
        self._exchange = Exchange(process, self)
        self._changed = self._exchange.changed
        process.at_end = self._exchange.halt

    def _until(
        self, done: Callable[[], bool], ask: Callable[[], Iterable[NodeUp]] = lambda: ()
    ) -> None:
        """Wait until something is there; ``ask`` is repeated until then, for the master."""
        ask_at_s = 0.0
        with self._changed:
            while not done():
                self._exchange.check()
                now_s = time.monotonic()
                if now_s >= ask_at_s and not self.process.link.num_queued_bytes:
                    self._tell_master(ask())
                    ask_at_s = now_s + RESEND_S
                self._wait()
                # With work in hand this is a look-up of its step, which is to be finished.
                if self.process.stop_requested and not (self._leaving or self._works.in_hand):
                    raise Stopped

    def _wait(self) -> None:
        """Let the exchange bring news; the training thread waits here and nowhere else."""
        self._exchange.wait()

    # ------------------------------------------------------------------ events

    def tick(self) -> None:
        """Send everything that is unanswered once more.

        Servers are left in peace while answers are likely on their way over a slow wire.
        """
        now_s = time.monotonic()
        if self.state.pulling is not None:
            self._exchange.unheard.look(now_s)
        again: Iterable[Instruction] = self.state.resend()
        if now_s < self._insist_at_s:
            again = [one for one in again if isinstance(one, ToMaster)]
        else:
            self._insist_at_s = now_s + min(PATIENCE * self._round_trip_s, MAX_PATIENCE_S)
        self._tell_master(self._asker.resend())
        if self._out_of is not None:
            self._tell_master([self._out_of])
        self._do(again)

    def from_server(self, server: int, message: Data, frames: Sequence[memoryview]) -> None:
        match message:
            case Pulled():
                pulling = self._pulling
                if pulling is not None and message.ticket == pulling.ticket:
                    pulling.answers[server] = (message, frames)
                self._do(self.state.pulled(message))
            case Held():
                self._do(self.state.held(message))
            case Ordered():
                self._do(self.state.ordered(message))
            case Refused():
                self._do(self.state.refused(message))
            case MapIs():
                self._do(self.state.map_is(message))
            case Exported():
                self._exports.take(server, message, frames, self.schema)
            case Differs() if message.epoch_no == self.state.epoch_no:
                raise refusal(message)
            case _:
                pass  # workers send it, or it is of an epoch that is over
        for seq in [seq for seq in self._contributions if seq not in self.state.offers]:
            del self._contributions[seq]

    def from_master(self, message: NodeDown) -> None:  # noqa: C901
        match message:
            case Grant():
                self._do(self.state.grant(message))
            case Recall():
                self._tell_master(self.leases.recalled(message))
            case NewRate():
                self._do(self.state.new_rate(message))
            case GivenBack():
                self.leases.given_back(message)
            case NewEpoch():
                self._do(self.state.new_epoch(message))
                self._asker.went_back(self.state.epoch_no)
            case NewMap():
                self._do(self.state.new_map(message))
            case FeedOpened():
                self.leases.feed_opened(message)
            case AgreedOn() | PlaceIs():
                self._asking.answered(message)
            case CutMade():
                self._asker.made(message)
            case Evaluated():
                self._results.answered(message)
            case WriteInitial():
                if (said := self._initial.write(self.schema)) is not None:
                    self.process.link.send(said)
            case Stop():
                self.process.stop_requested = self.process.told_to_stop = True
            case _:
                _log.warning("a worker has no use for %s", type(message).__name__)

    def _do(self, instructions: Iterable[Instruction]) -> None:  # noqa: C901
        for instruction in instructions:
            match instruction:
                case ToMaster(message):
                    self._tell_master([message])
                case ToServer(server, message):
                    self._send(server, message)
                case PullDone(ticket):
                    self._pull_done(ticket)
                case DropWork():
                    self._drop()
                case ConnectServer(server):
                    self._exchange.data.connect(server.inc, server.address)
                case Remapped(pull):
                    self._remap(pull)
                case OfferAgain(seq, part):
                    self._offer_again(seq, part)
                case Withdraw():
                    self._withdraw()
                case EndProcess():
                    raise Fenced
                case _:
                    assert_never(instruction)

    def _tell_master(self, messages: Iterable[NodeUp]) -> None:
        for message in messages:
            self._exchange.leave(partial(self.process.link.send, message))

    def _send(self, server: int, message: Data) -> None:
        """Leave it to be sent, with the tensors that belong to it."""
        servers: Sequence[int] = self.state.servers
        data, pulling = self._exchange.data, self._pulling
        if isinstance(message, Part):
            kept = self._contributions[message.seq]
            self._exchange.leave(lambda: data.send(server, kept.header(), kept.frames(server)))
        elif isinstance(message, Pull) and pulling and pulling.ticket == message.ticket:
            ids, index = pulling.split, servers.index(server)
            self._exchange.leave(lambda: data.send(server, message, ids.ids_of(index)))
        else:
            self._exchange.leave(lambda: data.send(server, message))

    def _pull_done(self, ticket: int) -> None:
        """All servers have answered: put it together, which may take a while."""
        pulling, partition, servers = self._pulling, self.partition, self.state.owners
        if pulling is None or partition is None or pulling.ticket != ticket:
            return
        pulling.done_s = time.perf_counter()
        self._round_trip_s = pulling.done_s - pulling.start_s

        def assemble() -> None:
            result = pulling.assemble(partition, servers)
            with self._changed:
                pulling.result = result
                self._changed.notify_all()

        self._exchange.leave(assemble)

    def _withdraw(self) -> None:
        """A step was decided without the work in hand for it."""
        self._works.withdraw()
        pulling = self._pulling
        if (
            pulling is not None
            and pulling.work is not None
            and pulling.work.step <= self.leases.step
        ):
            self._pulling = None

    def _drop(self) -> None:
        """A new epoch: connect to its servers, forget what was under way in the old one."""
        assert self.state.map is not None
        self.partition = Partition(self.schema, self.state.map)
        self._pulling, self._loaded_step = None, 0
        self._contributions.clear()
        self._pushed.clear()
        self._works.clear()
        self._connect(keep=())
        self._connected = tuple(self.state.servers)

    def _connect(self, keep: Collection[int]) -> None:
        assert self.state.map is not None
        self._exchange.unheard.connected(self.state.map.servers)
        data = self._exchange.data
        for gone in set(data.keys()) - set(self.state.servers) - set(keep):
            data.disconnect(gone)
        for server in self.state.map.servers:
            data.connect(server.inc, server.address)

    def _remap(self, pull: Pull | None) -> None:
        """The map has changed while the work goes on.

        A server that has left may still read what it was sent: that is let go at the next change.
        """
        assert self.state.map is not None
        self.partition = Partition(self.schema, self.state.map)
        self._connect(keep=self._connected)
        self._connected = tuple(self.state.servers)
        if pull is None:
            return
        if self._pulling is not None and not self._pulling.done_s:
            self._pulling.ask_again(self.partition.split(self._pulling.split.ids), pull.ticket)
        for server in self.state.owners:
            self._send(server, pull)

    def _offer_again(self, seq: int, part: Part) -> None:
        assert self.partition is not None
        kept = self._contributions.pop(seq)
        self._pushed.renumber(seq, part.seq)
        self._contributions[part.seq] = kept.renumbered(part, self.partition)
        for server in self.state.servers:
            self._send(server, part)

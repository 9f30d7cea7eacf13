"""A worker's side of the parameter servers: the `TrainingPort` port over the data plane.

Two threads work here, one at a time: each holds the lock of the `Exchange`. The training thread
makes the public calls. It only leaves errands; where the loop has nothing to compute, it waits for
the exchange's thread to bring news. What that thread hears from servers and master goes into the
pure `WorkerState`, and what that decides is carried out: messages and tensors are left to be sent.
Gradients are kept until the leader has them in the order.
"""

import logging
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import assert_never

from paceline.base.errors import ConfigError
from paceline.base.numbering import START, StepNo
from paceline.base.samples import SampleSet, num_samples
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
from paceline.runtime.data.growth import Growth
from paceline.runtime.data.work import Array, StepTimes, Work
from paceline.runtime.holding.servers.exports import Exports
from paceline.runtime.holding.servers.initial import InitialWriter
from paceline.runtime.holding.servers.links import measure_links
from paceline.runtime.holding.servers.partition import Contribution, Partition
from paceline.runtime.holding.servers.port import Ids, Initial, PulledModel
from paceline.runtime.holding.servers.pulling import Pulling, Pushed
from paceline.runtime.holding.servers.works import Works
from paceline.runtime.process.asking import Asking, CutAsker
from paceline.runtime.process.exchange import Exchange
from paceline.runtime.process.process import Fenced, Process
from paceline.runtime.script.evaluation_results import EvaluationResults
from paceline.runtime.server.store import Gradients
from paceline.wire.messages.base import Link
from paceline.wire.messages.data import (
    BARE,
    NEWEST,
    Also,
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
    Script,
    ScriptPart,
)
from paceline.wire.messages.feeds import Feed, ScriptPlace, SourceLine, Underway
from paceline.wire.messages.node import (
    AgreedOn,
    CutMade,
    Evaluated,
    FeedOpened,
    GivenBack,
    GivenUp,
    Grant,
    LoopLeft,
    NewEpoch,
    NewMap,
    NewRate,
    NodeDown,
    NodeUp,
    OpenFeed,
    PlaceIs,
    Prepared,
    Recall,
    Stop,
    WriteInitial,
)
from paceline.wire.schema import ModelSchema

RESEND_S = 0.5
"""Seconds after which an unanswered message is sent again."""
STARVES_S = 0.05
"""Seconds after which an idle worker asks for samples that others left of the undecided step,
though it holds work of later steps."""
PATIENCE, MAX_PATIENCE_S = 4.0, 5.0
"""A server's answer is late after so many round trips, and after so many seconds at most."""
NOTICE_S, SETTLE_S = 20.0, 600.0
"""Seconds of a wait for a step's rest: after the first a worker says so, after both it goes on."""
SCRIPT_S = 1.0
"""Seconds for which a joining worker waits for the script's state of the step before its own."""

_log = logging.getLogger(__name__)

ServedTakes = Pulled | Held | Ordered | Refused | MapIs | Exported | Differs
"""Answers of servers."""
WorkerTakes = (
    Grant
    | Recall
    | NewRate
    | GivenBack
    | NewEpoch
    | NewMap
    | FeedOpened
    | AgreedOn
    | PlaceIs
    | CutMade
    | Evaluated
    | WriteInitial
    | Stop
    | GivenUp
)
"""Messages of the master to a worker on servers."""


class ServerTrainer:
    """`TrainingPort` on parameter servers; see `paceline.runtime.holding.servers.port`."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.spec = process.spec
        self.rank = process.rank
        self.keeps_script, self.is_alone = True, False
        self.sums_workers = process.spec.mode == "bsp"
        self.overlap = self.takes_growth = not self.sums_workers
        self.state = WorkerState(process.inc, mode=self.spec.mode, samples=self.spec.samples)
        self.leases = self.state.leases
        self._works = Works(self.spec, process.num_workers, self.leases)
        self.schema = ModelSchema()
        self.partition: Partition | None = None
        self._initial = InitialWriter(process)
        #: Contributions in the model that the work in hand is computed on.
        self._seen: dict[Work, int] = {}
        #: Contributions by seq, until the leader has each in the order.
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
        #: Duration of the last pull.
        self._round_trip_s = 0.0
        self._insist_at_s = 0.0
        #: Since when there has been no work for us.
        self._idle_since_s: float | None = None
        #: The loop that the script has left, while it has come to no other one.
        self._out_of: LoopLeft | None = None
        #: A stop was heeded: what is under way is brought to its end.
        self._leaving = False
        self._exchange = Exchange(process, self)
        self._changed = self._exchange.changed
        process.at_end = self._exchange.halt

    @property
    def num_workers(self) -> int:
        return self.process.num_workers

    # ------------------------------------------------------------------ set-up

    def prepare(self, schema: ModelSchema, initial: Initial) -> None:
        """Prepare the model; the first worker writes the initial values as cut 0."""
        self.schema, self._initial.values = schema, initial
        # Start no earlier: what the master says of the job makes sense to a worker with a model.
        self._exchange.start()
        message = Prepared(inc=self.process.inc, schema=schema)
        self._until(lambda: self.partition is not None, ask=lambda: [message])
        self._initial.values = None

    def open_feed(self, feed: Feed, growth: Growth | None = None) -> Feed:
        if feed.per_worker:
            raise ConfigError(
                "job.batches: batch_per_worker with parameter servers, whose global batch stays "
                "whichever workers train; give batch_size, or run the job with --strategy allreduce"
            )
        message = OpenFeed(inc=self.process.inc, feed=feed, since=self.leases.since)
        with self._changed:
            self._out_of = None if feed.purpose == "train" else self._out_of
        self._until(lambda: self.leases.opened(feed) is not None, ask=lambda: [message])
        opened = self.leases.opened(feed) or feed
        if growth is not None:
            self._works.follow(opened.feed, growth)
        return opened

    def begun(self) -> tuple[Feed, ...]:
        return self._asking.begun(self._until).begun

    def underway(self, place: ScriptPlace) -> Underway | None:
        """See `Strategy.underway`."""
        return self._asking.underway(self._until, place)

    def meet(self, place: ScriptPlace, value: bytes, *, all_workers: bool) -> Sequence[bytes]:
        """See `Strategy.meet`."""
        with self._changed:
            self._out_of = None
        return self._asking.meet(self._until, place, value, all_workers=all_workers)

    def measure_links(self) -> tuple[Link, ...]:
        """Measure what the links to the servers carry."""
        with self._changed:
            servers = self.state.map.servers if self.state.map is not None else ()
        return measure_links(self.process, servers)

    # ------------------------------------------------------------------ work

    def next_work(self, feed: int) -> Work | None:
        works = self._works
        with self._changed:
            while True:
                self._check_stop()
                if not self._may_take(feed):
                    self._wait()
                    continue
                seq, work = self.state.next_seq, works.take(feed)
                if work is not None:
                    self._idle_since_s = None
                    self.process.step = work.step or seq
                    self._tell_master(works.order_ahead(feed))
                    return work
                if feed in self.leases.ended and self.partition is not None:
                    if feed in self.leases.left_feeds:
                        self.state.offers.clear()
                        self._contributions.clear()
                    return None
                self._starve(feed)
                self._exchange.wait(STARVES_S)

    def _may_take(self, feed: int) -> bool:
        """Asynchronous: not while too many contributions are unready."""
        works = self._works
        return works.synchronous(feed) or not works.trains(feed) or self.state.may_offer()

    def source_line(self, line: int) -> SourceLine:
        with self._changed:
            return self.leases.source_line(line)

    def _starve(self, feed: int) -> None:
        """Have a request open, and (BSP) a pull that waits for the step: there is no work now."""
        state, leases = self.state, self.leases
        if self.partition is None:
            return
        if self.spec.samples == "exactly-once" or not state.offers:
            if self._lacks_work(feed):
                self._tell_master(self._works.want(feed))
        elif state.pulling is None:
            self._do(state.start_pull(dense=False))
        pull = state.pulling
        if self._works.synchronous(feed):
            # In place of one for work of a later step, too: what the next one lacks may be ours.
            # What a step consists of is asked for before the first; later it is waited for.
            ahead = int(leases.slice is not None)
            if pull is None or pull.min_step > leases.step + ahead:
                self._pulling = None
                self._do(state.start_pull(dense=False, ahead=ahead))
        elif pull is None:
            self._do(state.rest())

    def _lacks_work(self, feed: int) -> bool:
        """Whether the master may have work for us: of the undecided step, if that takes long."""
        now_s = time.monotonic()
        self._idle_since_s = self._idle_since_s or now_s
        has_later = self.spec.samples == "exactly-once" and self.leases.reaches(feed, 1)
        return not has_later or now_s - self._idle_since_s >= STARVES_S

    def upcoming(self, feed: int, limit: int) -> tuple[Work, ...]:
        with self._changed:
            return self._works.upcoming(feed, limit)

    def give_back(self, work: Work) -> None:
        """Give a work back: its samples are next again."""
        with self._changed:
            self._works.give_back(work)

    def left_loop(self, feed: int) -> None:
        with self._changed:
            if not (self.process.stop_requested or self._leaving or feed in self.leases.ended):
                step = StepNo(self.process.step if self._works.synchronous(feed) else START)
                since = max(0, self.leases.since)
                self._out_of = LoopLeft(inc=self.process.inc, feed=feed, step=step, since=since)
                self._tell_master([self._out_of])

    # ------------------------------------------------------------------ cuts

    def checkpoint(self) -> None:
        """Ask for a cut; of steps, up to the one that is in hand."""
        with self._changed:
            step = self.process.step if self.spec.mode == "bsp" else 0
            self._tell_master(self._asker.ask(self.state.epoch_no, step))

    # ------------------------------------------------------------------ pulls

    def start_pull(self, work: Work, ids: Mapping[int, Ids]) -> None:
        """Start the pull for a work; work of a later step (BSP) waits at the servers for that step.

        Nothing is asked for work that was withdrawn while its batch was made: its step may be one
        that no worker reaches without what we must compute first.
        """
        with self._changed:
            if self.partition is None or not self._works.is_known(work):
                return
            ahead = max(0, work.step - 1 - self.leases.step) if work.step else 0
            if self.spec.mode == "ssp" and work not in self._works.in_hand:
                ahead = 1
            self._pulling = Pulling(work, self.partition.split(ids), self.state.ticket + 1)
            dense = not work.step or work.step != self._loaded_step
            also = Also(work.feed)
            self._do(self.state.start_pull(tuple(ids), also, dense=dense, ahead=ahead))

    def wait_pull(self, work: Work) -> PulledModel | None:
        with self._changed:
            while True:
                pulling = self._pulling
                if pulling is None or pulling.work is not work or self.partition is None:
                    # In hand, if it was staged ahead, given back on a recall and granted again,
                    # while `_starve` had put another pull in the place of its own.
                    self.give_back(work)
                    return None
                if pulling.result is not None:
                    self._pulling, self._loaded_step = None, work.step
                    answers = [answer for answer, _ in pulling.answers.values()]
                    self._seen = {work: min(answer.applied for answer in answers)}
                    self._do(self.state.watch())
                    if work.step:
                        return replace(pulling.result, whole=num_samples(self.leases.slice or ()))
                    return replace(pulling.result, counted=self._pushed.before(work.feed, answers))
                self._wait()
                self._check_stop()

    @property
    def restores(self) -> int:
        return self.state.epoch_no

    def script(self, position: int | None) -> tuple[int, bytes] | None:
        """Hand in the script's state; the others do so before what they compute next."""
        wanted = NEWEST if position is None else position
        give_up_at_s = time.monotonic() + (SCRIPT_S if self.num_workers > 1 else 0.0)
        while True:
            found = self._pull_now({}, Also(script=wanted), dense=False).script
            late = time.monotonic() >= give_up_at_s
            if position is None or late or (found.position if found else 0) >= position:
                return None if found is None else (found.position, found.state)
            with self._changed:
                self._wait()

    def count(self, feed: int) -> int:
        return self._pull_now({}, Also(counting=feed), dense=False).counted or 0

    def keep_script(self, position: int, state: bytes) -> None:
        with self._changed:
            script = Script(position, state)
            message = ScriptPart(epoch_no=self.state.epoch_no, inc=self.process.inc, script=script)
            for server in self.state.servers:
                self._send(server, message)

    def rows(self, table: int, ids: Ids) -> Array:
        return self._pull_now({table: ids}, dense=False).rows[table]

    def dense(self) -> Mapping[str, Array]:
        self._loaded_step = 0
        return self._pull_now({}, dense=True).dense

    def _pull_now(self, ids: Mapping[int, Ids], also: Also = BARE, *, dense: bool) -> PulledModel:
        """Pull the state as it is; a pull that is under way is asked for again after it."""
        with self._changed:
            suspended = self._pulling
            pulling = None
            while pulling is None or pulling.result is None:
                self._until(lambda: self.partition is not None)
                assert self.partition is not None
                split = self.partition.split(ids)
                self._pulling = pulling = Pulling(None, split, self.state.ticket + 1)
                self._do(self.state.start_pull(tuple(ids), also, dense=dense))
                self._until(lambda: self._pulling is not pulling or pulling.result is not None)  # noqa: B023
            self._pulling = None
            if suspended is not None and suspended.work is not None:
                if suspended.done_s:
                    self._pulling = suspended
                else:
                    self.start_pull(suspended.work, suspended.split.ids)
            return pulling.result

    def export(self, table: int) -> tuple[Ids, Array]:
        with self._changed:
            return self._exports.read(table, self.schema.tables[table].dim)

    # ------------------------------------------------------------------ contributions

    def push(self, works: Sequence[Work], gradients: Gradients) -> None:
        """Push a contribution; what a step was decided without is no longer sent."""
        with self._changed:
            self._exchange.check()
            valid = [work for work in works if work in self._works.in_hand]
            whole = len(valid) == len(works) and self.leases.passed <= self.leases.step
            if not whole or self.partition is None:
                for work in valid:
                    self.give_back(work)
                return
            for work in works:
                self._works.in_hand.remove(work)
            spans = SampleSet(span for work in works for span in work.spans).spans()
            seen = self._seen.pop(works[-1], -1)
            part = self.state.offer(
                spans if len(works) > 1 else works[0].spans, gradients.rates, seen
            )
            self._pushed.add(part)
            self._contributions[part.seq] = Contribution(part, gradients, self.partition)
            for server in self.state.servers:
                self._send(server, part)

    def drain(self, within_s: float = float("inf")) -> bool:
        return self._drained(within_s, self._hurry)

    def _drained(self, within_s: float, ask: Callable[[], Iterable[NodeUp]]) -> bool:
        until_s = time.monotonic() + within_s
        self._until(lambda: not self.state.offers or time.monotonic() > until_s, ask=ask)
        return not self.state.offers

    def _let_go(self) -> Iterable[NodeUp]:
        """Let the step go: while the script is in the body of its loop, it computes no part."""
        return [*self._hurry(), *(self.leases.leave_step() if self.state.offers else ())]

    def settle(self) -> None:
        if self._drained(NOTICE_S, self._let_go):
            return
        spans = [span for offer in self.state.offers.values() for span in offer.part.spans]
        node = self.process.node
        ours = f"paceline: {num_samples(spans)} samples that {node} has computed are"
        sys.stderr.write(
            f"{ours} part of a step that other workers have not completed. They are starting, or "
            f"have left their loop; {node} waits up to {SETTLE_S:.0f} s for them. Leave the loop "
            "after the same step in all workers\n"
        )
        if not self._drained(SETTLE_S, self._let_go):
            sys.stderr.write(f"{ours} not in the model: no worker has completed their step\n")

    def _hurry(self) -> Iterable[NodeUp]:
        if self.state.pulling is None and self.spec.samples != "exactly-once":
            self._do(self.state.start_pull(dense=False))
        return ()

    # ------------------------------------------------------------------ evaluation, records

    def evaluate_put(self, work: Work, values: Mapping[str, Array]) -> None:
        with self._changed:
            if work not in self._works.in_hand:
                return
            self._works.in_hand.remove(work)
            epoch_no = self.state.epoch_no
        self._results.put(work, values, epoch_no)

    def evaluate_get(self, feed: int) -> Mapping[str, Array] | None:
        return self._results.get(feed)

    def record(self, times: StepTimes) -> None:
        self._works.took(times.bpt_s)
        self.process.record(times)

    # ------------------------------------------------------------------ leaving

    def _check_stop(self) -> None:
        """Leave if told to; but not from a step that is not decided, and may need more of us.

        A worker that left earlier has given its share back: without ours, what we computed is lost.
        """
        self._exchange.check()
        undecided = self.spec.mode == "bsp" and self.state.offers
        if self.process.stop_requested and not self._leaving and not undecided:
            self._leaving = True
            self.drain()
            self.process.break_off()

    # ------------------------------------------------------------------ waiting

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
                # With work in hand this is a look-up of its step, which must be finished.
                if self.process.stop_requested and not (self._leaving or self._works.in_hand):
                    self.process.break_off()

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
        if not isinstance(message, ServedTakes):
            return  # workers send it
        match message:
            case Pulled():
                self._take_pulled(server, message, frames)
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
            case Differs():
                self._refused_by(message)
            case _:
                assert_never(message)
        for seq in [seq for seq in self._contributions if seq not in self.state.offers]:
            del self._contributions[seq]

    def _refused_by(self, message: Differs) -> None:
        if message.epoch_no == self.state.epoch_no:
            raise refusal(message)

    def _take_pulled(self, server: int, message: Pulled, frames: Sequence[memoryview]) -> None:
        pulling = self._pulling
        if pulling is not None and message.ticket == pulling.ticket:
            pulling.answers[server] = (message, frames)
        self._do(self.state.pulled(message))

    def from_master(self, message: NodeDown) -> None:  # noqa: C901, PLR0912
        if not isinstance(message, WorkerTakes):
            _log.warning("a worker has no use for %s", type(message).__name__)
            return
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
                self._write_initial()
            case Stop():
                self.process.stop_requested = self.process.told_to_stop = True
            case GivenUp():
                raise Fenced
            case _:
                assert_never(message)

    def _write_initial(self) -> None:
        if (said := self._initial.write(self.schema)) is not None:
            self.process.link.send(said)

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
        """Put the answers together, which all servers have sent; this may take a while."""
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

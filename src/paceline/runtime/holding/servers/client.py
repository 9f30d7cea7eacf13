"""A worker's side of the parameter servers: the `Trainer` port over the data plane.

The pure `WorkerState` decides. Two threads use it, one at a time: the training thread by the calls
of the port, and that of the `Exchange` with what has arrived from servers and agent. The training
thread only leaves errands; where the loop has nothing to compute, it waits for the other to bring
news. Gradients are kept until the leader has them in the order.
"""

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import assert_never

from paceline.base.errors import ConfigError
from paceline.base.samples import SampleSet, Span, num_samples
from paceline.cuts.reach import evaluated
from paceline.protocol.holding.servers.agreeing import in_words
from paceline.protocol.holding.servers.worker import (
    DropWork,
    Instruction,
    Leave,
    Meet,
    OfferAgain,
    PullDone,
    Remapped,
    ToMaster,
    ToServer,
    Withdraw,
    WorkerState,
)
from paceline.runtime.checkpoint.cut_requests import CutAsker
from paceline.runtime.data.growth import Growth
from paceline.runtime.data.work import Array, StepTimes, Work
from paceline.runtime.evaluation_results import Results
from paceline.runtime.exchange import Exchange
from paceline.runtime.holding.servers.exports import Exports
from paceline.runtime.holding.servers.initial import write_initial
from paceline.runtime.holding.servers.partition import Contribution, Partition, Split
from paceline.runtime.holding.servers.port import Ids, Pulled
from paceline.runtime.holding.servers.pulling import Pulling, Pushed
from paceline.runtime.process import Fenced, Process, Stopped
from paceline.runtime.server.scripts import NEWEST
from paceline.runtime.server.store import Gradients
from paceline.wire.messages.checks import Checked
from paceline.wire.messages.data import (
    BARE,
    Also,
    Data,
    Differs,
    Exported,
    Held,
    MapIs,
    Ordered,
    Part,
    Pull,
    Refused,
    Script,
    ScriptState,
)
from paceline.wire.messages.data import Pulled as PulledMessage
from paceline.wire.messages.feeds import Feed, SourceLine
from paceline.wire.messages.node import (
    CutMade,
    Evaluated,
    FeedOpened,
    GivenBack,
    Grant,
    InitialWritten,
    NewEpoch,
    NewMap,
    NewRate,
    NodeDown,
    OpenFeed,
    Prepared,
    Recall,
    Stop,
    WriteInitial,
)
from paceline.wire.schema import ModelSchema

RESEND_S = 0.5
"""What is unanswered this long is asked again."""
FEW_STEPS = 2
"""With work for no more steps than this a worker is about to run out."""
AHEAD_S = 3.5
"""More is asked for while there is work for so long: a dead master is back sooner."""
MAX_STEPS_AHEAD = 512
PATIENCE, MAX_PATIENCE_S = 4.0, 5.0
"""A server's answer is late after so many round trips, and after so many seconds at most."""
ASK_AGAIN_STEPS = 16
SCRIPT_S = 1.0
"""Who joins waits so long for the script's state of the step before, and then makes up for it."""

Initial = Callable[[], tuple[Mapping[str, Array], Mapping[int, Array]]]

_log = logging.getLogger(__name__)


class ServerTrainer:
    """`Trainer` on parameter servers; see `paceline.runtime.holding.servers.port`."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.spec = process.spec
        self.rank, self.num_workers = process.rank, process.num_workers
        self.keeps_script = True
        self.sums_workers = process.spec.mode == "bsp"
        self.overlap = self.takes_growth = not self.sums_workers
        self.state = WorkerState(process.inc, mode=self.spec.mode, samples=self.spec.samples)
        self.schema = ModelSchema()
        self.partition: Partition | None = None
        self._initial: Initial | None = None
        #: By seq, until the leader has it in the order.
        self._contributions: dict[int, Contribution] = {}
        self._pushed = Pushed()
        #: Work that was shown as upcoming, by its samples: `next_work` returns the same object.
        self._shown: dict[tuple[Span, ...], Work] = {}
        #: Taken and not pushed; a new epoch withdraws it.
        self._in_hand: list[Work] = []
        self._pulling: Pulling | None = None
        #: The servers of the map before this one.
        self._connected: tuple[int, ...] = ()
        #: Contributions in the model that the work in hand is computed on.
        self._seen: dict[Work, int] = {}
        #: BSP: the step whose dense parameters the script has.
        self._loaded_step = 0
        self._exports = Exports(self.state, self._until, self._send)
        self._results = Results(
            self.state, self._until, lambda epoch_no: evaluated(process.job, epoch_no)
        )
        self._asker = CutAsker(process.inc)
        self._growth: dict[int, Growth] = {}
        #: Mean seconds of a step of late; 0.0: not measured.
        self._step_s = 0.0
        #: Of the last pull.
        self._round_trip_s = 0.0
        self._insist_at_s = 0.0
        #: A stop was heeded: what is under way is brought to its end.
        self._leaving = False
        self._exchange = Exchange(process, self)
        self._changed = self._exchange.changed
        process.at_end = self._exchange.halt

    # ------------------------------------------------------------------ set-up

    def prepare(self, schema: ModelSchema, initial: Initial) -> None:
        """See `Trainer.prepare`; the first worker writes the initial values as cut 0."""
        self.schema, self._initial = schema, initial
        # Not before: what the master says of the job makes sense to a worker with a model.
        self._exchange.start()
        message = Prepared(inc=self.process.inc, schema=schema)
        self._until(lambda: self.partition is not None, ask=lambda: [ToMaster(message)])
        self._initial = None

    def _write_initial(self, message: WriteInitial) -> None:
        values = self._initial() if self._initial is not None else None
        answer = write_initial(self.process, self.schema, values)
        self._initial = None if isinstance(answer, InitialWritten) else self._initial
        self.process.link.send(answer)

    def open_feed(self, feed: Feed, growth: Growth | None = None) -> Feed:
        """See `Trainer.open_feed`."""
        if feed.per_worker:
            raise ConfigError(
                "job.batches: batch_per_worker with parameter servers, whose global batch stays "
                "whoever trains; give batch_size, or run the job with --strategy allreduce"
            )
        if growth is not None:
            self._growth[feed.feed] = growth
        message = OpenFeed(inc=self.process.inc, feed=feed)
        self._until(lambda: feed.feed in self.state.feeds, ask=lambda: [ToMaster(message)])
        return self.state.feeds[feed.feed]

    # ------------------------------------------------------------------ work

    def next_work(self, feed: int) -> Work | None:
        """See `Trainer.next_work`."""
        with self._changed:
            while True:
                self._check_stop()
                if not self._may_take(feed):
                    self._wait()
                    continue
                work = self._take(feed)
                if work is not None:
                    self._order_ahead(feed)
                    return work
                if feed in self.state.ended and self.partition is not None:
                    return None
                self._starve(feed)
                self._wait()

    def _may_take(self, feed: int) -> bool:
        """Asynchronous: not while too many contributions are unready."""
        return self._synchronous(feed) or not self._trains(feed) or self.state.may_offer()

    def _order_ahead(self, feed: int) -> None:
        """Ask for the next lease early: a master that dies is back before the present one ends."""
        state, growth = self.state, self._growth.get(feed)
        ahead = FEW_STEPS
        if self._step_s and growth is None:
            ahead += min(int(AHEAD_S / self._step_s), MAX_STEPS_AHEAD)
        if self._synchronous(feed):
            # An open one may have come too early for the master; it knows steps by their number.
            asked = state.request.step if state.request else state.step + 1 - ASK_AGAIN_STEPS
            if state.step + 1 - asked >= ASK_AGAIN_STEPS and not state.reaches(feed, ahead):
                self._do(self._want(feed))
            return
        left, size = state.leased(feed), self._batch(feed)
        if left < FEW_STEPS * size:
            self._do(self._want(feed, starving=True))
        elif state.request is None and left < ahead * size:
            self._do(self._want(feed, starving=False))

    def _want(self, feed: int, *, starving: bool | None = None) -> list[Instruction]:
        growth = self._growth.get(feed)
        if growth is None:
            return self.state.want(feed, starving=starving)
        ends, finished = growth.look()
        return self.state.want(feed, ends, finished=finished, starving=starving)

    def source_line(self, line: int) -> SourceLine:
        """See `Trainer.source_line`."""
        with self._changed:
            return self.state.source_line(line)

    def _starve(self, feed: int) -> None:
        """Nothing to take now: have a request open, and (BSP) a pull that waits for the step."""
        state = self.state
        if self.partition is None:
            return
        if self.spec.samples == "exactly-once" or not state.offers:
            self._do(self._want(feed))
        elif state.pulling is None:
            self._do(state.start_pull(dense=False))
        pull = state.pulling
        if self._synchronous(feed):
            # In place of one for work of a later step, too: what the next one lacks may be ours.
            # What a step consists of is asked for before the first; later it is waited for.
            ahead = int(state.slice is not None)
            if pull is None or pull.min_step > state.step + ahead:
                self._pulling = None
                self._do(state.start_pull(dense=False, ahead=ahead))
        elif pull is None:
            self._do(state.rest())

    def _trains(self, feed: int) -> bool:
        return self.state.feeds[feed].purpose == "train"

    def _synchronous(self, feed: int) -> bool:
        return self.spec.mode == "bsp" and self._trains(feed)

    def _batch(self, feed: int) -> int:
        definition = self.state.feeds[feed]
        if not self._trains(feed) or self._synchronous(feed):
            return definition.batch_size
        return max(1, definition.batch_size // self.num_workers)

    def _work(self, feed: int, spans: tuple[Span, ...], step: int) -> Work:
        known = self._shown.pop(spans, None)
        if known is not None and known.step == step:
            return known
        return Work(feed, spans, sum(len(span) for span in spans), step)

    def _take(self, feed: int) -> Work | None:
        state, synchronous = self.state, self._synchronous(feed)
        spans = state.take(feed, state.next_size(feed) if synchronous else self._batch(feed))
        if not spans:
            return None
        self.process.step = state.step + 1 if synchronous else state.next_seq
        work = self._work(feed, spans, state.step + 1 if synchronous else 0)
        if synchronous:
            work.ends_contribution, work.ends_step = state.is_whole(feed), not state.has_work(feed)
        self._in_hand.append(work)
        return work

    def upcoming(self, feed: int, limit: int) -> tuple[Work, ...]:
        """See `Trainer.upcoming`."""
        state, size = self.state, self._batch(feed)
        with self._changed:
            found: list[tuple[int, tuple[Span, ...]]] = []
            if self._synchronous(feed):
                # With nothing left for step + 1 its share is in hand: next comes that of step + 2.
                for after in range(limit + 1):
                    batches = state.step_batches(feed, after, limit - len(found))
                    found += [(state.step + 1 + after, spans) for spans in batches]
            else:
                found = [(0, spans) for spans in state.batches(feed, size, limit)]
            works = [self._work(feed, spans, step) for step, spans in found if spans]
            self._shown = {work.spans: work for work in works}
        return tuple(works)

    def give_back(self, work: Work) -> None:
        """See `Trainer.give_back`: its samples are next again."""
        with self._changed:
            if work in self._in_hand:
                self._in_hand.remove(work)
                self.state.put_back(work.feed, work.spans)

    # ------------------------------------------------------------------ cuts

    def checkpoint(self) -> None:
        """See `Trainer.checkpoint`: of steps, up to the one that is in hand."""
        with self._changed:
            step = self.process.step if self.spec.mode == "bsp" else 0
            self._do(map(ToMaster, self._asker.ask(self.state.epoch_no, step)))

    # ------------------------------------------------------------------ pulls

    def start_pull(self, work: Work, ids: Mapping[int, Ids]) -> None:
        """See `Trainer.start_pull`; work of a later step (BSP) waits at the servers for it.

        Nothing is asked for work that was withdrawn while its batch was made: its step may be one
        that nobody gets to without what we are to compute first.
        """
        with self._changed:
            known = work in self._in_hand or self._shown.get(work.spans) is work
            if self.partition is None or not known:
                return
            ahead = max(0, work.step - 1 - self.state.step) if work.step else 0
            if self.spec.mode == "ssp" and work not in self._in_hand:
                ahead = 1
            self._pulling = Pulling(work, Split(self.partition, ids), self.state.ticket + 1)
            dense = not work.step or work.step != self._loaded_step
            also = Also(work.feed)
            self._do(self.state.start_pull(tuple(ids), also, dense=dense, ahead=ahead))

    def wait_pull(self, work: Work) -> Pulled | None:
        """See `Trainer.wait_pull`."""
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
                        return replace(pulling.result, whole=num_samples(self.state.slice or ()))
                    return replace(pulling.result, counted=self._pushed.before(work.feed, answers))
                self._wait()
                self._check_stop()

    @property
    def restores(self) -> int:
        """See `Trainer.restores`."""
        return self.state.epoch_no

    def script(self, position: int | None) -> tuple[int, bytes] | None:
        """See `Trainer.script`; the others hand in theirs before what they compute next."""
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
        """See `Trainer.count`."""
        return self._pull_now({}, Also(counting=feed), dense=False).counted or 0

    def keep_script(self, position: int, state: bytes) -> None:
        """See `Trainer.keep_script`."""
        with self._changed:
            script = Script(position, state)
            message = ScriptState(epoch_no=self.state.epoch_no, inc=self.process.inc, script=script)
            for server in self.state.servers:
                self._send(server, message)

    def rows(self, table: int, ids: Ids) -> Array:
        """See `Trainer.rows`."""
        return self._pull_now({table: ids}, dense=False).rows[table]

    def dense(self) -> Mapping[str, Array]:
        """See `Trainer.dense`."""
        self._loaded_step = 0
        return self._pull_now({}, dense=True).dense

    def _pull_now(self, ids: Mapping[int, Ids], also: Also = BARE, *, dense: bool) -> Pulled:
        """A pull of the state as it is; one that is under way is asked for again after it."""
        with self._changed:
            suspended = self._pulling
            pulling = None
            while pulling is None or pulling.result is None:
                self._until(lambda: self.partition is not None)
                assert self.partition is not None
                split = Split(self.partition, ids)
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
        """See `Trainer.export`."""
        with self._changed:
            return self._exports.read(table, self.schema.tables[table].dim)

    # ------------------------------------------------------------------ contributions

    def push(self, works: Sequence[Work], gradients: Gradients) -> None:
        """See `Trainer.push`; what a step was decided without is not sent any more."""
        with self._changed:
            self._exchange.check()
            valid = [work for work in works if work in self._in_hand]
            whole = len(valid) == len(works) and self.state.passed <= self.state.step
            if not whole or self.partition is None:
                for work in valid:
                    self.give_back(work)
                return
            for work in works:
                self._in_hand.remove(work)
            spans = SampleSet(span for work in works for span in work.spans).spans()
            seen = self._seen.pop(works[-1], -1)
            part = self.state.offer(
                spans if len(works) > 1 else works[0].spans, gradients.rates, seen
            )
            self._pushed.add(part)
            self._contributions[part.seq] = Contribution(part, gradients, self.partition)
            for server in self.state.servers:
                self._send(server, part)

    def drain(self, within_s: float = float("inf")) -> None:
        """See `Trainer.drain`."""
        until_s = time.monotonic() + within_s
        self._until(lambda: not self.state.offers or time.monotonic() > until_s, ask=self._hurry)

    def _hurry(self) -> list[Instruction]:
        hurries = self.state.pulling is None and self.spec.samples != "exactly-once"
        return self.state.start_pull(dense=False) if hurries else []

    # ------------------------------------------------------------------ evaluation, records

    def evaluate_put(self, work: Work, values: Mapping[str, Array]) -> None:
        """See `Trainer.evaluate_put`."""
        with self._changed:
            if work not in self._in_hand:
                return
            self._in_hand.remove(work)
            epoch_no = self.state.epoch_no
        self._results.put(work, values, epoch_no)

    def evaluate_get(self, feed: int) -> Mapping[str, Array] | None:
        """See `Trainer.evaluate_get`."""
        return self._results.get(feed)

    def checked(self, message: Checked) -> None:
        """See `Trainer.checked`."""
        self._exchange.tell(message)

    def record(self, times: StepTimes) -> None:
        """See `Trainer.record`."""
        self._step_s += (times.bpt_s - self._step_s) * (0.1 if self._step_s else 1.0)
        self.process.record(times)

    # ------------------------------------------------------------------ events

    def _check_stop(self) -> None:
        """Leave if told to; but not from a step that is not decided, and may need more of us.

        Whoever left before it gave its share back, and what we computed would be lost without.
        """
        self._exchange.check()
        undecided = self.spec.mode == "bsp" and self.state.offers
        if self.process.stop_requested and not self._leaving and not undecided:
            self._leaving = True
            self.drain()
            raise Stopped

    def _until(
        self, done: Callable[[], bool], ask: Callable[[], Iterable[Instruction]] = lambda: ()
    ) -> None:
        """Wait until something is there; ``ask`` is repeated until then."""
        ask_at_s = 0.0
        with self._changed:
            while not done():
                self._exchange.check()
                now_s = time.monotonic()
                if now_s >= ask_at_s and not self.process.link.num_queued_bytes:
                    self._do(ask())
                    ask_at_s = now_s + RESEND_S
                self._wait()
                # With work in hand this is a look-up of its step, which is to be finished.
                if self.process.stop_requested and not (self._leaving or self._in_hand):
                    raise Stopped

    def _wait(self) -> None:
        """Let the exchange bring news; the training thread waits here and nowhere else."""
        self._exchange.wait()

    def tick(self) -> None:
        """See `Owner.tick`: everything that is unanswered, once more.

        Servers are left in peace while answers are likely on their way over a slow wire.
        """
        now_s = time.monotonic()
        again: Iterable[Instruction] = self.state.resend()
        if now_s < self._insist_at_s:
            again = [one for one in again if isinstance(one, ToMaster)]
        else:
            self._insist_at_s = now_s + min(PATIENCE * self._round_trip_s, MAX_PATIENCE_S)
        self._do([*map(ToMaster, self._asker.resend()), *again])

    def from_server(self, server: int, message: Data, frames: Sequence[memoryview]) -> None:
        """See `Owner.from_server`."""
        match message:
            case PulledMessage():
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
                raise ConfigError(in_words(message))
            case _:
                pass
        for seq in [seq for seq in self._contributions if seq not in self.state.offers]:
            del self._contributions[seq]

    def from_master(self, message: NodeDown) -> None:  # noqa: C901
        """See `Owner.from_master`."""
        match message:
            case Grant():
                self._do(self.state.grant(message))
            case Recall():
                self._do(self.state.recalled(message))
            case NewRate():
                self._do(self.state.new_rate(message))
            case GivenBack():
                self._do(self.state.given_back(message))
            case NewEpoch():
                self._do(self.state.new_epoch(message))
                self._asker.went_back(self.state.epoch_no)
            case NewMap():
                self._do(self.state.new_map(message))
            case FeedOpened():
                self._do(self.state.feed_opened(message))
            case CutMade():
                self._asker.made(message)
            case Evaluated():
                self._results.answered(message)
            case WriteInitial():
                self._write_initial(message)
            case Stop():
                self.process.stop_requested = self.process.told_to_stop = True
            case _:
                _log.warning("a worker has no use for %s", type(message).__name__)

    def _do(self, instructions: Iterable[Instruction]) -> None:  # noqa: C901
        for instruction in instructions:
            match instruction:
                case ToMaster(message):
                    self._exchange.leave(partial(self.process.link.send, message))
                case ToServer(server, message):
                    self._send(server, message)
                case PullDone(ticket):
                    self._pull_done(ticket)
                case DropWork():
                    self._drop()
                case Meet(server):
                    self._exchange.data.connect(server.inc, server.address)
                case Remapped(pull):
                    self._remap(pull)
                case OfferAgain(seq, part):
                    self._offer_again(seq, part)
                case Withdraw():
                    self._withdraw()
                case Leave():
                    raise Fenced
                case _:
                    assert_never(instruction)

    def _send(self, server: int, message: Data) -> None:
        """Leave it to be sent, with the tensors that belong to it."""
        data, servers, pulling = self._exchange.data, self.state.servers, self._pulling
        if isinstance(message, Part):
            kept, index = self._contributions[message.seq], servers.index(server)
            self._exchange.leave(lambda: data.send(server, kept.header(), kept.frames(index)))
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
        self._in_hand = [work for work in self._in_hand if not 0 < work.step <= self.state.step]
        pulling = self._pulling
        if (
            pulling is not None
            and pulling.work is not None
            and pulling.work.step <= self.state.step
        ):
            self._pulling = None

    def _drop(self) -> None:
        """A new epoch: connect to its servers, forget what was under way in the old one."""
        assert self.state.map is not None
        self.partition = Partition(self.schema, self.state.map)
        self._pulling, self._loaded_step = None, 0
        self._contributions.clear()
        self._pushed.clear()
        self._shown.clear()
        self._in_hand.clear()
        self._connect(keep=())
        self._connected = tuple(self.state.servers)

    def _connect(self, keep: Collection[int]) -> None:
        assert self.state.map is not None
        data = self._exchange.data
        for gone in set(data.keys()) - set(self.state.servers) - set(keep):
            data.disconnect(gone)
        for server in self.state.map.servers:
            data.connect(server.inc, server.address)

    def _remap(self, pull: Pull | None) -> None:
        """The map has changed while the work goes on.

        Who has left it may still read what it was sent: that is let go at the next change.
        """
        assert self.state.map is not None
        self.partition = Partition(self.schema, self.state.map)
        self._connect(keep=self._connected)
        self._connected = tuple(self.state.servers)
        if pull is None:
            return
        if self._pulling is not None and not self._pulling.done_s:
            self._pulling.ask_again(Split(self.partition, self._pulling.split.ids), pull.ticket)
        for server in self.state.owners:
            self._send(server, pull)

    def _offer_again(self, seq: int, part: Part) -> None:
        assert self.partition is not None
        kept = self._contributions.pop(seq)
        self._pushed.renumber(seq, part.seq)
        self._contributions[part.seq] = kept.renumbered(part, self.partition)
        for server in self.state.servers:
            self._send(server, part)

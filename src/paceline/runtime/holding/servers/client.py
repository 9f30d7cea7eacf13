"""A worker's side of the parameter servers: the `TrainingPort` port over the data plane.

These are the training thread's calls; `WorkerEdge` is the half of the exchange's thread. The
training thread only leaves errands; where the loop has nothing to compute, it waits for the other
to bring news.
"""

import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from msgspec import structs

from paceline.base.errors import ConfigError
from paceline.base.numbering import START, StepNo
from paceline.base.samples import SampleSet, num_samples
from paceline.runtime.data.growth import Growth
from paceline.runtime.data.work import Array, StepTimes, Work
from paceline.runtime.holding.servers.edge import WorkerEdge
from paceline.runtime.holding.servers.links import measure_links
from paceline.runtime.holding.servers.partition import Contribution
from paceline.runtime.holding.servers.port import Ids, Initial, PulledModel
from paceline.runtime.holding.servers.pulling import Pulling
from paceline.runtime.process.process import Process, Stopped
from paceline.runtime.server.store import Gradients
from paceline.wire.messages.checks import Checked
from paceline.wire.messages.data import BARE, NEWEST, Also, Script, ScriptPart
from paceline.wire.messages.feeds import Feed, ScriptPlace, SourceLine, Underway
from paceline.wire.messages.node import LoopLeft, NodeUp, OpenFeed, Prepared
from paceline.wire.schema import ModelSchema

NOTICE_S, SETTLE_S = 20.0, 600.0
"""After the first a worker says that it waits for the rest of a step, after both it goes on."""
SCRIPT_S = 1.0
"""So long a worker that joins waits for the script's state of the step before its own."""


class ServerTrainer(WorkerEdge):
    """`TrainingPort` on parameter servers; see `paceline.runtime.holding.servers.port`."""

    def __init__(self, process: Process) -> None:
        super().__init__(process)
        self.rank = process.rank
        self.keeps_script, self.is_alone = True, False
        self.sums_workers = process.spec.mode == "bsp"
        self.overlap = self.takes_growth = not self.sums_workers
        #: Contributions in the model that the work in hand is computed on.
        self._seen: dict[Work, int] = {}

    @property
    def num_workers(self) -> int:
        return self.process.num_workers

    # ------------------------------------------------------------------ set-up

    def prepare(self, schema: ModelSchema, initial: Initial) -> None:
        """Prepare the model; the first worker writes the initial values as cut 0."""
        self.schema, self._initial.values = schema, initial
        # Not before: what the master says of the job makes sense to a worker with a model.
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

    def checked(self, message: Checked) -> None:
        """Add the links to what the check of this node has measured, and tell the master."""
        with self._changed:
            servers = self.state.map.servers if self.state.map is not None else ()
        if message.speed is not None:
            speed = structs.replace(message.speed, links=measure_links(self.process, servers))
            message = structs.replace(message, speed=speed)
        self._exchange.tell(message)

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
                    self.process.step = work.step or seq
                    self._tell_master(works.order_ahead(feed))
                    return work
                if feed in self.leases.ended and self.partition is not None:
                    if feed in self.leases.left_feeds:
                        self.state.offers.clear()
                        self._contributions.clear()
                    return None
                self._starve(feed)
                self._wait()

    def _may_take(self, feed: int) -> bool:
        """Asynchronous: not while too many contributions are unready."""
        works = self._works
        return works.synchronous(feed) or not works.trains(feed) or self.state.may_offer()

    def source_line(self, line: int) -> SourceLine:
        with self._changed:
            return self.leases.source_line(line)

    def _starve(self, feed: int) -> None:
        """Nothing to take now: have a request open, and (BSP) a pull that waits for the step."""
        state, leases = self.state, self.leases
        if self.partition is None:
            return
        if self.spec.samples == "exactly-once" or not state.offers:
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
        """A pull of the state as it is; one that is under way is asked for again after it."""
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
        """While the script is in the body of its loop, it computes nothing of the step."""
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
            raise Stopped

"""Feeds of unknown length: master and workers agree on partitions, and deal out each record once."""

import random

import msgspec
import pytest

from paceline.base.samples import SampleSet, Span
from paceline.protocol import training as master_state
from paceline.protocol.acts import Fail, Instruction, Seal, Send, WriteAhead
from paceline.protocol.holding.servers.master import ServerHolder
from paceline.protocol.records import Extended, Granted, Records
from paceline.protocol.samples.grant_size import Sizing
from paceline.protocol.samples.leases import Ask, Leases
from paceline.protocol.samples.ledger import Ledger
from paceline.protocol.training import MasterState
from paceline.wire.messages.base import Server
from paceline.wire.messages.feeds import Feed, SourceLine
from paceline.wire.messages.node import (
    Committed,
    Copied,
    FeedOpened,
    FenceAnswer,
    Grant,
    InitialWritten,
    LeaseRequest,
    NewEpoch,
    OpenFeed,
    Prepared,
    Restored,
)
from paceline.wire.schema import ModelSchema

FEED = Feed(
    feed=2,
    purpose="train",
    num_samples=None,
    epochs=1,
    batch_size=10,
    shard_size=100,
    shuffle=False,
    seed=0,
)
TWO_EPOCHS = msgspec.structs.replace(FEED, epochs=2)
A, B = FEED.line(0), FEED.line(1)


def ledger(feed: Feed = FEED, **ends: int) -> Ledger:
    made = Ledger()
    made.open(feed)
    made.extend(feed.feed, ends.items())
    return made


# ---------------------------------------------------------------------------- the ledger


def test_partitions_are_numbered_in_the_order_in_which_they_are_heard_of() -> None:
    made = ledger(b=5)
    made.extend(2, [("a", 3), ("b", 9), ("a", 2)])
    assert made.names[2] == {"b": A, "a": B}
    assert (made.lines[A].end, made.lines[B].end) == (9, 3)
    assert made.news(2, [("a", 3), ("b", 10), ("c", 0), ("d", 1)]) == (("b", 10), ("d", 1))
    assert made.num_to_do(2, [("a", 3), ("b", 10), ("d", 1)]) == 12 + 1 + 1


def test_what_came_back_is_read_first_and_then_one_partition_after_the_other() -> None:
    made = ledger(a=30, b=30)
    made.grant(1, made.pick(2, 40))
    assert made.leases[1].spans() == (Span(A, 0, 30), Span(B, 0, 10))
    made.commit([Span(A, 0, 20)])
    made.lose(1)
    assert made.pick(2, 15) == [Span(A, 20, 30), Span(B, 0, 5)]
    assert made.pick(2, 30) == [Span(A, 20, 30), Span(B, 0, 10), Span(B, 10, 20)]


def test_a_stream_that_goes_on_is_dealt_out_in_whole_batches() -> None:
    made = ledger(a=4, b=5)
    assert made.pick(2, 100, 10) == []
    made.extend(2, [("c", 13)])
    assert made.pick(2, 100, 10) == [Span(A, 0, 4), Span(B, 0, 5), Span(FEED.line(2), 0, 11)]
    assert sum(len(span) for span in made.pick(2, 7, 10)) == 7
    made.extend(2, (), finished=True)
    assert sum(len(span) for span in made.pick(2, 100, 10)) == 22


def test_later_epochs_follow_when_the_lengths_are_known() -> None:
    made = ledger(TWO_EPOCHS, a=4, b=2)
    made.grant(1, made.pick(2, 5))
    assert made.source_lines([Span(A, 0, 4)]) == (SourceLine(A, "a", None),)
    assert made.total(2) is None
    made.extend(2, [("b", 3)], finished=True)
    assert made.total(2) == 14
    assert made.source_lines([Span(B, 0, 1)]) == (SourceLine(B, "b", 3),)
    dealt = []
    while spans := made.pick(2, 3):
        made.grant(1, spans)
        dealt.append(spans)
    # The rest of the first epoch, and only then the second.
    assert dealt[0] == [Span(B, 1, 3)]
    assert dealt[1:] == [[Span(A, 4, 7)], [Span(A, 7, 8), Span(B, 3, 5)], [Span(B, 5, 6)]]
    assert not made.is_complete(2)
    made.commit(made.leases[1].spans())
    assert made.is_complete(2)


def test_a_finished_stream_without_a_record_is_complete() -> None:
    made = ledger()
    assert not made.is_complete(2)
    made.extend(2, (), finished=True)
    assert made.is_complete(2)
    assert made.total(2) == 0


# ---------------------------------------------------------------------------- master and workers


class Job:
    """A master, workers and a leader that takes every part; messages may be lost."""

    def __init__(self, feed: Feed = FEED, seed: int = 0) -> None:
        self.rng = random.Random(seed)
        self.feed = feed
        self.state = MasterState(ServerHolder(), mode="asp", samples="exactly-once")
        self.records: list[Records] = []
        self.said: list[Instruction] = []
        self.workers: dict[int, Leases] = {}
        self.model = SampleSet()
        self.next_inc = 100
        self.loss = 0.0
        self.do(self.state.holder.prepare(Prepared(inc=1, schema=ModelSchema())))
        self.do(
            self.state.holder.initial_written(
                InitialWritten(inc=1, file="initial", checksum="", num_bytes=0)
            )
        )
        self.do(self.state.open_feed(OpenFeed(inc=1, feed=feed)))
        self.start_epoch()

    def start_epoch(self) -> None:
        self.next_inc += 1
        self.model = SampleSet(self.state.cuts.valid[-1].committed)
        self.do(self.state.holder.start_epoch((Server(self.next_inc, "server-0", "a"),)))
        restored = Restored(epoch_no=self.state.epoch_no, inc=self.next_inc)
        self.do(self.state.holder.restored(restored))

    def add_worker(self) -> Leases:
        self.next_inc += 1
        worker = Leases(self.next_inc)
        worker.feed_opened(FeedOpened(inc=worker.inc, feed=self.feed))
        self.workers[worker.inc] = worker
        self.do(self.state.worker_up(worker.inc))
        self.do(self.state.holder.prepare(Prepared(inc=worker.inc, schema=ModelSchema())))
        return worker

    def do(self, instructions: list[Instruction]) -> None:
        """Journal, then deliver; instructions of workers come back to the master."""
        self.said += instructions
        for one in instructions:
            match one:
                case WriteAhead(record):
                    self.records.append(record)
                case Send(inc, Grant() as grant) if self.arrives(inc):
                    self.workers[inc].grant(grant)
                case Send(inc, NewEpoch() as epoch) if self.arrives(inc):
                    worker = self.workers[inc]
                    worker.map_version = epoch.map.version
                    if epoch.epoch_no > worker.epoch_no:
                        self.tell(worker.begin(epoch.epoch_no))
                case Seal(valid):
                    self.do(self.state.cut_sealed(valid))
                case Fail(reason):
                    raise AssertionError(reason)

    def arrives(self, inc: int) -> bool:
        return inc in self.workers and self.rng.random() >= self.loss

    def tell(self, messages: list[Ask]) -> None:
        for one in messages:
            if isinstance(one, LeaseRequest) and self.rng.random() >= self.loss:
                self.do(self.state.request(one, Sizing(samples=20)))

    def want(self, worker: Leases, ends: dict[str, int], *, finished: bool = False) -> None:
        self.tell(worker.want(2, ends, finished=finished))

    def train(self, worker: Leases) -> None:
        """One batch of the worker enters the model; servers refuse what is of an older epoch."""
        if worker.epoch_no != self.state.epoch_no:
            return
        for span in worker.take(2, 5):
            assert not self.model.overlap(span), f"{span} a second time"
            assert worker.source_line(span.line).line == span.line
            self.model.add(span)

    def commit(self) -> None:
        assert self.state.holder.map is not None
        leader, epoch_no = self.state.holder.map.servers[0].inc, self.state.epoch_no
        committed = self.model.spans()
        self.do(
            self.state.holder.committed(
                Committed(epoch_no=epoch_no, inc=leader, step=0, committed=committed)
            )
        )
        if self.state.cuts.copying is not None:
            copied = Copied(
                epoch_no=epoch_no,
                inc=leader,
                cut_no=self.state.cuts.copying,
                position=0,
                step=0,
                committed=committed,
                sharers=(leader,),
                stored=True,
            )
            self.do(self.state.copy_said(copied))

    def kill(self, inc: int) -> None:
        del self.workers[inc]
        self.do(self.state.worker_lost(inc))
        leader, epoch_no = self.next_leader(), self.state.epoch_no
        committed = self.model.spans()
        self.do(
            self.state.holder.fence_answer(
                FenceAnswer(epoch_no=epoch_no, inc=leader, fenced=inc, committed=committed)
            )
        )

    def next_leader(self) -> int:
        assert self.state.holder.map is not None
        return self.state.holder.map.servers[0].inc

    def restart_master(self) -> None:
        self.state = MasterState(ServerHolder(), mode="asp", samples="exactly-once")
        for record in self.records:
            self.state.apply(record)
        self.do(self.state.resume())
        restored = Restored(epoch_no=self.state.epoch_no, inc=self.next_leader())
        self.do(self.state.holder.restored(restored))
        for inc in self.workers:
            self.do(self.state.worker_up(inc))


def test_a_request_stays_open_until_another_worker_has_seen_more() -> None:
    job = Job()
    one, two = job.add_worker(), job.add_worker()
    job.want(one, {"a": 3})
    assert one.leased(2) == 0
    job.want(two, {"a": 32})
    # Twenty for who brings them, as large as a grant is; of the rest what makes whole batches of 5.
    assert (one.leased(2), two.leased(2)) == (10, 20)
    assert one.source_line(A) == SourceLine(A, "a", None)


def test_a_partition_has_its_number_in_the_journal_before_anyone_hears_of_it() -> None:
    job = Job()
    job.want(job.add_worker(), {"a": 10})
    kinds = [
        type(one.record) if isinstance(one, WriteAhead) else type(one.message)
        for one in job.said
        if isinstance(one, WriteAhead | Send)
    ]
    assert kinds[-3:] == [Extended, Granted, Grant]


def test_growth_that_the_answered_version_of_a_request_did_not_tell_is_told_again() -> None:
    job = Job()
    worker = job.add_worker()
    [first] = worker.want(2, {"a": 10})
    worker.want(2, {"a": 30})  # this version is lost
    assert isinstance(first, LeaseRequest)
    job.do(job.state.request(first, Sizing(samples=10)))
    assert worker.leased(2) == 10
    [again] = worker.want(2, {"a": 30})
    assert isinstance(again, LeaseRequest)
    assert again.ends == (("a", 30),)
    job.do(job.state.request(again, Sizing(samples=10)))
    assert worker.leased(2) == 20
    [rest] = worker.want(2, {"a": 30})
    assert isinstance(rest, LeaseRequest)
    assert rest.ends == ()


def test_records_after_the_end_stop_the_job_with_the_reason() -> None:
    job = Job()
    worker = job.add_worker()
    job.want(worker, {"a": 3}, finished=True)
    job.want(worker, {"a": 3}, finished=True)
    with pytest.raises(AssertionError, match="'a' had 3 records, and now it has 4; say so"):
        job.want(worker, {"a": 4}, finished=True)


def test_more_partitions_than_lines_stop_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(master_state, "LINES_PER_FEED", 2)
    job = Job()
    with pytest.raises(AssertionError, match="more than 2 partitions"):
        job.want(job.add_worker(), {"a": 1, "b": 1, "c": 1})


@pytest.mark.parametrize("seed", range(40))
def test_whatever_is_lost_or_dies_each_record_enters_once_an_epoch(seed: int) -> None:
    job = Job(TWO_EPOCHS if seed % 2 else FEED, seed)
    rng = random.Random(seed)
    ends: dict[str, int] = {}
    views: dict[int, dict[str, int]] = {}
    job.loss = 0.3
    for worker in (job.add_worker(), job.add_worker()):
        views[worker.inc] = {}
    for turn in range(2_000):
        if turn < 300:
            name = rng.choice("abcdef")
            ends[name] = ends.get(name, 0) + rng.randrange(9)
        for worker in list(job.workers.values()):
            # Each sees the source later than it is, and in a different order.
            if (late := sorted(ends)) and rng.random() < 0.3:
                name = rng.choice(late)
                views[worker.inc][name] = ends[name]
            finished = turn > 400 and views[worker.inc] == ends
            if rng.random() < 0.5:
                job.want(worker, views[worker.inc], finished=finished)
            if rng.random() < 0.7:
                job.tell(worker.resend())
            job.train(worker)
        dice = rng.random()
        if dice < 0.3:
            job.commit()
        elif dice < 0.35:
            job.do(job.state.take_cut())
        elif dice < 0.36 and job.workers:
            job.kill(rng.choice(list(job.workers)))
            views[job.add_worker().inc] = {}
        elif dice < 0.37:
            job.start_epoch()
        elif dice < 0.38:
            job.restart_master()
        job.do(job.state.resend())
        if turn > 400 and all(2 in worker.ended for worker in job.workers.values()):
            break
    else:
        raise AssertionError(f"the feed did not end: {job.state.waiting}")
    names = job.state.ledger.names[2]
    whole = [Span(names[name], 0, end * job.feed.epochs) for name, end in ends.items() if end]
    assert job.model == SampleSet(whole)

"""What the master promises; every interleaving with the others is in tests/model."""

import pytest
from msgspec import structs

from paceline.base.samples import Span
from paceline.protocol.acts import (
    Fail,
    FeedDone,
    Instruction,
    Seal,
    Send,
    WorkerRefused,
    WriteAhead,
)
from paceline.protocol.holding.servers.master import ServerHolder
from paceline.protocol.records import CutValid, EpochStarted, Granted, Returned
from paceline.protocol.samples.grant_size import Sizing
from paceline.protocol.training import MasterState
from paceline.wire.messages.base import CutRef, Server
from paceline.wire.messages.feeds import Feed
from paceline.wire.messages.node import (
    AskPlace,
    Committed,
    Copied,
    Fence,
    FenceAnswer,
    GiveBack,
    GivenUp,
    Grant,
    InitialWritten,
    LeaseRequest,
    NewEpoch,
    OpenFeed,
    Prepared,
    Recall,
    Restore,
    Restored,
    TakeCut,
    WriteInitial,
)
from paceline.wire.schema import ModelSchema, Table

LEADER, FOLLOWER, NEW, ONE, TWO = 1, 2, 3, 11, 12
BOTH = (LEADER, FOLLOWER)
SCHEMA = ModelSchema(dense=(), tables=(), groups=())
FEED = Feed(
    feed=0,
    purpose="train",
    num_samples=8,
    epochs=1,
    batch_size=4,
    shard_size=4,
    shuffle=False,
    seed=0,
)


def servers(*incs: int) -> tuple[Server, ...]:
    return tuple(Server(inc, f"server-{k}", "") for k, inc in enumerate(incs))


class Job:
    """A master with its journal."""

    def __init__(self, mode: str = "asp", samples: str = "exactly-once") -> None:
        self.mode, self.samples = mode, samples
        self.state = MasterState(ServerHolder(), mode=mode, samples=samples)
        self.journal: list[WriteAhead] = []
        self.sent: list[Send] = []
        self.told: list[Instruction] = []

    def do(self, done: list[Instruction]) -> list[Instruction]:
        """What the edge would do with these instructions."""
        self.journal += [i for i in done if isinstance(i, WriteAhead)]
        self.sent = [i for i in done if isinstance(i, Send)]
        self.told = done
        for seal in [i for i in done if isinstance(i, Seal)]:
            self.do(self.state.cut_sealed(seal.valid))
        return done

    def restart(self) -> None:
        """The master dies and reads its journal."""
        self.state = MasterState(ServerHolder(), mode=self.mode, samples=self.samples)
        for entry in self.journal:
            self.state.apply(entry.record)
        self.do(self.state.resume())

    def request(
        self, inc: int, n: int, *, samples: int = 4, epoch_no: int | None = None
    ) -> list[Send]:
        message = LeaseRequest(
            epoch_no=self.state.epoch_no if epoch_no is None else epoch_no,
            inc=inc,
            n=n,
            feed=0,
            map_version=self.state.holder.map.version if self.state.holder.map else 0,
        )
        self.do(self.state.request(message, Sizing(samples=samples)))
        return self.sent

    def restored(self, *incs: int) -> None:
        for inc in incs:
            self.do(self.state.holder.restored(Restored(epoch_no=self.state.epoch_no, inc=inc)))

    def committed(self, *spans: Span, inc: int = LEADER, epoch_no: int = 1) -> None:
        self.do(
            self.state.holder.committed(
                Committed(epoch_no=epoch_no, inc=inc, step=0, committed=spans)
            )
        )

    def cut(self, *spans: Span, incs: tuple[int, ...] = (LEADER, FOLLOWER)) -> None:
        self.do(self.state.take_cut())
        self.copied(*spans, incs=incs, stored=True)

    def copied(self, *spans: Span, incs: tuple[int, ...], stored: bool) -> None:
        number = (
            self.state.cuts.storing if self.state.cuts.copying is None else self.state.cuts.copying
        )
        assert number is not None
        for inc in incs:
            copied = Copied(
                epoch_no=self.state.epoch_no,
                inc=inc,
                cut_no=number,
                position=1,
                step=0,
                committed=spans,
                sharers=incs if len(incs) > 1 else BOTH,
                stored=stored,
            )
            self.do(self.state.copy_said(copied))


@pytest.fixture
def job() -> Job:
    """Two servers and two workers, all in epoch 1, and one feed."""
    job = Job()
    for inc in (ONE, TWO):
        job.do(job.state.worker_up(inc))
        job.do(job.state.holder.prepare(Prepared(inc=inc, schema=SCHEMA)))
    job.do(
        job.state.holder.initial_written(
            InitialWritten(inc=ONE, file="initial", checksum="", num_bytes=0)
        )
    )
    job.do(job.state.open_feed(OpenFeed(inc=ONE, feed=FEED)))
    job.do(job.state.holder.start_epoch(servers(LEADER, FOLLOWER)))
    job.restored(LEADER, FOLLOWER)
    for inc in (ONE, TWO):
        job.request(inc, 0)  # heard in this epoch
    return job


# ---------------------------------------------------------------------- feeds


def test_a_worker_that_reads_other_data_ends_the_job_or_is_left_out(job: Job) -> None:
    first = OpenFeed(inc=ONE, feed=structs.replace(FEED, feed=7, contents="1 files, a"))
    job.do(job.state.open_feed(first, "worker-0 on a"))
    for change in ({"num_samples": 3}, {"contents": "1 files, b"}):
        other = OpenFeed(inc=TWO, feed=structs.replace(first.feed, **change))
        (failed,) = job.state.open_feed(other, "worker-1 on b")
        (refused,) = job.state.open_feed(other, "worker-1 on b", spared=True)
        assert isinstance(failed, Fail)
        assert refused == WorkerRefused(TWO, failed.reason)
        field, value = next(iter(change.items()))
        assert f"{field} is {getattr(first.feed, field)} for worker-0 on a" in failed.reason
        assert f"and {value} for worker-1 on b" in failed.reason
        assert "put the same files on all machines" in failed.reason


def test_what_files_hold_is_compared_only_where_it_is_known(job: Job) -> None:
    named = structs.replace(FEED, contents="1 files, a")
    (opened,) = job.do(job.state.open_feed(OpenFeed(inc=TWO, feed=named)))
    assert isinstance(opened, Send)


def test_where_the_model_is_needs_no_batch_of_feeds_that_are_begun(job: Job) -> None:
    feed = structs.replace(FEED, feed=1, place=(0, 3, 0), calls=(2,), ends=(1, 5, 8))
    job.do(job.state.open_feed(OpenFeed(inc=ONE, feed=feed)))
    (opened,) = job.sent
    assert opened.message.feed.ends == (1, 5, 8)
    job.state.ledger.commit([Span(opened.message.feed.line(), 0, 5)])
    job.do(job.state.place_asked(AskPlace(inc=TWO)))
    ((begun,),) = [one.message.begun for one in job.sent]
    assert begun == structs.replace(opened.message.feed, ends=())


# ---------------------------------------------------------------------- start


def test_the_first_worker_writes_the_initial_values() -> None:
    job = Job()
    job.do(job.state.holder.prepare(Prepared(inc=ONE, schema=SCHEMA)))
    assert job.sent == [Send(ONE, WriteInitial(inc=ONE))]
    job.do(job.state.holder.prepare(Prepared(inc=TWO, schema=SCHEMA)))
    assert job.sent == []
    job.do(
        job.state.holder.initial_written(
            InitialWritten(inc=TWO, file="initial", checksum="", num_bytes=0)
        )
    )
    assert not job.state.cuts.valid
    job.do(
        job.state.holder.initial_written(
            InitialWritten(inc=ONE, file="initial", checksum="", num_bytes=0)
        )
    )
    assert job.state.cuts.valid[0].cut.cut_no == 0


def test_if_the_writer_dies_another_one_writes() -> None:
    job = Job()
    job.do(job.state.holder.prepare(Prepared(inc=ONE, schema=SCHEMA)))
    job.do(job.state.worker_lost(ONE))
    job.do(job.state.holder.prepare(Prepared(inc=TWO, schema=SCHEMA)))

    assert job.sent == [Send(TWO, WriteInitial(inc=TWO))]


def test_workers_with_different_models_end_the_job() -> None:
    job = Job()
    job.do(job.state.holder.prepare(Prepared(inc=ONE, schema=SCHEMA)))
    other = ModelSchema(
        dense=(), tables=(Table(name="a", dim=1, dtype="float32", group=0),), groups=()
    )

    (fail,) = job.state.holder.prepare(Prepared(inc=TWO, schema=other))

    assert isinstance(fail, Fail)
    assert "tables differ" in fail.reason


def test_workers_hear_of_an_epoch_when_all_its_servers_are_in_it(job: Job) -> None:
    job.do(job.state.holder.start_epoch(servers(LEADER, NEW)))
    assert {s.inc for s in job.sent} == {LEADER, NEW}
    assert all(isinstance(s.message, Restore) for s in job.sent)
    job.restored(LEADER)
    assert job.sent == []
    job.restored(NEW)
    assert [s.inc for s in job.sent if isinstance(s.message, NewEpoch)] == [ONE, TWO]


# ---------------------------------------------------------------------- leases


def test_the_record_is_written_before_the_message_leaves(job: Job) -> None:
    job.request(ONE, 1)

    journal, send = job.told
    assert isinstance(journal, WriteAhead)
    assert isinstance(journal.record, Granted)
    assert isinstance(send, Send)


def test_the_same_request_gets_the_same_grant(job: Job) -> None:
    first = job.request(ONE, 1)

    assert job.request(ONE, 1, samples=1) == first
    assert [s.message for s in job.request(ONE, 2)] != [s.message for s in first]


def test_the_same_request_gets_the_same_grant_from_the_next_master(job: Job) -> None:
    first = job.request(ONE, 1)
    job.restart()
    job.do(job.state.worker_up(ONE))

    assert job.request(ONE, 1) == first


def test_a_request_stays_open_until_something_comes_back(job: Job) -> None:
    job.request(ONE, 1, samples=8)
    assert job.request(TWO, 1, samples=3) == []
    job.do(job.state.worker_lost(ONE))
    job.do(
        job.state.holder.fence_answer(
            FenceAnswer(epoch_no=1, inc=LEADER, fenced=ONE, committed=(Span(0, 0, 2),))
        )
    )

    grant = job.sent[0].message
    assert isinstance(grant, Grant)
    assert grant.spans == (Span(0, 2, 5),), "as large as it was asked for"


def test_what_nobody_has_begun_is_recalled_for_one_that_starves(job: Job) -> None:
    job.request(ONE, 1, samples=8)
    starving = LeaseRequest(epoch_no=1, inc=TWO, n=1, feed=0, starving=True, map_version=1)
    job.do(job.state.request(starving, Sizing(samples=2, speed=30.0)))
    recall = Send(ONE, Recall(epoch_no=1, inc=ONE, n=1, feed=0, keep=4))
    assert job.sent == [recall]
    assert recall in job.state.resend()

    job.do(job.state.given_back(GiveBack(epoch_no=1, inc=ONE, r=1, spans=(Span(0, 5, 8),))))
    granted = [one.message.spans for one in job.sent if isinstance(one.message, Grant)]
    assert granted == [(Span(0, 5, 7),)]
    assert job.state.ledger.lease_size(ONE, 0) == 5
    assert not any(isinstance(one, Send) for one in job.state.resend())


def test_nothing_is_recalled_for_one_that_has_work_left(job: Job) -> None:
    job.request(ONE, 1, samples=8)

    assert job.request(TWO, 1) == []


def test_workers_leave_when_a_cut_on_disk_holds_the_whole_feed(job: Job) -> None:
    job.request(ONE, 1, samples=8)
    job.request(ONE, 2)
    job.committed(Span(0, 0, 8))
    assert [type(s.message) for s in job.sent] == [TakeCut] * 2, "in the model, not yet safe"
    job.copied(Span(0, 0, 8), incs=BOTH, stored=False)
    assert not any(isinstance(s.message, Grant) for s in job.sent), "not yet on disk"
    job.copied(Span(0, 0, 8), incs=BOTH, stored=True)

    assert FeedDone(0) in job.told
    assert [s.message.end for s in job.sent if isinstance(s.message, Grant)] == [True]


# ---------------------------------------------------------------------- lost workers


def test_leases_go_back_only_on_the_leader_s_answer(job: Job) -> None:
    job.request(ONE, 1, samples=4)
    job.do(job.state.worker_lost(ONE))

    assert job.sent == [Send(LEADER, Fence(epoch_no=1, inc=LEADER, fenced=ONE))]
    assert job.state.ledger.lease_size(ONE, 0) == 4
    job.do(
        job.state.holder.fence_answer(
            FenceAnswer(epoch_no=1, inc=LEADER, fenced=ONE, committed=(Span(0, 0, 1),))
        )
    )
    assert job.state.ledger.lease_size(ONE, 0) == 0
    assert job.journal[-1].record == Returned(inc=ONE, committed=(Span(0, 0, 1),))


def test_a_lost_worker_gets_nothing_more_and_is_told_to_leave(job: Job) -> None:
    job.do(job.state.worker_lost(ONE))
    assert job.request(ONE, 1) == []
    job.do(
        job.state.holder.fence_answer(FenceAnswer(epoch_no=1, inc=LEADER, fenced=ONE, committed=()))
    )

    assert job.request(ONE, 1) == [Send(ONE, GivenUp(inc=ONE))]
    job.restart()
    job.do(job.state.worker_up(ONE))
    assert job.sent == [Send(ONE, GivenUp(inc=ONE))]


def test_a_fence_is_repeated_until_it_is_answered(job: Job) -> None:
    job.do(job.state.worker_lost(ONE))

    assert Send(LEADER, Fence(epoch_no=1, inc=LEADER, fenced=ONE)) in job.state.resend()
    job.do(
        job.state.holder.fence_answer(FenceAnswer(epoch_no=1, inc=LEADER, fenced=ONE, committed=()))
    )
    assert job.state.resend() == []


def unordered(mode: str) -> Job:
    """At-least-once, with one worker that holds a lease."""
    job = Job(mode, samples="at-least-once")
    job.do(job.state.worker_up(ONE))
    job.do(job.state.holder.prepare(Prepared(inc=ONE, schema=SCHEMA)))
    job.do(
        job.state.holder.initial_written(
            InitialWritten(inc=ONE, file="initial", checksum="", num_bytes=0)
        )
    )
    job.do(job.state.open_feed(OpenFeed(inc=ONE, feed=FEED)))
    job.do(job.state.holder.start_epoch(servers(LEADER)))
    job.restored(LEADER)
    job.request(ONE, 1)
    return job


@pytest.mark.parametrize("mode", ["asp", "ssp"])
def test_at_least_once_the_lease_goes_back_at_once(mode: str) -> None:
    job = unordered(mode)
    job.do(job.state.worker_lost(ONE))

    assert job.journal[-1].record == Returned(inc=ONE)
    assert job.state.ledger.lease_size(ONE, 0) == 0


def test_nobody_waits_at_the_leader_for_a_lost_worker_s_clock() -> None:
    job = unordered("ssp")
    job.do(job.state.worker_lost(ONE))
    fence = Send(LEADER, Fence(epoch_no=1, inc=LEADER, fenced=ONE))

    assert fence in job.sent
    job.restart()
    job.restored(LEADER)
    assert fence in job.state.resend()
    answer = FenceAnswer(epoch_no=1, inc=LEADER, fenced=ONE, committed=(Span(0, 0, 4),))
    assert job.do(job.state.holder.fence_answer(answer)) == []
    assert fence not in job.state.resend()
    assert not job.state.ledger.done


def test_what_a_worker_forgets_as_handled_is_journalled() -> None:
    job = unordered("asp")
    message = LeaseRequest(epoch_no=1, inc=ONE, n=2, feed=0, handled=(Span(0, 0, 4),))
    job.do(job.state.request(message, Sizing(samples=4)))
    job.restart()

    assert job.state.ledger.done.spans() == (Span(0, 0, 4),)


# ---------------------------------------------------------------------- epochs and cuts


def test_a_restore_makes_the_ledger_the_complement_of_the_cut(job: Job) -> None:
    job.request(ONE, 1, samples=4)
    job.committed(Span(0, 0, 2))
    job.cut(Span(0, 0, 2))
    job.committed(Span(0, 0, 4))
    job.do(job.state.holder.start_epoch(servers(LEADER, NEW)))

    record = job.journal[-1].record
    assert isinstance(record, EpochStarted)
    assert (record.epoch_no, record.committed) == (2, (Span(0, 0, 2),))
    assert job.state.ledger.done.spans() == (Span(0, 0, 2),)
    assert not job.state.ledger.leases


@pytest.mark.parametrize(("inc", "epoch_no"), [(LEADER, 0), (LEADER, 2), (FOLLOWER, 1)])
def test_only_the_present_leader_s_word_counts(job: Job, inc: int, epoch_no: int) -> None:
    job.request(ONE, 1)
    job.committed(Span(0, 0, 2), inc=inc, epoch_no=epoch_no)

    assert not job.state.ledger.done


def test_a_cut_is_valid_when_all_servers_have_said_it(job: Job) -> None:
    job.cut(incs=(LEADER,))
    assert len(job.state.cuts.valid) == 1
    job.do(
        job.state.copy_said(
            Copied(
                epoch_no=1,
                inc=FOLLOWER,
                cut_no=1,
                position=1,
                step=0,
                committed=(),
                sharers=(LEADER, FOLLOWER),
            )
        )
    )
    assert isinstance(job.journal[-1].record, CutValid)
    assert job.state.cuts.valid[-1].cut.cut_no == 1


def test_servers_that_copied_different_sets_end_the_job(job: Job) -> None:
    job.cut(Span(0, 0, 2), incs=(LEADER,))
    other = Copied(
        epoch_no=1,
        inc=FOLLOWER,
        cut_no=1,
        position=1,
        step=0,
        committed=(),
        sharers=(LEADER, FOLLOWER),
    )

    (fail,) = job.state.copy_said(other)

    assert isinstance(fail, Fail)


def test_a_cut_in_memory_counts_and_is_on_disk_when_all_servers_say_so(job: Job) -> None:
    job.do(job.state.take_cut())
    job.copied(Span(0, 0, 2), incs=BOTH, stored=False)
    assert job.state.cuts.valid[-1].cut == CutRef(cut_no=1, epoch_no=1, memory=True)
    assert job.state.cuts.last_stored_no == 0
    assert job.state.take_cut() == [], "the next one waits for the disk"

    job.copied(Span(0, 0, 2), incs=(LEADER,), stored=True)
    asked = [s.inc for s in job.state.resend() if isinstance(s.message, TakeCut)]
    assert asked == [FOLLOWER]
    job.copied(Span(0, 0, 2), incs=(LEADER,), stored=False)  # late
    job.copied(Span(0, 0, 2), incs=(FOLLOWER,), stored=True)

    assert job.state.cuts.valid[-1].cut == CutRef(cut_no=1, epoch_no=1, memory=True, stored=True)
    assert job.state.cuts.last_stored_no == 1
    assert job.state.take_cut() != []


def test_a_server_that_is_on_disk_before_the_other_has_copied(job: Job) -> None:
    job.do(job.state.take_cut())
    job.copied(Span(0, 0, 2), incs=(LEADER,), stored=True)
    job.copied(Span(0, 0, 2), incs=(FOLLOWER,), stored=False)
    assert job.state.cuts.valid[-1].cut.in_memory
    job.copied(Span(0, 0, 2), incs=(FOLLOWER,), stored=True)
    assert job.state.cuts.last_stored_no == 1


def test_a_cut_that_never_came_to_disk_is_what_the_next_epoch_starts_from(job: Job) -> None:
    job.do(job.state.take_cut())
    job.copied(Span(0, 0, 2), incs=BOTH, stored=False)
    job.do(job.state.holder.start_epoch(servers(LEADER + 10, FOLLOWER)))

    restores = [s.message for s in job.sent if isinstance(s.message, Restore)]
    assert {message.cut.in_memory for message in restores} == {True}
    late = Copied(
        epoch_no=1,
        inc=FOLLOWER,
        cut_no=1,
        position=1,
        step=0,
        committed=(),
        sharers=(LEADER, FOLLOWER),
        stored=True,
    )
    assert job.state.copy_said(late) == []
    job.restored(LEADER + 10, FOLLOWER)
    job.cut(Span(0, 0, 4), incs=(LEADER + 10, FOLLOWER))
    assert job.state.cuts.valid[-1].cut == CutRef(cut_no=2, epoch_no=2, memory=True, stored=True)


def test_a_master_restarted_while_a_cut_is_stored_hears_of_it(job: Job) -> None:
    job.request(ONE, 1, samples=8)
    job.committed(Span(0, 0, 8))
    job.do(job.state.take_cut())
    job.copied(Span(0, 0, 8), incs=BOTH, stored=False)
    job.restart()
    job.restored(LEADER, FOLLOWER)
    asked = [s.inc for s in job.state.resend() if isinstance(s.message, TakeCut)]
    assert asked == [LEADER, FOLLOWER]
    job.copied(Span(0, 0, 8), incs=BOTH, stored=True)
    assert job.state.cuts.last_stored_no == 1
    assert job.state.cuts.safe == {0}


def test_a_cut_that_is_gone_before_it_is_on_disk_is_not_waited_for(job: Job) -> None:
    job.do(job.state.take_cut())
    job.copied(Span(0, 0, 2), incs=BOTH, stored=False)
    job.do(job.state.cut_gone(1))
    late = Copied(
        epoch_no=1,
        inc=LEADER,
        cut_no=1,
        position=1,
        step=0,
        committed=(),
        sharers=(LEADER, FOLLOWER),
        stored=True,
    )
    assert job.state.copy_said(late) == []
    assert not job.state.cuts.under_way


def test_a_feed_is_no_longer_safe_when_the_cut_that_held_it_is_damaged(job: Job) -> None:
    job.cut(Span(0, 0, 2))
    job.request(ONE, 1, samples=8)
    job.committed(Span(0, 0, 8))
    job.cut(Span(0, 0, 8))
    assert job.state.cuts.safe == {0}
    job.do(job.state.cut_gone(2))
    job.do(job.state.holder.start_epoch(servers(NEW, FOLLOWER)))
    job.restored(NEW, FOLLOWER)
    assert job.state.cuts.safe == set()
    assert job.state.ledger.num_to_do(0, ()) == 6


def test_one_cut_at_a_time(job: Job) -> None:
    job.do(job.state.take_cut())

    assert job.state.take_cut() == []
    sent = [i.message for i in job.state.resend() if isinstance(i, Send)]
    assert [type(message) for message in sent] == [TakeCut] * 2


# ---------------------------------------------------------------------- the next master


def test_a_restarted_master_asks_its_servers_and_tells_the_workers(job: Job) -> None:
    job.restart()
    assert {s.inc for s in job.sent} == {LEADER, FOLLOWER}
    job.restored(LEADER, FOLLOWER)
    job.do(job.state.worker_up(ONE))
    assert job.state.resend() == [], "whether it is prepared is not known"
    job.request(ONE, 0, epoch_no=0)
    assert [type(s.message) for s in job.sent] == [NewEpoch]


def test_a_restarted_master_knows_which_feed_is_safe(job: Job) -> None:
    job.request(ONE, 1, samples=8)
    job.committed(Span(0, 0, 8))
    job.cut(Span(0, 0, 8))
    assert job.state.cuts.safe == {0}
    job.restart()

    assert job.state.cuts.safe == {0}

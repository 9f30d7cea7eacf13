"""Plans: who computes what of a step, from one step on, whoever dies while it is prepared."""

import math
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from paceline.base.errors import ConfigError
from paceline.base.samples import Span
from paceline.policy.actions import AdjustBatch, AdjustRate, BackupWorkers, Partial, Share
from paceline.protocol.acts import Fail, Instruction, Send, WriteAhead
from paceline.protocol.holding.servers.master import ServerHolder
from paceline.protocol.records import GaveBack, Place, Plan, Planned
from paceline.protocol.samples.grant_size import Sizing
from paceline.protocol.samples.ledger import Ledger
from paceline.protocol.samples.plans import Plans, part_sizes, portion_of
from paceline.protocol.samples.step_leases import StepLeases
from paceline.protocol.training import MasterState
from paceline.wire.messages.base import Server
from paceline.wire.messages.feeds import Batching, Feed, Rate, Slice
from paceline.wire.messages.node import (
    Committed,
    FeedOpened,
    FenceAnswer,
    GiveBack,
    GivenBack,
    Grant,
    InitialWritten,
    LeaseRequest,
    NewRate,
    OpenFeed,
    Prepared,
    Recall,
    Restored,
)
from paceline.wire.messages.order import Allow
from paceline.wire.schema import ModelSchema

LEADER, ONE, TWO = 1, 11, 12
NODES = {ONE: "worker-0", TWO: "worker-1"}
FEED = Feed(
    feed=0,
    purpose="train",
    num_samples=80,
    epochs=1,
    batch_size=8,
    shard_size=80,
    shuffle=False,
    seed=0,
)
UNEVEN = {"worker-0": Share(1, 2), "worker-1": Share(6)}


class Job:
    """A master with one server and two workers, which are granted five steps each time."""

    def __init__(self, mode: str = "bsp") -> None:
        self.mode = mode
        self.journal: list[WriteAhead] = []
        self.state = MasterState(ServerHolder(), mode=mode, samples="exactly-once")
        for inc, node in NODES.items():
            self.do(self.state.worker_up(inc, node))
            self.do(self.state.holder.prepare(Prepared(inc=inc, schema=ModelSchema())))
        self.do(
            self.state.holder.initial_written(
                InitialWritten(inc=ONE, file="initial", checksum="", num_bytes=0)
            )
        )
        self.do(self.state.open_feed(OpenFeed(inc=ONE, feed=FEED)))
        self.new_epoch()

    def do(self, done: list[Instruction]) -> list[Send]:
        assert not any(isinstance(one, Fail) for one in done), done
        self.journal += [one for one in done if isinstance(one, WriteAhead)]
        return [one for one in done if isinstance(one, Send)]

    def new_epoch(self, leader: int = LEADER) -> None:
        self.do(self.state.holder.start_epoch((Server(leader, "server-0", ""),)))
        self.do(self.state.holder.restored(Restored(epoch_no=self.state.epoch_no, inc=leader)))

    def restart(self) -> None:
        self.state = MasterState(ServerHolder(), mode=self.mode, samples="exactly-once")
        for entry in self.journal:
            self.state.apply(entry.record)
        self.do(self.state.resume())
        leader = self.state.holder.map.servers[0].inc if self.state.holder.map else LEADER
        self.do(self.state.holder.restored(Restored(epoch_no=self.state.epoch_no, inc=leader)))
        for inc, node in NODES.items():
            self.do(self.state.worker_up(inc, node))

    def request(
        self, inc: int, *, step: int = 1, whole: Slice = (), starving: bool = False
    ) -> list[Send]:
        last = self.state.grants.get(inc)
        message = LeaseRequest(
            epoch_no=self.state.epoch_no,
            inc=inc,
            n=last.n + 1 if last else 1,
            feed=0,
            step=step,
            slice=whole or (FEED.slice_of(step),),
            starving=starving,
        )
        return self.do(self.state.request(message, Sizing(samples=8, steps=5)))

    def give_back(self, inc: int, *spans: Span, r: int = 1) -> list[Send]:
        message = GiveBack(epoch_no=self.state.epoch_no, inc=inc, r=r, spans=spans)
        return self.do(self.state.given_back(message))

    def decided(self, step: int, **said: int) -> list[Send]:
        """The leader's word that the model holds the slices up to this step."""
        spans = (Span(0, 0, 8 * step),)
        message = Committed(
            epoch_no=self.state.epoch_no, inc=LEADER, step=step, committed=spans, **said
        )
        return self.do(self.state.holder.committed(message))

    def plan(self, lead: int = 2) -> list[Send]:
        return self.do(self.state.carry_out(AdjustBatch(shares=UNEVEN), lead))

    def lease(self, inc: int) -> tuple[Span, ...]:
        return self.state.ledger.leases[inc].spans()


@pytest.fixture
def job() -> Job:
    """Both workers hold their halves of the steps 1 to 5."""
    job = Job()
    job.request(ONE)
    job.request(TWO)
    return job


def grants(sent: list[Send]) -> dict[int, tuple[Span, ...]]:
    return {one.inc: one.message.spans for one in sent if isinstance(one.message, Grant)}


def recalls(sent: list[Send]) -> dict[int, int]:
    return {one.inc: one.message.start for one in sent if isinstance(one.message, Recall)}


def beyond(job: Job, inc: int, start: int) -> tuple[Span, ...]:
    return tuple(job.state.ledger.leases[inc].overlap(Span(0, start, 80)))


# ---------------------------------------------------------------------- who computes what


@given(
    sizes=st.lists(st.integers(0, 50), min_size=1, max_size=6),
    start=st.integers(0, 10),
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=4),
)
def test_the_portions_of_all_members_are_the_slice(
    sizes: list[int], start: int, lengths: list[int]
) -> None:
    nodes = [f"worker-{i}" for i in range(len(sizes))]
    plan = Plan(shares={n: Share(size) for n, size in zip(nodes, sizes, strict=True) if size})
    spans, at = list[Span](), start
    for length in lengths:
        spans.append(Span(0, at, at + length))
        at += length + 3
    total = sum(lengths)

    parts = [portion_of(plan, nodes, index).of(spans) for index in range(len(nodes))]

    assert [p for part in parts for s in part for p in range(s.start, s.stop)] == [
        p for s in spans for p in range(s.start, s.stop)
    ]
    assert part_sizes(plan, nodes, total) == [sum(map(len, part)) for part in parts]
    named = [size for size in sizes if size] or [1]
    sizes = [size or round(sum(named) / len(named)) for size in sizes]
    for size, part in zip(sizes, parts, strict=True):
        fair = total * size / sum(sizes)
        assert abs(sum(len(span) for span in part) - fair) < 1


def test_a_dead_member_s_share_is_dealt_by_the_shares_of_the_others() -> None:
    plan = Plan(shares={"a": Share(4), "b": Share(2), "c": Share(2)})

    assert portion_of(plan, ["b", "c"], 0).of([Span(0, 0, 8)]) == [Span(0, 0, 4)]
    assert portion_of(plan, ["a", "c"], 1).of([Span(0, 0, 9)]) == [Span(0, 6, 9)]
    assert portion_of(plan, ["new", "c"], 0).of([Span(0, 0, 8)]) == [Span(0, 0, 4)], "3 of 5"
    assert portion_of(plan, ["new", "newer"], 1).of([Span(0, 0, 8)]) == [Span(0, 4, 8)]


def test_plans_hold_from_their_places_on_and_are_forgotten_when_over() -> None:
    plans = Plans(Ledger(), synchronous=True)
    for no, (since, undecided) in enumerate([(8, 0), (24, 8), (16, 8), (40, 24)], 1):
        record = Planned(
            plan=Plan(no=no), since=Place(0, since), step=no, undecided=Place(0, undecided)
        )
        plans.apply(record)

    assert [one.plan.no for one in plans.known] == [3, 4], "the second never came to be"
    assert plans.at(Place(0, 39)).no == 3
    assert plans.at(Place(1, 0)).no == 4
    plans.restart(step=1)
    assert plans.at(Place(0, 0)).no == 4


# ---------------------------------------------------------------------- prepare and commit


def test_a_plan_is_committed_when_nobody_holds_what_it_deals(job: Job) -> None:
    assert recalls(job.plan()) == {ONE: 16, TWO: 16}, "from step 3 on"
    job.give_back(ONE, *beyond(job, ONE, 16))
    assert job.state.plan_in_force().plan.no == 0
    job.give_back(TWO, *beyond(job, TWO, 16))

    assert isinstance(job.journal[-1].record, Planned)
    assert (job.journal[-1].record.since, job.journal[-1].record.step) == (Place(0, 16), 3)
    granted = grants(job.request(ONE)) | grants(job.request(TWO))
    assert granted == {
        ONE: (Span(0, 16, 18), Span(0, 24, 26), Span(0, 32, 34)),
        TWO: (Span(0, 18, 24), Span(0, 26, 32), Span(0, 34, 40)),
    }


def test_until_then_nothing_is_granted_beyond_it_and_afterwards_at_once(job: Job) -> None:
    job.plan()
    job.give_back(ONE, *beyond(job, ONE, 16))
    assert grants(job.request(ONE)) == {}
    sent = job.give_back(TWO, *beyond(job, TWO, 16))

    assert grants(sent) == {ONE: (Span(0, 16, 18), Span(0, 24, 26), Span(0, 32, 34))}
    assert GivenBack(epoch_no=1, inc=TWO, r=1) in [one.message for one in sent]


def test_which_plan_holds_and_since_when_can_be_asked(job: Job) -> None:
    job.plan()
    for inc in NODES:
        job.give_back(inc, *beyond(job, inc, 16))
    job.decided(1)
    assert job.state.plan_in_force().plan.no == 0
    job.decided(2)

    found = job.state.plan_in_force()
    assert (found.plan.no, found.plan.shares, found.step) == (1, UNEVEN, 3)


def test_what_is_given_back_counts_once_however_often_it_comes(job: Job) -> None:
    job.plan()
    back = beyond(job, TWO, 16)
    job.give_back(TWO, *back)
    job.give_back(ONE, *beyond(job, ONE, 16))
    job.request(TWO)
    held = job.lease(TWO)

    sent = job.give_back(TWO, *back)

    assert [one.message for one in sent] == [GivenBack(epoch_no=1, inc=TWO, r=1)]
    assert job.lease(TWO) == held
    assert job.give_back(TWO, *back, r=3) == [], "the second is missing"


def test_a_worker_without_a_share_gets_as_much_as_the_others(job: Job) -> None:
    for inc in NODES:
        job.state.ledger.give_back(inc, job.lease(inc))
    job.do(job.state.carry_out(AdjustBatch(shares={"worker-1": Share(8)}), 0))

    assert grants(job.request(ONE))[ONE][:2] == (Span(0, 0, 4), Span(0, 8, 12))
    assert grants(job.request(TWO))[TWO][:2] == (Span(0, 4, 8), Span(0, 12, 16))


def test_a_plan_is_at_once_in_force_where_steps_are_nobody_s() -> None:
    job = Job("asp")
    job.request(ONE)
    job.plan()

    assert job.state.plan_in_force().plan.shares == UNEVEN


def test_a_plan_is_a_share_of_what_is_leased_where_there_are_no_steps() -> None:
    job = Job("asp")
    assert job.state.share_of(ONE) is None
    job.plan()

    assert (job.state.share_of(ONE), job.state.share_of(TWO)) == (0.25, 0.75)
    job.do(job.state.worker_lost(ONE))
    assert (job.state.share_of(ONE), job.state.share_of(TWO)) == (None, 1.0)


@pytest.mark.parametrize(
    "shares", [{"worker-0": Share(7)}, {"worker-0": Share(0), "worker-1": Share(8)}]
)
def test_a_plan_that_is_no_step_is_refused(job: Job, shares: dict[str, Share]) -> None:
    with pytest.raises(ConfigError):
        job.state.carry_out(AdjustBatch(shares=shares), 2)

    assert job.state.plans.preparing is None


def test_the_newest_of_two_plans_under_way_counts(job: Job) -> None:
    job.plan()
    job.do(job.state.carry_out(AdjustBatch(shares={"worker-1": Share(8)}), 3))
    for inc in NODES:
        job.give_back(inc, *beyond(job, inc, 24))

    (one,) = job.state.plans.known
    assert (one.plan.no, one.plan.shares) == (2, {"worker-1": Share(8)})


def test_what_is_so_already_is_not_prepared_again(job: Job) -> None:
    job.plan()
    assert job.state.plans.preparing is not None
    job.state.plans.preparing.lead = 7
    assert recalls(job.plan()) == {ONE: 16, TWO: 16}
    assert job.state.plans.preparing.lead == 7

    for inc in NODES:
        job.give_back(inc, *beyond(job, inc, 16))
    assert job.plan() == []
    assert [one.plan.no for one in job.state.plans.known] == [1]


# ---------------------------------------------------------------------- too late


def test_a_plan_whose_step_has_come_is_moved(job: Job) -> None:
    job.plan()
    job.give_back(ONE, *beyond(job, ONE, 16))
    job.decided(1)
    assert job.state.plans.preparing is not None
    job.decided(2)

    assert job.state.plans.known[-1].since == Place(0, 48), "twice as far, which nobody holds"
    assert grants(job.request(ONE, step=3))[ONE] == (
        *(Span(0, 8 * k, 8 * k + 4) for k in (2, 3, 4)),
        Span(0, 40, 44),
        Span(0, 48, 50),
    )


def test_a_plan_is_moved_before_somebody_starves(job: Job) -> None:
    job.plan()
    job.give_back(ONE, *beyond(job, ONE, 16))
    sent = job.request(ONE, step=3, starving=True)

    assert grants(sent)[ONE][0] == Span(0, 16, 20), "by the old plan"
    assert job.state.plans.known[-1].since == Place(0, 48)


def test_who_starves_gets_of_what_others_left_no_more_than_its_own_share(job: Job) -> None:
    job.plan()
    for inc in NODES:
        job.give_back(inc, *beyond(job, inc, 16))
    job.decided(2)
    assert grants(job.request(ONE, step=3))[ONE][0] == Span(0, 16, 18)

    sent = job.request(ONE, step=3, starving=True)
    assert grants(sent)[ONE] == (Span(0, 18, 20),), "it is slow: the others are there for the rest"


def test_a_plan_that_is_to_begin_after_the_feed_begins_with_the_next(job: Job) -> None:
    job.plan(lead=100)

    assert job.state.plans.known[-1].since == Place(0, 80)
    job.decided(10)
    other = Feed(**{name: getattr(FEED, name) for name in FEED.__struct_fields__} | {"feed": 1})
    job.do(job.state.open_feed(OpenFeed(inc=ONE, feed=other)))
    assert job.state.plan_in_force().plan.no == 1


# ---------------------------------------------------------------------- deaths


def test_a_dead_worker_s_leases_need_no_answer(job: Job) -> None:
    job.plan()
    job.give_back(ONE, *beyond(job, ONE, 16))
    job.do(job.state.worker_lost(TWO))
    assert job.state.plans.preparing is not None
    answer = FenceAnswer(epoch_no=1, inc=LEADER, fenced=TWO, committed=())
    job.do(job.state.holder.fence_answer(answer))

    records = [type(entry.record).__name__ for entry in job.journal[-2:]]
    assert records == ["Returned", "Planned"]


def test_a_plan_that_was_not_committed_dies_with_the_master(job: Job) -> None:
    job.plan()
    back = beyond(job, ONE, 16)
    job.give_back(ONE, *back)
    job.restart()
    job.request(ONE)

    assert isinstance(job.journal[-2].record, GaveBack), "that stays"
    assert beyond(job, ONE, 16) == back, "granted again, by the old plan"
    assert job.state.plan_in_force().plan.no == 0


def test_a_committed_plan_outlives_the_master(job: Job) -> None:
    job.plan()
    for inc in NODES:
        job.give_back(inc, *beyond(job, inc, 16))
    job.restart()

    assert grants(job.request(ONE))[ONE][0] == Span(0, 16, 18)


def test_what_a_dead_master_s_answer_left_unsaid_is_said_again(job: Job) -> None:
    job.plan()
    back = beyond(job, ONE, 16)
    job.give_back(ONE, *back)
    job.restart()
    sent = job.give_back(ONE, *back)

    assert [one.message for one in sent] == [GivenBack(epoch_no=1, inc=ONE, r=1)]
    assert len(job.lease(ONE)) == 2


def test_a_new_epoch_commits_the_plan_since_nobody_holds_anything(job: Job) -> None:
    job.plan()
    job.new_epoch(leader=2)

    assert isinstance(job.journal[-1].record, Planned)
    assert job.state.plan_in_force().plan.no == 1


def test_after_a_restore_the_newest_plan_holds_from_the_cut_on(job: Job) -> None:
    job.plan()
    for inc in NODES:
        job.give_back(inc, *beyond(job, inc, 16))
    job.new_epoch(leader=2)

    assert (job.state.plan_in_force().plan.no, job.state.plan_in_force().step) == (1, 1)


def test_a_worker_that_joins_while_a_plan_is_prepared_gets_nothing_beyond_it(job: Job) -> None:
    job.plan()
    job.do(job.state.worker_up(13, "worker-2"))

    assert grants(job.request(13)) == {}
    sent = [one for inc in NODES for one in job.give_back(inc, *beyond(job, inc, 16))]
    assert grants(sent)[13][0] == Span(0, 21, 24), "and then as much as the others' mean: 4 of 12"


@pytest.mark.parametrize("restarted", [False, True])
def test_who_still_prepares_has_no_part_of_a_step(restarted: bool) -> None:
    job = Job()
    job.do(job.state.worker_up(13, "worker-2"))
    job.request(ONE)
    job.request(TWO)
    if restarted:
        job.restart()
        job.do(job.state.worker_up(13, "worker-2"))
    assert list(job.state.training_workers()) == [ONE, TWO]
    assert job.lease(ONE)[0] == Span(0, 0, 4)
    job.do(job.state.holder.prepare(Prepared(inc=13, schema=ModelSchema())))
    assert list(job.state.training_workers()) == [ONE, TWO, 13]


def test_the_share_of_who_has_come_since_is_the_mean_of_the_others() -> None:
    plan = Plan(shares={"worker-0": Share(3, 2), "worker-1": Share(9, 2)})
    assert plan.share_of("worker-1") == Share(9, 2)
    assert plan.share_of("worker-2") == Share(6, 2)
    assert plan.sizes_of(["worker-2", "worker-0"]) == [12, 6]
    assert Plan().share_of("worker-2") is None


# ---------------------------------------------------------------------- short steps


def allows(sent: list[Send]) -> list[tuple[int, int, int, int]]:
    return [
        (one.message.no, one.message.step, one.message.left_out, one.message.of)
        for one in sent
        if isinstance(one.message, Allow)
    ]


def short(job: Job, left_out: int = 3) -> list[Send]:
    """Half of the steps 3 and later may lack some samples; everybody has given back."""
    job.do(job.state.carry_out(Partial(left_out=left_out, chunks=2), 2))
    sent: list[Send] = []
    for inc in NODES:
        sent += job.give_back(inc, *beyond(job, inc, 16))
    return sent


def test_the_leader_is_told_what_may_be_left_out_until_it_says_that_it_knows(job: Job) -> None:
    told = (1, 3, 3, 8)
    assert allows(short(job)) == [told]
    assert allows(job.do(job.state.resend())) == [told]
    job.decided(1, allow=1)

    assert allows(job.do(job.state.resend())) == []


def test_a_grace_is_told_and_ends_with_backup_workers(job: Job) -> None:
    def told(sent: list[Send]) -> list[tuple[int, int, float]]:
        words = [one.message for one in sent if isinstance(one.message, Allow)]
        return [(word.left_out, word.late, word.grace_s) for word in words]

    sent = job.do(job.state.carry_out(Partial(left_out=1, late=3, grace_s=0.5), 100))
    assert told(sent) == [(1, 3, 0.5)]
    sent = job.do(job.state.carry_out(Partial(left_out=3, late=3, grace_s=0.5), 100))
    assert told(sent) == [(3, 0, 0.0)], "nothing more is waited for"
    sent = job.do(job.state.carry_out(Partial(left_out=0, late=3, grace_s=0.5), 100))
    assert told(sent) == [(0, 3, 0.5)]
    sent = job.do(job.state.carry_out(BackupWorkers(count=0), 100))
    assert told(sent) == [(0, 0, 0.0)]


def test_a_leader_and_a_master_that_begin_anew_are_told_again(job: Job) -> None:
    short(job)
    job.decided(1, allow=1)
    job.restart()
    assert allows(job.do(job.state.resend())) == [(1, 3, 3, 8)]
    job.do(job.state.holder.start_epoch((Server(2, "server-0", ""),)))

    sent = job.do(job.state.holder.restored(Restored(epoch_no=2, inc=2)))
    assert allows(sent) == [(1, 1, 3, 8)], "from the cut on"


@pytest.mark.parametrize(
    ("shares", "count", "left_out"),
    [({}, 1, 4), (UNEVEN, 1, 6), (UNEVEN, 0, 0)],
)
def test_backup_workers_leave_out_as_much_as_the_largest_shares(
    job: Job, shares: dict[str, Share], count: int, left_out: int
) -> None:
    if shares:
        job.do(job.state.carry_out(AdjustBatch(shares=shares), 100))
    job.do(job.state.carry_out(BackupWorkers(count=count), 100))

    assert job.state.plans.known[-1].plan.left_out == left_out
    assert job.state.plans.known[-1].plan.shares == shares, "that stays"


@pytest.mark.parametrize(
    "action",
    [
        Partial(left_out=8),
        Partial(left_out=-1),
        Partial(left_out=1, chunks=0),
        Partial(left_out=0, late=8),
        Partial(left_out=0, late=1, grace_s=-1.0),
        Partial(left_out=0, late=1, grace_s=math.inf),
        BackupWorkers(count=2),
    ],
)
def test_what_leaves_nothing_of_a_step_is_refused(job: Job, action: Partial) -> None:
    with pytest.raises(ConfigError):
        job.state.carry_out(action, 2)


def test_where_nobody_waits_nobody_is_left_out() -> None:
    with pytest.raises(ConfigError, match="bsp"):
        Job("asp").state.carry_out(Partial(left_out=1), 2)


def test_short_steps_are_counted_over_restores_and_masters(job: Job) -> None:
    short(job)
    job.decided(1, allow=1, short_steps=1, left_out=3)
    job.decided(1)
    assert (job.state.holder.short_steps, job.state.holder.left_out) == (1, 3), (
        "the older word came late"
    )
    job.new_epoch(leader=2)
    job.restart()

    assert (job.state.holder.short_steps, job.state.holder.left_out) == (1, 3)
    late = Committed(epoch_no=2, inc=2, step=1, committed=(), short_steps=2, left_out=4)
    job.do(job.state.holder.restored(Restored(epoch_no=2, inc=2)))
    job.do(job.state.holder.committed(late))
    assert (job.state.holder.short_steps, job.state.holder.left_out) == (3, 7)


def test_what_was_left_out_is_dealt_at_the_end_of_the_epoch_by_the_newest_plan() -> None:
    job = Job()
    job.do(job.state.carry_out(AdjustBatch(shares=UNEVEN), 0))
    job.state.ledger.grant(ONE, [Span(0, 0, 80)])
    left = (Span(0, 1, 5), Span(0, 9, 13))
    job.do(
        job.state.holder.committed(
            Committed(
                epoch_no=1,
                inc=LEADER,
                step=10,
                committed=(Span(0, 0, 1), Span(0, 5, 9), Span(0, 13, 80)),
            )
        )
    )
    job.give_back(ONE, *left)

    assert job.state.plans.undecided() == left
    assert grants(job.request(ONE, step=11, whole=left))[ONE] == (Span(0, 1, 3),)
    assert grants(job.request(TWO, step=11, whole=left))[TWO] == (Span(0, 3, 5), Span(0, 9, 13))


@pytest.mark.parametrize("lacking", [Partial(left_out=2), Partial(left_out=0, late=2, grace_s=0.5)])
def test_nobody_helps_with_what_its_owner_may_be_late_with(lacking: Partial) -> None:
    job = Job()
    job.do(job.state.carry_out(lacking, 0))
    job.request(ONE)
    job.decided(0)
    assert beyond(job, ONE, 0)[0] == Span(0, 0, 4)

    assert grants(job.request(ONE, starving=True)) == {ONE: (Span(0, 6, 8),)}


# ---------------------------------------------------------------------- batches


def test_a_grant_says_how_its_samples_are_computed(job: Job) -> None:
    assert not job.state.grants[ONE].batching
    job.plan()
    for inc in NODES:
        job.give_back(inc, *beyond(job, inc, 16))
    job.request(ONE)
    job.request(TWO)

    assert job.state.grants[ONE].batching == (Batching(), Batching(start=16, batch_size=1))
    assert job.state.grants[TWO].batching == (Batching(), Batching(start=16, batch_size=6))
    job.decided(3)
    job.do(job.state.carry_out(Partial(left_out=2, chunks=4), 100))
    job.request(TWO, step=4)
    assert job.state.grants[TWO].batching[-1] == Batching(
        start=80, batch_size=6, contribution=2, short=True
    )


def num_batches(how: Batching, share: int) -> int:
    """As a worker would compute so many samples of the first step."""
    leases = StepLeases(ONE, synchronous=True)
    feed = replace(FEED, num_samples=share, batch_size=share)
    leases.feed_opened(FeedOpened(inc=ONE, feed=feed))
    leases.slice, leases.batching = (feed.slice_no(1),), (how,)
    leases.lease[0] = deque(leases.slice)
    return len(leases.step_batches(0, 0, 100))


@pytest.mark.parametrize(("accumulation", "chunks"), [(1, 1), (2, 1), (1, 4), (2, 2), (3, 2)])
@pytest.mark.parametrize("living", [4, 3, 2, 1])
def test_a_part_of_an_absent_worker_s_share_makes_batches_larger_and_no_more_of_them(
    accumulation: int, chunks: int, living: int
) -> None:
    feed = replace(FEED, num_samples=2_400, batch_size=2_400)
    nodes = [f"worker-{i}" for i in range(4)]
    share = Share(600 // accumulation, accumulation)
    plans = Plans(Ledger(), synchronous=True)
    plans.ledger.open(feed)
    plan = Plan(shares=dict.fromkeys(nodes, share), chunks=chunks)
    plans.apply(Planned(plan=plan, since=Place(), step=1, undecided=Place()))
    (whole,) = plans.batching(Place(), nodes, 0)
    (how,) = plans.batching(Place(), nodes[:living], 0)
    assert whole.batch_size == share.batch_size, "as planned"
    assert num_batches(how, 2_400 // living) <= accumulation * chunks


def test_backup_workers_stay_so_many_when_shares_change(job: Job) -> None:
    job.do(job.state.carry_out(BackupWorkers(count=1), 3))
    job.plan(lead=3)

    assert job.state.plans.preparing is not None
    assert job.state.plans.preparing.plan.left_out == 6, "the larger share"


@pytest.mark.parametrize(
    "action", [AdjustBatch(shares=UNEVEN), BackupWorkers(count=1), Partial(left_out=3, chunks=2)]
)
def test_an_action_is_in_force_when_its_plan_is_committed(
    job: Job, action: AdjustBatch | BackupWorkers | Partial
) -> None:
    job.do(job.state.carry_out(action, 2))
    assert not job.state.holds(action)
    for inc in NODES:
        job.give_back(inc, Span(0, 16, 40))
    job.decided(2)

    assert job.state.holds(action)


def test_with_other_workers_backup_workers_are_to_be_ordered_again(job: Job) -> None:
    backup = BackupWorkers(count=1)
    job.do(job.state.carry_out(backup, 100))
    assert job.state.plans.newest.left_out == 4

    job.do(job.state.worker_up(13, "worker-2"))

    assert not job.state.holds(backup)


# ---------------------------------------------------------------------- fixed shares


def test_nobody_is_granted_more_of_an_epoch_than_its_fixed_share() -> None:
    job = Job("asp")
    shares = {"worker-0": Share(1), "worker-1": Share(3)}
    job.do(job.state.carry_out(AdjustBatch(shares=shares, fixed=True), 2))

    granted = [grants(job.request(ONE)).get(ONE, ()) for _ in range(4)]

    assert granted == [(Span(0, 0, 8),), (Span(0, 8, 16),), (Span(0, 16, 20),), ()]
    assert grants(job.request(TWO)) == {TWO: (Span(0, 20, 28),)}


def test_a_step_has_no_fixed_parts(job: Job) -> None:
    with pytest.raises(ConfigError, match="mode asp or ssp"):
        job.state.carry_out(AdjustBatch(shares=UNEVEN, fixed=True), 2)


# ---------------------------------------------------------------------- learning rates


def test_factors_are_told_at_once_and_with_every_grant() -> None:
    job = Job("asp")
    for inc in NODES:
        job.state.holder.untold.discard(inc)
    sent = job.do(job.state.carry_out(AdjustRate(factors={"worker-1": 0.5}), 2))
    told = {one.inc: one.message.rate for one in sent if isinstance(one.message, NewRate)}

    assert told == {ONE: Rate(1, by_staleness=True), TWO: Rate(1, 0.5)}
    job.request(TWO)
    assert job.state.grants[TWO].rate == Rate(1, 0.5)
    job.restart()
    job.request(ONE)
    assert job.state.grants[ONE].rate == Rate(1, by_staleness=True)


def test_factors_can_be_ended() -> None:
    job = Job("asp")
    job.do(job.state.carry_out(AdjustRate(factors={}), 2))
    job.do(job.state.carry_out(AdjustRate(factors={}, by_staleness=False), 2))

    assert job.state.plans.newest.rate_of("worker-0") == Rate(2)


def test_a_synchronous_mean_takes_no_factors(job: Job) -> None:
    with pytest.raises(ConfigError, match="exact mean"):
        job.state.carry_out(AdjustRate(factors={}), 2)


@pytest.mark.parametrize("factor", [0.0, -1.0, float("inf"), float("nan")])
def test_factors_are_above_0(factor: float) -> None:
    with pytest.raises(ConfigError, match="above 0"):
        Job("asp").state.carry_out(AdjustRate(factors={"worker-0": factor}), 2)


@pytest.mark.parametrize("size", range(1, 25))
@pytest.mark.parametrize("parts", [(1, 1), (1, 1, 1), (3, 5, 8)])
def test_nobody_has_a_single_sample_of_a_smaller_slice(parts: tuple[int, ...], size: int) -> None:
    """BatchNorm can normalise no batch of one, and a whole batch of 24 has more for everybody."""
    nodes = [f"worker-{rank}" for rank in range(len(parts))]
    plan = Plan(shares={node: Share(3 * part) for node, part in zip(nodes, parts, strict=True)})
    sizes = part_sizes(plan, nodes, size, 24)
    assert sum(sizes) == size
    assert 1 not in sizes or size == 1
    whole = part_sizes(plan, nodes, 24, 24)
    assert min(whole) > 1
    if min(part_sizes(plan, nodes, size)) > 1:
        assert sizes == part_sizes(plan, nodes, size), "else as the plan says"


def test_where_a_whole_batch_has_one_for_each_so_have_smaller_slices() -> None:
    assert part_sizes(Plan(), ["worker-0", "worker-1"], 2, 3) == [1, 1]

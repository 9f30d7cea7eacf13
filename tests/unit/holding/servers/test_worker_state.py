"""What one worker promises; every interleaving with servers and master is in tests/model."""

from collections.abc import Sequence

import msgspec
import pytest

from paceline.base.samples import Intervals, Span
from paceline.protocol.holding.servers.worker import WorkerState
from paceline.protocol.holding.servers.worker_acts import (
    DropWork,
    EndProcess,
    Instruction,
    PullDone,
    ToMaster,
    ToServer,
    Withdraw,
)
from paceline.protocol.samples.leases import Ask
from paceline.wire.messages.base import Server, ServerMap
from paceline.wire.messages.data import Held, Ordered, Part, Pull, Pulled, Ready, Refused
from paceline.wire.messages.feeds import Batching, Feed, Rate
from paceline.wire.messages.node import (
    FeedOpened,
    GiveBack,
    GivenBack,
    Grant,
    LeaseRequest,
    NewEpoch,
    NewRate,
    Recall,
)

INC, LEADER, FOLLOWER = 11, 1, 2


def new_epoch(epoch_no: int = 1, step: int = 0) -> NewEpoch:
    servers = tuple(Server(i, f"server-{i}", "") for i in (LEADER, FOLLOWER))
    server_map = ServerMap(version=epoch_no, servers=servers, owners=tuple(range(len(servers))))
    return NewEpoch(epoch_no=epoch_no, inc=INC, map=server_map, step=step)


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


def worker(mode: str = "asp", samples: str = "exactly-once") -> WorkerState:
    """A worker in its first epoch; a synchronous one has pulled."""
    state = WorkerState(INC, mode=mode, samples=samples)
    state.leases.feed_opened(FeedOpened(inc=INC, feed=FEED))
    state.new_epoch(new_epoch())
    if mode == "bsp":
        state.start_pull()
        for server in (LEADER, FOLLOWER):
            state.pulled(pulled(server, 1, 0))
    return state


def lease(state: WorkerState, *spans: Span, end: bool = False) -> None:
    state.leases.want(0)
    n = state.leases.last_n + 1
    state.grant(Grant(epoch_no=1, inc=INC, n=n, feed=0, spans=spans, end=end))


def offer(state: WorkerState, count: int = 1) -> Part:
    part = state.offer(state.leases.take(0, count))
    assert part is not None
    return part


def pulled(server: int, ticket: int, step: int) -> Pulled:
    """The answer of a server with all slices up to this step in its model."""
    return Pulled(
        epoch_no=1,
        server=server,
        inc=INC,
        ticket=ticket,
        step=step,
        last_seq=0,
        slice=FEED.next_slice(Intervals([0, 4 * step] if step else [])),
    )


def held(server: int, seq: int, epoch_no: int = 1) -> Held:
    return Held(epoch_no=epoch_no, server=server, inc=INC, seq=seq)


def readies(done: list[Instruction]) -> list[int]:
    return [i.message.seq for i in done if isinstance(i, ToServer) and isinstance(i.message, Ready)]


def to_master(done: Sequence[Instruction | Ask]) -> list[object]:
    return [i.message if isinstance(i, ToMaster) else i for i in done]


def requests(done: Sequence[Instruction | Ask]) -> list[LeaseRequest]:
    return [one for one in to_master(done) if isinstance(one, LeaseRequest)]


@pytest.fixture
def state() -> WorkerState:
    return worker()


# ---------------------------------------------------------------------- leases


def test_a_grant_is_taken_once(state: WorkerState) -> None:
    state.leases.want(0)
    grant = Grant(epoch_no=1, inc=INC, n=1, feed=0, spans=(Span(0, 0, 4),))

    state.grant(grant)
    state.grant(grant)

    assert state.leases.leased(0) == 4


def test_an_open_request_keeps_its_number(state: WorkerState) -> None:
    first = state.leases.want(0)
    assert state.leases.want(0) == [], "nothing new to say"
    assert [r.n for r in requests(state.resend())] == [1]
    lease(state, Span(0, 0, 4))
    assert [r.n for r in state.leases.want(0)] == [2]
    assert [r.n for r in first] == [1]


def test_without_an_open_request_the_master_still_hears_of_us(state: WorkerState) -> None:
    lease(state, Span(0, 0, 4))

    assert [(r.epoch_no, r.n) for r in requests(state.resend())] == [(1, 1)]


def test_after_the_end_nothing_more_is_asked_for(state: WorkerState) -> None:
    lease(state, end=True)

    assert state.leases.want(0) == []


# ---------------------------------------------------------------------- contributions


def test_ready_waits_for_all_servers(state: WorkerState) -> None:
    lease(state, Span(0, 0, 4))
    offer(state)

    assert readies(state.held(held(LEADER, 1))) == []
    assert readies(state.held(held(LEADER, 1))) == [], "the same server twice"
    assert readies(state.held(held(FOLLOWER, 1))) == [1]


def test_ready_names_the_last_before_which_all_are_held(state: WorkerState) -> None:
    lease(state, Span(0, 0, 4))
    offer(state)
    offer(state)

    for server in (LEADER, FOLLOWER):
        assert readies(state.held(held(server, 2))) == [], "the first is missing"
    state.held(held(LEADER, 1))
    assert readies(state.held(held(FOLLOWER, 1))) == [2]


def test_parts_are_repeated_to_those_that_do_not_hold_them(state: WorkerState) -> None:
    lease(state, Span(0, 0, 4))
    part = offer(state)
    state.held(held(LEADER, 1))

    assert [i for i in state.resend() if isinstance(i, ToServer)] == [ToServer(FOLLOWER, part)]


def test_ready_is_repeated_until_it_is_ordered(state: WorkerState) -> None:
    lease(state, Span(0, 0, 4))
    offer(state)
    state.held(held(LEADER, 1))
    state.held(held(FOLLOWER, 1))

    assert readies(state.resend()) == [1]
    state.ordered(Ordered(epoch_no=1, inc=INC, seq=1))
    assert readies(state.resend()) == []
    assert not state.offers


def test_at_most_a_window_of_contributions_is_unready(state: WorkerState) -> None:
    lease(state, Span(0, 0, 4))
    offer(state)
    assert state.may_offer()
    offer(state)
    assert not state.may_offer()
    state.ordered(Ordered(epoch_no=1, inc=INC, seq=1))
    assert state.may_offer()


def test_a_step_takes_any_number_of_contributions_that_all_servers_hold() -> None:
    state = worker("bsp")
    lease(state, Span(0, 0, 4))
    for seq in (1, 2, 3):
        offer(state)
        for server in (LEADER, FOLLOWER):
            state.held(held(server, seq))

        assert state.may_offer()


# ---------------------------------------------------------------------- epochs and fences


def test_a_new_epoch_voids_everything(state: WorkerState) -> None:
    lease(state, Span(0, 0, 4))
    offer(state)
    state.leases.want(0)

    done = state.new_epoch(new_epoch(2))

    assert done[0] == DropWork()
    assert [(r.epoch_no, r.n) for r in requests(done)] == [(2, 1)], "the open request goes on"
    assert (state.leases.leased(0), state.offers, state.next_seq) == (0, {}, 1)
    assert state.new_epoch(new_epoch(2)) == []
    assert state.new_epoch(new_epoch(1)) == []


def test_answers_of_another_epoch_are_ignored(state: WorkerState) -> None:
    state.new_epoch(new_epoch(2))
    state.leases.want(0)

    state.grant(Grant(epoch_no=1, inc=INC, n=1, feed=0, spans=(Span(0, 0, 4),)))

    assert state.leases.leased(0) == 0


@pytest.mark.parametrize(
    ("refused", "done"),
    [
        (Refused(epoch_no=1, server=LEADER, inc=INC, fenced=True), [EndProcess()]),
        (Refused(epoch_no=1, server=LEADER, inc=INC), []),
        (Refused(epoch_no=0, server=LEADER, inc=INC, fenced=True), []),
    ],
)
def test_only_a_fence_of_this_epoch_is_final(
    state: WorkerState, refused: Refused, done: list[Instruction]
) -> None:
    assert state.refused(refused) == done


# ---------------------------------------------------------------------- steps and pulls (bsp)


def test_samples_of_a_later_slice_wait_for_their_step() -> None:
    state = worker("bsp")
    lease(state, Span(0, 2, 6))

    assert state.leases.take(0, 10) == (Span(0, 2, 4),)
    assert state.leases.take(0, 10) == ()
    assert not state.leases.has_work(0)
    assert state.leases.leased(0) == 2
    assert state.leases.peek(0, 10, after=1) == (Span(0, 4, 6),)


def test_a_request_says_that_nothing_is_left_for_the_undecided_step() -> None:
    state = worker("bsp")
    lease(state, Span(0, 4, 6))

    (request,) = state.leases.want(0)
    assert (request.step, request.slice, request.starving) == (1, (Span(0, 0, 4),), True)


def test_what_a_step_consists_of_is_known_when_the_servers_have_said_it() -> None:
    state = WorkerState(INC, mode="bsp", samples="exactly-once")
    state.leases.feed_opened(FeedOpened(inc=INC, feed=FEED))
    state.new_epoch(new_epoch())
    lease(state, Span(0, 0, 8))
    assert (state.leases.slice, state.leases.has_work(0)) == (None, False)

    state.start_pull()
    state.pulled(pulled(LEADER, 1, 1))
    state.pulled(pulled(FOLLOWER, 1, 1))

    assert state.leases.take(0, 10) == (Span(0, 4, 8),), "not what the cut's step says"


def test_an_answer_about_another_feed_says_nothing_of_this_one() -> None:
    state = worker("bsp")
    state.start_pull()
    other = msgspec.structs.replace(FEED, feed=1)
    state.leases.feed_opened(FeedOpened(inc=INC, feed=other))
    for server in (LEADER, FOLLOWER):
        state.pulled(pulled(server, 2, 2))

    assert (state.leases.step, state.leases.slice) == (2, None)


def test_a_pull_is_done_when_all_servers_answer_at_one_step() -> None:
    state = worker("bsp")
    state.start_pull(ahead=1)

    assert state.pulled(pulled(LEADER, 2, 2)) == []
    again = state.pulled(pulled(FOLLOWER, 2, 1))
    pull = Pull(epoch_no=1, inc=INC, ticket=2, min_step=2, feed=FEED, map_version=1)
    assert again == [ToServer(FOLLOWER, pull)]
    assert state.pulled(pulled(FOLLOWER, 2, 2)) == [PullDone(2)]
    assert state.leases.step == 2


def test_a_worker_without_work_says_so_until_it_pulls_again() -> None:
    state = worker("ssp")
    (told,) = state.rest()

    assert isinstance(told, ToServer)
    assert isinstance(told.message, Pull)
    assert (told.server, told.message.clock) == (LEADER, -1)
    assert state.rest() == []
    assert told in state.resend()
    state.start_pull()
    assert told not in state.resend()
    assert state.rest() != []


def test_answers_to_an_older_pull_are_ignored(state: WorkerState) -> None:
    state.start_pull()
    state.start_pull()

    for server in (LEADER, FOLLOWER):
        assert state.pulled(pulled(server, 1, 0)) == []
    assert state.pulling is not None


# ---------------------------------------------------------------------- giving back


def recall(n: int, start: int, *, epoch_no: int = 1) -> Recall:
    return Recall(epoch_no=epoch_no, inc=INC, n=n, feed=0, start=start)


def given_back(done: Sequence[Instruction | Ask]) -> list[tuple[int, tuple[Span, ...]]]:
    return [(one.r, one.spans) for one in to_master(done) if isinstance(one, GiveBack)]


def test_what_was_not_begun_is_given_back_and_more_is_asked_for() -> None:
    state = worker("bsp")
    lease(state, Span(0, 0, 2), Span(0, 4, 6))
    offer(state)

    done = state.leases.recalled(recall(1, 1))

    assert given_back(done) == [(1, (Span(0, 1, 2), Span(0, 4, 6)))]
    assert [r.n for r in requests(done)] == [2]
    assert state.leases.leased(0) == 0


def test_who_does_not_know_the_step_yet_asks_for_no_more_than_its_part_of_it() -> None:
    state = WorkerState(INC, mode="bsp", samples="exactly-once")
    state.leases.feed_opened(FeedOpened(inc=INC, feed=FEED))
    state.new_epoch(new_epoch())
    lease(state, Span(0, 0, 2))

    (asked,) = state.leases.want(0)

    assert not asked.starving


def test_a_contribution_that_is_begun_keeps_what_it_waits_for() -> None:
    state = worker("bsp")
    lease(state, Span(0, 0, 2), Span(0, 4, 6))
    state.leases.take(0, 1)

    done = state.leases.recalled(recall(1, 0))

    assert given_back(done) == [(1, (Span(0, 4, 6),))]
    assert state.leases.take(0, 1) == (Span(0, 1, 2),)


def test_a_worker_that_waits_for_a_step_gives_back_what_it_was_granted_of_it() -> None:
    state = worker("bsp")
    lease(state, Span(0, 0, 2), Span(0, 4, 6))
    offer(state)
    assert state.leases.leased(0) > 0

    assert given_back(state.leases.leave_step()) == [(1, (Span(0, 1, 2),))]
    assert list(state.leases.lease[0]) == [Span(0, 4, 6)], "of the next step"
    assert state.leases.leave_step() == []
    lease(state, Span(0, 1, 2))
    state.leases.take(0, 1)
    assert state.leases.leave_step() == [], "it is begun"


def test_without_steps_there_is_none_to_leave(state: WorkerState) -> None:
    lease(state, Span(0, 4, 7))
    assert state.leases.leave_step() == []


def test_without_steps_the_next_samples_are_kept_and_the_rest_is_given_back(
    state: WorkerState,
) -> None:
    lease(state, Span(0, 4, 7), Span(0, 0, 2))
    offer(state)
    message = Recall(epoch_no=1, inc=INC, n=1, feed=0, keep=1)

    done = state.leases.recalled(message)

    assert given_back(done) == [(1, (Span(0, 6, 7), Span(0, 0, 2)))]
    assert requests(done) == [], "it has work"
    assert state.leases.take(0, 10) == (Span(0, 5, 6),)
    assert state.leases.recalled(message) == []


@pytest.mark.parametrize("message", [recall(0, 0), recall(2, 0), recall(1, 0, epoch_no=2)])
def test_a_recall_of_another_time_is_ignored(message: Recall) -> None:
    state = worker("bsp")
    lease(state, Span(0, 0, 4))

    assert state.leases.recalled(message) == []
    assert state.leases.leased(0) == 4


def test_what_is_given_back_is_repeated_until_the_master_knows() -> None:
    state = worker("bsp")
    lease(state, Span(0, 0, 8))
    state.leases.recalled(recall(1, 6))
    state.leases.recalled(recall(1, 4))

    assert [r for r, _ in given_back(state.resend())] == [1, 2]
    state.leases.given_back(GivenBack(epoch_no=1, inc=INC, r=1))
    assert given_back(state.resend()) == [(2, (Span(0, 4, 6),))]
    state.leases.given_back(GivenBack(epoch_no=1, inc=INC, r=2))
    assert given_back(state.resend()) == []


# ---------------------------------------------------------------------- short steps


def decided(state: WorkerState, step: int, done: list[int], last_seq: int) -> list[Instruction]:
    """The answers to a pull, of servers whose models hold these samples (as edges)."""
    ticket = state.ticket + 1
    state.start_pull(ahead=1)
    found: list[Instruction] = []
    for server in (LEADER, FOLLOWER):
        answer = pulled(server, ticket, step)
        told = {"last_seq": last_seq, "slice": FEED.next_slice(Intervals(done))}
        found = state.pulled(msgspec.structs.replace(answer, **told))
    return found


def test_what_a_step_has_left_out_is_given_back() -> None:
    state = worker("bsp")
    lease(state, Span(0, 0, 3), Span(0, 4, 6))
    offer(state)
    offer(state)

    done = decided(state, 1, [0, 1, 3, 4], last_seq=1)

    assert given_back(done) == [(1, (Span(0, 1, 3),))], "offered, and not even begun"
    assert (state.leases.step, state.leases.leased(0), state.offers) == (1, 2, {})
    assert state.leases.take(0, 10) == (Span(0, 4, 6),)


def test_work_in_hand_of_a_decided_step_is_withdrawn_and_given_back() -> None:
    state = worker("bsp")
    lease(state, Span(0, 0, 2))
    state.leases.take(0, 2)

    done = decided(state, 1, [2, 4], last_seq=0)

    assert done[0] == Withdraw()
    assert given_back(done) == [(1, (Span(0, 0, 2),))]


def test_what_was_left_out_is_given_back_though_it_comes_next() -> None:
    # Kept, it came on top of the worker's part of that slice: more and more, of a worker once late.
    state = worker("bsp")
    lease(state, Span(0, 4, 6))

    done = decided(state, 2, [0, 1, 2, 4, 7, 8], last_seq=0)

    assert state.leases.slice == (Span(0, 1, 2), Span(0, 4, 7))
    assert given_back(done) == [(1, (Span(0, 4, 6),))]
    assert state.leases.leased(0) == 0


def test_who_has_its_part_of_left_outs_in_hand_leaves_those_of_others() -> None:
    state = worker("bsp")
    decided(state, 2, [0, 1, 2, 4, 7, 8], last_seq=0)
    lease(state, Span(0, 1, 2))
    spans = state.leases.take(0, 10)

    assert [asked.starving for asked in state.leases.want(0)] == [False]
    state.offer(spans)
    assert [asked.starving for asked in state.leases.want(0)] == [True]


def test_nothing_is_given_back_where_nothing_was_left_out() -> None:
    state = worker("bsp")
    lease(state, Span(0, 0, 2), Span(0, 4, 8))
    offer(state, 2)

    assert given_back(decided(state, 1, [0, 4], last_seq=1)) == []
    assert state.leases.leased(0) == 4


# ---------------------------------------------------------------------- batches of a share


def dealt(*spans: Span, **how: int | bool) -> WorkerState:
    """A worker that computes its share of steps like this."""
    state = worker("bsp")
    state.leases.want(0)
    batching = (Batching(), Batching(start=4, **how))  # type: ignore[arg-type]
    state.grant(Grant(epoch_no=1, inc=INC, n=1, feed=0, spans=spans, batching=batching))
    return state


def test_a_share_is_computed_in_batches_from_the_place_on_that_is_told() -> None:
    state = dealt(Span(0, 0, 8), batch_size=3)

    assert state.leases.step_batches(0, 0, 5) == [(Span(0, 0, 4),)]
    assert state.leases.step_batches(0, 1, 5) == [(Span(0, 4, 7),), (Span(0, 7, 8),)]
    assert state.leases.step_batches(0, 1, 1) == [(Span(0, 4, 7),)]
    assert state.leases.next_size(0) > 4
    decided(state, 1, [0, 4], last_seq=0)
    assert state.leases.next_size(0) == 3


def test_a_contribution_is_whole_when_its_samples_are_taken_or_nothing_is_left() -> None:
    state = dealt(Span(0, 4, 8), batch_size=2, contribution=3)
    decided(state, 1, [0, 4], last_seq=0)
    assert state.leases.step_batches(0, 0, 9) == [
        (Span(0, 4, 6),),
        (Span(0, 6, 7),),
        (Span(0, 7, 8),),
    ]

    first = state.leases.take(0, state.leases.next_size(0))
    assert not state.leases.is_whole(0)
    second = state.leases.take(0, state.leases.next_size(0))
    assert (first, second) == ((Span(0, 4, 6),), (Span(0, 6, 7),))
    assert state.leases.is_whole(0)
    assert state.offer((Span(0, 4, 7),)).weight == 3
    state.leases.take(0, state.leases.next_size(0))
    assert state.leases.is_whole(0), "nothing is left"


def test_whoever_may_be_left_out_looks_out_while_it_computes() -> None:
    state = dealt(Span(0, 4, 7), short=True)
    decided(state, 1, [0, 4], last_seq=0)
    assert state.watch() == [], "there is nothing in hand"
    state.leases.take(0, 2)
    (told,) = state.watch()
    assert isinstance(told, ToServer)
    assert isinstance(told.message, Pull)
    assert (told.server, told.message.min_step, told.message.dense) == (LEADER, 2, False)
    assert state.watch() == [], "once"
    assert told in state.resend()

    assert state.leases.has_work(0)
    answer = pulled(LEADER, told.message.ticket, 2)
    assert state.pulled(answer) == []
    assert not state.leases.has_work(0), "of a step that is over"
    assert (state.leases.step, state.leases.passed) == (1, 2)
    done = decided(state, 2, [0, 4, 7, 8], last_seq=0)
    assert given_back(done) == [(1, (Span(0, 4, 7),))], "it comes next, and is dealt anew"


def test_nobody_looks_out_where_nothing_is_left_out() -> None:
    state = dealt(Span(0, 0, 8), batch_size=3)
    state.leases.take(0, 2)

    assert state.watch() == []


# ---------------------------------------------------------------------- learning rates


def test_contributions_say_the_newest_factor_and_what_they_are_computed_on(
    state: WorkerState,
) -> None:
    lease(state, Span(0, 0, 4))
    assert (offer(state).factor, state.offer(state.leases.take(0, 1), seen=5).seen) == (1.0, -1)
    state.new_rate(NewRate(epoch_no=1, inc=INC, rate=Rate(2, 0.5)))
    assert offer(state).factor == 0.5
    state.new_rate(NewRate(epoch_no=1, inc=INC, rate=Rate(1, 0.1)))
    state.new_rate(NewRate(epoch_no=2, inc=INC, rate=Rate(9, 0.1)))
    state.new_rate(NewRate(epoch_no=1, inc=INC, rate=Rate(3, by_staleness=True)))
    part = state.offer(state.leases.take(0, 1), seen=5)

    assert (part.factor, part.seen) == (1.0, 5)


def test_a_grant_brings_the_factor_too(state: WorkerState) -> None:
    state.leases.want(0)
    rate = Rate(1, 0.5)
    state.grant(Grant(epoch_no=1, inc=INC, n=1, feed=0, spans=(Span(0, 0, 4),), rate=rate))

    assert offer(state).factor == 0.5


def test_where_a_step_has_blocks_each_is_a_batch_however_they_are_granted() -> None:
    state = worker("bsp")
    divided = msgspec.structs.replace(FEED, blocks=3)  # [0, 1), [1, 2), [2, 4)
    state.leases.feed_opened(FeedOpened(inc=INC, feed=divided))
    state.leases.feeds[0] = divided
    # What a solution says of batches does not count.
    batching = (Batching(start=0, batch_size=3),)
    state.leases.want(0)
    spans = (Span(0, 1, 4), Span(0, 6, 8))
    grant = Grant(epoch_no=1, inc=INC, n=1, feed=0, spans=spans, batching=batching)
    state.grant(grant)
    assert state.leases.step_batches(0, 0, 5) == [(Span(0, 1, 2),), (Span(0, 2, 4),)]
    assert state.leases.step_batches(0, 1, 5) == [(Span(0, 6, 8),)]
    taken = []
    while state.leases.has_work(0):
        taken.append(state.leases.take(0, state.leases.next_size(0)))
        assert state.leases.is_whole(0) is (not state.leases.has_work(0))
    assert taken == [(Span(0, 1, 2),), (Span(0, 2, 4),)]

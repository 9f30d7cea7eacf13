"""What one server promises; every interleaving of several is in tests/model."""

import msgspec
import pytest

from paceline.base.errors import InternalError
from paceline.base.samples import SampleSet, Span
from paceline.protocol.holding.servers.server import ServerState
from paceline.protocol.holding.servers.server_acts import (
    AnswerPull,
    Apply,
    CopyState,
    Forget,
    Instruction,
    Keep,
    Load,
    Reply,
    Tell,
)
from paceline.protocol.holding.servers.worker_acts import ToMaster
from paceline.wire.messages.base import CutRef, Server, ServerMap
from paceline.wire.messages.data import At, Held, MapIs, Order, Ordered, Part, Pull, Ready, Refused
from paceline.wire.messages.feeds import Feed
from paceline.wire.messages.node import (
    Committed,
    Copied,
    Fence,
    FenceAnswer,
    Restore,
    Restored,
    TakeCut,
)
from paceline.wire.messages.order import Allow, Cut, Included, Update

LEADER, FOLLOWER, WORKER, OTHER = 1, 2, 11, 12


def restore(inc: int, *, epoch_no: int = 1, mode: str = "asp", servers: int = 2) -> Restore:
    known = tuple(Server(i, f"server-{i}", "") for i in range(1, servers + 1))
    return Restore(
        epoch_no=epoch_no,
        inc=inc,
        cut=CutRef(cut_no=0),
        map=ServerMap(version=1, servers=known, owners=(0, 1)),
        mode=mode,
        samples="exactly-once",
        staleness=1,
    )


def server(inc: int, *, mode: str = "asp", servers: int = 2) -> ServerState:
    state = ServerState(inc)
    state.loaded(restore(inc, mode=mode, servers=servers), 0, SampleSet())
    return state


def part(
    seq: int, start: int, stop: int, *, inc: int = WORKER, step: int = 0, epoch_no: int = 1
) -> Part:
    return Part(
        epoch_no=epoch_no,
        inc=inc,
        seq=seq,
        map_version=1,
        spans=(Span(0, start, stop),),
        weight=stop - start,
        step=step,
        slice=(Span(0, 4 * step - 4, 4 * step),) if step else (),
    )


def ready(seq: int, *, inc: int = WORKER, step: int = 0) -> Ready:
    return Ready(epoch_no=1, inc=inc, seq=seq, map_version=1, step=step)


def applied(done: list[Instruction]) -> list[tuple[tuple[int, int], ...]]:
    return [i.keys for i in done if isinstance(i, Apply)]


def is_refused(done: list[Instruction], *, fenced: bool = False) -> bool:
    match done:
        case [Reply(_, Refused(fenced=said))]:
            return said == fenced
    return False


@pytest.fixture
def leader() -> ServerState:
    return server(LEADER)


@pytest.fixture
def follower() -> ServerState:
    return server(FOLLOWER)


# ---------------------------------------------------------------------- epochs


def test_a_fresh_server_takes_nothing_but_restore() -> None:
    fresh = ServerState(LEADER)

    assert is_refused(fresh.part(part(1, 0, 1)))
    assert is_refused(fresh.ready(ready(1)))
    assert is_refused(fresh.pull(Pull(epoch_no=1, inc=WORKER, ticket=1)))
    assert fresh.fence(Fence(epoch_no=1, inc=LEADER, fenced=WORKER)) == []
    assert fresh.restore(restore(LEADER)) == [Load(restore(LEADER))]


def test_restore_names_one_incarnation() -> None:
    assert ServerState(9).restore(restore(LEADER)) == []


def test_a_repeated_restore_is_answered_and_changes_nothing(leader: ServerState) -> None:
    leader.part(part(1, 0, 1))

    assert leader.restore(restore(LEADER)) == [ToMaster(Restored(epoch_no=1, inc=LEADER))]
    assert leader.loaded(restore(LEADER), 0, SampleSet()) == []
    assert (WORKER, 1) in leader.contents.parts


@pytest.mark.parametrize("epoch_no", [0, 2])
def test_parts_of_another_epoch_are_refused_older_or_newer(
    leader: ServerState, epoch_no: int
) -> None:
    assert is_refused(leader.part(part(1, 0, 1, epoch_no=epoch_no)))
    assert not leader.contents.parts


def test_a_restore_forgets_everything(leader: ServerState) -> None:
    leader.part(part(1, 0, 1))
    leader.ready(ready(1))
    leader.fence(Fence(epoch_no=1, inc=LEADER, fenced=OTHER))
    leader.loaded(restore(LEADER, epoch_no=2), 0, SampleSet())

    assert (leader.contents.position, leader.contents.parts, leader.fenced) == (0, {}, {})
    assert not leader.contents.committed


# ---------------------------------------------------------------------- the order


def test_a_part_is_kept_once_and_said_to_be_held_each_time(leader: ServerState) -> None:
    held = Reply(WORKER, Held(epoch_no=1, server=LEADER, inc=WORKER, seq=1))

    assert leader.part(part(1, 0, 2)) == [Keep((WORKER, 1)), held]
    assert leader.part(part(1, 0, 2)) == [held]


def test_ready_is_the_decision_and_a_repetition_decides_nothing(leader: ServerState) -> None:
    leader.part(part(1, 0, 2))
    leader.part(part(2, 2, 3))

    done = leader.ready(ready(2))

    assert applied(done) == [((WORKER, 1),), ((WORKER, 2),)]
    assert done[-1] == Reply(WORKER, Ordered(epoch_no=1, inc=WORKER, seq=2))
    assert leader.contents.committed == SampleSet([Span(0, 0, 3)])
    assert applied(leader.ready(ready(2))) == []
    assert applied(leader.ready(ready(1))) == []


def test_only_the_leader_decides(follower: ServerState) -> None:
    follower.part(part(1, 0, 2))

    (reply,) = follower.ready(ready(1))

    assert isinstance(reply, Reply)
    assert isinstance(reply.message, MapIs)
    assert not reply.message.leads
    assert reply.message.map.servers[0].inc == LEADER
    assert follower.contents.position == 0


def test_a_part_that_is_applied_is_never_kept_again(leader: ServerState) -> None:
    leader.part(part(1, 0, 2))
    leader.ready(ready(1))

    assert leader.part(part(1, 0, 2)) == [
        Reply(WORKER, Held(epoch_no=1, server=LEADER, inc=WORKER, seq=1))
    ]


def test_a_follower_applies_in_the_order_of_positions(follower: ServerState) -> None:
    follower.part(part(1, 0, 2))
    follower.part(part(2, 2, 3))
    first, second = (
        Order(
            epoch_no=1, leader=LEADER, start=p, entries=(Update(included=(Included(WORKER, p),)),)
        )
        for p in (1, 2)
    )

    assert applied(follower.order(second)) == []
    assert applied(follower.order(first)) == [((WORKER, 1),), ((WORKER, 2),)]
    assert follower.order(first)[-1] == Tell(LEADER, At(epoch_no=1, server=FOLLOWER, position=2))


def test_the_leader_keeps_an_entry_until_all_have_applied_it(leader: ServerState) -> None:
    leader.part(part(1, 0, 2))
    leader.ready(ready(1))

    first = leader.orders()
    assert len(first) == 1
    assert leader.orders() == [], "sent once"
    assert leader.orders(resend=True) == first, "repeated until applied"
    leader.at(At(epoch_no=1, server=FOLLOWER, position=1))
    assert leader.orders(resend=True) == []
    assert not leader.log.entries


def test_an_order_for_a_part_never_held_stops_the_job(follower: ServerState) -> None:
    order = Order(
        epoch_no=1, leader=LEADER, start=1, entries=(Update(included=(Included(WORKER, 1),)),)
    )

    with pytest.raises(InternalError, match="never held"):
        follower.order(order)


def test_a_sample_that_is_in_the_model_stops_the_job(leader: ServerState) -> None:
    leader.part(part(1, 0, 2))
    leader.ready(ready(1))
    leader.part(part(1, 1, 3, inc=OTHER))

    with pytest.raises(InternalError, match="in the model"):
        leader.ready(ready(1, inc=OTHER))


# ---------------------------------------------------------------------- fences


def test_a_fenced_worker_enters_no_later_entry(leader: ServerState) -> None:
    leader.part(part(1, 0, 2))
    leader.ready(ready(1))
    leader.part(part(2, 2, 3))

    done = leader.fence(Fence(epoch_no=1, inc=LEADER, fenced=WORKER))

    answer = FenceAnswer(epoch_no=1, inc=LEADER, fenced=WORKER, committed=(Span(0, 0, 2),))
    assert done == [Forget(((WORKER, 2),)), ToMaster(answer)]
    assert is_refused(leader.ready(ready(2)), fenced=True)
    assert is_refused(leader.part(part(3, 3, 4)), fenced=True)
    assert is_refused(leader.pull(Pull(epoch_no=1, inc=WORKER, ticket=1)), fenced=True)
    assert leader.contents.committed == SampleSet([Span(0, 0, 2)])


def test_a_fence_is_answered_each_time(leader: ServerState) -> None:
    fence = Fence(epoch_no=1, inc=LEADER, fenced=WORKER)

    assert leader.fence(fence) == leader.fence(fence)


def test_a_follower_applies_what_was_ordered_before_the_fence(follower: ServerState) -> None:
    follower.part(part(1, 0, 2))
    follower.part(part(2, 2, 3))
    entry = Update(included=(Included(WORKER, 1),))
    order = Order(epoch_no=1, leader=LEADER, start=1, entries=(entry,), fenced=((WORKER, 1),))

    done = follower.order(order)

    assert applied(done) == [((WORKER, 1),)]
    assert Forget(((WORKER, 2),)) in done
    assert is_refused(follower.part(part(3, 3, 4)), fenced=True)


# ---------------------------------------------------------------------- cuts


def test_a_cut_is_an_entry_of_the_order(leader: ServerState, follower: ServerState) -> None:
    take = TakeCut(epoch_no=1, inc=LEADER, cut_no=1)
    leader.part(part(1, 0, 2))
    leader.ready(ready(1))

    done = leader.take_cut(take)

    expected = Copied(
        epoch_no=1,
        inc=LEADER,
        cut_no=1,
        position=2,
        step=0,
        committed=(Span(0, 0, 2),),
        sharers=(LEADER, FOLLOWER),
    )
    assert done == [CopyState(expected)]
    assert leader.log.entries[2] == Cut(cut_no=1)
    assert follower.take_cut(take) == [], "a follower copies when it reaches the position"


def test_copied_is_said_only_when_the_copy_is_safe(leader: ServerState) -> None:
    take = TakeCut(epoch_no=1, inc=LEADER, cut_no=1)
    (copy,) = leader.take_cut(take)
    assert isinstance(copy, CopyState)

    assert leader.take_cut(take) == [], "under way"
    assert leader.copy_is_safe(copy.copied) == [ToMaster(copy.copied)]
    assert leader.take_cut(take) == [ToMaster(copy.copied)], "said again when asked again"


def test_a_copy_of_an_older_epoch_is_worth_nothing(leader: ServerState) -> None:
    (copy,) = leader.take_cut(TakeCut(epoch_no=1, inc=LEADER, cut_no=1))
    assert isinstance(copy, CopyState)
    leader.loaded(restore(LEADER, epoch_no=2), 0, SampleSet())

    assert leader.copy_is_safe(copy.copied) == []


# ---------------------------------------------------------------------- steps (bsp)


def test_a_step_is_decided_when_its_slice_is_covered() -> None:
    leader = server(LEADER, mode="bsp")
    leader.part(part(1, 2, 4, step=1))
    leader.part(part(1, 0, 2, inc=OTHER, step=1))

    assert applied(leader.ready(ready(1, step=1))) == []
    done = leader.ready(ready(1, inc=OTHER, step=1))
    assert applied(done) == [((OTHER, 1), (WORKER, 1))], "summed by first sample"
    assert leader.contents.step == 1


def test_a_survivor_may_add_a_second_contribution_to_the_step() -> None:
    leader = server(LEADER, mode="bsp")
    leader.part(part(1, 0, 2, step=1))
    leader.part(part(1, 2, 4, inc=OTHER, step=1))
    leader.ready(ready(1, step=1))
    leader.fence(Fence(epoch_no=1, inc=LEADER, fenced=OTHER))
    leader.part(part(2, 2, 4, step=1))

    assert applied(leader.ready(ready(2, step=1))) == [((WORKER, 1), (WORKER, 2))]


def test_a_fenced_contribution_does_not_cover() -> None:
    leader = server(LEADER, mode="bsp")
    leader.part(part(1, 0, 2, inc=OTHER, step=1))
    leader.ready(ready(1, inc=OTHER, step=1))
    leader.fence(Fence(epoch_no=1, inc=LEADER, fenced=OTHER))
    leader.part(part(1, 2, 4, step=1))

    assert applied(leader.ready(ready(1, step=1))) == []


def test_parts_of_any_step_but_the_next_are_refused() -> None:
    leader = server(LEADER, mode="bsp")

    assert is_refused(leader.part(part(1, 4, 8, step=2)))


def test_a_pull_waits_for_its_step() -> None:
    leader = server(LEADER, mode="bsp")
    pull = Pull(epoch_no=1, inc=OTHER, ticket=1, min_step=1, map_version=1)

    assert leader.pull(pull) == []
    leader.part(part(1, 0, 4, step=1))
    assert AnswerPull(pull) in leader.ready(ready(1, step=1))


# ---------------------------------------------------------------------- short steps (bsp)


def allow(left_out: int, *, no: int = 1, step: int = 1, late: int = 0) -> Allow:
    return Allow(
        epoch_no=1, inc=LEADER, no=no, step=step, left_out=left_out, of=4, late=late, grace_s=0.3
    )


@pytest.fixture
def synchronous() -> ServerState:
    return server(LEADER, mode="bsp", servers=1)


def test_a_step_is_decided_while_what_may_be_left_out_is_missing(synchronous: ServerState) -> None:
    synchronous.allow(allow(2))
    synchronous.part(part(1, 0, 1, step=1))
    assert applied(synchronous.ready(ready(1, step=1))) == [], "3 of 4 are missing"
    synchronous.part(part(1, 2, 3, inc=OTHER, step=1))
    done = synchronous.ready(ready(1, inc=OTHER, step=1))

    assert applied(done) == [((WORKER, 1), (OTHER, 1))]
    assert (
        synchronous.contents.step,
        synchronous.contents.short_steps,
        synchronous.contents.left_out,
    ) == (1, 1, 2)
    assert synchronous.contents.committed == SampleSet([Span(0, 0, 1), Span(0, 2, 3)])


def test_what_is_late_is_waited_for_until_the_grace_is_over(synchronous: ServerState) -> None:
    synchronous.allow(allow(0, late=2))
    synchronous.part(part(1, 0, 1, step=1))
    assert applied(synchronous.ready(ready(1, step=1))) == []
    assert synchronous.readiness.grace_s is None, "3 of 4 are missing"
    assert synchronous.grace_over() == []
    synchronous.part(part(1, 2, 3, inc=OTHER, step=1))
    assert applied(synchronous.ready(ready(1, inc=OTHER, step=1))) == []
    assert synchronous.readiness.grace_s == 0.3

    assert applied(synchronous.grace_over()) == [((WORKER, 1), (OTHER, 1))]
    assert synchronous.readiness.grace_s is None
    assert (
        synchronous.contents.step,
        synchronous.contents.short_steps,
        synchronous.contents.left_out,
    ) == (1, 1, 2)


def test_a_step_that_is_whole_within_its_grace_is_not_short(synchronous: ServerState) -> None:
    synchronous.allow(allow(0, late=2))
    synchronous.part(part(1, 0, 2, step=1))
    synchronous.ready(ready(1, step=1))
    assert synchronous.readiness.grace_s == 0.3
    synchronous.part(part(1, 2, 4, inc=OTHER, step=1))

    assert len(applied(synchronous.ready(ready(1, inc=OTHER, step=1)))) == 1
    assert (synchronous.readiness.grace_s, synchronous.contents.short_steps) == (None, 0)
    assert synchronous.grace_over() == [], "nothing of the next step is there"


def test_a_grace_ends_with_a_contribution_that_is_lost(synchronous: ServerState) -> None:
    synchronous.allow(allow(0, late=2))
    for inc, low in ((WORKER, 0), (OTHER, 1)):
        synchronous.part(part(1, low, low + 1, inc=inc, step=1))
        synchronous.ready(ready(1, inc=inc, step=1))
    assert synchronous.readiness.grace_s == 0.3
    synchronous.fence(Fence(epoch_no=1, inc=LEADER, fenced=OTHER))

    assert synchronous.grace_over() == []
    assert (synchronous.readiness.grace_s, synchronous.contents.step) == (None, 0)


def test_what_waits_when_the_leader_hears_of_it_is_decided_then(synchronous: ServerState) -> None:
    synchronous.part(part(1, 0, 3, step=1))
    synchronous.ready(ready(1, step=1))
    done = synchronous.allow(allow(1))

    assert applied(done) == [((WORKER, 1),)]


def test_nothing_is_left_out_before_the_step_that_is_told(synchronous: ServerState) -> None:
    synchronous.allow(allow(1, step=2))
    synchronous.part(part(1, 0, 3, step=1))

    assert applied(synchronous.ready(ready(1, step=1))) == []
    synchronous.part(part(2, 3, 4, step=1))
    synchronous.ready(ready(2, step=1))
    synchronous.part(part(3, 5, 8, step=2))
    assert len(applied(synchronous.ready(ready(3, step=2)))) == 1
    assert (synchronous.contents.short_steps, synchronous.contents.left_out) == (1, 1)


def test_a_small_slice_may_lack_as_small_a_share(synchronous: ServerState) -> None:
    synchronous.allow(allow(2))
    whole = (Span(0, 0, 1), Span(0, 3, 4), Span(0, 6, 7))
    for seq, span in enumerate(whole, 1):
        piece = msgspec.structs.replace(
            part(seq, span.start, span.stop, step=1), slice=whole, weight=1
        )
        synchronous.part(piece)

    assert applied(synchronous.ready(ready(1, step=1))) == [], "one of three may be missing"
    assert len(applied(synchronous.ready(ready(2, step=1)))) == 1


def test_the_newest_word_counts_and_is_confirmed(synchronous: ServerState) -> None:
    synchronous.allow(allow(0, no=3))
    (said,) = synchronous.allow(allow(3, no=2))

    assert isinstance(said, ToMaster)
    assert isinstance(said.message, Committed)
    assert said.message.allow == 3
    synchronous.part(part(1, 0, 3, step=1))
    assert applied(synchronous.ready(ready(1, step=1))) == []


def test_a_contribution_that_a_step_left_out_never_enters_another(synchronous: ServerState) -> None:
    synchronous.allow(allow(2))
    synchronous.part(part(1, 0, 2, inc=OTHER, step=1))
    synchronous.part(part(1, 2, 4, step=1))
    done = synchronous.ready(ready(1, step=1))

    assert Forget(((OTHER, 1),)) in done
    assert is_refused(synchronous.part(part(1, 0, 2, inc=OTHER, step=1)))
    assert applied(synchronous.ready(ready(1, inc=OTHER, step=1))) == []


def test_what_the_next_step_consists_of_follows_from_what_is_in_the_model(
    synchronous: ServerState,
) -> None:
    feed = Feed(
        feed=0,
        purpose="train",
        num_samples=8,
        epochs=1,
        batch_size=4,
        shard_size=8,
        shuffle=False,
        seed=0,
    )
    synchronous.contents.committed = SampleSet([Span(0, 0, 3)])
    assert synchronous.next_slice(feed) == (Span(0, 4, 8),)
    synchronous.contents.committed.add(Span(0, 5, 8))
    assert synchronous.next_slice(feed) == (Span(0, 3, 5),)


# ---------------------------------------------------------------------- staleness (ssp)


def test_a_fast_worker_waits_for_the_slowest() -> None:
    leader = server(LEADER, mode="ssp", servers=1)

    def pull(inc: int, clock: int) -> Pull:
        return Pull(epoch_no=1, inc=inc, ticket=clock + 1, clock=clock, map_version=1)

    assert leader.pull(pull(WORKER, 0)) == [AnswerPull(pull(WORKER, 0))]
    assert leader.pull(pull(OTHER, 0)) == [AnswerPull(pull(OTHER, 0))]
    assert leader.pull(pull(WORKER, 1)) == [AnswerPull(pull(WORKER, 1))], "one ahead"
    assert leader.pull(pull(WORKER, 2)) == [], "two ahead"
    assert leader.pull(pull(OTHER, 1)) == [
        AnswerPull(pull(WORKER, 2)),
        AnswerPull(pull(OTHER, 1)),
    ]


def test_nobody_waits_for_a_fenced_worker() -> None:
    leader = server(LEADER, mode="ssp", servers=1)
    leader.pull(Pull(epoch_no=1, inc=OTHER, ticket=1, clock=0, map_version=1))
    leader.pull(Pull(epoch_no=1, inc=WORKER, ticket=1, clock=0, map_version=1))
    waiting = Pull(epoch_no=1, inc=WORKER, ticket=2, clock=2, map_version=1)
    assert leader.pull(waiting) == []

    done = leader.fence(Fence(epoch_no=1, inc=LEADER, fenced=OTHER))

    assert AnswerPull(waiting) in done


# ---------------------------------------------------------------------- learning rates (asp)


def factors(done: list[Instruction]) -> list[float]:
    return [i.factor for i in done if isinstance(i, Apply)]


def test_a_contribution_has_the_factor_that_its_part_names(leader: ServerState) -> None:
    leader.part(msgspec.structs.replace(part(1, 0, 2), factor=0.25))
    leader.part(part(2, 2, 4))

    assert factors(leader.ready(ready(2))) == [0.25, 1.0]


def test_what_was_computed_on_old_parameters_counts_less(leader: ServerState) -> None:
    leader.part(part(1, 0, 2, inc=OTHER))
    leader.part(part(2, 2, 4, inc=OTHER))
    leader.part(msgspec.structs.replace(part(1, 4, 6), seen=0))
    leader.part(msgspec.structs.replace(part(2, 6, 8), seen=3, factor=0.5))
    leader.ready(ready(2, inc=OTHER))

    assert factors(leader.ready(ready(2))) == [1 / 3, 0.5], "two updates came between, then none"


def test_all_servers_weigh_a_contribution_alike(leader: ServerState, follower: ServerState) -> None:
    stale = msgspec.structs.replace(part(2, 2, 4), seen=0)
    for state in (leader, follower):
        state.part(part(1, 0, 2))
        state.part(stale)
    leader.take_cut(TakeCut(epoch_no=1, inc=LEADER, cut_no=1))
    decided = leader.ready(ready(2))
    (order,) = [i.message for i in leader.orders() if isinstance(i, Tell)]

    assert isinstance(order, Order)
    assert factors(follower.order(order)) == factors(decided) == [1.0, 0.5], "a cut is no update"


def test_where_nothing_is_ordered_each_server_counts_for_itself() -> None:
    state = ServerState(LEADER)
    at_least_once = msgspec.structs.replace(restore(LEADER, servers=1), samples="at-least-once")
    state.loaded(at_least_once, 0, SampleSet())
    state.part(part(1, 0, 2))

    assert factors(state.part(msgspec.structs.replace(part(2, 2, 4), seen=0))) == [0.5]

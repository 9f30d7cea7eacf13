"""Members and their master form groups: both machines, message by message."""

from collections.abc import Callable

import msgspec
import pytest

from paceline.base.errors import ConfigError, InternalError
from paceline.base.samples import Span
from paceline.policy.actions import AdjustBatch, Share
from paceline.protocol.acts import (
    Fail,
    FeedDone,
    Instruction,
    Seal,
    Send,
    WorkerRefused,
    WriteAhead,
)
from paceline.protocol.holding.group import formation
from paceline.protocol.holding.group.formation import WhyNone
from paceline.protocol.holding.group.master import GroupHolder
from paceline.protocol.holding.group.member import (
    Connect,
    Copy,
    Drop,
    LoadReplica,
    MemberState,
    Say,
)
from paceline.protocol.holding.group.member import Instruction as MemberInstruction
from paceline.protocol.nodes.hangs import (
    SLOW_S,
    Hang,
    SlowMember,
    SlowMembers,
    find_hang,
    find_silent,
)
from paceline.protocol.records import GroupProgressed, Returned
from paceline.protocol.snapshot import restore, take
from paceline.protocol.training import MasterState
from paceline.wire.messages.agent import NodeFacts
from paceline.wire.messages.feeds import Feed
from paceline.wire.messages.group import (
    NO_FEED,
    NO_STEP,
    CatchUp,
    Divide,
    Division,
    GroupUp,
    JoinGroup,
    MemberPart,
    Progress,
    RunGroup,
    StopGroup,
)
from paceline.wire.messages.node import (
    AskCut,
    AskPlace,
    Copied,
    CutMade,
    FeedOpened,
    GivenUp,
    NodeDown,
    OpenFeed,
    PlaceIs,
    TakeCut,
)

FEED = Feed(
    feed=0,
    purpose="train",
    num_samples=6,
    epochs=1,
    batch_size=2,
    shard_size=6,
    shuffle=False,
    seed=0,
)


LATER = msgspec.structs.replace(FEED, feed=1, place=(0, -1, 1))
"""A later loop of the script."""


class Job:
    """A master and its members; messages arrive at once, unless they are held back."""

    def __init__(
        self,
        num_workers: int,
        *,
        min_members: int = 1,
        sharded: bool = False,
        whole_steps: bool = False,
    ) -> None:
        self.expected = num_workers
        self.min_members, self.sharded = min_members, sharded
        self.whole_steps = whole_steps
        self.master = self.new_master()
        self.records: list[WriteAhead] = []
        self.members: dict[int, MemberState] = {}
        self.told: list[tuple[int, MemberInstruction]] = []
        self.sent: list[tuple[int, NodeDown]] = []
        """What the master has sent, also to who gets no message."""
        self.failed: list[str] = []
        self.refused: dict[int, str] = {}
        self.done: list[int] = []
        self.held: set[int] = set()
        """Who gets no message."""
        self.distant: set[int] = set()
        """Who is on another machine."""
        self.copying: dict[int, CatchUp] | None = None
        """Copies on their way, where they take time."""
        for inc in range(1, num_workers + 1):
            self.worker(inc)
        self.run(self.master.open_feed(OpenFeed(inc=1, feed=FEED)))

    def new_master(self) -> MasterState:
        self.holder = GroupHolder(
            min_members=self.min_members, sharded=self.sharded, copies_at_rest=self.whole_steps
        )
        return MasterState(
            self.holder, mode="bsp", samples="exactly-once", whole_steps=self.whole_steps
        )

    @property
    def group(self) -> list[int]:
        """Who is in the newest group."""
        return [member.inc for member in self.holder.group.members]

    def worker(self, inc: int) -> MemberState:
        """A worker comes up; it asks to be let in later."""
        self.master.worker_up(inc, f"worker-{inc}")
        self.members[inc] = MemberState(inc, f"address-{inc}", "a model")
        return self.members[inc]

    def join(self, *incs: int) -> None:
        for inc in incs or tuple(self.members):
            self.act(inc, self.members[inc].join())

    def act(self, inc: int, instructions: list[MemberInstruction]) -> None:
        for one in instructions:
            self.told.append((inc, one))
            match one:
                case Say(message):
                    self.say(message)
                case LoadReplica(order):
                    self.act(inc, self.members[inc].copied(order))
                case Copy(order) if self.copying is not None:
                    self.copying[inc] = order
                case Copy(order):
                    source = self.members[order.source.inc]
                    if source.step == order.step:
                        self.act(inc, self.members[inc].copied(order))
                case _:
                    pass

    def say(self, message: GroupUp) -> None:
        node = f"worker-{message.inc}"
        distant = message.inc in self.distant
        said = self.holder.member_said(message, node=node, expected=self.expected, distant=distant)
        self.run(said)

    def run(self, instructions: list[Instruction]) -> None:
        for one in instructions:
            match one:
                case Send(inc=inc, message=message):
                    self.deliver(inc, message)
                case WriteAhead():
                    self.records.append(one)
                case Fail(reason=reason):
                    self.failed.append(reason)
                case WorkerRefused(inc=inc, reason=reason):
                    self.refused[inc] = reason
                    self.run(self.master.worker_lost(inc))
                case FeedDone(feed=feed):
                    self.done.append(feed)
                case Seal(valid=valid):
                    self.run(self.master.cut_sealed(valid))
                case _:
                    pass
        group = self.holder.group
        if group is not None and group.needs_restore:
            self.run(self.holder.restore_group())

    def deliver(self, inc: int, message: NodeDown) -> None:
        self.sent.append((inc, message))
        member = self.members.get(inc)
        if member is None or inc in self.held:
            return
        if isinstance(message, TakeCut):
            self.run(self.master.copy_said(self.copied(member, message.cut_no)))
            return
        handlers = {
            "StopGroup": "stop_group",
            "CatchUp": "catch_up",
            "RunGroup": "run_group",
        }
        name = handlers.get(type(message).__name__)
        if name is not None:
            self.act(inc, getattr(member, name)(message))

    def copied(self, member: MemberState, cut_no: int) -> Copied:
        """Its copy is on disk at once."""
        return Copied(
            epoch_no=member.epoch_no,
            inc=member.inc,
            cut_no=cut_no,
            position=member.step,
            step=member.step,
            committed=member.done.spans(),
            sharers=tuple(self.group) if self.sharded else (member.inc,),
            file="a file",
            stored=True,
        )

    def resend(self) -> None:
        self.run(self.master.resend())
        for inc, member in self.members.items():
            self.act(inc, member.resend())

    def lose(self, inc: int, *, returned: bool = False) -> None:
        del self.members[inc]
        self.run(self.master.worker_lost(inc, returned=returned))

    def step(self, *incs: int, last: bool = False, stays: bool = False) -> None:
        """These members complete the step that they all enter.

        ``last``: one wants to leave; ``stays``: their scripts go on to the next step.
        """
        members = [self.members[inc] for inc in incs or tuple(self.members)]
        runs = [member.enter() for member in members]
        last = last or any(member.wants_out for member in members)
        for member, run in zip(members, runs, strict=True):
            assert run is not None
            assert member.begin_update(run)
        whole = FEED.next_slice(members[0].done.line(0))
        for member in members:
            self.act(member.inc, member.updated(whole, last=last))
            if not stays:
                self.act(member.inc, member.leave_step())

    def restart_master(self) -> None:
        self.master = self.new_master()
        for journal in self.records:
            self.master.apply(journal.record)
        for inc in self.members:
            self.master.worker_up(inc, f"worker-{inc}")
        self.run(self.master.resume())


def running(num_workers: int = 2) -> Job:
    job = Job(num_workers)
    job.join()
    return job


def test_the_first_group_waits_for_all_and_begins_with_the_state_of_one() -> None:
    job = Job(3)
    job.join(2)
    job.join(3)
    assert job.group == []
    job.join(1)
    assert job.group == [1, 2, 3]
    assert all(member.step == 0 for member in job.members.values())
    assert all(member.running is not None for member in job.members.values())
    copied = [inc for inc, one in job.told if isinstance(one, Copy)]
    assert sorted(copied) == [2, 3]


def test_who_does_not_come_is_not_waited_for_longer_than_that() -> None:
    job = Job(3)
    job.join(2)
    job.run(job.holder.form_group())
    assert job.group == [2]


def test_a_job_that_goes_on_waits_for_all_as_at_its_start() -> None:
    # Its steps are divided, and summed, as if it had not ended.
    job = running(2)
    job.lose(1)
    job.lose(2)
    job.holder.job_ended()
    for inc in (3, 4, 5):
        job.worker(inc)
    job.expected = 3
    job.join(3, 4)
    assert job.group == [2]
    assert waits(job) == (WhyNone.TOO_FEW, "2 of 3 workers are ready")
    job.join(5)
    assert job.holder.group.running
    assert job.group == [3, 4, 5]
    job.lose(4)
    assert job.group == [3, 5], "nobody is waited for in mid-run"


def test_a_job_that_goes_on_waits_no_longer_than_at_its_start() -> None:
    job = running(2)
    job.lose(1)
    job.lose(2)
    job.holder.job_ended()
    job.worker(3)
    job.join(3)
    assert job.group == [2]
    job.run(job.holder.form_group())
    assert job.group == [3]
    assert job.holder.group.running


def test_with_fewer_than_the_least_nobody_begins() -> None:
    job = Job(4, min_members=2)
    job.join(3)
    job.run(job.holder.form_group())
    assert job.holder.group.number == 0
    job.join(2)
    assert job.holder.group.number == 0, "the others may still come"
    job.run(job.holder.form_group())
    assert job.group == [2, 3]
    assert job.holder.group.running


def waits(job: Job) -> tuple[WhyNone, str]:
    none = job.holder.group.waits
    assert job.holder.waits_for == none.reason
    return none.why, none.reason


def test_a_group_that_is_not_formed_says_what_it_waits_for() -> None:
    job = Job(3)
    assert waits(job) == (WhyNone.TOO_FEW, "no worker is ready")
    job.join(1, 2)
    assert waits(job) == (WhyNone.TOO_FEW, "2 of 3 workers are ready")
    job.held.add(2)
    job.join(3)
    assert waits(job) == (WhyNone.FORMS, "the last step of worker-2 is not known yet")
    job.held.clear()
    job.resend()
    assert waits(job) == (WhyNone.SAME, "")


def test_a_group_whose_members_copy_the_state_says_so() -> None:
    job = Job(2)
    job.copying = {}
    job.join()
    assert job.copying
    assert waits(job) == (WhyNone.FORMS, "members copy the state of others, or load a cut")


def test_workers_with_too_few_others_say_how_many_are_needed() -> None:
    job = running(2)
    job.holder.group.min_members = 2
    assert waits(job)[0] is WhyNone.SAME
    job.lose(2)
    assert waits(job) == (WhyNone.TOO_FEW, "1 of 2 workers are ready")


def test_members_that_hold_shards_wait_for_former_lives() -> None:
    job = sharded()
    assert waits(job)[0] is WhyNone.SAME
    job.lose(2)
    reason = "the lives of worker-1 in the group before have not ended"
    assert waits(job) == (WhyNone.FORMER_LIVES, reason)
    job.lose(1)
    job.worker(3)
    job.join(3)
    assert waits(job) == (WhyNone.TOO_FEW, "1 of 2 workers are ready")


def test_another_model_is_refused() -> None:
    job = Job(2)
    job.members[2].replica = "another one"
    job.join()
    (reason,) = job.failed
    assert "worker-2 has prepared another model than the others (another one" in reason


@pytest.mark.parametrize("how", ["live", "restarted", "compacted"])
def test_who_comes_with_another_model_ends_alone_once_others_train(how: str) -> None:
    job = running()
    job.step()
    if how == "restarted":
        job.restart_master()
    elif how == "compacted":
        kept, job.master = take(job.master), job.new_master()
        restore(job.master, kept)
        job.master.resume()
    job.worker(3).replica = "another one"
    job.join(3)
    assert not job.failed
    assert "worker-3 has prepared another model than the others" in job.refused[3]
    job.join(3)
    assert job.group == [1, 2]
    assert job.holder.group.running
    job.step(1, 2)
    assert job.members[1].step == 2


def test_no_master_waits_for_members_of_which_the_one_before_knew_that_they_are_gone() -> None:
    job = running()
    job.step()
    job.held.add(2)
    job.lose(1)
    job.lose(2)  # in the group that forms, and the next one is not formed: nobody is there
    job.run([job.master.record(Returned(inc=inc)) for inc in (1, 2)])
    job.restart_master()
    assert waits(job) == (WhyNone.TOO_FEW, "no worker is ready")
    job.worker(3)
    job.join(3)
    assert job.group == [3]
    assert job.holder.group.running


def test_a_member_of_another_model_ends_a_job_of_shards() -> None:
    job = Job(2, sharded=True)
    job.join()
    assert job.holder.group.number == 1
    job.worker(3).replica = "another one"
    job.join(3)
    assert len(job.failed) == 1
    assert not job.refused


def test_completing_a_step_proves_the_one_before_and_the_end_is_proven() -> None:
    job = running()
    job.step()
    job.step()
    job.resend()
    assert job.master.ledger.done.spans() == (Span(0, 0, 2),)
    job.step()
    job.resend()
    assert job.done == []
    for member in job.members.values():
        run = member.enter()
        assert run is not None
        job.act(member.inc, member.proven(run, last=False))
    assert job.done == [0]
    assert job.master.ledger.done.spans() == (Span(0, 0, 6),)


def test_survivors_do_the_broken_step_and_a_new_life_copies_their_state() -> None:
    job = running(3)
    job.step()
    run = job.members[1].enter()
    assert run is not None
    job.lose(3)
    assert job.group == [1, 2]
    assert not job.members[1].begin_update(run), "the group is over"
    job.step(1, 2)
    assert [member.step for member in job.members.values()] == [2, 2]
    job.worker(4)
    job.join(4)
    assert job.group == [1, 2, 4]
    assert job.members[4].step == 2
    job.step()
    assert job.members[4].done == job.members[1].done


def joining(*, whole_steps: bool = False) -> tuple[Job, dict[int, CatchUp]]:
    """Two members have done a step, a third one is copying what they hold."""
    job = Job(2, whole_steps=whole_steps)
    job.join()
    job.step()
    job.copying = {}
    job.worker(3)
    job.join(3)
    return job, job.copying


def test_between_two_steps_a_member_that_is_to_stop_does_one_more() -> None:
    job = running(2)
    first, second = job.members[1], job.members[2]
    job.step(stays=True)
    assert second.enter() is not None  # it would be lost if the other one stopped now
    job.worker(3)
    job.join(3)
    assert first.wants_out
    assert second.wants_out
    assert job.holder.group.unheard() == ("worker-1", "worker-2")
    job.step(1, 2, stays=True)
    assert first.step == second.step == 2
    assert job.group == [1, 2, 3]


def test_a_member_that_leaves_is_not_waited_for() -> None:
    job = running(3)
    leaver = job.members[3]
    job.step(last=True, stays=True)
    assert job.holder.group.running  # nobody has told the master
    job.act(3, leaver.leave())
    assert job.group == [1, 2]
    assert not leaver.resend()
    assert (leaver.running, leaver.joining) == (None, False)
    job.lose(3)
    assert job.group == [1, 2]
    job.step(1, 2)
    assert job.members[1].step == job.members[2].step == 2


def test_a_first_worker_that_cannot_take_part_leaves_when_it_will(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(formation, "CHIEF", "worker-1")
    job = running(2)
    assert not job.holder.see_chief(is_gone=True)
    job.lose(1)
    assert job.group == [2]
    assert job.members[2].stands_in


def test_who_is_too_few_to_meet_again_trains_on_without_a_chief() -> None:
    job = Job(3, min_members=2)
    job.join()
    job.lose(1)
    job.lose(2, returned=True)
    number = job.holder.group.number
    for _ in range(3):
        assert not job.holder.see_chief(is_gone=True)
    assert job.holder.group.number == number
    assert not job.holder.group.broken
    job.worker(4)
    job.join(4)
    assert job.group == [3, 4]
    assert job.members[3].stands_in


def test_where_the_first_worker_is_gone_for_good_the_next_one_is_chief() -> None:
    job = running(3)
    assert not any(member.stands_in for member in job.members.values())
    job.lose(1)
    assert not any(member.stands_in for member in job.members.values())  # its next life comes
    job.run(job.holder.see_chief(is_gone=True))
    assert job.group == [2, 3]
    assert job.members[2].stands_in
    assert not job.members[3].stands_in
    number = job.holder.group.number
    job.restart_master()
    job.run(job.holder.see_chief(is_gone=True))
    assert job.holder.group.number == number, "they know it already"
    job.lose(2)
    assert job.group == [3]
    assert job.members[3].stands_in
    job.run(job.holder.see_chief(is_gone=False))
    job.worker(4)
    job.join(4)
    assert job.group == [3, 4]
    assert not job.members[3].stands_in


def test_who_leaves_in_the_midst_of_a_group_drops_it() -> None:
    job = running(2)
    leaver = job.members[2]
    run = leaver.running
    assert run is not None
    job.act(2, leaver.leave())
    assert (2, Drop(run)) in job.told
    assert job.group == [1]


def test_who_joins_copies_while_the_others_are_in_their_next_step() -> None:
    job, copying = joining()
    assert job.holder.group.running
    first, joiner = job.members[1], job.members[3]
    assert joiner.running is not None
    assert (joiner.step, joiner.running.joiners) == (NO_STEP, (3,))
    assert first.enter() is not None
    assert first.at_rest
    job.act(3, joiner.copied(copying[3]))
    assert (joiner.step, joiner.is_proven) == (1, True)
    job.step()
    assert joiner.done == first.done
    assert job.master.ledger.done.spans() == (Span(0, 0, 2),)


def test_a_peer_that_is_copied_from_does_not_hand_out_half_an_update() -> None:
    job, _ = joining()
    first = job.members[1]
    run = first.enter()
    assert run is not None
    assert first.begin_update(run)
    assert not first.at_rest


def test_when_a_peer_dies_who_was_copying_copies_from_another() -> None:
    job, copying = joining()
    assert copying[3].source.inc == 1
    before = copying[3]
    job.members[2].enter()
    job.lose(1)
    assert job.group == [2, 3]
    assert copying[3].source.inc == 2
    assert not job.members[3].may_load(before)
    job.act(3, job.members[3].copied(copying[3]))
    job.step(2, 3)
    assert job.members[3].done.spans() == (Span(0, 0, 4),)


def test_who_was_copying_from_the_last_one_begins_again() -> None:
    job, _ = joining()
    job.lose(1)
    job.lose(2)
    assert job.group == [3]
    assert (job.members[3].epoch_no, job.members[3].step) == (2, 0)


def test_who_was_copying_misses_a_peer_whose_script_has_ended() -> None:
    job, _ = joining()
    job.lose(1, returned=True)
    assert job.group == [1, 2, 3]
    job.resend()
    assert job.group == [2, 3]


def test_one_more_that_comes_waits_until_the_first_step_of_a_joiner_is_over() -> None:
    job, copying = joining()
    for member in job.members.values():
        member.enter()
    job.worker(4)
    job.join(4)
    assert job.members[3].running is not None
    assert job.members[3].wants_out
    assert job.members[3].may_load(copying[3])
    job.act(3, job.members[3].copied(copying[3]))
    for inc in (1, 2, 3):
        member = job.members[inc]
        assert member.running is not None
        assert member.begin_update(member.running)
        job.act(inc, member.updated((Span(0, 2, 4),), last=True))
    assert job.members[4].running is not None
    assert job.members[4].running.joiners == (4,)
    assert job.members[3].step == 2


def test_a_snapshot_says_who_joins() -> None:
    job, _ = joining()
    restore(fresh := job.new_master(), take(job.master))
    fresh.resume()
    sent = [one.message for one in fresh.resend() if isinstance(one, Send) and one.inc == 3]
    (run,) = [one for one in sent if isinstance(one, RunGroup)]
    assert (run.joiners, run.step) == ((3,), 1)
    assert run.catch_up is not None
    assert run.catch_up.committed == (Span(0, 0, 2),)


def test_where_no_step_may_differ_all_wait_for_who_joins() -> None:
    job, copying = joining(whole_steps=True)
    assert job.members[1].running is None
    job.act(3, job.members[3].copied(copying[3]))
    assert job.members[1].running is not None
    assert job.members[1].running.joiners == ()


def test_who_is_a_step_behind_copies_before_anybody_goes_on() -> None:
    job = running(3)
    first, second = job.members[1], job.members[2]
    runs = {inc: member.enter() for inc, member in job.members.items()}
    assert runs[1] is not None
    assert first.begin_update(runs[1])
    job.act(1, first.updated((Span(0, 0, 2),), last=False))
    job.lose(3)
    assert (first.step, second.step) == (1, 1)
    assert second.done == first.done
    assert any(isinstance(one, Copy) and inc == 2 for inc, one in job.told)


def test_a_step_that_only_the_dead_had_completed_is_done_again() -> None:
    job = running(2)
    runs = {inc: member.enter() for inc, member in job.members.items()}
    assert runs[1] is not None
    assert job.members[1].begin_update(runs[1])
    job.act(1, job.members[1].updated((Span(0, 0, 2),), last=False))
    job.resend()
    assert not job.master.ledger.done
    job.lose(1)
    assert job.members[2].step == 0
    job.step(2)
    assert job.members[2].done.spans() == (Span(0, 0, 2),)


def test_an_update_that_has_begun_is_finished_before_it_is_said_to_be_over() -> None:
    job = running(2)
    member = job.members[1]
    run = member.enter()
    assert run is not None
    assert member.begin_update(run)
    job.lose(2)
    assert not job.holder.group.stopped
    job.act(1, member.updated((Span(0, 0, 2),), last=False))
    assert member.running is not None
    assert (member.step, member.running.step) == (1, 1)


def test_joining_lets_the_others_finish_their_step_together() -> None:
    job = running(2)
    for member in job.members.values():
        member.enter()
    job.held = {2}
    job.worker(3)
    job.join(3)
    first, second = job.members[1], job.members[2]
    assert first.wants_out
    assert not second.wants_out
    for member in (first, second):
        assert member.running is not None
        assert member.begin_update(member.running)
        job.act(member.inc, member.updated((Span(0, 0, 2),), last=True))
    assert second.running is None, "it heard of it from the others"
    job.held.clear()
    job.resend()
    assert job.group == [1, 2, 3]
    assert [member.step for member in job.members.values()] == [1, 1, 1]


def test_steps_are_divided_anew_once_all_have_heard_of_the_same() -> None:
    job = running(2)
    first, second = job.members[1], job.members[2]

    def hear(member: MemberState, no: int) -> None:
        parts = (MemberPart(no), MemberPart(1))
        member.divide(
            Divide(epoch_no=1, inc=member.inc, group=member.group, division=Division(no, parts))
        )

    def agree(meanwhile: Callable[[], None] = lambda: None) -> list[int]:
        told = [first.heard, second.heard]
        for member, own in zip((first, second), told, strict=True):
            assert member.running is not None
            member.agree(member.running, own, [one.no for one in told])
            meanwhile()
        return [first.division.no, second.division.no]

    hear(first, 2)
    assert agree() == [0, 0]
    hear(second, 3)
    assert agree() == [0, 0], "the second has never heard of 2"
    hear(first, 3)
    hear(first, 2)
    assert agree(lambda: hear(second, 4)) == [3, 3], "what comes after the step began is for later"
    assert first.progress().message.division == 3


def test_a_group_that_is_to_be_left_still_connects() -> None:
    job = running(2)
    job.members[1].enter()
    job.worker(3)
    job.join(3)
    first, epoch_no = job.members[1], job.members[1].epoch_no
    assert first.group > first.ran
    assert first.may_meet(epoch_no, first.ran)
    assert first.may_meet(epoch_no, first.group)
    assert not first.may_meet(epoch_no, first.ran - 1)
    assert not first.may_meet(epoch_no - 1, first.group)


def test_a_member_that_cannot_work_is_met_anew() -> None:
    job = running(2)
    member = job.members[1]
    run = member.enter()
    assert run is not None
    job.act(1, member.failed(run, "connection reset"))
    assert job.holder.group.broken == {1: "connection reset"}
    job.run(job.holder.form_group())
    assert job.holder.group.number == 2
    assert all(member.running is not None for member in job.members.values())


def test_who_has_finished_is_missed_only_by_who_says_so() -> None:
    job = running(2)
    job.lose(1, returned=True)
    assert job.group == [1, 2]
    member = job.members[2]
    run = member.enter()
    assert run is not None
    job.act(2, member.failed(run, "gone"))
    assert job.group == [2]


def test_who_waits_in_a_running_group_misses_who_has_left() -> None:
    job = running(2)
    job.step(last=True)
    job.lose(1, returned=True)
    assert job.group == [1, 2]
    job.resend()
    assert job.group == [2]
    assert job.members[2].running is not None


def test_the_next_life_of_the_master_knows_who_trains() -> None:
    job = running(2)
    trains = job.master.training_workers()
    assert len(trains) == 2
    job.restart_master()
    job.resend()
    assert job.master.training_workers() == trains


def test_who_was_excluded_does_not_come_back_with_the_next_life_of_the_master() -> None:
    job = running(2)
    excluded = job.members[1]
    job.lose(1)
    job.members[1] = excluded
    job.restart_master()
    assert job.master.worker_up(1) == [Send(1, GivenUp(inc=1))]
    assert job.master.is_given_up(1)
    assert 1 not in job.master.workers
    assert not job.master.is_given_up(2)


def test_the_end_that_a_group_begins_with_is_proven() -> None:
    job = running(2)
    for _ in range(3):
        job.step()
    assert not job.members[1].is_proven
    job.lose(2)
    assert job.members[1].is_proven


def test_an_end_proven_in_a_group_that_is_over_counts_for_nothing() -> None:
    job = running(2)
    run = job.members[1].enter()
    assert run is not None
    job.lose(2)
    assert job.members[1].proven(run, last=True) == []
    assert job.members[1].running is not None


def test_with_too_few_members_nobody_trains() -> None:
    job = Job(2, min_members=2)
    job.join()
    job.lose(2)
    assert job.group == [1, 2]
    job.worker(3)
    job.join(3)
    assert job.group == [1, 3]
    assert job.members[3].running is not None


def test_when_nobody_holds_state_all_begin_again() -> None:
    job = running(2)
    job.step()
    job.step()
    job.lose(1)
    job.lose(2)
    job.worker(3)
    job.worker(4)
    job.join()
    assert job.master.epoch_no == 2
    assert not job.master.ledger.done
    assert all(member.step == 0 for member in job.members.values())


def test_when_nobody_holds_state_all_begin_again_from_the_newest_cut() -> None:
    job = running(2)
    job.step()
    job.run(job.master.take_cut())
    job.step()
    job.lose(1)
    job.lose(2)
    job.worker(3)
    job.worker(4)
    job.join()
    assert job.master.epoch_no == 2
    assert job.master.ledger.done.spans() == (Span(0, 0, 2),)
    assert [member.step for member in job.members.values()] == [1, 1]
    assert [
        type(one) for inc, one in job.told if isinstance(one, LoadReplica | Copy) and inc > 2
    ] == [
        LoadReplica,
        Copy,
    ]


def sharded(num_workers: int = 2) -> Job:
    job = Job(num_workers, sharded=True)
    job.join()
    return job


def test_a_cut_on_its_way_stays_so_while_a_group_forms() -> None:
    job = running()
    job.held = {1, 2}
    (asked,) = job.master.take_cut()
    assert isinstance(asked, Send)
    job.worker(3)
    job.join(3)
    assert not job.master.is_training
    job.master.resend()
    copied = job.copied(job.members[asked.inc], 1)
    (sealed,) = job.master.copy_said(copied)
    assert isinstance(sealed, Seal)
    job.lose(asked.inc)
    job.master.resend()
    assert job.master.copy_said(copied) == []


def waits_for_next(job: Job, inc: int) -> bool:
    """A life had no batch of its loop, and waits for the next one of others; False: it goes on."""
    told = job.master.place_asked(AskPlace(inc=inc, stands_by=True))
    (place,) = (one.message for one in told if isinstance(one, Send))
    assert isinstance(place, PlaceIs)
    return place.others and not place.awaited


def test_lives_that_all_wait_for_the_others_next_loop_go_on() -> None:
    job = Job(2)
    job.join()
    job.step(1)
    assert waits_for_next(job, 1), "the other one may be on its way there"
    assert waits_for_next(job, 1)
    assert not waits_for_next(job, 2)
    assert not waits_for_next(job, 1)
    job.run(job.master.open_feed(OpenFeed(inc=2, feed=LATER)))
    assert waits_for_next(job, 2), "it has gone on since"


def leaves(job: Job, inc: int, *, feed: int = NO_FEED) -> list[Instruction]:
    """A member's script has returned; what the master does then, and at its next look."""
    step, epoch_no = job.members[inc].step, job.master.epoch_no
    message = AskCut(epoch_no=epoch_no, inc=inc, n=1, step=step, leaves=True, feed=feed)
    said = job.master.cut_wanted(message)
    return [*said, *(job.master.take_cut() if job.holder.wants_cut else [])]


def asked(instructions: list[Instruction]) -> list[tuple[int, int]]:
    """Who is to copy which cut."""
    sends = [one for one in instructions if isinstance(one, Send)]
    return [(one.inc, one.message.cut_no) for one in sends if isinstance(one.message, TakeCut)]


def test_who_leaves_copies_what_it_holds_though_others_wait_in_their_step() -> None:
    job = running()
    job.step()
    assert asked(leaves(job, 2)) == [(2, 1)]
    made = job.master.copy_said(job.copied(job.members[2], 1))
    job.run(made)
    assert job.master.cuts.valid[-1].step == 1
    told = leaves(job, 2)
    assert told == [Send(2, CutMade(inc=2, n=1))], "once there is one, nobody waits"


def is_over(job: Job, inc: int) -> bool:
    """Whether this worker is not to begin with its loop over the feed."""
    (answer,) = job.master.open_feed(OpenFeed(inc=inc, feed=FEED))
    assert isinstance(answer, Send)
    assert isinstance(answer.message, FeedOpened)
    assert answer.message.complete == (answer.message.cut is not None)
    return answer.message.complete


def told_of_feeds(job: Job, *, over: bool = True) -> list[int]:
    """Who has heard that a feed is over, or is not."""
    told = [(inc, one) for inc, one in job.sent if isinstance(one, FeedOpened)]
    return [inc for inc, one in told if one.complete == over]


def test_who_comes_after_others_have_left_their_last_loop_passes_over_it() -> None:
    job = running()
    job.step()
    job.lose(1)
    job.worker(3)
    assert not is_over(job, 3), "its peer may go on"
    job.copying = {}
    job.join(3)
    assert not is_over(job, 3)
    job.sent.clear()
    job.run(leaves(job, 2, feed=0))
    assert is_over(job, 3)
    assert told_of_feeds(job) == [3], "who holds the model needs no word"
    job.lose(2, returned=True)
    job.worker(4)
    assert is_over(job, 4)


@pytest.mark.parametrize("has_later", [False, True])
def test_whether_a_loop_was_left_is_told_once_it_is_known_what_the_cut_holds(
    has_later: bool,
) -> None:
    job = running()
    job.step()
    job.run(job.master.open_feed(OpenFeed(inc=1, feed=LATER)))
    assert job.master.is_passed(FEED)
    if has_later:
        span = Span(job.master.ledger.feeds[1].line(), 0, 2)
        job.run([job.master.record(GroupProgressed(step=1, committed=(Span(0, 0, 2), span)))])
        assert asked(job.master.take_cut())
        copied = msgspec.structs.replace(
            job.copied(job.members[1], 1), committed=job.master.ledger.done.spans()
        )
        job.run(job.master.copy_said(copied))
    job.lose(1)
    job.lose(2)
    job.worker(3)
    assert not job.master.is_passed(FEED), "nobody holds its end"
    job.sent.clear()
    job.join(3)
    assert told_of_feeds(job) == ([3] if has_later else [])
    assert told_of_feeds(job, over=False) == ([3] if has_later else [3, 3])
    assert job.master.is_passed(FEED) is has_later


def test_who_joins_and_has_copied_nothing_holds_no_end_of_a_loop() -> None:
    job = running(1)
    job.step()
    job.run(job.master.open_feed(OpenFeed(inc=1, feed=LATER)))
    job.worker(2)
    job.copying = {}
    job.join(2)
    job.resend()
    assert job.holder.group.running
    assert job.master.is_passed(FEED)
    job.held = {2}
    job.lose(1)
    assert not job.master.is_passed(FEED)


def test_who_joined_and_trains_is_not_told_that_a_loop_is_over() -> None:
    job = running()
    job.step()
    job.lose(1)
    job.worker(3)
    job.join(3)
    job.step()
    member = job.members[3]
    run = member.enter()
    assert run is not None
    job.act(3, member.proven(run, last=False))
    job.sent.clear()
    job.run(leaves(job, 2, feed=0))
    assert told_of_feeds(job) == []
    assert job.members[3].step == 2


def test_a_loop_that_was_left_after_the_step_of_an_older_cut_is_not_left() -> None:
    job = running()
    job.step()
    job.run(leaves(job, 1))
    job.step(2, last=True)
    leaves(job, 2, feed=0)
    assert job.holder.left_at == {0: 2}
    for inc in (1, 2):
        job.lose(inc)
    job.worker(3)
    job.join(3)
    assert job.members[3].step == 1
    assert job.holder.left_at == {}
    assert not is_over(job, 3)


def test_a_job_that_begins_with_the_end_of_a_loop_that_was_left_says_so() -> None:
    job = running()
    job.step()
    job.run(leaves(job, 2, feed=0))
    job.lose(2, returned=True)
    job.lose(1)
    job.sent.clear()
    job.worker(3)
    job.join(3)
    assert job.members[3].step == 1
    assert told_of_feeds(job) == [3]


def test_a_life_that_others_wait_for_gets_a_cut_of_behind_the_loop() -> None:
    job = running()
    job.step()
    (within,) = job.master.take_cut()  # of the same step, but within the loop
    assert isinstance(within, Send)
    copier = within.inc
    job.run(job.master.copy_said(job.copied(job.members[copier], 1)))
    job.lose(1)
    job.worker(3)
    job.copying = {}
    job.join(3)
    job.resend()
    assert job.holder.group.is_empty_handed(3)
    job.sent.clear()
    job.held = {2}
    job.run(job.holder.left_loop(0, job.members[2].step, 3))
    taken = [(inc, one) for inc, one in job.sent if isinstance(one, TakeCut)]
    assert [(inc, one.behind) for inc, one in taken] == [(2, True)]
    assert not is_over(job, 3)
    job.run(job.master.copy_said(job.copied(job.members[2], taken[0][1].cut_no)))
    assert is_over(job, 3)
    assert job.holder.left_loop(0, job.members[2].step, 3) == []
    assert job.holder.left_loop(0, job.members[2].step, 2) == [], "it holds the model"


def test_others_may_train_on_in_a_loop_that_one_has_left() -> None:
    job = running()
    job.step()
    job.run(leaves(job, 2, feed=0))
    job.lose(2, returned=True)
    job.step(1, last=True)
    job.lose(1)
    job.worker(3)
    job.join(3)
    assert job.members[3].step == 1
    assert is_over(job, 3), "the job is back at that step"
    job.step(3)
    member = job.members[3]
    run = member.enter()
    assert run is not None
    job.act(3, member.proven(run, last=False))
    job.worker(4)
    assert not is_over(job, 4)


def test_a_loop_is_not_left_before_a_cut_has_its_end() -> None:
    job = running()
    job.step()
    leaves(job, 2, feed=0)
    job.worker(3)
    assert not is_over(job, 3)


def test_who_leaves_takes_over_a_cut_that_nobody_has_copied_under_another_number() -> None:
    job = running()
    job.step()
    assert asked(job.master.take_cut()) == [(1, 1)]
    assert asked(leaves(job, 2)) == [(2, 2)]
    assert job.master.copy_said(job.copied(job.members[1], 1)) == []


def test_of_several_that_leave_one_copies_and_the_next_if_it_dies() -> None:
    job = running(3)
    job.step()
    assert asked(leaves(job, 2)) == [(2, 1)]
    assert asked(leaves(job, 3)) == []
    assert asked(job.master.resend()) == [(2, 1)]
    job.held = {1, 3}
    job.lose(2, returned=True)
    assert asked([*leaves(job, 3), *job.master.take_cut()]) == [(3, 2)]


def test_a_member_of_another_machine_copies_and_begins_where_no_nearer_one_is() -> None:
    job = Job(1)
    job.distant = {1, 3}
    job.join()
    job.worker(2)
    job.join(2)
    job.step(1, last=True)
    job.resend()
    assert job.group == [1, 2]
    assert asked(job.master.take_cut()) == [(2, 1)], "that copy does not cross the network"
    job.lose(2)
    assert job.group == [1]
    job.resend()
    assert [inc for inc, _ in asked(job.master.take_cut())] == [1]
    job.lose(1)
    job.worker(3)
    job.join(3)
    job.resend()
    assert job.group == [3]
    assert job.members[3].running is not None, "it needs nobody who is nearer"


def test_the_nearest_member_reads_the_cut_that_all_begin_with() -> None:
    job = Job(2)
    job.distant = {1}
    job.join()
    assert {member.step for member in job.members.values()} == {0}
    (begun,) = [one for inc, one in job.told if isinstance(one, Copy) and inc == 1]
    assert begun.order.source.inc == 2


def test_members_that_hold_shards_each_begin_with_their_own() -> None:
    job = sharded()
    assert [member.step for member in job.members.values()] == [0, 0]
    assert all(member.running is not None for member in job.members.values())
    assert not any(isinstance(one, Copy) for _, one in job.told)


def test_nobody_divides_the_steps_of_members_that_hold_shards() -> None:
    job = Job(2, sharded=True)
    job.join()
    uneven = AdjustBatch(shares={"worker-1": Share(1), "worker-2": Share(1)})
    with pytest.raises(ConfigError, match="fsdp"):
        job.master.carry_out(uneven, 0)


def test_a_cut_of_shards_needs_all_of_them() -> None:
    job = sharded()
    job.step()
    job.held.add(2)
    job.run(job.master.take_cut())
    assert not job.master.cuts.valid
    job.held.clear()
    job.resend()
    assert [cut.step for cut in job.master.cuts.valid] == [1]


def test_a_cut_of_shards_proves_its_step() -> None:
    job = sharded()
    for _ in range(3):
        job.step()
    assert not job.master.ledger.is_complete(0), "nobody has proven the last step"
    job.run(job.master.take_cut())
    assert job.done == [0]
    job.resend()
    assert job.master.step == 3, "members say what they have proven, and are behind"
    restore(fresh := job.new_master(), take(job.master))
    assert fresh.step == 3
    job.restart_master()
    assert job.master.cuts.safe == {0}


def test_no_cut_of_shards_is_asked_for_while_one_is_missing() -> None:
    job = sharded()
    job.step()
    job.lose(2)
    assert job.master.take_cut() == []


def test_a_shard_that_is_left_in_the_middle_of_an_update_breaks_no_group() -> None:
    job = sharded()
    member = job.members[1]
    run = member.enter()
    assert run is not None
    assert member.begin_update(run)
    member.give_up_update()
    job.act(1, member.forget())
    assert not job.holder.group.broken
    assert member.step == NO_STEP


def test_members_that_hold_shards_do_not_go_on_without_each_other() -> None:
    job = sharded()
    job.step()
    job.run(job.master.take_cut())
    job.step()
    job.lose(2)
    job.resend()
    assert job.group == [1, 2], "who survives is of no use"
    job.lose(1)
    job.worker(4)
    job.worker(3)
    job.join(4)
    job.run(job.holder.form_group())
    assert job.group == [1, 2], "not for anybody's patience either"
    job.join(3)
    assert job.group == [3, 4], "by their nodes"
    assert job.master.ledger.done.spans() == (Span(0, 0, 2),)
    assert [member.step for member in job.members.values()] == [1, 1]
    loads = [(inc, one.order.cut) for inc, one in job.told if isinstance(one, LoadReplica)]
    assert sorted(inc for inc, _ in loads) == [3, 4]
    assert all(cut is not None and cut.cut_no == 1 for _, cut in loads)


def test_a_new_master_lets_members_that_hold_shards_load_what_the_last_one_chose() -> None:
    job = sharded()
    job.step()
    job.run(job.master.take_cut())
    job.lose(1)
    job.lose(2)
    job.worker(3)
    fresh = job.worker(4)
    fresh.catch_up = lambda _: []  # type: ignore[method-assign]  # it is lost on its way
    job.join()
    assert [member.step for member in job.members.values()] == [1, NO_STEP]
    del fresh.catch_up  # type: ignore[method-assign]
    job.restart_master()
    job.resend()
    job.resend()
    assert [member.step for member in job.members.values()] == [1, 1]
    assert all(member.running is not None for member in job.members.values())
    assert job.master.epoch_no == 2


def test_a_new_master_does_not_form_a_group_of_the_shards_that_are_left() -> None:
    job = sharded(3)
    job.restart_master()
    job.lose(3)
    job.resend()
    assert job.group == [1, 2, 3]


def test_a_feed_is_over_when_it_is_in_a_cut_on_disk() -> None:
    job = running(2)
    for _ in range(3):
        job.step()
    job.run(job.master.take_cut())
    assert job.done == [], "nobody has proven the last step"
    for member in job.members.values():
        run = member.enter()
        assert run is not None
        job.act(member.inc, member.proven(run, last=False))
    assert job.done == [0]
    job.restart_master()
    assert job.master.ledger.is_complete(0)
    assert job.master.cuts.safe == {0}


def test_a_cut_of_a_step_that_is_done_again_is_no_progress() -> None:
    job = running(2)
    runs = {inc: member.enter() for inc, member in job.members.items()}
    first = job.members[1]
    assert runs[1] is not None
    assert first.begin_update(runs[1])
    job.act(1, first.updated((Span(0, 0, 2),), last=False))
    job.run(job.master.take_cut())
    assert job.master.cuts.valid[-1].step == 1
    assert not job.master.ledger.done
    job.lose(1)
    job.restart_master()
    assert not job.master.ledger.done
    assert job.members[2].step == 0


def test_a_new_master_goes_on_without_asking_anybody() -> None:
    job = running(2)
    job.step()
    job.restart_master()
    job.step()
    job.resend()
    assert job.master.ledger.done.spans() == (Span(0, 0, 2),)
    job.lose(2)
    assert job.group == [1]
    assert job.members[1].running is not None


@pytest.mark.parametrize("forms", [False, True])
def test_a_snapshot_holds_the_group(forms: bool) -> None:
    job = running(2)
    if forms:
        job.held = {3}
        job.worker(3)
        job.join(3)
    holder = GroupHolder()
    fresh = MasterState(holder, mode="bsp", samples="exactly-once")
    restore(
        fresh,
        msgspec.msgpack.decode(
            msgspec.msgpack.encode(take(job.master)), type=type(take(job.master))
        ),
    )
    assert holder.group.members == job.holder.group.members
    assert (fresh.epoch_no, holder.group.number) == (1, 1 + forms)
    assert holder.group.running is not forms
    assert holder.group.held_by == job.holder.group.held_by == {1, 2}
    assert holder.group.gathers is job.holder.group.gathers is False


def test_messages_of_former_groups_and_epochs_do_nothing() -> None:
    job = running(2)
    member = job.members[1]
    job.step()
    assert member.running is not None
    stale_run = member.running
    job.lose(2)
    assert member.stop_group(StopGroup(epoch_no=1, inc=1, group=1)) == []
    assert member.stop_group(StopGroup(epoch_no=0, inc=1, group=9)) == []
    again = member.run_group(stale_run)
    assert not any(isinstance(one, Connect) for one in again)
    done = job.master.ledger.done.copy()
    job.say(Progress(epoch_no=1, inc=1, group=1, step=2, committed=(Span(0, 0, 6),)))
    assert job.master.ledger.done == done


def test_a_member_is_not_to_go_on_from_a_step_that_it_does_not_hold() -> None:
    member = MemberState(1)
    member.stop_group(StopGroup(epoch_no=1, inc=1, group=1))
    assert member.step == NO_STEP
    with pytest.raises(InternalError, match="told to go on from step 3"):
        member.run_group(RunGroup(epoch_no=1, inc=1, group=1, step=3, members=()))


def test_a_member_that_forgets_what_it_said_that_it_holds_copies_it_again() -> None:
    """It has come to the end of a loop late, and loads the cut of that while a group forms."""
    job = running(2)
    job.step()
    forgetful = job.members[2]
    job.worker(3)
    job.held = {2}
    job.join(3)
    stop = next(one for inc, one in reversed(job.sent) if inc == 2 and isinstance(one, StopGroup))
    said = forgetful.stop_group(stop)
    assert forgetful.forget() == [], "it is in no group"
    job.act(2, said)
    job.held.clear()
    job.resend()
    job.run(job.holder.form_group())  # the group is broken, and nobody is dead
    assert [member.step for member in job.members.values()] == [1, 1, 1]
    job.step()
    assert job.failed == []


def test_leaving_a_group_drops_it() -> None:
    job = running(2)
    member = job.members[1]
    job.told.clear()
    former = member.running
    assert former is not None
    job.lose(2)
    assert (1, Drop(former)) in job.told
    assert member.running is not None
    assert member.running.group == 2


class TestFindHang:
    """Whom all others wait for."""

    LATE = NodeFacts(inc=1, computing_s=5.0)
    WAITS = NodeFacts(inc=2, waiting_s=4.0)
    BUSY = NodeFacts(inc=3, computing_s=0.5)

    def test_one_for_whom_all_wait(self) -> None:
        members = {"a": self.LATE, "b": self.WAITS, "c": self.WAITS}
        assert find_hang(members, 3.0) == Hang(("a",), 5.0)

    def test_not_while_somebody_else_is_at_work(self) -> None:
        assert find_hang({"a": self.LATE, "b": self.WAITS, "c": self.BUSY}, 3.0) is None

    def test_not_one_whom_nobody_waits_for(self) -> None:
        assert find_hang({"a": self.LATE}, 3.0) is None
        assert find_hang({"a": self.LATE, "b": self.LATE}, 3.0) is None

    def test_not_within_the_bound(self) -> None:
        assert find_hang({"a": self.LATE, "b": self.WAITS}, 6.0) is None

    def test_all_wait_for_each_other(self) -> None:
        assert find_hang({"a": self.WAITS, "b": self.WAITS}, 3.0) == Hang((), 4.0)

    def test_a_slow_one_is_named_once_and_given_time(self) -> None:
        patience = SlowMembers()

        def judge(computing_s: float) -> tuple[Hang | None, list[SlowMember]]:
            late = NodeFacts(inc=1, computing_s=computing_s)
            members = {"a": late, "b": NodeFacts(inc=2, waiting_s=computing_s)}
            return patience.judge(find_hang(members, 10.0), members)

        assert judge(9.0) == (None, [])
        assert judge(11.0) == (None, [SlowMember("a", 11.0, SLOW_S)])
        assert judge(25.0) == (None, [])
        assert judge(0.0) == judge(24.0) == (None, []), "it has needed as much before"
        assert judge(26.0) == (None, [SlowMember("a", 26.0, SLOW_S)])
        assert judge(SLOW_S) == (None, [])
        assert judge(SLOW_S + 1) == (Hang(("a",), SLOW_S + 1), [])
        assert judge(0.0) == judge(SLOW_S) == (None, [])
        assert judge(2 * SLOW_S + 1) == (None, [SlowMember("a", 2 * SLOW_S + 1, 2 * SLOW_S + 2)])
        assert judge(2 * SLOW_S + 3) == (Hang(("a",), 2 * SLOW_S + 3), [])

    def test_patience_is_for_those_that_compute(self) -> None:
        waits = {"a": self.WAITS, "b": self.WAITS}
        assert SlowMembers().judge(find_hang(waits, 3.0), waits) == (Hang((), 4.0), [])

    def test_who_neither_speaks_nor_works_hangs_whatever_the_others_do(self) -> None:
        silent = NodeFacts(inc=1, silent_s=5.0)
        members = {"a": silent, "b": self.BUSY, "c": NodeFacts(inc=2, silent_s=2.0)}
        assert find_silent(members, 3.0) == Hang(("a",), 5.0, silent=True)
        assert find_silent(members, 6.0) is None


def test_shares_of_a_batch_that_follows_the_workers_may_be_those_of_another_number() -> None:
    job = Job(2)
    follows = msgspec.structs.replace(FEED, feed=1, per_worker=True)
    job.run(job.master.open_feed(OpenFeed(inc=1, feed=follows)))
    job.join()
    shares = {"worker-1": Share(FEED.batch_size), "worker-2": Share(2 * FEED.batch_size)}

    job.run(job.master.carry_out(AdjustBatch(shares=shares), 0))

    assert job.master.plans.newest.shares == shares


def test_who_computes_what_does_not_follow_who_started_first() -> None:
    holder = GroupHolder()
    state = MasterState(holder, mode="bsp", samples="exactly-once")
    for inc, node in ((1, "worker-1"), (2, "worker-10"), (3, "worker-0")):
        state.worker_up(inc, node)
        message = JoinGroup(inc=inc, address="", replica="a model")
        holder.member_said(message, node=node, expected=3)
    assert [one.node for one in holder.group.members] == ["worker-0", "worker-1", "worker-10"]

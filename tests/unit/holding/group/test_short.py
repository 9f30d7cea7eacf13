"""Steps that go on without a late member: who is missed, until when, and what it hands in."""

from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from paceline.runtime.group.short import Missing, PeerSteps, ShortStep
from paceline.runtime.group.store import GroupOver
from paceline.wire.messages.group import Computed, Member, RunGroup
from paceline.wire.messages.order import Lacking

SHARES = [20, 30, 14]
PATIENCE_S = 10.0


def test_a_step_goes_on_when_no_more_is_missing_than_it_may_lack() -> None:
    missing = Missing(Lacking(left_out=34), SHARES, rank=0)
    assert missing.due_s(1.0) is None
    missing.computed(2, 1.0)
    assert missing.samples == 50
    assert missing.due_s(1.0) is None
    missing.computed(1, 2.0)
    assert missing.due_s(2.5) == 2.5


def test_what_may_be_late_is_waited_for_from_when_nothing_else_is_missing() -> None:
    missing = Missing(Lacking(left_out=0, late=20, grace_s=0.5), SHARES, rank=0)
    missing.computed(1, 1.0)
    assert missing.due_s(1.0) is None
    missing.computed(2, 2.0)
    missing.computed(2, 3.0)  # said again
    assert missing.due_s(9.0) == 2.5


def test_of_ours_only_what_is_not_computed_is_missing() -> None:
    missing = Missing(Lacking(left_out=34, late=44, grace_s=1.0), SHARES, rank=0)
    missing.computed(0, 1.0)  # that is said to others
    assert missing.samples == sum(SHARES)
    missing.computed(1, 2.0)
    missing.took(5, 3.0)
    assert missing.due_s(3.0) is not None
    missing = Missing(Lacking(left_out=12), SHARES, rank=0)
    missing.computed(1, 1.0)
    missing.computed(2, 1.0)
    missing.took(7, 2.0)
    assert missing.due_s(2.0) is None
    missing.took(1, 3.0)
    assert missing.due_s(3.0) == 3.0


class Handed:
    """A step of rank 0, watched."""

    def __init__(self, lacking: Lacking, *, broken: bool = False) -> None:
        self.samples: Future[int] = Future()
        self.broken = broken
        self.short = ShortStep(Missing(lacking, SHARES, rank=0), self.hand_in)
        self.taken = 0
        self.pool = ThreadPoolExecutor(1)
        self.watched = self.pool.submit(self.short.watch)

    def hand_in(self, samples: int) -> None:
        if self.broken:
            raise GroupOver("it is")
        self.samples.set_result(samples)

    def put(self) -> None:
        self.taken += 1


def test_who_is_late_hands_in_the_batches_that_it_has() -> None:
    handed = Handed(Lacking(left_out=15))
    handed.short.computed(1)
    handed.short.computed(2)
    handed.short.take(handed.put, 5)
    assert handed.samples.result(PATIENCE_S) == 5
    handed.short.take(handed.put, 5)
    assert handed.taken == 1, "after it was handed in"
    assert not handed.short.close()


def test_who_is_late_hands_in_nothing_after_the_grace() -> None:
    handed = Handed(Lacking(late=20, grace_s=0.05))
    handed.short.computed(1)
    handed.short.computed(2)
    assert handed.samples.result(PATIENCE_S) == 0
    assert not handed.short.close()


def test_who_is_in_time_hands_in_nothing_else() -> None:
    handed = Handed(Lacking(left_out=20))
    handed.short.computed(1)
    assert handed.short.close()
    assert handed.short.close(), "again"
    handed.short.computed(2)
    handed.watched.result(PATIENCE_S)
    assert not handed.samples.done()


def test_a_group_that_is_over_is_told_to_the_training_thread() -> None:
    handed = Handed(Lacking(left_out=64), broken=True)
    handed.watched.result(PATIENCE_S)
    with pytest.raises(GroupOver):
        handed.short.close()


def test_a_peers_word_counts_for_its_step_only_also_if_it_came_before_we_began() -> None:
    def word(inc: int, step: int) -> Computed:
        return Computed(epoch_no=1, inc=inc, group=7, step=step)

    members = tuple(Member(inc, f"worker-{inc}", "") for inc in (10, 11, 12))
    run = RunGroup(epoch_no=1, inc=10, group=7, step=3, members=members)
    missing = Missing(Lacking(left_out=20), SHARES, rank=0)
    short = ShortStep(missing, lambda _: None)
    peers = PeerSteps()
    peers.heard(word(11, 4))
    peers.heard(word(12, 3))
    peers.watch(run, 4, short)
    assert missing.samples == 34
    peers.heard(word(12, 4))
    assert short.is_due


def test_of_a_group_that_has_shrunk_a_step_lacks_in_proportion_and_never_everything() -> None:
    assert Lacking(left_out=32, of=64).of_slice(32, 32) == Lacking(left_out=16)
    assert Lacking(left_out=32, late=40).of_slice(32, 32) == Lacking(left_out=31, late=31)

"""Who decides about the end of a loop that is left, among workers that count on their own."""

from paceline.base.numbering import EpochNo, Inc, StepNo
from paceline.protocol.samples.left_loops import LeftLoops
from paceline.wire.messages.node import LeaseRequest, LoopLeft

OLD, YOUNG = Inc(1), Inc(7)


def left(inc: Inc = OLD, since: int = 0, step: int = 48) -> LoopLeft:
    return LoopLeft(inc=inc, feed=2, step=StepNo(step), since=since)


def asked(since: int, step: int, feed: int = 2) -> LeaseRequest:
    return LeaseRequest(
        epoch_no=EpochNo(1), inc=YOUNG, n=3, feed=feed, step=StepNo(step), since=since
    )


def test_who_has_seen_less_waits_while_nobody_knows_why_the_loop_was_left() -> None:
    loops = LeftLoops()
    assert not loops.holds(asked(100, 49))
    loops.left(left())
    assert loops.holds(asked(100, 49))
    assert not loops.holds(asked(100, 48)), "the step of the other one may lack something"
    assert loops.holds(asked(100, 0)), "without steps"
    assert not loops.holds(asked(0, 49)), "who has seen as much decides for itself"
    assert not loops.holds(asked(100, 49, feed=3))


def test_nothing_has_ended_if_it_goes_on_or_dies() -> None:
    loops = LeftLoops()
    loops.left(left())
    assert loops.elsewhere(OLD, trains=True)
    assert not loops.holds(asked(100, 49))
    assert loops.gone(OLD, samples=800) is None
    loops.left(left())
    assert loops.gone(OLD) is None, "its script has not returned"
    assert not loops.is_over(2, 100)


def test_who_meets_others_behind_its_loop_holds_nobody_and_still_decides() -> None:
    loops = LeftLoops()
    loops.left(left())
    assert loops.elsewhere(OLD, trains=False)
    loops.left(left())  # on its way when it came there
    assert not loops.holds(asked(100, 49))
    assert loops.gone(OLD, samples=800) is not None


def test_the_loop_is_over_once_its_script_has_returned() -> None:
    loops = LeftLoops()
    loops.left(left())
    ended = loops.gone(OLD, samples=800)
    assert ended is not None
    loops.apply(ended)
    assert not loops.holds(asked(100, 49))
    assert loops.is_over(2, 100)
    assert not loops.is_over(2, 0)
    assert not loops.is_over(1, 100)
    loops.left(left(YOUNG, since=100, step=60))
    assert loops.gone(YOUNG, samples=900) is None, "the end is decided"
    loops.go_back(800)
    assert loops.is_over(2, 100)
    loops.go_back(799)
    assert not loops.is_over(2, 100)

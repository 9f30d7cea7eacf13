"""Which marked steps are left out of comparisons."""

from paceline.features.failslow.policy.detection import RECENT, UsualMarks
from paceline.wire.step_ledger import Mark


def test_a_rare_mark_leaves_its_step_out() -> None:
    marks = UsualMarks()
    for _ in range(RECENT):
        assert marks.left_out(Mark.CHECKPOINT) == Mark.CHECKPOINT
        assert marks.left_out(Mark.NONE) == 0


def test_a_mark_of_most_steps_says_nothing() -> None:
    marks = UsualMarks()
    found = [marks.left_out(Mark.EVALUATION) for _ in range(RECENT)]
    assert found[0] == Mark.EVALUATION and found[-1] == 0


def test_the_first_step_is_always_left_out() -> None:
    marks = UsualMarks()
    assert marks.left_out(Mark.FIRST) == Mark.FIRST
    for _ in range(RECENT):
        marks.left_out(Mark.CHECKPOINT)
    assert marks.left_out(Mark.FIRST) == Mark.FIRST


def test_each_of_several_steps_that_are_told_together_counts() -> None:
    marks = UsualMarks()
    for _ in range(RECENT):
        marks.left_out(Mark.GARBAGE)
        marks.left_out(Mark.CHECKPOINT)
        marks.left_out(Mark.NONE, count=9)
    assert marks.left_out(Mark.CHECKPOINT) == Mark.CHECKPOINT

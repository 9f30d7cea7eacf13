"""A node that is stopped is launched again when nothing of it runs, or when that takes too long."""

from paceline.protocol.nodes.stops import CONFIRM_S, Stops


def test_a_launch_waits_for_the_word_that_the_node_is_gone() -> None:
    stops = Stops()
    assert stops.may_launch("worker-0", may_move=False), "it was not stopped"
    stops.ordered("worker-0", 1.0)
    assert not stops.may_launch("worker-0", may_move=True)
    assert stops.may_launch("worker-1", may_move=True), "another one"
    assert stops.confirmed("worker-0") is True
    assert stops.may_launch("worker-0", may_move=True)
    assert stops.confirmed("worker-0") is None, "a word that is repeated launches nothing"


def test_a_stop_that_nobody_confirms_holds_a_launch_up_for_so_long() -> None:
    stops = Stops()
    stops.ordered("worker-0", 1.0)
    stops.ordered("worker-0", 20.0)
    assert not stops.may_launch("worker-0", may_move=False)
    assert stops.overdue(CONFIRM_S) == []
    assert stops.overdue(1.0 + CONFIRM_S) == [("worker-0", False)]
    assert stops.overdue(99.0) == [] and stops.may_launch("worker-0", may_move=False)


def test_a_node_that_is_stopped_while_it_waits_is_wanted_no_more() -> None:
    stops = Stops()
    stops.ordered("worker-0", 1.0)
    stops.may_launch("worker-0", may_move=False)
    stops.ordered("worker-0", 2.0)
    assert stops.confirmed("worker-0") is None

"""Where a script is, and where one begins that passes over what others have done."""

import pytest
import torch
from torch import nn
from torch.optim import SGD

import paceline as pl
from paceline.base.errors import ConfigError
from paceline.runtime.data.sources.tensor_rows import TensorRows
from paceline.runtime.script.course import MEETING, OUTSIDE, ScriptCourse
from paceline.wire.messages.feeds import ScriptPlace


def visited(course: ScriptCourse, begun: ScriptPlace | None, count: int) -> list[ScriptPlace]:
    """The places of the feeds of one loop over epochs, with two in each."""
    found = []
    for epoch in range(course.first_epoch(begun, count), count):
        course.enter(epoch)
        found += [course.next(), course.next()]
    course.leave()
    return found


def test_a_place_is_the_same_whatever_was_passed_over() -> None:
    whole, late = ScriptCourse(lambda: 0, lambda: (0,)), ScriptCourse(lambda: 0, lambda: (0,))
    expected = [visited(whole, None, 2), [whole.next()], visited(whole, None, 3)]
    assert expected == [
        [(0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 1, 1)],
        [(1, OUTSIDE, 0)],
        [(1, e, n) for e in range(3) for n in range(2)],
    ]
    begun = (1, 1)
    assert visited(late, begun, 2) == []
    assert late.next() == (1, OUTSIDE, 0)
    assert visited(late, begun, 3) == expected[2][2:]


def test_what_is_left_of_a_loop_is_nothing_once_the_model_is_beyond_it() -> None:
    course = ScriptCourse(lambda: 0, lambda: (0,))
    assert visited(course, (1, OUTSIDE), 5) == []
    assert course.reaches_target
    assert visited(course, (1, OUTSIDE), 1) == [(1, 0, 0), (1, 0, 1)]


def test_in_a_body_the_step_counts_and_not_how_often_it_ran() -> None:
    step = 3
    course = ScriptCourse(lambda: step, lambda: (4,))
    assert course.next() == (0, OUTSIDE, 0)
    course.enter_loop()
    for _ in range(2):
        course.enter_body()
        assert course.next() == (0, OUTSIDE, 0, 3, 1)
        assert course.next() == (0, OUTSIDE, 0, 3, 2)
        assert course.meeting() == (0, OUTSIDE, 0, 4, MEETING, 1)
    course.leave_loop()
    assert course.meeting() == (0, OUTSIDE, 1, MEETING, 1)
    assert course.next() == (0, OUTSIDE, 1)
    assert course.meeting() == (0, OUTSIDE, 2, MEETING, 1)


@pytest.mark.parametrize(
    ("bodies", "accumulate", "asks", "miscounts"),
    [
        (((0, 0), (1, 0), (2, 0)), 1, False, False),
        (((0, 0), (1, 0), (1, 0)), 1, False, True),  # a step broke
        (((0, 0), (0, 1), (0, 0)), 1, False, True),
        (((2, 0), (3, 0)), 1, False, True),  # a life that began later
        (((0, 0), (0, 1), (1, 0), (1, 1)), 1, False, False),  # a share in two batches
        (((0, 0), (0, 1), (0, 0), (0, 1)), 2, False, False),
        (((0, 0), (1, 0), (1, 0)), 1, True, False),
        (((0,), (0,), (1,)), 1, False, False),
        (((OUTSIDE,), (OUTSIDE,)), 1, False, False),
    ],
)
def test_a_script_that_counts_its_batches_may_count_others_than_the_steps(
    bodies: tuple[tuple[int, ...], ...], accumulate: int, asks: bool, miscounts: bool
) -> None:
    place: tuple[int, ...] = ()
    course = ScriptCourse(lambda: place[0], lambda: place)
    for loop in range(2):
        course.enter_loop(accumulate)
        for body in bodies:
            place = body if body[0] == OUTSIDE else (body[0] + 10 * loop, *body[1:])
            course.enter_body()
            if asks:
                course.asked()
        assert course.miscount == miscounts * len(bodies) * (loop + 1)
        course.leave_loop()


def test_meetings_are_counted_by_where_in_the_body_they_are() -> None:
    where = (3, 0)
    course = ScriptCourse(lambda: 3, lambda: where)
    course.next()
    course.enter_loop()
    course.enter_body()
    assert course.meeting() == (0, OUTSIDE, 0, 3, 0, MEETING, 1)
    assert course.meeting() == (0, OUTSIDE, 0, 3, 0, MEETING, 2)
    where = (4,)
    after = course.meeting()
    assert after == (0, OUTSIDE, 0, 4, MEETING, 1)
    course.enter_body()
    where = (4, 0)
    assert course.meeting() == (0, OUTSIDE, 0, 4, 0, MEETING, 1)
    where = (4,)  # its step broke
    assert course.meeting() == after


def test_where_workers_share_no_step_calls_in_bodies_are_counted() -> None:
    course = ScriptCourse(lambda: OUTSIDE, lambda: (OUTSIDE,))
    course.next()
    course.enter_loop()
    found = []
    for _ in range(2):
        course.enter_body()
        found.append(course.next())
    assert found == [(0, OUTSIDE, 0, OUTSIDE, 1), (0, OUTSIDE, 0, OUTSIDE, 2)]


@pytest.mark.usefixtures("held_both_ways")
def test_epochs_are_numbered_and_each_has_another_order() -> None:
    job = pl.init()
    model = nn.Linear(1, 1)
    optimizer = SGD(model.parameters(), lr=0.1)
    job.prepare(model, optimizer)
    orders = []
    for epoch in job.epochs(3):
        assert job.epoch == epoch
        orders.append([])
        for (x,) in job.batches(TensorRows(x=torch_range()), 3):
            model(x).mean().backward()
            optimizer.step()
            orders[epoch] += x.flatten().tolist()
    assert len(orders) == 3
    assert all(sorted(one) == [*range(12)] for one in orders)
    assert len({tuple(one) for one in orders}) == 3
    with pytest.raises(ConfigError, match=r"known within a loop over job\.epochs only"):
        _ = job.epoch


def torch_range() -> torch.Tensor:
    return torch.arange(12.0)[:, None]


def test_loops_over_epochs_are_not_nested_nor_endless() -> None:
    job = pl.init()
    with pytest.raises(ConfigError, match=r"job.epochs was called before job.prepare"):
        job.epochs(2)
    model = nn.Linear(1, 1)
    job.prepare(model, SGD(model.parameters(), lr=0.1))
    with pytest.raises(ConfigError, match=r"job.epochs: epochs is 0; give a whole number"):
        job.epochs(0)
    for _ in job.epochs(1):
        with pytest.raises(ConfigError, match=r"within a loop over job.epochs or job.batches"):
            job.epochs(2)

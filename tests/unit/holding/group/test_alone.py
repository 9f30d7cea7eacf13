"""Steps of a group of one: made without the others' part, as long as nothing has happened."""

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from torch import nn

from paceline.base.numbering import EpochNo, Inc, StepNo
from paceline.base.samples import Span
from paceline.protocol.holding.group.division import Sharing
from paceline.protocol.holding.group.member import MemberState
from paceline.runtime.group.alone import StepsAlone
from paceline.runtime.group.loop import GroupLoop
from paceline.runtime.group.reducer import Reducer
from paceline.runtime.group.shares import StepShares
from paceline.runtime.group.step import GroupStep
from paceline.runtime.process.process import Fenced
from paceline.wire.messages.group import Division, Member, RunGroup, StopGroup
from paceline.wire.messages.order import Lacking
from tests.unit.holding.group.test_group import FEED

LONG = msgspec.structs.replace(FEED, num_samples=40, batch_size=4, shard_size=40)


class Worker:
    """A member in a group of so many; its machine is real, and its client a stand-in."""

    def __init__(
        self, size: int = 1, division: Division | None = None, *, found: bool = False
    ) -> None:
        members = tuple(Member(Inc(k), f"worker-{k}", "") for k in range(size))
        self.run = RunGroup(
            epoch_no=EpochNo(1), inc=Inc(0), group=1, step=StepNo(0), members=members
        )
        self.state = MemberState(Inc(0))
        self.state.epoch_no, self.state.step, self.state.group = EpochNo(1), StepNo(0), 1
        self.state.running, self.state.ran = self.run, 1
        self.state.division = division or Division()
        self.state.in_steps = True
        self.client = SimpleNamespace(
            state=self.state, num_events=0, stops=False, is_quiet=True, begin_again=self.begin_again
        )
        self.shares = StepShares(Sharing(LONG.batch_size), LONG, self.state)
        self.net = nn.Linear(2, 1)
        self.reducer = Reducer(self.net.parameters())
        self.variables = SimpleNamespace(found=found, unmark=lambda: None)
        self.alone = StepsAlone(self.client, self.reducer, self.shares, self.variables)  # type: ignore[arg-type]
        self.step = self.begin_any()

    def begin_any(self) -> GroupStep:
        self.state.enter()
        self.alone.begins_any(self.client.num_events)
        division = self.state.division
        plan = self.shares.next(self.run, division, 0)
        group: Any = SimpleNamespace(rank=0)
        step = GroupStep(self.run, group, group, division, division, plan, plan.weight)
        step.works = [*plan.works]
        return step

    def begin_again(self, run: RunGroup, num_events: int, *, alone: bool = False) -> bool:
        """As `MemberClient.begin_again`."""
        if self.client.num_events != num_events or self.state.running is not run:
            return False
        self.state.enter()
        if alone:
            self.state.enter_alone()
        return True

    def complete(self) -> None:
        """All of the step is there, and changes the model if its group goes on."""
        step = self.step
        step.holds = self.state.begin_update(self.run)
        if step.holds:
            self.state.updated(step.whole, last=False)

    def follows(self) -> bool:
        plan = self.alone.next_after(self.step)
        if plan is None or not self.alone.begins(self.step):
            return False
        self.step.comes_alone(plan, None)
        return True


def test_the_steps_of_a_group_of_one_follow_each_other_to_the_end_of_the_feed() -> None:
    worker, done = Worker(), list[Span]()
    while True:
        done += worker.step.whole
        assert worker.step.plan.number == worker.state.step + 1
        worker.complete()
        if not worker.follows():
            break
    assert done == [Span(0, start, start + 4) for start in range(0, 40, 4)]
    assert worker.state.step == 10
    assert not worker.shares.next(worker.run, worker.state.division, 0).whole


@pytest.mark.parametrize(
    "why",
    [
        {"size": 2},
        {"division": Division(lacking=Lacking(left_out=1))},
        {"is_quiet": False},
        {"stops": True},
    ],
)
def test_where_there_is_more_to_do_a_step_is_one_of_any_group(why: dict[str, Any]) -> None:
    of_client = {key: why.pop(key) for key in ("is_quiet", "stops") if key in why}
    worker = Worker(**why)
    vars(worker.client).update(of_client)
    worker.complete()
    assert not worker.follows()


def test_what_comes_is_acted_on_in_the_next_step() -> None:
    worker = Worker()
    worker.complete()
    assert worker.follows()
    worker.client.num_events += 1
    worker.complete()
    assert not worker.follows()
    worker.step = worker.begin_any()
    worker.complete()
    assert worker.follows()


def test_in_a_group_that_is_over_no_step_begins() -> None:
    """The member is told to stop, and does so in the last step that is one of any group."""
    worker = Worker()
    worker.state.stopping = StopGroup(epoch_no=EpochNo(1), inc=Inc(0), group=2, at_once=False)
    worker.step.holds = worker.state.begin_update(worker.run)
    worker.state.updated(worker.step.whole, last=True)
    assert worker.state.running is None
    assert not worker.follows()


def test_one_alone_that_is_told_to_stop_at_once_ends_its_step_first() -> None:
    """It is hurt by the death of a worker that was about to join: that is no harm to the step."""
    worker = Worker()
    worker.complete()
    assert worker.follows()
    state = worker.state
    assert state.stop_group(StopGroup(epoch_no=EpochNo(1), inc=Inc(0), group=2)) == []
    assert state.running is worker.run
    worker.complete()
    assert worker.step.holds
    assert state.running is None
    assert state.step == 2


def test_one_alone_that_is_between_two_steps_stops_at_once() -> None:
    """Its script may plot, or evaluate, for long: the master would take it for hung."""
    worker = Worker()
    worker.complete()
    stop = StopGroup(epoch_no=EpochNo(1), inc=Inc(0), group=2)
    assert worker.state.stop_group(stop)
    assert worker.state.running is None
    assert not worker.follows()


def test_one_alone_that_waits_for_its_batch_stops_at_once() -> None:
    """A slow disk is no reason to take it for hung: nothing of the step's body has run."""
    worker = Worker()
    worker.complete()
    assert worker.alone.next_after(worker.step) is not None
    assert worker.state.stop_group(StopGroup(epoch_no=EpochNo(1), inc=Inc(0), group=2))
    assert not worker.alone.begins(worker.step)


def test_what_comes_as_a_step_begins_is_not_overlooked() -> None:
    worker = Worker()
    worker.complete()
    begin_again = worker.client.begin_again

    def late(*told: Any, **named: Any) -> bool:
        worker.client.num_events += 1
        return bool(begin_again(*told, **named))

    worker.client.begin_again = late
    assert not worker.follows()


def test_where_variables_are_compared_the_first_steps_of_a_loop_are_of_any_group() -> None:
    worker, kinds = Worker(found=True), []
    for _ in range(4):
        worker.complete()
        if not worker.follows():
            worker.step = worker.begin_any()
        kinds.append(worker.step.is_alone)
    assert kinds == [False, True, True, True]


def test_a_step_that_the_job_goes_back_behind_ends_the_life() -> None:
    """No mark was kept of the script's variables, which its body has changed."""
    worker = Worker()
    worker.complete()
    assert worker.follows()
    worker.variables.found = True
    assert worker.state.stop_group(StopGroup(epoch_no=EpochNo(2), inc=Inc(0), group=2))
    worker.complete()
    assert not worker.step.holds
    with pytest.raises(Fenced):
        worker.follows()


def test_gradients_are_left_alone_and_those_of_a_batch_before_count_for_nothing() -> None:
    worker = Worker()
    worker.complete()
    assert worker.follows()
    for _ in range(2):  # torch adds them up, as in one process
        worker.net(worker.net.weight).sum().backward()
    assert not worker.reducer.called_twice
    assert worker.reducer.has_gradients
    worker.complete()
    assert worker.follows()
    assert not worker.reducer.has_gradients, "a script may leave a batch out before its backward"


def test_batches_of_later_steps_are_made_meanwhile() -> None:
    worker, asked = Worker(), list[Any]()
    worker.complete()
    loop: Any = GroupLoop.__new__(GroupLoop)
    vars(loop).update(_alone=worker.alone, _client=worker.client, _shares=worker.shares, _ahead=2)
    worker.client.mark = lambda *, computing: None
    loop._reader = SimpleNamespace(get=lambda work: work, ask=asked.append)
    loop.step, loop.num_steps, loop.excluded_s = worker.step, 1, 0.0
    loop._note = lambda *_: None
    step = loop._begin_next()
    assert step.is_alone
    assert step.batch is step.works[0]
    (later,) = asked
    assert [work.spans for work in later] == [(Span(0, 8, 12),), (Span(0, 12, 16),)]

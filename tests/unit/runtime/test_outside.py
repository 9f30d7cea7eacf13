"""Scheduler steps between loops, whoever's state is taken over."""

import pytest
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import StepLR

from paceline.runtime.process.process import Fenced
from paceline.runtime.state.outside import Outside


class Script:
    """One process: a scheduler that halves the rate at each step."""

    def __init__(self) -> None:
        self.optimizer = SGD(nn.Linear(1, 1).parameters(), lr=1.0)
        self.optimizer._opt_called = True  # type: ignore[attr-defined]
        self.scheduler = StepLR(self.optimizer, step_size=1, gamma=0.5)
        self.in_loop: int | None = None
        self.outside = Outside([self.scheduler], lambda _: self.in_loop)

    @property
    def rate(self) -> float:
        return float(self.optimizer.param_groups[0]["lr"])

    def take_over(self, other: "Script") -> None:
        self.scheduler.load_state_dict(other.scheduler.state_dict())
        self.optimizer.load_state_dict(other.optimizer.state_dict())
        self.outside.became(other.outside.counts(), other.outside.place)


@pytest.mark.parametrize("source_calls", [0, 1, 2])
@pytest.mark.parametrize("own_calls", [0, 1, 2])
def test_all_calls_of_the_script_count_once(source_calls: int, own_calls: int) -> None:
    source, own = Script(), Script()
    for script, calls in ((source, source_calls), (own, own_calls)):
        for _ in range(calls):
            script.scheduler.step()
    own.take_over(source)
    for script, calls in ((source, source_calls), (own, own_calls)):
        for _ in range(2 - calls):
            script.scheduler.step()
    assert (source.rate, own.rate) == (0.25, 0.25)
    assert own.outside.counts() == [2]
    assert own.scheduler.state_dict().keys() == StepLR(own.optimizer, 1).state_dict().keys()


def test_in_a_loop_it_follows_the_job() -> None:
    script = Script()
    for taken in (1, 0, 1):
        script.in_loop = taken
        script.scheduler.step()
    assert script.rate == 0.25
    assert script.outside.counts() == [0]


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("ahead", [0, 1])
def test_a_script_that_passes_over_epochs_has_made_their_calls(ahead: int, early: bool) -> None:
    source, own = Script(), Script()
    for epoch in range(3 + ahead):
        source.outside.place = 0, epoch + 1
        source.scheduler.step()
    if early:
        own.take_over(source)
    own.outside.pass_over((0, 3), [3])
    if not early:
        own.take_over(source)
    for _ in range(2):
        own.scheduler.step()
    assert (own.rate, own.outside.counts()) == (0.5**5, [5])


def test_a_state_of_before_the_epoch_that_a_script_began_with_ends_it() -> None:
    source, own = Script(), Script()
    source.outside.place = 0, 2
    own.outside.pass_over((0, 3), [0])
    with pytest.raises(Fenced):
        own.take_over(source)

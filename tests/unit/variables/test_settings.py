"""What a script sets of its model between loops reaches a life that does not run those lines."""

import copy
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline.runtime.state.packed import pack, unpack
from paceline.runtime.variables.settings import name_of
from paceline.runtime.variables.variables import LinesMissed, Variables
from tests.unit.variables.test_variables import loop


def doubled(_module: nn.Module, _given: Any, made: Tensor) -> Tensor:
    return 2 * made


class Net(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(2, 2), nn.Dropout(0.5), nn.BatchNorm1d(2), nn.Linear(2, 1))


Chosen = tuple[Any, nn.Module]


class Script:
    """A worker's script, which sets ``between`` its loops what its epoch says."""

    def __init__(self, between: Callable[[Net, int], Chosen | None]) -> None:
        self.variables, self.net, self.between = Variables(found=True), Net(), between
        self.variables.prepared = [self.net]
        self.variables.others = {id(one) for one in self.net.modules()}

    def run(self, epochs: int, at_ask: Callable[["Script", int], None]) -> Any:
        """Go through some epochs; the function that it ends with."""
        act: Any = functional.relu
        loss_of: nn.Module = nn.MSELoss()
        for epoch in range(epochs):
            act, loss_of = self.between(self.net, epoch) or (act, loss_of)
            for _ in range(2):
                self.variables.begin_loop(loop((0, -1, epoch)))
                self.variables.waits_in(sys._getframe())
                at_ask(self, epoch)
                self.variables.goes_on()
            self.variables.waits_in(sys._getframe())
            self.variables.loop_ends()
            self.variables.goes_on()
        return act


def joined(between: Callable[[Net, int], Chosen | None]) -> tuple[Net, Any]:
    """The model and the function of a script that comes late into the second epoch of another."""
    handed: dict[str, Any] = {}

    def hand_over(script: Script, epoch: int) -> None:
        table = script.variables.table()
        assert script.variables.compare([table, table]) == []
        state = script.variables.state_of()
        assert state is not None
        handed.update(unpack(pack(state)) if epoch == 1 else {})

    def join(script: Script, _epoch: int) -> None:
        if not script.variables.took:
            script.variables.begin_loop(loop((0, -1, 1)))
            script.variables.waits_in(sys._getframe(1))
            script.variables.become(copy.deepcopy(handed))  # it is a variable itself here
            assert script.variables.take()

    runs = (Script(between), 2, hand_over), (joiner := Script(between), 1, join)
    *_, act = [script.run(epochs, at_ask) for script, epochs, at_ask in runs]
    return joiner.net, act


def _thaws(net: Net, epoch: int) -> None:
    net[0].requires_grad_(epoch >= 1)


def _sets_modes(net: Net, epoch: int) -> None:
    net[2].train(epoch < 1)
    dropout, norm = net[1], net[2]
    assert isinstance(dropout, nn.Dropout)
    assert isinstance(norm, nn.BatchNorm1d)
    dropout.p, norm.momentum = 0.5 / (1 + epoch), 0.1 / (1 + epoch)


def _chooses(_: Net, epoch: int) -> Chosen:
    return functional.relu if epoch < 1 else torch.tanh, nn.MSELoss()


def test_layers_that_a_script_thaws_are_trained_by_a_life_that_comes_later() -> None:
    net, _ = joined(_thaws)
    assert all(param.requires_grad for param in net.parameters())


def test_modes_and_attributes_of_modules_follow() -> None:
    net, _ = joined(_sets_modes)
    assert [one.training for one in net] == [True, True, False, True]
    dropout, norm = net[1], net[2]
    assert isinstance(dropout, nn.Dropout)
    assert isinstance(norm, nn.BatchNorm1d)
    assert (dropout.p, norm.momentum) == (0.25, 0.05)


def test_a_function_of_torch_that_was_chosen_follows_by_its_name() -> None:
    assert joined(_chooses)[1] is torch.tanh
    assert name_of(torch.tanh) == "torch:tanh"


def _another_loss(_: Net, epoch: int) -> Chosen:
    return functional.relu, nn.MSELoss() if epoch < 1 else nn.L1Loss()


def _a_hook(net: Net, epoch: int) -> None:
    if epoch >= 1:
        net[0].register_forward_hook(doubled)


def _a_library_s(_: Net, epoch: int) -> Chosen:
    return functional.relu if epoch < 1 else pytest.approx, nn.MSELoss()


@pytest.mark.parametrize(
    ("between", "names"),
    [
        (_another_loss, r"`run\.loss_of` \(test_settings.*MSELoss here and a .*L1Loss there"),
        (_a_hook, r"`model\.hooks`.*of 0 they are none here and .*doubled there"),
        (_a_library_s, r"`run\.act` \(test_settings.*relu here and .*approx there"),
    ],
)
def test_what_nobody_can_hand_over_is_refused_with_its_name(
    between: Callable[[Net, int], Chosen | None], names: str
) -> None:
    with pytest.raises(LinesMissed, match=f"{names}.*Set it in the body of the loop"):
        joined(between)

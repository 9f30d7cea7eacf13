"""A scaler acts once for each step of the job, and on nothing else."""

import copy

import pytest
import torch
from torch import nn
from torch.amp import GradScaler
from torch.optim import SGD, Adam

from paceline.runtime.script.scaling import follow_steps


class Steps:
    """Stands for the loop: notes what it is told."""

    def __init__(self, *, holds: bool) -> None:
        self.holds = holds
        self.told: list[int] = []
        self.num_ends = 0

    def settle(self) -> bool:
        return self.holds

    def has_stepped(self, optimizer: int) -> bool:
        return optimizer in self.told

    def on_step(self, optimizer: int) -> bool:
        self.told.append(optimizer)
        return self.holds

    def stepped(self) -> None:
        self.num_ends += 1


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("value", [1.0, float("inf")])
@pytest.mark.parametrize("holds", [True, False])
def test_every_step_is_counted_once_and_only_one_that_holds_is_acted_on(
    holds: bool, value: float, fused: bool
) -> None:
    model = nn.Linear(2, 1)
    first, second = SGD([model.weight], lr=0.1), Adam([model.bias], lr=0.1, fused=fused)
    scaler = GradScaler("cpu", init_scale=4.0, growth_interval=1)
    steps = Steps(holds=holds)
    for number, optimizer in enumerate((first, second)):
        take = optimizer.step

        def step(number: int = number, take: object = take) -> None:
            if steps.on_step(number):
                take()
            steps.stepped()

        optimizer.step = step
    follow_steps(scaler, [first, second], lambda: steps)
    before = copy.deepcopy(model.state_dict())
    scaler.scale(model(torch.ones(1, 2)).sum() * value).backward()
    scaler.unscale_(first)
    if holds and value == 1.0:
        assert model.weight.grad.tolist() == [[1.0, 1.0]]
    scaler.step(first)
    scaler.step(second)
    scaler.update()
    assert (steps.told, steps.num_ends) == ([0, 1], 2)
    changes = holds and value == 1.0
    assert scaler.get_scale() == (4.0 if not holds else 8.0 if changes else 2.0)
    for name, values in model.state_dict().items():
        assert torch.equal(values, before[name]) != changes


def test_outside_of_a_loop_it_is_a_scaler_as_ever() -> None:
    model = nn.Linear(2, 1)
    optimizer = SGD(model.parameters(), lr=0.1)
    scaler = GradScaler("cpu", init_scale=4.0, growth_interval=1)
    follow_steps(scaler, [optimizer], lambda: None)
    before = model.weight.detach().clone()
    scaler.scale(model(torch.ones(1, 2)).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 8.0
    assert torch.allclose(before - model.weight, torch.full((1, 2), 0.1))

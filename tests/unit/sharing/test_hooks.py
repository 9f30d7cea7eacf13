"""Where a script that is not changed passes its gate."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from paceline.features.sharing.process import hooks
from paceline.features.sharing.process.hooks import GatePoints


class CountingGate:
    """A gate that is always open."""

    num_ticks = 0

    def tick(self) -> None:
        self.num_ticks += 1


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[CountingGate]:
    """A gate with points in this process, which is left as it was."""
    handles = []
    names = (
        "register_module_forward_pre_hook",
        "register_optimizer_step_pre_hook",
        "register_optimizer_step_post_hook",
    )
    for name in names:
        register = getattr(hooks, name)

        def noted(hook: Any, register: Any = register) -> None:
            handles.append(register(hook))

        monkeypatch.setattr(hooks, name, noted)
    counting: Any = CountingGate()
    GatePoints(counting).install()
    yield counting
    for handle in handles:
        handle.remove()


def test_a_step_passes_at_modules_gradients_and_the_optimizer(gate: CountingGate) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> int:
        before = gate.num_ticks
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        return gate.num_ticks - before

    assert step() == 4 + 2, "its parameters are known from its first step on"
    assert step() == 4 + 4 + 2
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]})
    step()
    assert step() == 4 + 4 + 2, "a parameter without a gradient has no point"


def test_what_it_computes_stays_the_same(gate: CountingGate) -> None:
    def train() -> torch.Tensor:
        torch.manual_seed(0)
        model = nn.Linear(3, 1)
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(5):
            optimizer.zero_grad()
            model(torch.ones(2, 3)).sum().backward()
            optimizer.step()
        return model.weight.detach().clone()

    first = train()
    assert gate.num_ticks
    assert torch.equal(first, train())

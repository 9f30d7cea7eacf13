"""Parameters that an optimizer gets after ``job.prepare`` are refused, with a remedy that is equal."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Optimizer

from paceline.base.errors import ConfigError
from paceline.runtime.stepping import Stepping
from paceline.wire.spec import JobSpec
from tests.parity.cases import cases, reference


class Member(Stepping):
    """One without a group."""

    def __init__(self, *optimizers: Optimizer) -> None:
        super().__init__(JobSpec(script="train.py"), rank=0)
        self._follow_all(optimizers)
        loop: Any = SimpleNamespace(on_step=lambda _: False, stepped=lambda: None)
        self._loop = loop


def _append(optimizer: Optimizer, layer: nn.Linear) -> None:
    optimizer.param_groups[0]["params"].append(layer.weight)


def _add(optimizer: Optimizer, layer: nn.Linear) -> None:
    optimizer.add_param_group({"params": [layer.weight]})


def _both(
    edit: Callable[[Optimizer, nn.Linear], None], optimizer: Optimizer, layer: nn.Linear
) -> None:
    edit(optimizer, layer)
    optimizer.step()


@pytest.mark.parametrize(
    ("edit", "said"),
    [(_add, "SGD.add_param_group was called after"), (_append, "was not in the groups of SGD")],
)
def test_a_group_that_is_added_is_refused(
    edit: Callable[[Optimizer, nn.Linear], None], said: str
) -> None:
    optimizer, late = SGD(nn.Linear(2, 2).parameters(), lr=0.1), nn.Linear(2, 3)
    Member(SGD(late.parameters(), lr=0.1), optimizer)
    optimizer.step()
    with pytest.raises(ConfigError, match=rf"{said}.*requires_grad_\(False\) after it"):
        _both(edit, optimizer, late)


def test_a_parameter_that_was_frozen_at_prepare_is_refused_with_its_first_gradient() -> None:
    layer = nn.Linear(2, 2)
    layer.bias.requires_grad_(False)
    optimizer = SGD(layer.parameters(), lr=0.1)
    Member(optimizer)
    layer.bias.requires_grad_(True)
    optimizer.step()
    layer(torch.ones(1, 2)).sum().backward()
    with pytest.raises(ConfigError, match=r"shape \(2,\) has a gradient, but was frozen at"):
        optimizer.step()


@pytest.mark.parametrize("kind", ["SGD", "AdamW"])
def test_the_remedy_computes_what_torch_does_for_a_group_that_is_added(kind: str) -> None:
    found = {
        one.edit: reference(one)["model"]
        for one in cases()
        if one.kind.name == kind and one.dtype == torch.float64 and one.edit in ("group", "thaw")
    }
    for name, value in found["group"].items():
        assert torch.equal(value, found["thaw"][name])

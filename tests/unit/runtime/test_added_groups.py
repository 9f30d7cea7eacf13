"""Parameters that an optimizer gets, or that are thawed, after ``job.prepare``; and closures."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import LBFGS, SGD, Optimizer

import paceline as pl
from paceline.base.errors import ConfigError
from paceline.runtime.holding.replicas.averaging import Averaging
from paceline.runtime.script.stepping import Regrouping, Stepping
from paceline.runtime.state.restoring import fits, restore_optimizer
from paceline.wire.spec import JobSpec
from tests.parity.cases import cases, reference
from tests.parity.kinds import bits


class Member(Stepping):
    """One without a group."""

    def __init__(self, *optimizers: Optimizer, regrouping: Regrouping = "never") -> None:
        super().__init__(JobSpec(script="train.py"), rank=0)
        self.regrouping = regrouping
        self._follow_all(optimizers)
        self.enter_loop()

    def enter_loop(self) -> None:
        loop: Any = SimpleNamespace(on_step=lambda _: False, stepped=lambda: None)
        self._loop = loop

    def leave_loop(self) -> None:
        self._loop = None


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
    ("edit", "regrouping", "said"),
    [
        (_add, "never", r"SGD.add_param_group was called after.*requires_grad_\(False\) after it"),
        (_append, "never", r"was not in the groups of SGD.*requires_grad_\(False\) after it"),
        (_add, "between loops", "SGD.add_param_group was called in a loop.*if epoch >= 3"),
        (_append, "between loops", "was not in the groups of SGD when the loop.*if epoch >= 3"),
    ],
)
def test_a_group_that_is_added_in_a_loop_is_refused(
    edit: Callable[[Optimizer, nn.Linear], None], regrouping: Regrouping, said: str
) -> None:
    optimizer, late = SGD(nn.Linear(2, 2).parameters(), lr=0.1), nn.Linear(2, 3)
    Member(SGD(late.parameters(), lr=0.1), optimizer, regrouping=regrouping)
    optimizer.step()
    with pytest.raises(ConfigError, match=said):
        _both(edit, optimizer, late)


@pytest.mark.parametrize(
    ("regrouping", "said"),
    [
        ("never", r"shape \(2,\) has a gradient, but was frozen at job.prepare"),
        (
            "between loops",
            r"shape \(2,\) has a gradient, but was frozen when the loop .*epoch >= 3",
        ),
    ],
)
def test_a_parameter_that_was_frozen_is_refused_with_its_first_gradient(
    regrouping: Regrouping, said: str
) -> None:
    layer = nn.Linear(2, 2)
    layer.bias.requires_grad_(False)
    optimizer = SGD(layer.parameters(), lr=0.1)
    Member(optimizer, regrouping=regrouping)
    layer.bias.requires_grad_(True)
    optimizer.step()
    layer(torch.ones(1, 2)).sum().backward()
    with pytest.raises(ConfigError, match=said):
        optimizer.step()


def test_between_two_loops_members_take_a_group_in() -> None:
    optimizer, late = SGD(nn.Linear(2, 2).parameters(), lr=0.1), nn.Linear(2, 3)
    member = Member(optimizer, regrouping="between loops")
    member.leave_loop()
    _add(optimizer, late)
    assert len(optimizer.param_groups) == 2
    member.enter_loop()
    with pytest.raises(ConfigError, match="was not in the groups"):
        optimizer.step()
    member._know([late.weight])
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


def _adam_of(layers: list[nn.Linear]) -> Optimizer:
    return torch.optim.Adam([{"params": [*one.parameters()]} for one in layers], lr=0.1)


def _train(layers: list[nn.Linear], optimizer: Optimizer, steps: int) -> None:
    for _ in range(steps):
        sum(layer(torch.ones(1, 2)).square().sum() for layer in layers).backward()  # type: ignore[union-attr]
        optimizer.step()
        optimizer.zero_grad()


def test_an_optimizer_takes_over_the_state_of_before_its_newest_group() -> None:
    layers = [nn.Linear(2, 2), nn.Linear(2, 2)]
    before, after = _adam_of(layers[:1]), _adam_of(layers)
    _train(layers[:1], before, 3)
    assert fits(after, before.state_dict())
    restore_optimizer(after, before.state_dict())
    before.add_param_group({"params": [*layers[1].parameters()], "lr": 0.1})
    assert bits(after.state_dict()) == bits(before.state_dict())
    assert not fits(_adam_of(layers[:1]), after.state_dict())
    with pytest.raises(ConfigError, match=r"groups of \[2\] parameters.*has \[2, 2\].*epoch >= 3"):
        restore_optimizer(_adam_of(layers[:1]), after.state_dict())


# ---------------------------------------------------------------------------- closures


def test_a_layer_with_a_gradient_from_before_is_refused_in_a_group() -> None:
    """Torch adds it to the first step's, and a worker that joins later would not have it."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    optimizer = SGD(model[1].parameters(), lr=0.1)
    averaging = Averaging([model], [optimizer], (), (), deterministic=False)
    assert not averaging.regroup()
    model[0].weight.grad = torch.ones(4, 4)
    optimizer.add_param_group({"params": model[0].parameters()})
    with pytest.raises(ConfigError, match=r"'0.weight' begins to train, and has a gradient"):
        averaging.regroup()
    model[0].zero_grad()
    assert averaging.regroup()
    assert len(averaging.params) == 4


@pytest.mark.parametrize(("form", "make"), [("lbfgs", LBFGS), ("closure", SGD)])
@pytest.mark.proves(form="{form}", strategy="alone")
def test_alone_a_closure_is_torch_s_bit_for_bit(form: str, make: Callable[..., Optimizer]) -> None:
    def end(*, job: bool) -> list[Any]:
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        optimizer = make(model.parameters(), lr=0.5)
        x = torch.randn(96, 4, generator=torch.Generator().manual_seed(1))
        losses: list[float] = []
        batches: Any = x.split(32)
        if job:
            one = pl.init()
            one.prepare(model, optimizer)
            rows = one.batches(pl.TensorRows(x=x), batch_size=32, shuffle=False)
            batches = (batch.x for batch in rows)
        for batch in batches:

            def closure(batch: torch.Tensor = batch) -> torch.Tensor:
                optimizer.zero_grad()
                loss = (model(batch) - batch.sum(1, keepdim=True)).square().mean()
                loss.backward()
                return loss

            losses.append(float(optimizer.step(closure).detach()))
        return [bits(dict(model.state_dict())), bits(optimizer.state_dict()), losses]

    assert end(job=True) == end(job=False)

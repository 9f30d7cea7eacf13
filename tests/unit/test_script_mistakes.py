"""Scripts that hold the job's API wrongly: what the user is told, word for word.

(Of ids that are out of range, weights used directly and errors of the user's own code, see
test_job_misuse.py.)
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.optim import LBFGS, SGD, Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import StepLR

import paceline as pl
from paceline.base.errors import ConfigError
from paceline.runtime.data.batch import TensorRows

DATA = TensorRows(x=torch.arange(40.0).reshape(10, 4), y=torch.arange(10.0))


class Script:
    """A script as it should be, up to its loop."""

    def __init__(self) -> None:
        self.job = pl.init()
        self.model = nn.Linear(4, 1)
        self.optimizer: Optimizer = SGD(self.model.parameters(), lr=0.1)
        self.job.prepare(self.model, self.optimizer)

    def batches(self, **changed: Any) -> Any:
        return self.job.batches(**({"dataset": DATA, "batch_size": 4} | changed))

    def backward(self, batch: Any) -> None:
        F.mse_loss(self.model(batch.x).squeeze(1), batch.y).backward()


def batch_without_step() -> None:
    script = Script()
    batches = script.batches()
    script.backward(next(batches))
    next(batches)


def second_step() -> None:
    script = Script()
    script.backward(next(_batches := script.batches()))
    script.optimizer.step()
    script.optimizer.step()


def step_without_backward() -> None:
    script = Script()
    next(_batches := script.batches())
    script.optimizer.step()


def step_after_the_loop() -> None:
    script = Script()
    for batch in script.batches():
        script.backward(batch)
        script.optimizer.step()
    script.optimizer.step()


def nested_loops() -> None:
    script = Script()
    next(_outer := script.batches())
    script.batches()


def two_loops_at_once() -> None:
    script = Script()
    outer, inner = script.batches(), script.batches()
    next(outer)
    next(inner)


def prepare_twice() -> None:
    script = Script()
    script.job.prepare(script.model, script.optimizer)


def load_after_prepare() -> None:
    Script().model.load_state_dict(nn.Linear(4, 1).state_dict())


def evaluate(fn: Callable[[Any], Any]) -> None:
    Script().job.evaluate(fn, DATA, 4)


def evaluate_inside_a_step() -> None:
    script = Script()
    next(_batches := script.batches())
    script.job.evaluate(lambda batch: {"y": batch.y}, DATA)


def prepare(choose: Callable[[Any], tuple[Any, ...]]) -> None:
    """Prepare what is chosen, given a model with one sparse table and one dense layer."""
    model = nn.Module()
    model.table = nn.Embedding(10, 4, sparse=True)
    model.dense = nn.Linear(4, 1)
    pl.init().prepare(*choose(model))


def with_table(model: nn.Module, **tables: nn.Module) -> tuple[nn.Module]:
    for name, table in tables.items():
        model.add_module(name, table)
    return (model,)


def tied(model: Any) -> tuple[nn.Module]:
    model.out = nn.Linear(4, 10)
    model.out.weight = model.table.weight
    return (model,)


def sgd(model: nn.Module, **options: Any) -> Optimizer:
    return SGD(model.parameters(), **({"lr": 0.1} | options))


def embedding(**changed: Any) -> None:
    table = pl.Embedding(**({"name": "user", "dim": 4} | changed))
    pl.init().prepare(table, sgd(table))


def table_outside_of_a_loop() -> None:
    table = nn.Embedding(10, 4, sparse=True)
    pl.init().prepare(table, sgd(table))
    table(torch.arange(3))


MISTAKES: list[tuple[Callable[[], object], str]] = [
    (lambda: pl.init().batches(DATA, 4), ""),
    (lambda: pl.init().evaluate(dict, DATA), ""),
    (lambda: pl.Embedding("user", 4)(torch.arange(3)), ""),
    (batch_without_step, ""),
    (second_step, ""),
    (step_without_backward, ""),
    (step_after_the_loop, ""),
    (nested_loops, ""),
    (two_loops_at_once, ""),
    (prepare_twice, ""),
    (load_after_prepare, ""),
    (table_outside_of_a_loop, ""),
    (lambda: Script().batches(batch_size=0), ""),
    (lambda: Script().batches(batch_size=2.5), ""),
    (lambda: Script().batches(batch_size=None), ""),
    (lambda: Script().batches(epochs=0), ""),
    (lambda: Script().batches(dataset=[]), ""),
    (lambda: Script().batches(dataset=iter(())), ""),
    (lambda: Script().batches(dataset=torch.utils.data.DataLoader(DATA)), ""),  # type: ignore[arg-type]
    (lambda: prepare(lambda _: ()), ""),
    (lambda: prepare(lambda m: (m, LBFGS(m.parameters()))), ""),
    (lambda: prepare(lambda m: (m, Adam(m.parameters(), amsgrad=True))), ""),
    (lambda: prepare(lambda m: (m, sgd(m, momentum=0.9))), ""),
    (lambda: prepare(lambda m: (m, AdamW(m.parameters()))), ""),
    (lambda: prepare(lambda m: (m, sgd(m), sgd(m))), ""),
    (lambda: prepare(lambda m: (m, sgd(nn.Linear(3, 5)))), ""),
    (lambda: prepare(lambda m: (m, StepLR(sgd(m), 1))), ""),
    (lambda: prepare(lambda m: (m.half(), sgd(m))), ""),
    (lambda: prepare(lambda m: (m, DATA)), ""),
    (lambda: prepare(lambda m: with_table(m, t=nn.Embedding(9, 4, sparse=True, max_norm=1.0))), ""),
    (lambda: prepare(lambda m: with_table(m, t=nn.EmbeddingBag(9, 4, sparse=True, mode="max"))), ""),
    (lambda: prepare(lambda m: with_table(m, a=pl.Embedding("u", 4), b=pl.Embedding("u", 4))), ""),
    (lambda: prepare(tied), ""),
    (lambda: embedding(name=""), ""),
    (lambda: embedding(dim=0), ""),
    (lambda: embedding(admit=0), ""),
    (lambda: embedding(optimizer="lion"), ""),
    (lambda: evaluate(lambda batch: batch.y.mean()), ""),
    (lambda: evaluate(lambda batch: {"loss": batch.y.mean()}), ""),
    (lambda: evaluate(lambda _: {"loss": 1.0}), ""),
    (lambda: evaluate(lambda batch: {"p": batch.y[1:]}), ""),
    (evaluate_inside_a_step, ""),
]


@pytest.mark.parametrize(("script", "message"), MISTAKES)
def test_a_script_that_cannot_train_is_refused_in_these_words(
    script: Callable[[], object], message: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        script()
    assert str(refused.value) == message

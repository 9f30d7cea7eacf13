"""What a user is told who holds the job's API wrongly."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.optim import LBFGS, SGD, Adam, AdamW, Optimizer

import paceline as pl
from paceline.base.errors import ConfigError
from paceline.runtime.data.batch import TensorRows

DATA = TensorRows(x=torch.arange(40.0).reshape(10, 4), y=torch.arange(10.0))


def _prepared() -> tuple[pl.Job, nn.Module, Optimizer]:
    job = pl.init()
    model = nn.Linear(4, 1)
    optimizer = SGD(model.parameters(), lr=0.1)
    job.prepare(model, optimizer)
    return job, model, optimizer


def _backward(model: nn.Module, batch: Any) -> None:
    F.mse_loss(model(batch.x).squeeze(1), batch.y).backward()


def test_batches_before_prepare_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"before job\.prepare; call"):
        pl.init().batches(DATA, 4)


def test_evaluate_before_prepare_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"before job\.prepare"):
        pl.init().evaluate(dict, DATA)


def test_a_batch_without_optimizer_step_is_refused() -> None:
    job, model, _ = _prepared()
    batches = job.batches(DATA, 4)
    _backward(model, next(batches))
    with pytest.raises(ConfigError, match=r"went by without optimizer\.step\(\) \(1 of 1"):
        next(batches)


def test_a_second_step_for_one_batch_is_refused() -> None:
    job, model, optimizer = _prepared()
    batches = job.batches(DATA, 4)
    batch = next(batches)
    _backward(model, batch)
    optimizer.step()
    with pytest.raises(ConfigError, match="twice for one batch"):
        optimizer.step()


def test_a_step_without_backward_is_refused() -> None:
    job, _, optimizer = _prepared()
    batches = job.batches(DATA, 4)
    next(batches)
    with pytest.raises(ConfigError, match=r"no parameter has a gradient; call loss\.backward\(\)"):
        optimizer.step()


def test_a_step_outside_of_a_loop_is_refused() -> None:
    job, model, optimizer = _prepared()
    for batch in job.batches(DATA, 4):
        _backward(model, batch)
        optimizer.step()
    with pytest.raises(ConfigError, match="outside of a loop"):
        optimizer.step()


def test_nested_loops_are_refused() -> None:
    job, _, _ = _prepared()
    outer = job.batches(DATA, 4)
    next(outer)
    with pytest.raises(ConfigError, match="inside the loop of another"):
        job.batches(DATA, 4)


def test_two_loops_made_together_and_run_at_once_are_refused() -> None:
    job, _, _ = _prepared()
    outer, inner = job.batches(DATA, 4), job.batches(DATA, 4)
    next(outer)
    with pytest.raises(ConfigError, match="run at once"):
        next(inner)


def test_a_left_loop_lets_another_begin() -> None:
    job, model, optimizer = _prepared()
    for batch in job.batches(DATA, 4):
        _backward(model, batch)
        break
    optimizer.zero_grad()
    sizes = []
    for batch in job.batches(DATA, 4):
        _backward(model, batch)
        optimizer.step()
        sizes.append(len(batch.y))
    assert sizes == [4, 4, 2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 0}, "batch_size is 0; give a whole number"),
        ({"batch_size": 2.5}, "batch_size is 2.5"),
        ({}, "batch_size is given neither by the script nor by the job's spec"),
        ({"batch_size": 4, "epochs": 0}, "epochs is 0"),
        ({"batch_size": 4, "dataset": []}, "the dataset is empty"),
        ({"batch_size": 4, "dataset": iter(())}, "has no length or no index"),
        (
            {"batch_size": 4, "dataset": torch.utils.data.DataLoader(DATA)},  # type: ignore[arg-type]
            r"a DataLoader has no length or no index.*the job makes the batches",
        ),
    ],
)
def test_wrong_arguments_of_batches_are_refused(arguments: dict[str, Any], message: str) -> None:
    job, _, _ = _prepared()
    with pytest.raises(ConfigError, match=message):
        job.batches(**({"dataset": DATA} | arguments))


def test_prepare_twice_is_refused() -> None:
    job, model, optimizer = _prepared()
    with pytest.raises(ConfigError, match="prepare was called twice"):
        job.prepare(model, optimizer)


def _lbfgs(model: nn.Module) -> tuple[Any, ...]:
    return model, LBFGS(model.parameters())


def _amsgrad(model: nn.Module) -> tuple[Any, ...]:
    return model, Adam(model.parameters(), amsgrad=True)


def _sparse_momentum(model: nn.Module) -> tuple[Any, ...]:
    return model, SGD(model.parameters(), lr=0.1, momentum=0.9)


def _sparse_decay(model: nn.Module) -> tuple[Any, ...]:
    return model, AdamW(model.parameters(), lr=0.1)


def _twice(model: nn.Module) -> tuple[Any, ...]:
    return model, SGD(model.parameters(), lr=0.1), SGD(model.parameters(), lr=0.1)


def _elsewhere(model: nn.Module) -> tuple[Any, ...]:
    return model, SGD(nn.Linear(3, 5).parameters(), lr=0.1)


def _scheduler_alone(model: nn.Module) -> tuple[Any, ...]:
    optimizer = SGD(model.parameters(), lr=0.1)
    return model, torch.optim.lr_scheduler.StepLR(optimizer, 1)


def _half(model: nn.Module) -> tuple[Any, ...]:
    return model.half(), SGD(model.parameters(), lr=0.1)


def _dataset(model: nn.Module) -> tuple[Any, ...]:
    return model, DATA


def _max_norm(model: nn.Module) -> tuple[Any, ...]:
    model.table = nn.Embedding(10, 4, sparse=True, max_norm=1.0)
    return (model,)


def _max_bag(model: nn.Module) -> tuple[Any, ...]:
    model.table = nn.EmbeddingBag(10, 4, sparse=True, mode="max")
    return (model,)


def _tied(model: nn.Module) -> tuple[Any, ...]:
    model.out = nn.Linear(4, 10)
    model.out.weight = model.table.weight  # type: ignore[union-attr]
    return (model,)


def _same_name(model: nn.Module) -> tuple[Any, ...]:
    model.a, model.b = pl.Embedding("user", 4), pl.Embedding("user", 4)
    return (model,)


@pytest.mark.parametrize(
    ("objects", "message"),
    [
        (_lbfgs, r"LBFGS cannot be run.*torch\.optim\.Adagrad, torch\.optim\.Adam"),
        (_amsgrad, r"amsgrad=1\.0 is not supported"),
        (_sparse_momentum, r"momentum=0\.9 is not supported for embedding tables"),
        (_sparse_decay, r"adamw.*embedding tables"),
        (_twice, "given to optimizer 0 and to optimizer 1"),
        (_elsewhere, r"shape \(5, 3\) that is in no model"),
        (_scheduler_alone, "StepLR whose optimizer was not given"),
        (_half, r"float16; servers hold float32 and float64"),
        (_dataset, "got a TensorRows"),
        (_max_norm, r"max_norm=1\.0 cannot be done"),
        (_max_bag, "mode='max'; expected sum or mean"),
        (_tied, r"out\.weight is also the weight of an embedding with sparse=True"),
        (_same_name, "two tables are called 'user'"),
        (lambda _: (), "got no model"),
    ],
)
def test_prepare_refuses_what_it_cannot_run(
    objects: Callable[[nn.Module], tuple[Any, ...]], message: str
) -> None:
    model = nn.Module()
    model.table = nn.Embedding(10, 4, sparse=True)
    model.dense = nn.Linear(4, 1)
    with pytest.raises(ConfigError, match=message):
        pl.init().prepare(*objects(model))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": ""}, "give the table a name"),
        ({"dim": 0}, "dim is 0"),
        ({"admit": 0}, "admit is 0"),
        ({"optimizer": "lion"}, r"optimizer='lion'; expected one of sgd, adagrad"),
    ],
)
def test_wrong_embeddings_are_refused(arguments: dict[str, Any], message: str) -> None:
    def prepare() -> None:
        table = pl.Embedding(**({"name": "user", "dim": 4} | arguments))
        pl.init().prepare(table, SGD(table.parameters(), lr=0.1))

    with pytest.raises(ConfigError, match=message):
        prepare()


def test_an_embedding_before_prepare_says_what_is_missing() -> None:
    with pytest.raises(ConfigError, match=r"'user' was used on \(3,\) keys before job\.prepare"):
        pl.Embedding("user", 4)(torch.arange(3))


def test_a_table_outside_of_a_loop_is_refused() -> None:
    table = nn.Embedding(10, 4, sparse=True)
    pl.init().prepare(table, SGD(table.parameters(), lr=0.1))
    with pytest.raises(ConfigError, match=r"outside of job\.batches"):
        table(torch.arange(3))


def test_the_weight_of_a_table_cannot_be_trained_directly() -> None:
    table = nn.Embedding(10, 4, sparse=True)
    optimizer = SGD(table.parameters(), lr=0.1)
    job = pl.init()
    job.prepare(table, optimizer)
    next(batches := job.batches(DATA, 4))
    assert table.weight.shape == (10, 4)
    assert table.weight.isnan().all()
    table.weight.sum().backward()
    with pytest.raises(ConfigError, match="was used directly"):
        optimizer.step()
    batches.close()  # type: ignore[attr-defined]


def test_an_id_out_of_range_names_the_table() -> None:
    model = nn.Module()
    model.items = nn.Embedding(10, 4, sparse=True)
    job = pl.init()
    job.prepare(model, SGD(model.parameters(), lr=0.1))
    batches = job.batches(DATA, 4)
    next(batches)
    with pytest.raises(IndexError, match=r"table 'items': id 10 is not in \[0, 10\)"):
        model.items(torch.tensor([3, 10]))


def test_loading_after_prepare_is_refused() -> None:
    _, model, _ = _prepared()
    with pytest.raises(ConfigError, match=r"before job\.prepare"):
        model.load_state_dict(nn.Linear(4, 1).state_dict())


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (lambda batch: batch.y.mean(), "returned a Tensor; return a dict"),
        (lambda batch: {"loss": batch.y.mean()}, r"shape \(\) as 'loss' for 4 samples"),
        (lambda batch: {"loss": 1.0}, "a float as 'loss'"),
        (lambda batch: {"p": batch.y[1:]}, r"shape \(3,\) as 'p' for 4 samples"),
    ],
)
def test_evaluate_refuses_all_but_values_per_sample(
    fn: Callable[[Any], dict[str, Tensor]], message: str
) -> None:
    job, _, _ = _prepared()
    with pytest.raises(ConfigError, match=message):
        job.evaluate(fn, DATA, 4)


def test_evaluate_between_batch_and_step_is_refused() -> None:
    job, _, _ = _prepared()
    next(batches := job.batches(DATA, 4))
    with pytest.raises(ConfigError, match="between a batch and its"):
        job.evaluate(lambda batch: {"y": batch.y}, DATA)
    batches.close()  # type: ignore[attr-defined]


class _Broken:
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Tensor:
        if index == 5:
            raise ValueError("record 5 is damaged")
        return torch.ones(4)


def test_an_error_of_the_dataset_is_raised_in_its_own_iteration() -> None:
    job, model, optimizer = _prepared()
    seen = []
    with pytest.raises(ValueError, match="record 5 is damaged") as caught:  # noqa: PT012
        for batch in job.batches(_Broken(), 2, shuffle=False):
            model(batch).sum().backward()
            optimizer.step()
            seen.append(len(batch))
    assert seen == [2, 2]
    assert not any("optimizer" in str(frame.path) for frame in caught.traceback)

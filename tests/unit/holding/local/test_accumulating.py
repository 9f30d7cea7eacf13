"""Accumulation by hand and skipped steps compute what the same loop computes in plain torch."""

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer
from torch.utils.data import DataLoader, TensorDataset

import paceline as pl
from paceline.base.errors import ConfigError


def rows(count: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(count, 3, generator=generator, dtype=torch.float64)
    return TensorDataset(x, x.sum(1, keepdim=True))


def loader(count: int) -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(2)
    return DataLoader(rows(count), batch_size=4, shuffle=True, generator=generator)


def model_of() -> tuple[nn.Module, Optimizer]:
    torch.manual_seed(0)
    model = nn.Linear(3, 1).double()
    return model, SGD(model.parameters(), lr=0.1, momentum=0.9)


def accumulated(batches: Iterator[Any], model: nn.Module, optimizer: Optimizer, k: int) -> None:
    for number, (x, y) in enumerate(batches):
        (nn.functional.mse_loss(model(x), y) / k).backward()
        if (number + 1) % k == 0:
            optimizer.step()
            optimizer.zero_grad()


@pytest.mark.parametrize("k", [1, 2, 4])
@pytest.mark.proves(form="accumulation", strategy="alone")
def test_gradients_that_are_added_up_by_hand_are_bit_for_bit_those_of_torch(k: int) -> None:
    expected, optimizer = model_of()
    accumulated(iter(loader(32)), expected, optimizer, k)
    model, optimizer = model_of()
    job = pl.init()
    job.prepare(model, optimizer)
    accumulated(job.batches(loader(32), accumulate=k), model, optimizer, k)
    assert torch.equal(model.weight, expected.weight)
    assert job.step == 8 // k


@pytest.mark.parametrize("count", [1, 2, 3, 5, 11])
def test_the_last_step_of_an_epoch_is_the_mean_of_what_is_left(count: int) -> None:
    k = 3
    data = rows(12 + count)
    expected, optimizer = model_of()
    x, y = data.tensors
    for part in (slice(0, 12), slice(12, None)):
        nn.functional.mse_loss(expected(x[part]), y[part]).backward()
        optimizer.step()
        optimizer.zero_grad()
    model, optimizer = model_of()
    job = pl.init()
    job.prepare(model, optimizer)
    accumulated(job.batches(data, 4, accumulate=k, shuffle=False), model, optimizer, k)
    torch.testing.assert_close(model.weight, expected.weight, rtol=1e-12, atol=0)


def skipping(batches: Iterator[Any], model: nn.Module, optimizer: Optimizer, *, late: bool) -> int:
    steps = 0
    for number, (x, y) in enumerate(batches):
        loss = nn.functional.mse_loss(model(x), y) * (math.nan if number in (0, 3) else 1.0)
        if late:
            loss.backward()
        if not loss.isfinite():
            optimizer.zero_grad()
            continue
        if not late:
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        steps += 1
    return steps


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.proves(form="skipped", strategy="alone")
def test_a_batch_that_the_script_leaves_out_changes_nothing(late: bool) -> None:
    expected, optimizer = model_of()
    assert skipping(iter(loader(32)), expected, optimizer, late=late) == 6
    model, optimizer = model_of()
    job = pl.init()
    job.prepare(model, optimizer)
    assert skipping(job.batches(loader(32)), model, optimizer, late=late) == 6
    assert torch.equal(model.weight, expected.weight)
    assert job.step == 8


def loss_of(model: nn.Module, batch: Any) -> Tensor:
    return nn.functional.mse_loss(model(batch[0]), batch[1])


def test_a_gradient_that_is_left_for_the_next_batch_is_refused() -> None:
    model, optimizer = model_of()
    job = pl.init()
    job.prepare(model, optimizer)
    batches = job.batches(loader(32))
    loss_of(model, next(batches)).backward()
    with pytest.raises(ConfigError, match=r"say accumulate=4 to job\.batches"):
        next(batches)


def test_a_script_that_never_steps_is_refused() -> None:
    model, optimizer = model_of()
    job = pl.init()
    job.prepare(model, optimizer)
    batches = job.batches(loader(400))
    for _ in range(16):
        next(batches)
    with pytest.raises(ConfigError, match=r"a batch went by without optimizer\.step\(\)"):
        next(batches)


def test_a_step_before_all_batches_of_one_are_there_is_refused() -> None:
    model, optimizer = model_of()
    job = pl.init()
    job.prepare(model, optimizer)
    batches = job.batches(loader(32), accumulate=3)
    loss_of(model, next(batches)).backward()
    with pytest.raises(ConfigError, match="after 1 of the 3 batches that accumulate=3 asks for"):
        optimizer.step()


@pytest.mark.parametrize("value", [0, 1.5])
def test_accumulation_is_a_whole_number(value: Any) -> None:
    model, optimizer = model_of()
    job = pl.init()
    job.prepare(model, optimizer)
    with pytest.raises(ConfigError, match=r"job\.batches: accumulate is"):
        job.batches(rows(8), 4, accumulate=value)

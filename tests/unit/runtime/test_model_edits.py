"""What a script does to its model, alone: as in plain torch, or refused by name."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD

import paceline as pl
from paceline.base.errors import ConfigError
from paceline.runtime.group.reducer import Bucket

X = torch.randn(64, 4, generator=torch.Generator().manual_seed(1))


def rows() -> Any:
    return pl.TensorRows(x=X, y=X.sum(1, keepdim=True))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.complex64, torch.int64])
def test_what_is_evaluated_keeps_its_dtype(dtype: torch.dtype) -> None:
    job = pl.init()
    job.prepare(nn.Linear(4, 1))
    found = job.evaluate(lambda batch: {"p": batch.x.to(dtype)}, rows(), batch_size=24)
    assert found["p"].dtype == dtype
    assert torch.equal(found["p"], X.to(dtype))


def test_job_step_counts_steps() -> None:
    job, model = pl.init(), nn.Linear(4, 1)
    optimizer = SGD(model.parameters(), lr=0.1)
    job.prepare(model, optimizer)
    seen = []
    for _ in range(2):
        for batch in job.batches(rows(), batch_size=24):
            seen.append(job.step)
            model(batch.x).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            seen.append(job.step)
    assert seen == [0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6]


def test_a_model_that_is_converted_after_prepare_is_refused_by_name() -> None:
    param = nn.Parameter(torch.zeros(2, 3))
    bucket = Bucket([param])
    nn.Module.double(_holding(param))
    param.grad = torch.ones(2, 3, dtype=torch.float64)
    with pytest.raises(ConfigError, match=r"shape \(2, 3\).*float64.*was torch.float32 at"):
        bucket.take(1.0)


def test_a_gradient_that_is_sparse_is_refused_by_name() -> None:
    param = nn.Parameter(torch.ones(5, 3))
    bucket = Bucket([param])
    nn.functional.embedding(torch.tensor([1, 2]), param, sparse=True).sum().backward()
    with pytest.raises(ConfigError, match=r"shape \(5, 3\) has a gradient of layout .*sparse_coo"):
        bucket.take(0.5)


def _holding(param: nn.Parameter) -> nn.Module:
    module = nn.Module()
    module.param = param
    return module

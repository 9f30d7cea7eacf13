"""A script without sparse tables, started plainly: torch trains it, on the job's batches."""

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.optim import SGD, Adam, NAdam, Optimizer, RMSprop
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import Dataset

import paceline as pl
from paceline.base.errors import ConfigError
from paceline.runtime.data.order import DEFAULT_SHARD_SIZE, EpochOrder
from paceline.runtime.data.sources.tensor_rows import TensorRows
from paceline.runtime.holding.local.strategy import Local
from paceline.runtime.holding.servers.strategy import OnServers

NUM_SAMPLES, BATCH_SIZE, EPOCHS, MAX_NORM = 70, 16, 2, 0.5


def _data() -> TensorRows:
    generator = torch.Generator().manual_seed(3)
    return TensorRows(
        x=torch.randn(NUM_SAMPLES, 4, generator=generator),
        y=torch.randn(NUM_SAMPLES, generator=generator),
    )


def _batches(data: TensorRows) -> Iterator[Any]:
    """Those of a job, without one."""
    order = EpochOrder(NUM_SAMPLES, DEFAULT_SHARD_SIZE, seed=0)
    for epoch in range(EPOCHS):
        for start in range(0, NUM_SAMPLES, BATCH_SIZE):
            stop = min(start + BATCH_SIZE, NUM_SAMPLES)
            yield data.__getitems__(order.indices(epoch, start, stop))


def _model(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(1)
    layers = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 1)
    return nn.Sequential(*layers).to(dtype)


def _loss(model: nn.Module, batch: Any) -> Tensor:
    dtype = next(model.parameters()).dtype
    return F.mse_loss(model(batch.x.to(dtype)).squeeze(1), batch.y.to(dtype))


MAKES: dict[str, Callable[[Any], list[Optimizer]]] = {
    "momentum": lambda m: [SGD(m.parameters(), lr=0.1, momentum=0.9)],
    "rmsprop": lambda m: [RMSprop(m.parameters())],
    "amsgrad": lambda m: [Adam(m.parameters(), amsgrad=True)],
    "two": lambda m: [NAdam(m[0].parameters()), SGD(m[-1].parameters(), lr=0.1)],
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("make", MAKES.values(), ids=MAKES)
@pytest.mark.proves(form=("batches", "clipping"), strategy="alone")
def test_it_equals_torch_bit_for_bit(
    make: Callable[[Any], list[Optimizer]], dtype: torch.dtype
) -> None:
    states = []
    for managed in (False, True):
        job, model = pl.init(), _model(dtype)
        optimizers = make(model)
        rates = StepLR(optimizers[0], step_size=3, gamma=0.5)
        batches, clip = _batches(_data()), nn.utils.clip_grad_norm_
        trained = [p for one in optimizers for group in one.param_groups for p in group["params"]]
        if managed:
            job.prepare(model, optimizers, rates)
            batches = job.batches(_data(), BATCH_SIZE, EPOCHS)
        torch.manual_seed(2)
        for batch in batches:
            _loss(model, batch).backward()
            if managed:
                assert job.global_batch == BATCH_SIZE
                job.clip_grad_norm_(MAX_NORM)
            else:
                clip(trained, MAX_NORM)
            for one in (*optimizers, rates):
                one.step()
            model.zero_grad()
        states.append(job.state_dict() if managed else model.state_dict())
    plain, held = states
    assert plain.keys() == held.keys()
    for name, values in plain.items():
        assert torch.equal(held[name], values), name


@pytest.mark.proves(form="some", strategy="alone")
def test_one_of_two_optimizers_may_step_on_some_batches_only() -> None:
    states, steps = [], []
    for managed in (False, True):
        job, model = pl.init(), _model()
        often, seldom = Adam(model[0].parameters()), SGD(model[-1].parameters(), lr=0.1)
        batches = _batches(_data())
        if managed:
            job.prepare(model, often, seldom)
            batches = job.batches(_data(), BATCH_SIZE, EPOCHS)
        torch.manual_seed(2)
        for number, batch in enumerate(batches, 1):
            _loss(model, batch).backward()
            if managed:
                job.clip_grad_norm_(MAX_NORM, often)
            else:
                nn.utils.clip_grad_norm_(model[0].parameters(), MAX_NORM)
            often.step()
            if number % 3 == 0:
                seldom.step()
                seldom.zero_grad()
            often.zero_grad()
            if managed:
                steps.append(job.step)
        states.append(job.state_dict() if managed else model.state_dict())
    assert steps == [*range(1, 11)]
    for name, values in states[0].items():
        assert torch.equal(states[1][name], values), name
    other = SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    with pytest.raises(ConfigError, match=r"a SGD that job\.prepare did not get; give one of"):
        job.clip_grad_norm_(1.0, other)


@pytest.mark.parametrize(
    ("module", "kind"),
    [
        (nn.Embedding(4, 2), Local),
        (nn.Embedding(4, 2, sparse=True), OnServers),
        (nn.EmbeddingBag(4, 2, sparse=True), OnServers),
        (pl.Embedding("user", 2), OnServers),
    ],
)
def test_sparse_tables_decide_who_trains(module: nn.Module, kind: type) -> None:
    job = pl.init()
    assert job.is_chief
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(module))
    job.prepare([nn.Linear(2, 2), model], SGD(model.parameters(), lr=0.1))
    assert isinstance(job._strategy, kind)
    job.checkpoint()


@pytest.mark.proves(form="scaler", strategy="alone", ends="runs")
def test_a_step_that_a_scaler_leaves_out_is_done() -> None:
    job, model = pl.init(), nn.Linear(4, 1)
    optimizer = SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    job.prepare(model, optimizer, scaler)
    sizes, changed = [], []
    for number, batch in enumerate(job.batches(_data(), BATCH_SIZE)):
        before = model.weight.detach().clone()
        loss = _loss(model, batch) * (float("inf") if number == 1 else 1.0)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        job.clip_grad_norm_(1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        sizes.append(len(batch.y))
        changed.append(not torch.equal(model.weight, before))
    assert sizes == [16, 16, 16, 16, 6]
    assert changed == [True, False, True, True, True]
    assert scaler.get_scale() == 2.0


def _prepared() -> tuple[pl.Job, nn.Module, Optimizer]:
    job, model = pl.init(), nn.Linear(4, 1)
    model.bias.requires_grad_(False)
    optimizer = SGD(model.parameters(), lr=0.1)
    job.prepare(model, optimizer)
    return job, model, optimizer


def test_a_parameter_in_two_optimizers_is_refused() -> None:
    other = nn.Linear(4, 1)
    twice = [SGD(other.parameters(), lr=0.1) for _ in range(2)]
    with pytest.raises(ConfigError, match="is in two optimizers"):
        pl.init().prepare(other, twice)


def test_a_batch_may_be_computed_in_parts() -> None:
    job, model, optimizer = _prepared()
    steps = 0
    for batch in job.batches(_data(), BATCH_SIZE):
        steps += 1
        for part in (batch.x[:4], batch.x[4:]):
            (model(part).sum() / len(batch.x)).backward()
        assert torch.allclose(model.weight.grad, batch.x.mean(0))
        optimizer.step()
        optimizer.zero_grad()
    assert steps == 5


class Numbers:
    """A stream of which the second half comes when the first was read."""

    def __init__(self) -> None:
        self.end_now = 5

    def partitions(self) -> list[str]:
        return ["a"]

    def end(self, partition: str) -> int | None:
        return self.end_now

    def read(self, partition: str, start: int, stop: int) -> list[int]:
        self.end_now = 10
        return list(range(start, stop))

    def finished(self) -> bool:
        return self.end_now == 10


@pytest.mark.proves(form="stream", strategy="alone", ends="runs")
def test_a_stream_is_read_as_it_comes() -> None:
    job, model, optimizer = _prepared()
    found = []
    for batch in job.batches(Numbers(), 4):
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(batch.tolist())
    assert found == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


@pytest.fixture
def _group_of_one() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("_group_of_one")
def test_a_sharded_model_trains_in_a_group_of_one() -> None:
    finals = []
    for sharded in (False, True):
        job, model = pl.init(), nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
        before = [param.detach().clone() for param in model.parameters()]
        if sharded:
            fully_shard(model)
        optimizer = Adam(model.parameters(), lr=0.01)
        job.prepare(model, optimizer)
        for batch in job.batches(_data(), BATCH_SIZE):
            _loss(model, batch).backward()
            norm = job.clip_grad_norm_(0.5)
            assert not isinstance(norm, DTensor)
            optimizer.step()
            optimizer.zero_grad()
        held = job.state_dict().values()
        finals.append([one.full_tensor() if isinstance(one, DTensor) else one for one in held])
    assert len(finals[0]) == 4
    for plain, whole, first in zip(*finals, before, strict=True):
        assert torch.allclose(plain, whole)
        assert not torch.equal(plain, first), "it was trained"


def test_two_jobs_one_after_the_other_are_as_two_of_their_own() -> None:
    """Started without `paceline run`: k-fold validation, or the cells of a notebook."""
    folds = []
    for _ in range(2):
        job, model = pl.init(), nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))
        job.prepare(model, optimizer := SGD(model.parameters(), lr=0.1))
        steps = 0
        for batch in job.batches(_data(), batch_size=BATCH_SIZE):
            steps += 1
            _loss(model, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
        assert steps == 5
        folds.append(model.state_dict())
    for name, values in folds[0].items():
        assert torch.equal(values, folds[1][name]), name


class Augmented(Dataset[Any]):
    """Draws from the process's generators, as most transforms do."""

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        noise = torch.randn(4) + random.random() + np.random.rand()
        return noise + index / NUM_SAMPLES, torch.tensor(index / NUM_SAMPLES)


def test_with_augmentation_and_dropout_the_same_seed_is_the_same_run() -> None:
    """Read in a thread, records and masks took turns at one generator, as it happened."""
    runs = []
    for _ in range(2):
        job, model = pl.init(), nn.Sequential(nn.Linear(4, 32), nn.Dropout(0.5), nn.Linear(32, 1))
        masks: list[tuple[bool, ...]] = []
        model[1].register_forward_hook(
            lambda _m, _i, out, masks=masks: masks.append(tuple((out != 0).flatten().tolist()))
        )
        job.prepare(model, optimizer := SGD(model.parameters(), lr=0.01))
        for x, y in job.batches(Augmented(), batch_size=BATCH_SIZE, epochs=EPOCHS):
            F.mse_loss(model(x).squeeze(1), y).backward()
            optimizer.step()
            optimizer.zero_grad()
        assert len(masks) == len(set(masks)) == 10
        runs.append((masks, [param.detach() for param in model.parameters()]))
    assert runs[0][0] == runs[1][0]
    assert all(torch.equal(one, other) for one, other in zip(runs[0][1], runs[1][1], strict=True))

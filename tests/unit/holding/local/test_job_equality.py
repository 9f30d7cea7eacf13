"""A job of one process computes what plain PyTorch computes on the same batches."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer, SparseAdam
from torch.optim.lr_scheduler import StepLR

import paceline as pl
from paceline.runtime.data.order import DEFAULT_SHARD_SIZE, EpochOrder
from paceline.runtime.data.sources.tensor_rows import TensorRows

# Torch's own Adagrad, on sparse gradients.
pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant checks")

NUM_SAMPLES, BATCH_SIZE, EPOCHS, NUM_IDS = 330, 20, 3, 40


class Clicks(nn.Module):
    """Tables read as rows, as bags with weights and twice; ids straight, shifted and hashed."""

    def __init__(self, *, sparse: bool = True) -> None:
        super().__init__()
        self.rows = nn.Embedding(3 * NUM_IDS, 4, sparse=sparse, padding_idx=7)
        self.bags = nn.EmbeddingBag(NUM_IDS, 4, sparse=sparse, mode="sum", padding_idx=3)
        self.means = nn.EmbeddingBag(NUM_IDS, 4, sparse=sparse, mode="mean")
        self.register_buffer("offsets", torch.tensor([0, NUM_IDS, 2 * NUM_IDS]))
        self.deep = nn.Sequential(nn.Linear(22, 8), nn.ReLU(), nn.Linear(8, 1))
        self.unused = nn.Linear(2, 2)

    def forward(self, batch: Any) -> Tensor:
        ids: Tensor = batch.ids
        fields = self.rows(ids + self.offsets).flatten(1)
        again = self.rows(ids[:, 0] * 7 % NUM_IDS)
        weighted = self.bags(ids, per_sample_weights=batch.weights)
        starts = torch.arange(0, ids.numel(), 3)
        mean = self.means(ids.reshape(-1).int(), starts.int())
        return self.deep(torch.cat([fields, again, weighted, mean[:, :2]], 1)).squeeze(1)


def _data() -> TensorRows:
    generator = torch.Generator().manual_seed(3)
    return TensorRows(
        ids=torch.randint(0, NUM_IDS, (NUM_SAMPLES, 3), generator=generator),
        weights=torch.rand(NUM_SAMPLES, 3, generator=generator, dtype=torch.float64),
        y=torch.rand(NUM_SAMPLES, generator=generator, dtype=torch.float64),
    )


def _plain_batches(data: TensorRows) -> Iterator[Any]:
    order = EpochOrder(NUM_SAMPLES, DEFAULT_SHARD_SIZE, seed=0)
    for epoch in range(EPOCHS):
        for start in range(0, NUM_SAMPLES, BATCH_SIZE):
            stop = min(start + BATCH_SIZE, NUM_SAMPLES)
            yield data.__getitems__(order.indices(epoch, start, stop))


def _dense(model: nn.Module) -> list[nn.Parameter]:
    return [p for name, p in model.named_parameters() if name.startswith(("deep", "unused"))]


def _tables(model: nn.Module) -> list[nn.Parameter]:
    return [model.rows.weight, model.bags.weight, model.means.weight]  # type: ignore[union-attr]


def _sgd(model: nn.Module) -> list[Optimizer]:
    return [SGD(model.parameters(), lr=0.5)]


def _sgd_two_groups(model: nn.Module) -> list[Optimizer]:
    momentum = {"params": _dense(model), "lr": 0.1, "momentum": 0.9, "weight_decay": 0.0}
    return [SGD([{"params": _tables(model)}, momentum], lr=0.5)]


def _adagrad(model: nn.Module) -> list[Optimizer]:
    return [Adagrad(model.parameters(), lr=0.1, initial_accumulator_value=0.1)]


def _adam(model: nn.Module) -> list[Optimizer]:
    return [Adam(_dense(model), lr=0.01), SGD(_tables(model), lr=0.2)]


def _adamw(model: nn.Module) -> list[Optimizer]:
    return [AdamW(model.deep.parameters(), lr=0.01), Adagrad(_tables(model), lr=0.1)]  # type: ignore[union-attr]


def _train(model: nn.Module, optimizers: list[Optimizer], batches: Iterator[Any]) -> list[float]:
    schedulers = [StepLR(optimizer, step_size=10, gamma=0.8) for optimizer in optimizers]
    losses = []
    for batch in batches:
        loss = F.mse_loss(model(batch), batch.y)
        loss.backward()
        for one in (*optimizers, *schedulers):
            one.step()
        for optimizer in optimizers:
            optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def _model() -> nn.Module:
    torch.manual_seed(1)
    return Clicks().double()


@pytest.mark.parametrize("make", [_sgd, _sgd_two_groups, _adagrad, _adam, _adamw])
def test_a_lone_job_equals_plain_torch(make: Callable[[nn.Module], list[Optimizer]]) -> None:
    plain = _model()
    expected = _train(plain, make(plain), _plain_batches(_data()))
    job, model = pl.init(), _model()
    optimizers = make(model)
    job.prepare(model, optimizers)
    batches = job.batches(_data(), BATCH_SIZE, EPOCHS)
    got = _train(model, optimizers, batches)
    assert len(got) == 51
    assert got == pytest.approx(expected, rel=1e-12)
    held = job.state_dict()
    for name, value in plain.state_dict().items():
        assert torch.allclose(held[name], value, rtol=1e-12, atol=1e-13), name


def test_clipping_is_of_all_gradients_together() -> None:
    torch.manual_seed(1)
    plain, ours = Clicks(sparse=False).double(), _model()
    plain_optimizer, optimizer = SGD(plain.parameters(), lr=0.5), SGD(ours.parameters(), lr=0.5)
    job = pl.init()
    job.prepare(ours, optimizer)
    batches = job.batches(_data(), BATCH_SIZE, EPOCHS)
    norms = []
    for batch, expected in zip(batches, _plain_batches(_data()), strict=True):
        F.mse_loss(ours(batch), batch.y).backward()
        F.mse_loss(plain(expected), expected.y).backward()
        norm = job.clip_grad_norm_(0.05)
        torch.testing.assert_close(norm, nn.utils.clip_grad_norm_(plain.parameters(), 0.05))
        for one in (optimizer, plain_optimizer):
            one.step()
            one.zero_grad()
        norms.append(norm.item())
    assert max(norms) > 0.05
    for name, value in ours.state_dict().items():
        torch.testing.assert_close(value, plain.state_dict()[name])


def test_sparse_adam_equals_torch() -> None:
    # In most batches a row or two are missing.
    data = TensorRows(ids=torch.arange(60) // 7 % 3, y=torch.arange(60.0).double() % 7)
    results = []
    for managed in (False, True):
        torch.manual_seed(1)
        model = nn.Embedding(3, 3, sparse=True).double()
        optimizer = SparseAdam(model.parameters(), lr=0.02)
        parts = [data.__getitems__(list(range(k, k + 6))) for k in range(0, 60, 6)]
        batches: Iterator[Any] = map(_as_dict, parts * 5)
        if managed:
            job = pl.init()
            job.prepare(model, optimizer)
            batches = job.batches(data, 6, epochs=5, shuffle=False, collate_fn=_as_dict)
        for batch in batches:
            F.mse_loss(model(batch["ids"]).sum(1), batch["y"]).backward()
            optimizer.step()
            optimizer.zero_grad()
        results.append(model.state_dict()["weight"])
    assert torch.allclose(results[0], results[1], rtol=1e-12)


def _as_dict(batch: Any) -> dict[str, Tensor]:
    return {"ids": batch.ids, "y": batch.y}


def test_prefetched_and_cold_rows_give_the_same_losses(monkeypatch: pytest.MonkeyPatch) -> None:
    losses = []
    for recordings in (3, 0):
        monkeypatch.setattr("paceline.runtime.holding.servers.recipes.NUM_RECORDINGS", recordings)
        job, model = pl.init(), _model()
        optimizers = _adagrad(model)
        job.prepare(model, optimizers)
        losses.append(_train(model, optimizers, job.batches(_data(), BATCH_SIZE, EPOCHS)))
    assert losses[0] == pytest.approx(losses[1], rel=1e-12)

"""The job of ``adjust_lr.py``: click models whose workers emulate their compute, one of them slow.

One model per learning rate, all from the same start, on the same batches, equally stale. First a
warm-up at rate 0, in which a solution can act and changes nothing else; then one epoch; then the
held-out rows. The chief writes ``--out/result.json``: loss and AUC of each model.
"""

import argparse
import copy
import json
import os
import time
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

import paceline as pl

FIELDS, ROWS, DIM = 8, 100, 8
WARM_UP_STEPS = 40
"""Steps of an ordinary worker."""
HELD_OUT = 20_000
WORST_LOSS = 10.0
"""Loss that a model counts as that has run away."""


class Click(nn.Module):
    """Embeddings and a hidden layer; all of it dense, so that every update concerns everybody."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Embedding(FIELDS * ROWS, DIM)
        self.mlp = nn.Sequential(nn.Linear(FIELDS * DIM, 32), nn.ReLU(), nn.Linear(32, 1))
        nn.init.normal_(self.rows.weight, std=0.3)

    def forward(self, ids: Tensor) -> Tensor:
        """Logits."""
        return self.mlp(self.rows(ids).flatten(1)).squeeze(1)


class Clicks(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
    """Ids of Zipf-like frequency; a click by a logistic model of single ids and of pairs."""

    def __init__(self, num_samples: int, seed: int) -> None:
        truth, random = np.random.default_rng(0), np.random.default_rng(seed)
        ids = (ROWS * random.random((num_samples, FIELDS)) ** 2).astype(np.int64)
        ids += np.arange(FIELDS) * ROWS
        single = truth.normal(0.0, 0.7, FIELDS * ROWS)
        hidden = truth.normal(0.0, 0.5, (FIELDS * ROWS, 4))
        rows = hidden[ids]
        pairs = 0.5 * (rows.sum(axis=1) ** 2 - (rows**2).sum(axis=1)).sum(axis=1)
        chance = 1 / (1 + np.exp(1.0 - single[ids].sum(axis=1) - pairs))
        self.ids = torch.from_numpy(ids)
        self.label = torch.from_numpy((random.random(num_samples) < chance).astype(np.float32))

    def __len__(self) -> int:
        return len(self.label)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.ids[index], self.label[index]

    def __getitems__(self, indices: list[int]) -> tuple[Tensor, Tensor]:
        return self.ids[indices], self.label[indices]


def _as_it_is(batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    return batch


def auc(score: NDArray[np.float32], label: NDArray[np.float32]) -> float:
    """Area under the ROC curve; tied scores count half."""
    _, group, counts = np.unique(score, return_inverse=True, return_counts=True)
    mean_rank = np.cumsum(counts) - (counts - 1) / 2
    positives = int(label.sum())
    above = mean_rank[group][label == 1].sum() - positives * (positives + 1) / 2
    return float(above / (positives * (len(label) - positives)))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--batch-size", type=int, required=True, help="of a worker")
    parser.add_argument("--rates", type=float, nargs="+", required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--step-s", type=float, required=True)
    parser.add_argument("--slow", type=float, required=True, help="worker-0 takes so many times")
    options = parser.parse_args()
    node = os.environ["PACELINE_NODE"]
    step_s = options.step_s * (options.slow if node == "worker-0" else 1.0)
    job = pl.init()
    first = Click()
    models = [copy.deepcopy(first) for _ in options.rates]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.0) for model in models]
    models, optimizers = job.prepare(models, optimizers)

    (options.out / f"{node}.here").touch()
    while len(list(options.out.glob("*.here"))) < options.workers:
        time.sleep(0.02)
    no_rates = [0.0] * len(models)
    for steps, rates in (
        (WARM_UP_STEPS * options.workers, no_rates),
        (options.steps, options.rates),
    ):
        for optimizer, rate in zip(optimizers, rates, strict=True):
            optimizer.param_groups[0]["lr"] = rate
        data = Clicks(steps * options.batch_size, seed=2 * options.seed + 2)
        together = options.batch_size * options.workers
        for ids, label in job.batches(data, batch_size=together, collate_fn=_as_it_is):
            start_s = time.perf_counter()
            for model in models:
                binary_cross_entropy_with_logits(model(ids), label).backward()
            # Stands for compute.
            time.sleep(max(0.0, step_s - (time.perf_counter() - start_s)))
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()

    def judge(batch: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
        return {"scores": torch.stack([model(batch[0]) for model in models], dim=1)}

    held_out = Clicks(HELD_OUT, seed=1)
    scores = job.evaluate(judge, held_out, collate_fn=_as_it_is)["scores"]
    if job.is_chief:
        result = [judged(score, held_out.label) for score in scores.unbind(1)]
        temporary = options.out / "result.tmp"
        temporary.write_text(json.dumps(result))
        temporary.rename(options.out / "result.json")


def judged(score: Tensor, label: Tensor) -> dict[str, float]:
    """Loss and AUC."""
    loss = float(binary_cross_entropy_with_logits(score.double(), label.double()))
    return {
        "loss": min(loss, WORST_LOSS) if np.isfinite(loss) else WORST_LOSS,
        "auc": auc(score.nan_to_num().numpy(), label.numpy()),
    }


if __name__ == "__main__":
    main()

"""Trains the same small click model six times over, in one job: each optimizer in each precision.

Writes what equality is judged by to ``--out``: the loss of every sample as this process computed
it (one file per process), and at the end the model (the chief).
"""

import argparse
import os
import signal
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.optim import SGD, Adagrad, Adam, Optimizer, SparseAdam

import paceline as pl
from paceline.runtime.data.sources.tensor_rows import TensorRows

BATCH_SIZE = 51
"""Not divisible by 2 or 4: workers' shares differ, so their weights matter."""
SHORT_BY = 17
"""Samples that the last step has fewer."""
NUM_FIELDS, VOCAB, NUM_KEYS, NUM_NUMERIC = 3, 200, 500, 8
FACTOR, OFFSET = 982_451_653, 2**40
"""Of a key, from its number."""
OPTIMIZERS = ("sgd", "adagrad", "adam")
DTYPES = {"float64": torch.float64, "float32": torch.float32}
CASES = [(optimizer, dtype) for dtype in DTYPES for optimizer in OPTIMIZERS]


class Rows(NamedTuple):
    """A batch, or a part of one."""

    index: Tensor
    numeric: Tensor
    ids: Tensor
    keys: Tensor
    label: Tensor


class Net(nn.Module):
    """An MLP over numbers, a table of fixed size and one of unknown keys.

    The first layer is longer than a block of dense elements: two servers hold parts of it.
    ``dense``: as members of a group hold it, tables whole and with gradients for each row.
    """

    def __init__(self, name: str, dtype: torch.dtype, *, dense: bool = False) -> None:
        super().__init__()
        self.dtype, self.dense = dtype, dense
        self.fields = nn.Embedding(NUM_FIELDS * VOCAB, 8, sparse=not dense)
        self.user = (
            nn.Embedding(NUM_KEYS, 8) if dense else pl.Embedding(f"user-{name}", 8, std=0.1, seed=5)
        )
        width = NUM_NUMERIC + (NUM_FIELDS + 1) * 8
        self.deep = nn.Sequential(
            nn.Linear(width, 1700), nn.Tanh(), nn.Linear(1700, 16), nn.Tanh(), nn.Linear(16, 1)
        )
        self.to(dtype)

    def forward(self, rows: Rows) -> Tensor:
        """Return the loss of each row."""
        fields = self.fields(rows.ids).flatten(1)
        keys = (rows.keys + OFFSET) // FACTOR if self.dense else rows.keys
        x = torch.cat([rows.numeric.to(self.dtype), fields, self.user(keys)], dim=1)
        label = rows.label.to(self.dtype)
        return binary_cross_entropy_with_logits(self.deep(x).squeeze(1), label, reduction="none")

    def optimizers(self, kind: str) -> list[Optimizer]:
        """Return the optimizers that train all of it."""
        if kind == "sgd":
            return [SGD(self.parameters(), lr=0.3)]
        if kind == "adagrad":
            return [Adagrad(self.parameters(), lr=0.005)]
        if self.dense:
            return [Adam(self.parameters(), lr=0.002)]
        tables = [self.fields.weight, self.user.weight]
        return [Adam(self.deep.parameters(), lr=0.002), SparseAdam(tables, lr=0.01)]


def dataset(num_steps: int) -> TensorRows:
    """Clicks that depend on everything the model sees, by seed."""
    generator = torch.Generator().manual_seed(7)
    size = num_steps * BATCH_SIZE - SHORT_BY
    numeric = torch.randn(size, NUM_NUMERIC, generator=generator, dtype=torch.float64)
    ids = torch.randint(0, VOCAB, (size, NUM_FIELDS), generator=generator)
    keys = torch.randint(0, NUM_KEYS, (size,), generator=generator)
    logit = numeric[:, 0] - numeric[:, 1] * numeric[:, 2] + (ids % 3 - 1).sum(1) + keys % 5 - 2
    label = torch.rand(size, generator=generator, dtype=torch.float64) < torch.sigmoid(logit)
    return TensorRows(
        index=torch.arange(size),
        numeric=numeric,
        ids=ids + torch.arange(NUM_FIELDS) * VOCAB,
        keys=keys * FACTOR - OFFSET,
        label=label.double(),
    )


def parts(rows: Rows, num_parts: int) -> Iterator[Rows]:
    """Cut a batch, as workers share it."""
    size = len(rows.label)
    edges = [size * k // num_parts for k in range(num_parts + 1)]
    for start, stop in pairwise(edges):
        if start < stop:
            yield Rows(*(column[start:stop] for column in rows))


def maybe_die(when: str, node: str, num_batches: int, out: Path) -> None:
    """Kill this process once in the job: worker-1 before its step, the chief after its own."""
    if (when, node, num_batches) not in (("before", "worker-1", 8), ("after", "worker-0", 16)):
        return
    try:
        (out / f"died-{when}-step").touch(exist_ok=False)
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Train, recording losses."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--parts", type=int, default=1, help="sum each batch in so many parts")
    parser.add_argument("--together", type=int, default=1, help="begin when so many are there")
    parser.add_argument("--die", action="store_true", help="two workers die in mid-step")
    parser.add_argument("--dense", action="store_true", help="tables are tensors as others are")
    parser.add_argument("--slow", type=float, default=0.0, help="s more each step, until `told` is")
    options = parser.parse_args()
    node = os.environ.get("PACELINE_NODE", "alone")

    job = pl.init()
    nets = [Net(f"{kind}-{dtype}", DTYPES[dtype], dense=options.dense) for kind, dtype in CASES]
    optimizers = [net.optimizers(kind) for net, (kind, _) in zip(nets, CASES, strict=True)]
    job.prepare(nets, optimizers)
    flat = [optimizer for some in optimizers for optimizer in some]
    data = dataset(options.steps)
    with (options.out / f"{node}-{os.getpid()}.losses").open("wb", buffering=0) as file:
        while len(list(options.out.glob("*.losses"))) < options.together:
            time.sleep(0.02)
        for num_batches, batch in enumerate(job.batches(data, batch_size=BATCH_SIZE), 1):
            for rows in parts(Rows(*batch), options.parts):
                losses = [net(rows) for net in nets]
                share = len(rows.label) / len(batch.label)
                sum(loss.mean() * share for loss in losses).backward()
                columns = [rows.index, *(loss.detach() for loss in losses)]
                file.write(torch.stack([c.double() for c in columns], dim=1).numpy().tobytes())
            if options.slow and not (options.out / "told").exists():
                time.sleep(options.slow)
            if options.die:
                maybe_die("before", node, num_batches, options.out)
            for optimizer in flat:
                optimizer.step()
            for optimizer in flat:
                optimizer.zero_grad()
            if options.die:
                maybe_die("after", node, num_batches, options.out)
    if job.is_chief:
        state = {name: value.contiguous() for name, value in job.state_dict().items()}
        save_file(state, options.out / "model.safetensors")


if __name__ == "__main__":
    main()

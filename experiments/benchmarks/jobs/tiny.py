"""The job of the recovery and bookkeeping benchmarks: a tiny model, emulated compute, stamps.

Writes into ``--out``, one file of each kind per life (``<node>.<inc>``): ``setup.json`` (monotonic
times of the script's own stages) and ``steps.f64`` (monotonic time at which each step ended).
"""

import time

ENTERED_S = time.monotonic()

import argparse  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
from pathlib import Path  # noqa: E402

import torch  # noqa: E402
from torch import nn  # noqa: E402

import paceline as pl  # noqa: E402

NUM_ROWS, DIM = 4096, 8


class Tiny(nn.Module):
    """One table and one layer; ``table`` False: one small dense tensor."""

    def __init__(self, num_rows: int = NUM_ROWS, dim: int = DIM, *, table: bool) -> None:
        super().__init__()
        self.num_rows, self.dim = num_rows, dim
        self.rows = nn.Embedding(num_rows, dim, sparse=True) if table else None
        self.layer = nn.Linear(dim, 1, bias=table)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """The mean of the outputs."""
        if self.rows is None:
            return self.layer(ids[:, None].expand(-1, self.dim) / self.num_rows).mean()
        return self.layer(self.rows(ids)).mean()


class Ids(torch.utils.data.Dataset[torch.Tensor]):
    """Dataset of so many samples; sample i is row i, modulo the table."""

    def __init__(self, num_samples: int, num_rows: int = NUM_ROWS) -> None:
        self.num_samples, self.num_rows = num_samples, num_rows

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(index % self.num_rows)

    def __getitems__(self, indices: list[int]) -> torch.Tensor:
        return torch.tensor(indices) % self.num_rows


def _as_it_is(batch: torch.Tensor) -> torch.Tensor:
    return batch


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--num-samples", type=int, default=10**9)
    parser.add_argument("--rows", type=int, default=NUM_ROWS)
    parser.add_argument("--dim", type=int, default=DIM)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--step-s", type=float, default=0.01)
    parser.add_argument("--dense", action="store_true", help="no table")
    options = parser.parse_args()
    name = f"{os.environ.get('PACELINE_NODE', 'alone')}.{os.environ.get('PACELINE_INC', '0')}"
    steps = os.open(options.out / f"{name}.steps.f64", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    stamps = {"entered_s": ENTERED_S, "init_s": time.monotonic()}
    job = pl.init()
    stamps["inited_s"] = time.monotonic()
    model = Tiny(options.rows, options.dim, table=not options.dense)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    stamps["prepare_s"] = time.monotonic()
    model, optimizer = job.prepare(model, optimizer)
    stamps["prepared_s"] = time.monotonic()
    dataset = Ids(options.num_samples, options.rows)
    stamps["loop_s"] = time.monotonic()
    for ids in job.batches(dataset, batch_size=options.batch_size, collate_fn=_as_it_is):
        if "batch_s" not in stamps:
            stamps["batch_s"] = time.monotonic()
            (options.out / f"{name}.setup.json").write_text(json.dumps(stamps))
        loss = model(ids.float() if options.dense else ids)
        loss.backward()
        time.sleep(options.step_s)  # stands for compute
        optimizer.step()
        optimizer.zero_grad()
        os.write(steps, _stamp())


def _stamp() -> bytes:
    return torch.tensor(time.monotonic(), dtype=torch.float64).numpy().tobytes()


if __name__ == "__main__":
    main()

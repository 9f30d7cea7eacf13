"""One worker whose state is large, and computes something else, that also saves by other means.

Writes to ``--out``: ``steps.f64``, for each batch the monotonic times at which it was given, its
forward began, its backward was over, and its update was; ``peers.json``: ``[{means: seconds
blocked}, ...]``.
"""

import argparse
import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import checkpoint as dcp

import paceline as pl

PAGE = 1024  # float32 in a page
TENSOR_BYTES = 64 << 20
SIDE, TRIALS = 512, 40


class Large(nn.Module):
    """One small weight that is trained, and much that the optimizer changes in every page."""

    def __init__(self, num_bytes: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(8))
        sizes = [TENSOR_BYTES // 4] * (num_bytes // TENSOR_BYTES)
        self.bulk = nn.ParameterList(
            [nn.Parameter(torch.zeros(size), requires_grad=False) for size in sizes]
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return a mean."""
        return (x * self.weight).mean()


class Touching(torch.optim.SGD):
    """SGD that also counts its steps in every page of the bulk."""

    bulk: nn.ParameterList

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """One update."""
        for tensor in self.bulk:
            tensor[::PAGE] += 1
        return super().step(closure)


def peers(state: dict[str, Tensor], out: Path) -> dict[str, float]:
    """Seconds for which each of them blocks who calls it; what it wrote is loaded and compared."""

    def took(save: Callable[[], Any]) -> float:
        begun_s = time.perf_counter()
        pending = save()
        blocked_s = time.perf_counter() - begun_s
        if pending is not None:
            pending.result()
        return blocked_s

    def compare(found: dict[str, Tensor]) -> None:
        for name, tensor in state.items():
            assert torch.equal(found[name][::PAGE], tensor[::PAGE]), name

    def by_dcp(save: Callable[[Path], Any]) -> float:
        folder = out / "dcp"
        seconds = took(lambda: save(folder))
        found = {name: torch.empty_like(tensor) for name, tensor in state.items()}
        dcp.load(found, checkpoint_id=str(folder), no_dist=True)
        compare(found)
        shutil.rmtree(folder)
        return seconds

    target = out / "state.pt"
    found = {"torch.save": took(lambda: torch.save(state, target))}
    compare(torch.load(target, mmap=True))
    target.unlink()
    found["dcp.save"] = by_dcp(
        lambda folder: dcp.save(state, checkpoint_id=str(folder), no_dist=True) and None
    )
    found["dcp.async_save"] = by_dcp(
        lambda folder: dcp.async_save(state, checkpoint_id=str(folder), no_dist=True)
    )
    copies = [tensor.clone() for tensor in state.values()]
    found["memcpy"] = took(
        lambda: (
            [copy.copy_(tensor) for copy, tensor in zip(copies, state.values(), strict=True)]
            and None
        )
    )
    return found


def product_s(square: Tensor, product: Tensor) -> float:
    """Seconds of one, the median of some."""
    took = []
    for _ in range(TRIALS):
        begun_s = time.perf_counter()
        torch.mm(square, square, out=product)
        took.append(time.perf_counter() - begun_s)
    return sorted(took)[TRIALS // 2]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--bytes", type=int, required=True)
    parser.add_argument("--compute-s", type=float, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True, help="between two rounds of peers")
    options = parser.parse_args()
    torch.set_num_threads(1)

    job = pl.init()
    model = Large(options.bytes)
    optimizer = Touching(model.parameters(), lr=0.01)
    optimizer.bulk = model.bulk
    job.prepare(model, optimizer)
    rows = pl.TensorRows(x=torch.ones(options.rounds * options.steps * 8, 8))
    square, product = torch.rand(SIDE, SIDE), torch.empty(SIDE, SIDE)
    products = max(1, round(options.compute_s / product_s(square, product)))
    rounds: list[dict[str, float]] = []
    with (options.out / "steps.f64").open("wb", buffering=0) as file:
        for number, batch in enumerate(job.batches(rows, 8), 1):
            given_s = time.monotonic()
            if number % options.steps == 0:
                rounds.append(peers(dict(model.state_dict()), options.out))
            begun_s = time.monotonic()
            for _ in range(products):  # stands for forward and backward
                torch.mm(square, square, out=product)
            model(batch.x).backward()
            backward_s = time.monotonic()
            optimizer.step()
            times = [given_s, begun_s, backward_s, time.monotonic()]
            file.write(torch.tensor(times, dtype=torch.float64).numpy().tobytes())
            optimizer.zero_grad()
    (options.out / "peers.json").write_text(json.dumps(rounds))


if __name__ == "__main__":
    main()

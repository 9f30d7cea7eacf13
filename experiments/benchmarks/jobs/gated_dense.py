"""The job of ``deterministic_cost.py``: runs of steps of a dense model by all-reduce, when told to.

After the first ``--run-steps`` steps every worker reads a byte from the pipe ``<--gate>.<node>``
before each run of so many, and the chief appends the run's seconds to ``--out`` after it.
"""

import argparse
import os
import time
from pathlib import Path

import torch
from beside_ddp import MODELS
from gated import await_all
from torch.nn.functional import cross_entropy

import paceline as pl
from paceline.runtime.data.sources.tensor_rows import TensorRows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--gate", type=Path, required=True)
    parser.add_argument("--model", choices=sorted(MODELS), required=True)
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--run-steps", type=int, required=True)
    parser.add_argument("--together", type=int, default=1)
    options = parser.parse_args()
    job = pl.init()
    make, data = MODELS[options.model]
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    job.prepare(model, optimizer)
    torch.manual_seed(0)
    x = data()
    dataset = TensorRows(x=x, y=torch.randint(0, 10, (len(x),)))
    # A step may be several batches: what counts is when the optimizer changes the model.
    done: list[float] = []
    optimizer.register_step_post_hook(lambda *_: done.append(time.perf_counter()))
    node = os.environ["PACELINE_NODE"]
    await_all(options.out, node, options.together)
    start_s = 0.0
    for batch in job.batches(dataset, options.batch_size, epochs=1_000_000):
        cross_entropy(model(batch.x), batch.y).backward()
        optimizer.step()
        optimizer.zero_grad()
        if len(done) < options.run_steps:
            continue
        if start_s and job.is_chief:
            with options.out.open("a") as out:
                out.write(f"{done[-1] - start_s}\n")
        if Path(f"{options.gate}.{node}").read_bytes() == b"":
            return
        done.clear()
        start_s = time.perf_counter()


if __name__ == "__main__":
    main()

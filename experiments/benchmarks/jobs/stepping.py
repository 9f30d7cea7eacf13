"""Steps of emulated compute with all-reduce: under paceline, torchft, Ray Train, or plain DDP.

DDP is what torchrun and DLRover restart. Each process appends to ``<out>/<pid>.f64`` of every step
that is in its model: the monotonic time, and how many steps the model holds then.
"""

import argparse
import os
import struct
import tempfile
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import torch
from torch import nn

PARAMETERS = 1 << 18
"""1 MB of float32."""
LAYER = 1 << 23
"""Numbers in each of the other parameters: 32 MB."""


class Still(nn.Module):
    """A vector whose gradient is known, and as many more parameters as are asked for.

    These are frozen, since to compute and to sum their gradients would be what is measured.
    """

    def __init__(self, megabytes: int = 0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(PARAMETERS))
        total = megabytes << 18
        sizes = [min(LAYER, total - start) for start in range(0, total, LAYER)]
        self.rest = nn.ParameterList(
            [nn.Parameter(torch.ones(size), requires_grad=False) for size in sizes]
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a loss."""
        return self.weight.mean() + x.mean() * 0

    @property
    def steps(self) -> float:
        """Number of steps in it: of rate 1.0, each takes the same off, exactly."""
        return -self.weight[0].item() * PARAMETERS


def optimizer_of(model: Still) -> torch.optim.Optimizer:
    """Make an optimizer with momentum of all but the vector, as if each had been trained."""
    rest = list(model.rest)
    groups = [{"params": [model.weight]}, *([{"params": rest, "momentum": 0.9}] if rest else [])]
    optimizer = torch.optim.SGD(groups, lr=1.0)
    for param in rest:
        optimizer.state[param]["momentum_buffer"] = torch.ones_like(param)
    return optimizer


def train(
    batches: Iterator[torch.Tensor],
    model: Still,
    wrapped: nn.Module,
    optimizer: torch.optim.Optimizer,
    options: argparse.Namespace,
) -> None:
    """The loop, the same for all."""
    with (options.out / f"{os.getpid()}.f64").open("wb", buffering=0) as stamps:
        for x in batches:
            before = model.steps
            loss = wrapped(x)
            # Stands for compute, without which nothing is to be summed.
            time.sleep(options.step_s * (len(x) / options.share if options.share else 1.0))
            loss.backward()
            optimizer.step()
            if (steps := model.steps) != before:  # a step that broke is done again
                stamps.write(struct.pack("dd", time.monotonic(), steps))
            optimizer.zero_grad()


def by_paceline(options: argparse.Namespace) -> None:
    import paceline as pl
    from paceline.runtime.data.sources.tensor_rows import TensorRows

    job = pl.init()
    model = Still(options.megabytes // 2)
    optimizer = optimizer_of(model)
    job.prepare(model, optimizer)
    data = TensorRows(x=torch.ones(4096))
    batches = (batch.x for batch in job.batches(data, 64, epochs=1_000_000))
    train(batches, model, model, optimizer, options)


def by_ddp(options: argparse.Namespace) -> None:
    from torch import distributed

    distributed.init_process_group("gloo")
    model = Still()
    ddp = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    train(same_batches(), model, ddp, optimizer, options)


def by_torchft(options: argparse.Namespace) -> None:
    """Train as torchft's README and its ``train_ddp.py`` do, but for the state being ours."""
    import torchft

    model = Still()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)

    def load(state: dict[str, dict[str, object]]) -> None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    manager = torchft.Manager(
        pg=torchft.ProcessGroupGloo(timeout=timedelta(seconds=5)),
        min_replica_size=1,
        load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": optimizer.state_dict()},
        replica_id=f"stepping_{os.environ['REPLICA_GROUP_ID']}",
        timeout=timedelta(seconds=30),
    )
    ddp = torchft.DistributedDataParallel(manager, model)
    wrapped = torchft.Optimizer(manager, optimizer)

    wrapped.zero_grad()  # begins a step of torchft: the first one, here
    train(same_batches(), model, ddp, wrapped, options)


def by_ray_train(options: argparse.Namespace) -> None:
    """Train as the user guides of Ray Train v2 do: elastic, any number of failures, checkpoints."""
    from ray import train as ray_train
    from ray.train.torch import TorchTrainer

    scaling = ray_train.ScalingConfig(
        num_workers=(1, options.workers),
        resources_per_worker={"CPU": options.cpus},
        elastic_resize_monitor_interval_s=2.0,
    )
    run = ray_train.RunConfig(
        storage_path=str(options.out / "storage"),
        checkpoint_config=ray_train.CheckpointConfig(num_to_keep=2),
        failure_config=ray_train.FailureConfig(max_failures=-1),
    )
    config = {"options": options}
    TorchTrainer(
        in_ray_train, train_loop_config=config, scaling_config=scaling, run_config=run
    ).fit()


def in_ray_train(config: dict[str, argparse.Namespace]) -> None:
    from ray import train as ray_train
    from ray.train.torch import prepare_model

    model, kept = Still(), ray_train.get_checkpoint()
    if kept is not None:
        with kept.as_directory() as folder:
            model.load_state_dict(torch.load(Path(folder) / "model.pt"))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    batches = reporting(model, config["options"].checkpoint_every)
    train(batches, model, prepare_model(model), optimizer, config["options"])


def reporting(model: Still, every: int) -> Iterator[torch.Tensor]:
    """Yield the same batches; so often all members report a checkpoint, which the first writes."""
    from ray import train as ray_train

    for number, batch in enumerate(same_batches(), 1):
        yield batch
        if number % every == 0:
            with tempfile.TemporaryDirectory() as folder:
                kept = None
                if ray_train.get_context().get_world_rank() == 0:
                    torch.save(model.state_dict(), Path(folder) / "model.pt")
                    kept = ray_train.Checkpoint.from_directory(folder)
                ray_train.report({"steps": model.steps}, checkpoint=kept)


def same_batches() -> Iterator[torch.Tensor]:
    while True:
        yield torch.ones(32)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--step-s", type=float, default=0.05)
    parser.add_argument("--share", type=int, default=0, help="samples that take so long; 0: any")
    parser.add_argument(
        "--megabytes", type=int, default=0, help="of other parameters and their momentum"
    )
    parser.add_argument("--workers", type=int, default=3, help="of Ray Train, at most")
    parser.add_argument("--cpus", type=int, default=1, help="of each")
    parser.add_argument("--checkpoint-every", type=int, default=20, help="steps of Ray Train")
    options = parser.parse_args()
    if "PACELINE_NODE" in os.environ:
        by_paceline(options)
    elif "RAY_TRAIN_V2_ENABLED" in os.environ:
        by_ray_train(options)
    elif "TORCHFT_LIGHTHOUSE" in os.environ:
        by_torchft(options)
    else:
        by_ddp(options)


if __name__ == "__main__":
    main()

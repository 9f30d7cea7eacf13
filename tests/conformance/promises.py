"""The script of the suite for `Strategy`: trains, makes mistakes, and writes what it saw of its job.

It is the same for every holder; as a job's script it needs ``--out``.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import torch
from torch import Tensor, nn
from torch.optim import SGD
from torch.utils.data import DataLoader

import paceline as pl
from paceline.base.errors import ConfigError

N, BATCH, EPOCHS = 32, 8, 2
STEPS = N * EPOCHS // BATCH
DATA = pl.TensorRows(id=torch.arange(N))
MAX_NORM = 0.1
WAIT_S, POLL_S = 60.0, 0.01


class Now(msgspec.Struct, frozen=True):
    """What the port says at one moment."""

    step: int | None
    global_batch: int | None
    in_step: bool


class Body(msgspec.Struct, frozen=True):
    """One run of the loop's body: its samples, and the port before and after `optimizer.step()`."""

    ids: list[int]
    begun: Now
    stepped: Now


class Seen(msgspec.Struct, kw_only=True):
    """What one worker has seen."""

    before: Now
    bodies: list[Body] = []
    after: Now | None = None
    held: list[float] = []
    """What the job holds after the loop: `Planted.count`."""
    evaluated: dict[str, list[float]] = {}
    norm: float = 0.0
    clipped: list[float] = []
    """The gradient that `clip_grad_norm_` has left."""
    no_clip: str = ""
    twice: str = ""
    not_at_all: str = ""
    refusals: dict[str, str] = {}
    """Of loops that not every holder can run, by their names."""
    refused: Now | None = None
    """After a loop that ended with an error."""
    left: list[float] = []
    handed_over: list[float] = []
    """What the job held, before and after it was handed over twice."""


class Planted(nn.Module):
    """Each sample that is in the model takes 1 from an entry of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.count = nn.Parameter(torch.zeros(N, dtype=torch.float64))

    def forward(self, ids: Tensor) -> Tensor:
        return self.count[ids].mean()


def whole(tensor: Tensor | None) -> list[float]:
    """Its values, from all shards."""
    assert tensor is not None
    found: Tensor = getattr(tensor, "full_tensor", lambda: tensor)()
    return found.tolist()  # type: ignore[no-any-return]


def refusal(call: Callable[[], object]) -> str:
    """With which words it is refused; empty: it is not."""
    try:
        call()
    except ConfigError as error:
        return str(error)
    return ""


def observe(job: pl.Job, model: nn.Module, meet: Callable[[str], None]) -> Seen:
    """Train all of it, evaluate, and begin a loop that goes wrong.

    Args:
        job: with nothing prepared.
        model: a `Planted`, sharded where the holder asks for it.
        meet: returns when all workers are at the place of this name.
    """
    # Of a mean over a step each sample has its part: times their number it counts as one.
    optimizer = SGD(model.parameters(), lr=float(BATCH))
    job.prepare(model, optimizer)
    port = job._strategy

    def now() -> Now:
        return Now(port.step, port.global_batch, port.in_step)

    meet("prepared")
    seen = Seen(before=now())
    for batch in job.batches(DATA, BATCH, EPOCHS):
        begun = now()
        model(batch.id).backward()
        optimizer.step()
        seen.bodies.append(Body(batch.id.tolist(), begun, now()))
        optimizer.zero_grad()
    seen.after = now()
    seen.held = whole(model.state_dict()["count"])
    found = job.evaluate(lambda batch: {"id": batch.id, "odd": batch.id % 2}, DATA, batch_size=5)
    seen.evaluated = {name: values.tolist() for name, values in found.items()}
    _go_wrong(job, model, optimizer, seen, meet)
    seen.refused = now()
    seen.left = whole(model.state_dict()["count"])
    port.hand_over()
    port.hand_over()
    seen.handed_over = whole(model.state_dict()["count"])
    return seen


def _go_wrong(
    job: pl.Job, model: nn.Module, optimizer: SGD, seen: Seen, meet: Callable[[str], None]
) -> None:
    if not job._strategy.can_accumulate:
        by_hand = refusal(lambda: job.batches(DATA, BATCH, accumulate=4))
        seen.refusals["accumulation"] = by_hand
    if not job._strategy.takes_uneven_steps:
        uneven = DataLoader(DATA, batch_sampler=[[0], [1, 2, 3]])
        seen.refusals["uneven batches"] = refusal(lambda: job.batches(uneven))
    if not job._strategy.takes_trainings:
        seen.refusals["a next training"] = refusal(lambda: job.prepare(model, optimizer))
    batches = job.batches(DATA, BATCH)
    batch = next(batches)
    seen.refusals["all_gather in a body"] = refusal(lambda: job.all_gather(job.rank))
    seen.refusals["agree in a body"] = refusal(lambda: job.agree(job.rank))
    model(batch.id).backward()

    def clip() -> None:
        seen.norm = float(job.clip_grad_norm_(MAX_NORM))

    seen.no_clip = refusal(clip)
    seen.clipped = whole(next(model.parameters()).grad)
    optimizer.step()
    seen.twice = refusal(optimizer.step)
    optimizer.zero_grad()
    # A batch with a gradient: one without may be left out, where the holder can do that.
    model(next(batches).id).backward()
    # No member of a group leaves while another may still need it for the step before.
    meet("going wrong")
    seen.not_at_all = refusal(lambda: next(batches))


def main() -> None:
    """Be one worker of a job, and write what it has seen."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--shard", action="store_true")
    options = parser.parse_args()
    job, model = pl.init(), Planted()
    if options.shard:
        from torch.distributed.fsdp import fully_shard

        fully_shard(model)

    def meet(place: str) -> None:
        (options.out / f"{job.rank}.{place}").touch()
        until_s = time.monotonic() + WAIT_S
        while len(list(options.out.glob(f"*.{place}"))) < options.workers:
            assert time.monotonic() < until_s, place
            time.sleep(POLL_S)

    seen = observe(job, model, meet)
    (options.out / f"{job.rank}.new").write_bytes(msgspec.json.encode(seen))
    (options.out / f"{job.rank}.new").rename(options.out / f"{job.rank}.seen")


if __name__ == "__main__":
    main()

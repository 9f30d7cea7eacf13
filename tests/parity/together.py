"""The cases of `tests.parity.cases` that a holder trains, or every n-th, in one job.

A worker may die once, at a step of its choice. With ``--plain`` the same without a job: what torch
itself makes of two halves of each batch, by FSDP2 in as many processes as torchrun's variables say.
"""

import argparse
import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed as dist

import paceline as pl

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.parity.cases import (
    BATCH,
    STEPS,
    Case,
    Training,
    cases,
    reference,
    runs,
    samples,
    steps_of,
)
from tests.parity.kinds import bits
from tests.parity.refusals import refusal

HOLDERS = ("servers", "allreduce", "deterministic", "fsdp")


def _flags() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--holder", choices=HOLDERS, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--case", default="", help="one, also if it is to be refused")
    parser.add_argument("--die", default="", help="rank:step at which a worker dies once")
    parser.add_argument("--step-s", type=float, default=0.0)
    parser.add_argument("--plain", action="store_true")
    return parser.parse_args()


def _shard(model: torch.nn.Module) -> None:
    from torch.distributed.fsdp import fully_shard

    fully_shard(model, reshard_after_forward=False)


def _whole(value: Any) -> Any:
    """The same with whole tensors in place of shards."""
    match value:
        case torch.Tensor():
            return getattr(value, "full_tensor", lambda: value)()
        case dict():
            return {key: _whole(one) for key, one in value.items()}
        case list() | tuple():
            return type(value)(map(_whole, value))
        case _:
            return value


def _batches(job: "pl.Job | None") -> Iterator[tuple[torch.Tensor, int]]:
    """Samples, and the number of steps that are complete."""
    if job is not None:
        data = pl.TensorRows(x=samples(), step=steps_of())
        for batch in job.batches(data, batch_size=BATCH, shuffle=False):
            yield batch.x, int(batch.step[0])
        return
    rank, size = dist.get_rank(), dist.get_world_size()
    for step, rows in enumerate(samples().split(BATCH)):
        yield rows.chunk(size)[rank], step


def _chosen(args: argparse.Namespace) -> list[Case]:
    """The cases that are trained, the same in each process."""
    if args.case:
        return [case for case in cases() if str(case) == args.case]
    shard = _shard if args.holder == "fsdp" else None
    taken = [case for case in cases() if refusal(case, args.holder) is None]
    return [case for case in taken[:: args.every] if runs(case, shard)]


def _ends(states: Iterable[tuple[Case, dict[str, Any]]]) -> dict[str, Any]:
    """Of each case a digest of all that is held, and its weights."""
    found = {}
    for case, state in states:
        held = _whole(state)
        weights = [value.double().tolist() for value in held["model"].values()]
        found[str(case)] = repr(bits(held)), weights
    return found


def _train(job: "pl.Job | None", args: argparse.Namespace) -> dict[str, Any]:
    rank = dist.get_rank() if job is None else job.rank
    shard = _shard if args.holder == "fsdp" else None
    trainings = [Training(case, shard) for case in _chosen(args)]
    if job is not None:
        job.prepare([one.prepared for one in trainings])
        for one in trainings:
            if one.ema is not None:
                job.state[str(one.case)] = one.ema
    for x, step in _batches(job):
        if f"{rank}:{step}" == args.die and not (args.out / "died").exists():
            (args.out / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        for one in trainings:
            one.backward(x, step)
        for one in trainings:
            one.step(step)
        if step > STEPS / 2:
            (args.out / "under way").touch()
        time.sleep(args.step_s)
    return _ends((one.case, one.state()) for one in trainings)


def main() -> None:
    """Train, and write what is held in the end."""
    args = _flags()
    if not args.plain:
        found = _train(pl.init(), args)
    elif args.holder == "fsdp":
        dist.init_process_group("gloo")
        found = _train(None, args)
        dist.destroy_process_group()
    else:
        torch.set_num_threads(1)
        found = _ends((case, reference(case, parts=2)) for case in _chosen(args))
    (args.out / f"{os.getpid()}.end").write_bytes(msgspec.json.encode(found))


main()

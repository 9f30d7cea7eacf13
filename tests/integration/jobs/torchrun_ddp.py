"""A script as it is written for torchrun: DDP over gloo, a checkpoint of its own at each step.

It knows nothing of paceline. ``torchrun --nproc-per-node 2 torchrun_ddp.py --out DIR`` runs it, too.
"""

import argparse
import json
import os
import signal
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel

NAMES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR",
         "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS",
         "TORCHELASTIC_RUN_ID")  # fmt: skip


@record
def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--step-s", type=float, default=0.02)
    parser.add_argument("--abort-at-exit", action="store_true")
    options = parser.parse_args()
    rank, life = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
    seen = {name: os.environ[name] for name in NAMES}
    seen |= {"pid": str(os.getpid()), "cwd": os.getcwd(), "seed": str(torch.initial_seed())}
    (options.out / f"{rank}.{life}.json").write_text(json.dumps(seen))

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    checkpoint, step = options.out / "checkpoint.pt", 0
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        model.module.load_state_dict(saved["model"])
        step = saved["step"]
    dist.barrier()
    print(f"rank {rank} begins at step {step}", flush=True)
    while step < options.steps:
        torch.manual_seed(1000 * step + dist.get_rank())
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if dist.get_rank() == 0:
            torch.save({"model": model.module.state_dict(), "step": step}, options.out / "fresh")
            (options.out / "fresh").replace(checkpoint)
        time.sleep(options.step_s)
    dist.destroy_process_group()
    if options.abort_at_exit:
        import atexit

        atexit.register(os.kill, os.getpid(), signal.SIGABRT)


if __name__ == "__main__":
    main()

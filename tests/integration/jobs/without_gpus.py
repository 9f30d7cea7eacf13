"""Runs a script that asks for GPUs on a machine that has none: ``without_gpus.py SCRIPT [ARG]...``.

The script's file is as its authors wrote it. What it asks of CUDA, NCCL and torch.accelerator is
answered as if each rank's processor were a GPU; its tensors are on the CPU, its groups use gloo.
"""

import functools
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

CPU = torch.device("cpu")
MANY = 8


def to_cpu(to: Callable[..., Any]) -> Callable[..., Any]:
    """``to(1)``, ``to("cuda:1")`` and their like mean the CPU."""

    def is_gpu(device: object) -> bool:
        number = isinstance(device, int) and not isinstance(device, bool)
        return number or (isinstance(device, str) and device.startswith("cuda"))

    @functools.wraps(to)
    def moved(self: Any, *args: Any, **kwargs: Any) -> Any:
        return to(self, *(CPU if is_gpu(one) else one for one in args), **kwargs)

    return moved


def stand_in() -> None:
    """Answer for the GPUs."""
    accelerator: Any = torch.accelerator
    accelerator.is_available = lambda: True
    accelerator.device_count = lambda: MANY
    accelerator.current_accelerator = lambda *_args, **_kwargs: CPU
    accelerator.set_device_index = accelerator.device_index = lambda *_: None
    torch.cuda.set_device = lambda *_: None
    nn.Module.to = to_cpu(nn.Module.to)  # type: ignore[method-assign]
    Tensor.to = to_cpu(Tensor.to)  # type: ignore[method-assign]
    Tensor.pin_memory = lambda tensor, *_: tensor  # type: ignore[method-assign, assignment]
    init, build = dist.init_process_group, DistributedDataParallel.__init__

    def by_gloo(*_args: Any, **_kwargs: Any) -> None:
        init("gloo")

    def built(self: Any, module: nn.Module, *_args: Any, **kwargs: Any) -> None:
        build(self, module, **{**kwargs, "device_ids": None})

    dist.init_process_group = c10d.init_process_group = by_gloo
    DistributedDataParallel.__init__ = built  # type: ignore[method-assign]


def main() -> None:
    """Run the script, in this process, as if it had been started itself."""
    stand_in()
    sys.argv = sys.argv[1:]
    sys.path.insert(0, str(Path(sys.argv[0]).parent))
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()

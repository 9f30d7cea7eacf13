"""Hooks by which a training process passes its gate, and says that it is idle; scripts stay as is.

A gate is passed before each module's forward, after each gradient, and at each optimizer's step.
Regions that torch has compiled have no such points inside: there, it is passed once a step.
"""

import functools
import sys
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.data.dataloader import _BaseDataLoaderIter

from paceline.base.devices import gpu_index
from paceline.base.errors import ConfigError
from paceline.features.sharing.compiled import CPU_ARENA, CUDA_HOST, compiled
from paceline.features.sharing.gate_page import LIFE, ROOM, GatePage, page_of
from paceline.features.sharing.process.boundary import MemoryBoundary
from paceline.features.sharing.process.cpu_memory import CpuMemory
from paceline.features.sharing.process.cuda import CudaDevice, say
from paceline.features.sharing.process.cuda_memory import CudaMemory
from paceline.features.sharing.process.device import CpuDevice, Device
from paceline.features.sharing.process.gaps import InputGaps
from paceline.features.sharing.process.gate import Gate
from paceline.features.sharing.process.memory import DeviceMemory
from paceline.runtime.process.process import Process


def share_device(process: Process) -> None:
    """Have a process take part in sharing the device of its job's spec."""
    page = GatePage.open(page_of(process.job, process.node)).hold()
    page.words[LIFE] = process.inc
    (name,) = process.spec.share.of(process.node)
    device: Device = CudaDevice(name) if gpu_index(name) is not None else CpuDevice(name)
    memory = _memory_of(name) if page.words[ROOM] else None
    if memory is not None:
        MemoryBoundary(page, memory).install()
    process.gaps = InputGaps(page, device)
    _tell_gaps(process.gaps)
    if process.spec.share.kind != "guaranteed":  # it stays so, and others may become guaranteed
        gate = Gate(page, device, process.held)
        process.at_terminate = gate.free
        GatePoints(gate).install()


def _memory_of(device: str) -> DeviceMemory | None:
    """Return the memory of a device; None: it cannot be shared, and a line of the log says why."""
    if gpu_index(device) is None:
        return CpuMemory(compiled(CPU_ARENA))
    try:
        return CudaMemory(device, compiled(CUDA_HOST))
    except ConfigError as error:
        say(f"the job's memory has no limit. {error}")
        return None


class GatePoints:
    """The points of a process at which it passes a gate."""

    def __init__(self, gate: Gate) -> None:
        self._tick = gate.tick
        self._groups: WeakKeyDictionary[Optimizer, int] = WeakKeyDictionary()
        """Number of parameter groups that have hooks, by optimizer."""

    def install(self) -> None:
        register_module_forward_pre_hook(self._before_forward)
        register_optimizer_step_pre_hook(self._at_step)
        register_optimizer_step_post_hook(self._at_step)

    def _before_forward(self, _module: nn.Module, _args: Any) -> None:
        if not torch.compiler.is_compiling():
            self._tick()

    def _after_gradient(self, _parameter: torch.Tensor) -> None:
        if not torch.compiler.is_compiling():
            self._tick()

    def _at_step(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        known = self._groups.get(optimizer, 0)
        if not known and _has_compiled():
            say("regions that torch has compiled have no gates inside: the job is held once a step")
        if len(optimizer.param_groups) > known:
            self._groups[optimizer] = len(optimizer.param_groups)
            for group in optimizer.param_groups[known:]:
                self._watch(group["params"])
        self._tick()

    def _watch(self, parameters: list[torch.Tensor]) -> None:
        for one in parameters:
            if one.requires_grad and one.is_leaf:
                one.register_post_accumulate_grad_hook(self._after_gradient)


def _has_compiled() -> bool:
    """Say whether torch has compiled any part of the script so far."""
    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", {})
    return bool(counters.get("frames", {}).get("ok"))


def _tell_gaps(gaps: InputGaps) -> None:
    """Have the script's data loaders tell when they are waited for."""
    following = _BaseDataLoaderIter.__next__

    @functools.wraps(following)
    def told(loader: Any) -> Any:
        with gaps:
            return following(loader)

    _BaseDataLoaderIter.__next__ = told  # type: ignore[method-assign, assignment]

"""Checks for what members of a group cannot hold, made before any work starts."""

from collections.abc import Sequence

import torch
from torch import nn

from paceline.base.errors import ConfigError
from paceline.runtime.script.embedding import Embedding
from paceline.runtime.script.prepared import why_empty
from paceline.runtime.state.tree import why_unmovable


def device_of(params: Sequence[nn.Parameter]) -> torch.device:
    """Return the device that all parameters are on.

    Raises:
        ConfigError: they are on several devices.
    """
    devices = {str(param.device): param.device for param in params}
    if len(devices) > 1:
        first, second, *_ = sorted(devices)
        raise ConfigError(
            f"job.prepare: parameters are on {first} and on {second}; a worker trains on one "
            "device: move all of the model there, before its optimizer is made"
        )
    return next(iter(devices.values()), torch.device("cpu"))


def check_dense(modules: Sequence[nn.Module]) -> None:
    """Raises ConfigError: a table whose rows only servers hold."""
    for root in modules:
        for name, module in root.named_modules():
            if isinstance(module, Embedding) or getattr(module, "sparse", False):
                raise ConfigError(
                    f"job.prepare: {name or type(module).__name__} is a sparse table, whose rows "
                    "live on parameter servers; run the job with --servers 1, or make it an "
                    "nn.Embedding without sparse=True"
                )


def check_movable(modules: Sequence[nn.Module]) -> None:
    """Raises ConfigError: a parameter or buffer that no other worker could take over."""
    for root in modules:
        saved = dict(root.named_parameters())
        for path, owner in root.named_modules():
            for name, buffer in owner._buffers.items():
                if buffer is not None and name not in owner._non_persistent_buffers_set:
                    saved[f"{path}.{name}".lstrip(".")] = buffer
        for name, tensor in saved.items():
            why = why_empty(tensor) or why_unmovable(tensor)
            if why is not None:
                raise ConfigError(f"job.prepare: {name} cannot be kept or copied: it is {why}")


def check_own_statistics(modules: Sequence[nn.Module]) -> None:
    """Raises ConfigError: a module whose statistics would be those of all workers.

    It asks torch's default group for them, which there is none of: without a word it would take the
    worker's own.
    """
    for root in modules:
        for name, module in root.named_modules():
            if isinstance(module, nn.SyncBatchNorm):
                raise ConfigError(
                    f"job.prepare: {name or 'the model'} is an nn.SyncBatchNorm, whose statistics "
                    "are not summed over workers with all-reduce; make it an nn.BatchNorm (leave "
                    "convert_sync_batchnorm out), which normalises over what a worker computes; "
                    "with deterministic: true its running statistics are of all blocks of a step"
                )

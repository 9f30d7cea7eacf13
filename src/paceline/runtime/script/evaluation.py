"""Results that ``job.evaluate`` computes, as arrays by name, which is how workers exchange them."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from paceline.base.errors import ConfigError
from paceline.runtime.data.work import Array
from paceline.runtime.state.tree import as_array

_KIND = "\0"
"""Separator of a name and the dtype of a tensor, where numpy has none of its kind."""


def checked_values(values: Any, num_samples: int) -> dict[str, Array]:
    """Check what the script's function has computed for so many samples.

    Raises:
        ConfigError: it is something else than a tensor by name, with one entry per sample.
    """
    if not isinstance(values, Mapping):
        raise ConfigError(
            f"job.evaluate: fn returned a {type(values).__name__}; return a dict of tensors with "
            "one entry per sample"
        )
    for name, value in values.items():
        shape = tuple(value.shape) if isinstance(value, Tensor) else None
        if shape is None or shape[:1] != (num_samples,):
            got = f"a tensor of shape {shape}" if shape is not None else f"a {type(value).__name__}"
            raise ConfigError(
                f"job.evaluate: fn returned {got} as {name!r} for {num_samples} samples; return "
                f"one entry per sample ({num_samples}, ...) and average the result of evaluate, "
                "since batches differ in size"
            )
    return dict(_as_named_array(name, value) for name, value in values.items())


@contextmanager
def untouched(values: Iterable[Any]) -> Iterator[None]:
    """Give the modules among these the buffers back that a forward pass in training mode changes.

    Modules in evaluation mode are trusted to change none, and cost nothing.
    """
    kept = [
        (part._buffers, name, buffer, buffer.clone())
        for module in values
        if isinstance(module, nn.Module)
        for part in module.modules()
        if part.training
        for name, buffer in part._buffers.items()
        if buffer is not None
    ]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffers, name, buffer, before in kept:
                # Written only if it differs: torch counts a write as a change.
                changed = not torch.equal(buffer, before)
                buffers[name] = buffer.copy_(before) if changed else buffer


def _as_named_array(name: str, value: Tensor) -> tuple[str, Array]:
    array = as_array(value.resolve_conj().resolve_neg())
    kind = str(value.dtype).removeprefix("torch.")
    return (name if array.dtype.name == kind else f"{name}{_KIND}{kind}"), array


def as_tensor(name: str, values: Array) -> tuple[str, Tensor]:
    """A result with its own name and dtype."""
    name, _, kind = name.partition(_KIND)
    tensor = torch.from_numpy(values)
    return name, tensor.view(getattr(torch, kind)) if kind else tensor

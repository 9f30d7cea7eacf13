"""Buffers of a model whose parameters live on servers: each worker computes its own.

The running statistics of BatchNorm follow from the batches of a worker. Those of the worker that is
furthest travel with the script's state (`schedule`), so that cuts have them, and a worker that
joins, or a resumed job, goes on with them and not with the values of a new model.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from paceline.runtime.holding.servers.model import prefixed
from paceline.runtime.state.tree import why_unmovable

LARGE_BYTES = 1 << 16
"""A buffer of more that has not changed since ``job.prepare`` stays at home: it would be sent with
every change of the rest, and each worker has it from the script."""


class ModelBuffers:
    """Persistent buffers of prepared models, by their names in the state dict.

    Args:
        modules: the models.
    """

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self._slots: dict[str, tuple[nn.Module, str]] = {}
        for root, prefix in prefixed(modules):
            for path, owner in root.named_modules(prefix=prefix, remove_duplicate=False):
                for key in owner._buffers:
                    if key not in owner._non_persistent_buffers_set:
                        self._slots[f"{path}.{key}".lstrip(".")] = owner, key
        self._first = dict(zip(self._slots, self.look(), strict=True))

    def _tensors(self) -> list[Tensor | None]:
        return [owner._buffers.get(key) for owner, key in self._slots.values()]

    def look(self) -> Sequence[Any]:
        """Return what tells cheaply whether one of them changed."""
        return [None if one is None else (id(one), _version(one)) for one in self._tensors()]

    def state(self) -> tuple[dict[str, Tensor], list[str]]:
        """Return the values by name, and the names of those that stay at home."""
        held, at_home = {}, []
        for name, tensor, now in zip(self._slots, self._tensors(), self.look(), strict=True):
            if tensor is None:
                continue
            is_constant = now == self._first[name]
            if why_unmovable(tensor) or (is_constant and tensor.nbytes > LARGE_BYTES):
                at_home.append(name)
            else:
                held[name] = tensor
        return held, at_home

    def become(self, state: Mapping[str, Tensor]) -> None:
        """Take over those of another worker, or of a cut."""
        with torch.no_grad():
            for name, value in state.items():
                if name not in self._slots:
                    continue
                owner, key = self._slots[name]
                own = owner._buffers.get(key)
                if own is not None and (own.shape, own.dtype) == (value.shape, value.dtype):
                    own.copy_(value)
                else:
                    device = value.device if own is None else own.device
                    owner._buffers[key] = value.to(device)


def _version(tensor: Tensor) -> int:
    """Torch's count of changes; one that torch does not count is taken for unchanged."""
    return -1 if tensor.is_inference() else tensor._version

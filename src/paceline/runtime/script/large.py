"""Large tensors that a loop's body changes in place, as an average of weights: taken back, too.

To copy them for each batch would cost too much. So a tensor is copied only when it has changed
since the mark before: the copy costs about what the change did. The first change of a tensor cannot
be taken back.
"""

from collections.abc import Collection
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

MOST_COPIED = 1 << 30
"""Bytes of the copies of all tensors; what is beyond them cannot be taken back."""


class LargeTensor(NamedTuple):
    """A tensor as it was at a mark."""

    value: Tensor
    version: int
    copy: Tensor | None
    """None: it has not changed since it was first seen, or there is no room for a copy."""
    owner: Any
    """The tensor itself, or the module that holds it."""


class LargeTensors:
    """The large tensors of a script, as they were at the newest mark."""

    def __init__(self) -> None:
        self._now: dict[int, list[LargeTensor]] = {}
        self._before: dict[int, list[LargeTensor]] = {}
        self._others: Collection[int] = ()
        self._num_copied = 0

    def begin(self, others: Collection[int]) -> None:
        """Begin another mark.

        Args:
            others: ids of modules whose state is kept elsewhere.
        """
        self._before, self._now = self._now, {}
        self._others, self._num_copied = others, 0

    def keep(self, tensor: Tensor) -> None:
        """Note what a tensor is now."""
        self._keep(tensor, [tensor])

    def keep_module(self, module: nn.Module) -> None:
        """Note what the tensors of a module are now that the job does not have."""
        if id(module) not in self._others:
            known = self._before.get(id(module))
            self._keep(module, [] if known else _untrained(module))

    def _keep(self, owner: Any, tensors: list[Tensor]) -> None:
        known = self._before.get(id(owner), [])
        if known and known[0].owner is owner:
            self._now[id(owner)] = [*map(self._renewed, known)]
        else:
            self._now[id(owner)] = [LargeTensor(one, one._version, None, owner) for one in tensors]

    def _renewed(self, known: LargeTensor) -> LargeTensor:
        value = known.value
        if known.copy is not None:
            self._num_copied += value.nbytes
        if value._version == known.version:
            return known
        return known._replace(version=value._version, copy=self._copied(value, known.copy))

    def _copied(self, value: Tensor, spare: Tensor | None) -> Tensor | None:
        plain = value.detach()
        if spare is not None and (spare.shape, spare.dtype) == (plain.shape, plain.dtype):
            return spare.copy_(plain)
        self._num_copied += plain.nbytes
        return plain.clone() if self._num_copied <= MOST_COPIED else None

    def undo(self) -> list[Any]:
        """Put all of them back; return the owners of those that have changed and could not be."""
        changed = (
            one for some in self._now.values() for one in some if one.value._version != one.version
        )
        return [one.owner for one in changed if not _put_back(one)]


def _put_back(large: LargeTensor) -> bool:
    if large.copy is None or large.copy.shape != large.value.shape:
        return False
    with torch.no_grad():
        large.value.detach().copy_(large.copy)
    return True


def _untrained(module: nn.Module) -> list[Tensor]:
    """The tensors of a module but for what is trained, and the statistics beside it (BatchNorm)."""
    found = list[Tensor]()
    for part in module.modules():
        params = [one for one in part._parameters.values() if one is not None]
        if not any(one.requires_grad for one in params):
            buffers = [one for one in part._buffers.values() if one is not None]
            found += [one for one in (*params, *buffers) if is_large_kind(one)]
    return found


def is_large_kind(value: Tensor) -> bool:
    """Whether a tensor can be copied and put back."""
    plain = type(value) in (Tensor, nn.Parameter) and not value.is_meta
    return plain and not value.is_inference() and value.grad_fn is None

"""Large tensors that a loop's body changes in place, as an average of weights: taken back, too.

To copy them for each batch would cost too much. So a tensor is copied only when it has changed
since the mark before: the copy costs about what the change did. The first change of a tensor cannot
be taken back.
"""

from typing import NamedTuple

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


class LargeTensors:
    """The large tensors of a script, as they were at the newest mark."""

    def __init__(self) -> None:
        self._now: dict[int, LargeTensor] = {}
        self._before: dict[int, LargeTensor] = {}
        self._num_copied = 0

    def begin(self) -> None:
        """Begin another mark."""
        self._before, self._now, self._num_copied = self._now, {}, 0

    def keep(self, tensor: Tensor) -> None:
        """Note what a tensor is now."""
        known = self._before.get(id(tensor))
        if known is not None and known.value is tensor:
            self._now[id(tensor)] = self._renewed(known)
        else:
            self._now[id(tensor)] = LargeTensor(tensor, tensor._version, None)

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

    def undo(self) -> list[Tensor]:
        """Put all of them back; return those that have changed and could not be."""
        changed = (one for one in self._now.values() if one.value._version != one.version)
        return [one.value for one in changed if not _put_back(one)]


def _put_back(large: LargeTensor) -> bool:
    if large.copy is None or large.copy.shape != large.value.shape:
        return False
    with torch.no_grad():
        large.value.detach().copy_(large.copy)
    return True


def is_large_kind(value: Tensor) -> bool:
    """Whether a tensor can be copied and put back."""
    plain = type(value) in (Tensor, nn.Parameter) and not value.is_meta
    return plain and not value.is_inference() and value.grad_fn is None

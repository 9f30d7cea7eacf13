"""Large tensors that a loop's body changes in place, as an average of weights: taken back, too.

To copy them for each batch would cost too much. So a tensor is copied only when it has changed
since the mark before: the copy costs about what the change did. The first change of a tensor cannot
be taken back. What torch does not count as a change (through ``.data``, or numpy) is found by some
of its elements.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

SAMPLED = 64
MOST_COPIED = 1 << 30
"""Bytes of the copies of all tensors; what is beyond them cannot be taken back."""


class LargeTensor(NamedTuple):
    """A tensor as it was at a mark."""

    value: Tensor
    version: int
    address: int
    some: np.ndarray[Any, Any] | None
    """Some of its elements, where they are: a change by ``.data`` leaves the version as it is."""
    sample: bytes
    """Bytes of these elements as they were."""
    copy: Tensor | None
    """None: it has not changed since it was first seen, or there is no room for a copy."""

    @property
    def has_changed(self) -> bool:
        """Whether it is not what it was."""
        if self.value._version != self.version or self.value.data_ptr() != self.address:
            return True
        return self.some is not None and self.some.tobytes() != self.sample


class LargeTensors:
    """The large tensors of a script, as they were at the newest mark."""

    def __init__(self, *, at_once: bool = False) -> None:
        self.at_once = at_once
        """Whether each is copied when it is first seen, so that its first change can be undone."""
        self._now: dict[int, LargeTensor] = {}
        self._before: dict[int, LargeTensor] = {}
        self._num_copied = 0

    def begin(self) -> None:
        """Begin another mark."""
        self._before, self._now, self._num_copied = self._now, {}, 0

    def end(self) -> None:
        """The mark is whole: what is not in it is let go of."""
        self._before = {}

    def keep(self, tensor: Tensor) -> None:
        """Note what a tensor is now."""
        known = self._before.get(id(tensor))
        if known is not None and known.value is tensor:
            self._now[id(tensor)] = self._renewed(known)
        else:
            copy = self._copied(tensor, None) if self.at_once else None
            self._now[id(tensor)] = _noted(tensor, copy)

    def _renewed(self, known: LargeTensor) -> LargeTensor:
        value = known.value
        if known.copy is not None:
            self._num_copied += value.nbytes
        if not known.has_changed:
            return known
        return _noted(value, self._copied(value, known.copy))

    def _copied(self, value: Tensor, spare: Tensor | None) -> Tensor | None:
        plain = value.detach()
        if spare is not None and (spare.shape, spare.dtype) == (plain.shape, plain.dtype):
            return spare.copy_(plain)
        self._num_copied += plain.nbytes
        return plain.clone() if self._num_copied <= MOST_COPIED else None

    def undo(self) -> list[Tensor]:
        """Put all of them back; return those that have changed and could not be."""
        changed = (one for one in self._now.values() if one.has_changed)
        return [one.value for one in changed if not _put_back(one)]


def _noted(value: Tensor, copy: Tensor | None) -> LargeTensor:
    some = _some_of(value)
    sample = b"" if some is None else some.tobytes()
    return LargeTensor(value, value._version, value.data_ptr(), some, sample, copy)


def _some_of(value: Tensor) -> np.ndarray[Any, Any] | None:
    """Return up to `SAMPLED` elements along the first axis, and the middle of the others."""
    integers = _INTEGERS.get(value.element_size())
    if not value.is_cpu or value.is_complex() or integers is None:
        return None
    plain = value.detach()
    while plain.ndim > 1:
        plain = plain.select(plain.ndim - 1, plain.shape[-1] // 2)
    return plain[:: max(1, len(plain) // SAMPLED)].view(integers).numpy()


_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _put_back(large: LargeTensor) -> bool:
    if large.copy is None or large.copy.shape != large.value.shape:
        return False
    with torch.no_grad():
        large.value.detach().copy_(large.copy)
    return True


def is_large_kind(value: Tensor) -> bool:
    """Tell whether a tensor can be copied and put back."""
    plain = type(value) in (Tensor, nn.Parameter) and not value.is_meta
    return plain and not value.is_inference() and value.grad_fn is None

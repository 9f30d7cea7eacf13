"""Hyper-parameters that a script sets between two loops.

A worker may go back to before the last step of a loop that was left (`Schedule`). The script does
not repeat what it has set since: those values hold all the same.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from paceline.runtime.state.begun import prepared
from paceline.runtime.state.tree import as_bytes, take_apart

Setting = tuple[int, int, str]
"""Optimizer, group, name."""


def put(group: dict[str, Any], key: str, value: Any) -> None:
    """Set a hyper-parameter; one in a tensor stays in it."""
    held = group.get(key)
    if isinstance(held, Tensor) and isinstance(value, Tensor):
        held.copy_(value)
    else:
        group[key] = value


class SettingsBetween:
    """Settings that the script has made since it left a loop.

    Args:
        optimizers: all that were prepared.
    """

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        self._optimizers = optimizers
        self._seen: dict[Setting, Any] | None = None
        """Values when they were looked at last; None: no loop was left since `end`."""
        self._edited: set[Setting] = set()

    def begin(self) -> None:
        """A loop was left."""
        self._edited, self._seen = set(), self._look()

    def note(self) -> None:
        """A scheduler is about to change values: what differs so far is the script's."""
        if self._seen is not None:
            now = self._look()
            self._edited |= {place for place in now if now[place] != self._seen.get(place)}

    def stepped(self) -> None:
        """A scheduler has changed values."""
        if self._seen is not None:
            self._seen = self._look()

    def end(self) -> dict[Setting, Any]:
        """Return what the script has set, and stop looking."""
        if self._seen is None:
            return {}
        self.note()
        values = self._values()
        edits = {place: deepcopy(values[place]) for place in self._edited if place in values}
        self._edited, self._seen = set(), None
        return edits

    def put(self, edits: Mapping[Setting, Any]) -> None:
        """Set these values again."""
        for (optimizer, group, key), value in edits.items():
            put(self._optimizers[optimizer].param_groups[group], key, value)

    def _values(self) -> dict[Setting, Any]:
        return {
            (number, place, key): value
            for number, groups in enumerate(prepared(self._optimizers, ())["groups"])
            for place, group in enumerate(groups)
            for key, value in group.items()
        }

    def _look(self) -> dict[Setting, Any]:
        return {place: _copied(value) for place, value in self._values().items()}


def _copied(value: Any) -> Any:
    """Copy a value to compare with later: an array or tensor may change in place."""
    skeleton, tensors = take_apart(value)
    return skeleton, [(one.dtype, as_bytes(one).numpy().tobytes()) for one in tensors]

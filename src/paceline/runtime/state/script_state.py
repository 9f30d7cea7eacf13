"""``job.state``: what a script keeps beside what it prepares, as part of the job's own state.

    job.state["ema"] = ema          # whatever has state_dict and load_state_dict
    job.state["best"] = 0.25        # or plain data

Workers that join copy it with the model, cuts hold it, and a job that is resumed has it again. A
strategy whose workers hold the model carries it by `state_of` and `become`.
"""

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

import torch
from torch import Tensor, nn

from paceline.base.errors import ConfigError
from paceline.runtime.state.restoring import restore_module
from paceline.runtime.state.tree import take_apart


class ScriptState(MutableMapping[str, Any]):
    """Names -> objects, or plain data."""

    def __init__(self) -> None:
        self._held: dict[str, Any] = {}
        #: What was taken over under names that the script has not set so far.
        self._waiting: dict[str, Any] = {}
        #: Names that the script has deleted: what a peer or a cut has under them is not wanted.
        self._deleted: set[str] = set()
        self.on_set: Callable[[Any], None] = lambda value: None
        """Called with each new object."""

    def __setitem__(self, name: str, value: Any) -> None:
        """Keep something; what a peer or a cut has under its name takes its place.

        Raises:
            ConfigError: it can neither be kept nor asked for its state.
        """
        if not isinstance(name, str):
            raise ConfigError(f"job.state: names are strings, got {name!r}")
        take_apart(_state_of(value), f"job.state[{name!r}]")
        if value is not self._held.get(name):
            self.on_set(value)
        self._held[name] = value
        self._deleted.discard(name)
        if name in self._waiting:
            self._take(name, self._waiting.pop(name))

    def __getitem__(self, name: str) -> Any:
        return self._held[name]

    def __delitem__(self, name: str) -> None:
        del self._held[name]
        self._deleted.add(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._held)

    def __len__(self) -> int:
        return len(self._held)

    @property
    def held(self) -> dict[str, Any]:
        """Names -> what the script keeps under them; changes with it."""
        return self._held

    def begin_again(self) -> None:
        """Become empty, as for a script that begins."""
        self._held.clear()
        self._waiting, self._deleted = {}, set()

    def state_of(self) -> dict[str, Any]:
        """Return all of it, as nested data and tensors."""
        return {name: _state_of(value) for name, value in self._held.items()} | self._waiting

    def become(self, state: Mapping[str, Any]) -> None:
        """Take over what another worker, or a cut, holds."""
        self._waiting.clear()
        for name, value in state.items():
            if name in self._held:
                self._take(name, value)
            elif name not in self._deleted:
                self._waiting[name] = value

    def _take(self, name: str, state: Any) -> None:
        own = self._held[name]
        if isinstance(own, nn.Module):
            restore_module(own, state)
        elif _has_state(own):
            own.load_state_dict(state)
        else:
            self._held[name] = _renewed(own, state)


def _renewed(own: Any, state: Any) -> Any:
    """Data as ``state`` has it; what can change in place does, since a script may hold it."""
    if isinstance(own, dict) and isinstance(state, dict):
        values = {key: _renewed(own.get(key), value) for key, value in state.items()}
        own.clear()
        own.update(values)
        return own
    if isinstance(own, list) and isinstance(state, list):
        own[:] = state
        return own
    if isinstance(own, Tensor) and isinstance(state, Tensor) and _are_alike(own, state):
        with torch.no_grad():
            return own.copy_(state)
    return state


def _are_alike(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype


def _has_state(value: Any) -> bool:
    return hasattr(value, "state_dict") and hasattr(value, "load_state_dict")


def _state_of(value: Any) -> Any:
    return value.state_dict() if _has_state(value) else value

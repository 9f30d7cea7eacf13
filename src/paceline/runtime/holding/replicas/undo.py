"""Undo of steps of some optimizers of a script, if the step of the job comes again."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.swa_utils import AveragedModel

from paceline.runtime.script.stepping import params_of

Kept = dict[int, tuple[Tensor, dict[str, Any]]]
"""Parameter by its place: its values and its state."""


class Undo:
    """Copies of what optimizers change, made before they step; memory is kept from step to step.

    Args:
        optimizers: all of the script.
        schedulers: which may step as soon as their optimizer has.
    """

    def __init__(
        self, optimizers: Sequence[Optimizer], schedulers: Sequence[LRScheduler] = ()
    ) -> None:
        self._optimizers, self._schedulers = optimizers, schedulers
        self._rooms: list[Kept] = [{} for _ in optimizers]
        #: Optimizers that were kept; the hyper-parameters of all, and the schedules, before that.
        self._kept: set[int] = set()
        self._groups: list[list[dict[str, Any]]] = []
        self._schedules: list[Mapping[str, Any]] = []
        #: Averages that followed steps on trial, and what they held before.
        self._averages: list[tuple[AveragedModel, dict[str, Tensor]]] = []

    def keep_average(self, average: AveragedModel) -> None:
        """Keep an average of weights that is about to follow what may be undone."""
        if not any(one is average for one, _ in self._averages):
            held = {name: value.clone() for name, value in average.state_dict().items()}
            self._averages.append((average, held))

    def keep(self, number: int) -> None:
        """Optimizer ``number`` is about to step."""
        if not self._kept:
            self._schedules = [deepcopy(one.state_dict()) for one in self._schedulers]
            self._groups = [[*map(_settings, one.param_groups)] for one in self._optimizers]
        self._kept.add(number)
        optimizer, room = self._optimizers[number], self._rooms[number]
        with torch.no_grad():
            for place, param in enumerate(params_of(optimizer)):
                values, state = room.get(place, (None, {}))
                own = optimizer.state.get(param, {})
                kept = {key: _copy(value, state.get(key)) for key, value in own.items()}
                room[place] = _copy(param.detach(), values), kept

    def restore(self) -> None:
        """Set everything back to what it was when it was kept; again: nothing."""
        if self._kept:
            with torch.no_grad():
                for number in self._kept:
                    self._restore(self._optimizers[number], self._rooms[number])
                for optimizer, groups in zip(self._optimizers, self._groups, strict=True):
                    for group, kept in zip(optimizer.param_groups, groups, strict=True):
                        group.update({key: _copy(kept[key], group.get(key)) for key in kept})
                for average, held in self._averages:
                    for name, value in average.state_dict().items():
                        value.copy_(held[name])
            for scheduler, schedule in zip(self._schedulers, self._schedules, strict=True):
                scheduler.load_state_dict(dict(schedule))
        self.drop()

    def _restore(self, optimizer: Optimizer, room: Kept) -> None:
        for place, param in enumerate(params_of(optimizer)):
            values, state = room[place]
            param.copy_(values)
            own = optimizer.state.pop(param, {})
            if state:
                optimizer.state[param] = {
                    key: _copy(value, own.get(key)) for key, value in state.items()
                }

    def drop(self) -> None:
        """Drop all copies: all steps are in the model for good."""
        self._kept.clear()
        self._groups, self._schedules, self._averages = [], [], []


def _settings(group: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _copy(value) for key, value in group.items() if key != "params"}


def _copy(value: Any, room: Any = None) -> Any:
    """A copy; of a tensor in ``room``, if it fits there."""
    if not isinstance(value, Tensor):
        return deepcopy(value)
    value = value.detach()
    if isinstance(room, Tensor) and room is not value:
        alike = (room.shape, room.dtype, room.device) == (value.shape, value.dtype, value.device)
        if alike and room.stride() == value.stride():
            return room.copy_(value)
    return value.clone()

"""Differences between what a script prepared when its job began, and what it prepares now."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from paceline.base.errors import ConfigError
from paceline.runtime.state.tree import take_apart

_log = logging.getLogger(__name__)


def prepared(optimizers: Sequence[Optimizer], schedulers: Sequence[LRScheduler]) -> dict[str, Any]:
    """Return hyper-parameters and schedulers as they are; shares memory with them."""
    return {
        "groups": [list(map(_plain_part, one.param_groups)) for one in optimizers],
        "schedulers": [one.state_dict() for one in schedulers],
    }


def _plain_part(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return what can travel of a parameter group: the script may keep anything in it."""
    found = {}
    for key, value in group.items():
        if key == "params":
            continue
        try:
            take_apart(value)
        except ConfigError:
            continue
        found[key] = value
    return found


def plain(value: Any) -> Any:
    """Copy nested state, with numbers in place of tensors."""
    if isinstance(value, Tensor):
        return value.tolist()
    if isinstance(value, Mapping):
        return {key: plain(one) for key, one in value.items()}
    return [plain(one) for one in value] if isinstance(value, list | tuple) else value


def tell_differences(ours: Any, theirs: Any) -> None:
    """Log each value that a script prepares otherwise than it did when the job began."""
    for name, script, job in differences("", ours, theirs):
        _log.warning(
            "script_differs value=%s script=%r job=%r; the job goes on with its own: to change "
            "it in mid-training, set it in the loop",
            name,
            script,
            job,
        )


def differences(name: str, mine: Any, theirs: Any) -> list[tuple[str, Any, Any]]:
    """Find leaves that are not the same: name, one value, the other."""
    if isinstance(mine, Mapping) and isinstance(theirs, Mapping):
        return [
            one
            for key in mine.keys() & theirs.keys()
            for one in differences(f"{name}.{key}" if name else str(key), mine[key], theirs[key])
        ]
    if isinstance(mine, list | tuple) and isinstance(theirs, list | tuple):
        return [
            one
            for number, (a, b) in enumerate(zip(mine, theirs, strict=False))
            for one in differences(f"{name}.{number}", a, b)
        ]
    mine, theirs = (
        one.tolist() if isinstance(one, Tensor | np.ndarray) else one for one in (mine, theirs)
    )
    return [] if mine == theirs else [(name, mine, theirs)]

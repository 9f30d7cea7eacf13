"""Torch's optimizers as groups that servers run, and the user's optimizer as the trigger of a push.

The user's optimizer object stays what it is: schedulers, ``zero_grad`` and ``param_groups`` work on
it as ever. Only its ``step`` is replaced, since the state of the update lives with the servers.
"""

from collections.abc import Callable, Mapping
from math import inf
from types import MethodType
from typing import Any

import torch
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer, SparseAdam

from paceline.base.errors import ConfigError
from paceline.runtime.ps.rules import INSTEAD, row_options
from paceline.wire.schema import OptimizerGroup

_KINDS: dict[type[Optimizer], str] = {
    SGD: "sgd",
    Adagrad: "adagrad",
    Adam: "adam",
    AdamW: "adamw",
    SparseAdam: "adam",
}
TABLE_KINDS = ("sgd", "adagrad", "rowwise_adagrad", "adam", "ftrl")
"""What ``pl.Embedding(optimizer=...)`` may name."""

_NOT_HYPER = {"params", "lr", "initial_lr", "foreach", "fused", "betas", "decoupled_weight_decay"}
"""Keys of a parameter group that say how torch runs it, or that travel in another form."""

FROZEN = OptimizerGroup(kind="sgd")
"""Of parameters that nobody trains; its rate is always 0."""


def group_of(optimizer: Optimizer, settings: dict[str, Any]) -> OptimizerGroup:
    """One parameter group of a torch optimizer, as servers run it.

    Raises:
        ConfigError: an optimizer that servers cannot run; names those they can.
    """
    kind = _KINDS.get(type(optimizer))
    if kind is None:
        raise ConfigError(
            f"{type(optimizer).__name__} cannot be run on parameter servers; use one of "
            f"{', '.join(sorted(f'torch.optim.{known.__name__}' for known in _KINDS))}. {INSTEAD}"
        )
    hyper = {k: float(v) for k, v in settings.items() if k not in _NOT_HYPER and _is_number(k, v)}
    if "betas" in settings:
        hyper["beta1"], hyper["beta2"] = map(float, settings["betas"])
    if kind.startswith("adam") and hyper.get("weight_decay"):
        kind = "adamw" if settings.get("decoupled_weight_decay") else "adam"
    elif kind == "adamw":
        kind = "adam"
    return OptimizerGroup(kind=kind, hyper=hyper)


def table_group(
    name: str, kind: str | None, args: Mapping[str, float], base: OptimizerGroup
) -> OptimizerGroup:
    """The group of a table that asked for an optimizer of its own beside the rate of ``base``.

    Raises:
        ConfigError: no such optimizer, or it has no such hyper-parameters.
    """
    if kind is not None and kind not in TABLE_KINDS:
        raise ConfigError(
            f"pl.Embedding {name!r}: optimizer={kind!r}; expected one of {', '.join(TABLE_KINDS)}"
        )
    group = base if kind in (None, base.kind) else OptimizerGroup(kind=str(kind))
    if not args:
        return group
    known = row_options(group.kind)
    for option, value in args.items():
        if option not in known:
            raise ConfigError(
                f"pl.Embedding {name!r}: optimizer_args has {option}={value!r}; {group.kind} takes "
                f"{', '.join(known) or 'none'} (the learning rate is that of the optimizer of the "
                "table's weight)"
            )
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < inf:
            raise ConfigError(
                f"pl.Embedding {name!r}: optimizer_args has {option}={value!r}; give a number of "
                "at least 0"
            )
    hyper = group.hyper | {option: float(value) for option, value in args.items()}
    return OptimizerGroup(kind=group.kind, hyper=hyper)


def _is_number(name: str, value: object) -> bool:
    if isinstance(value, bool | int | float) or (
        isinstance(value, torch.Tensor) and value.numel() == 1
    ):
        return True
    if value is None:
        return False
    raise ConfigError(
        f"optimizer option {name}={value!r} is no number; parameter servers take plain numbers. "
        f"{INSTEAD}"
    )


def replace_step(optimizer: Optimizer, on_step: Callable[[], None]) -> None:
    """Make ``optimizer.step()`` hand over gradients instead of changing parameters."""

    # A bound method, since schedulers made later wrap the function behind it.
    def step(self: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        # What schedulers look at to see whether `step` was called before theirs.
        self._opt_called = True  # type: ignore[attr-defined]
        on_step()
        return loss

    # What schedulers made before look for, to see whether somebody took `step` away from them.
    step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
    optimizer.step = MethodType(step, optimizer)  # type: ignore[method-assign]

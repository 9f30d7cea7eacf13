"""Scalers of the loss in mixed precision (`torch.amp.GradScaler`), for gradients of all workers.

A scaler looks for what is not finite in the averaged gradients, which all workers hold alike, so
all leave the same steps out and have the same scale. A step that is left out is done: its samples
are in the model, which it does not change. In a step that breaks, and before the last batch of one,
a scaler does nothing.
"""

from collections.abc import Callable, Sequence
from types import MethodType
from typing import Any

from torch import Tensor
from torch.amp import GradScaler
from torch.optim import Optimizer

from paceline.runtime.script.step_frame import StepFrame


def follow_steps(
    scaler: GradScaler,
    optimizers: Sequence[Optimizer],
    current: Callable[[], StepFrame[Any] | None],
) -> None:
    """Make a scaler act once for each step of the job.

    Args:
        scaler: changed in place.
        optimizers: all that were prepared, their ``step`` replaced already.
        current: the loop that trains; None: there is none.
    """
    numbers = {id(optimizer): number for number, optimizer in enumerate(optimizers)}
    unscale, take, update = scaler.unscale_, scaler.step, scaler.update

    def unscale_of_all(_own: GradScaler, optimizer: Optimizer) -> None:
        loop = current()
        if loop is None or loop.settle():
            unscale(optimizer)

    def step(_own: GradScaler, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        loop, number = current(), numbers.get(id(optimizer))
        if loop is None or number is None:
            return take(optimizer, *args, **kwargs)
        if not loop.settle():
            return optimizer.step(*args, **kwargs)  # nothing to apply
        result = take(optimizer, *args, **kwargs)
        if not loop.has_stepped(number):  # left out
            loop.on_step(number)
            loop.stepped()
        return result

    def update_with_all(_own: GradScaler, new_scale: float | Tensor | None = None) -> None:
        loop = current()
        if loop is None or loop.settle():
            update(new_scale)

    for name, method in (
        ("unscale_", unscale_of_all),
        ("step", step),
        ("update", update_with_all),
    ):
        setattr(scaler, name, MethodType(method, scaler))

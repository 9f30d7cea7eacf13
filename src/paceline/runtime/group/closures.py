"""``optimizer.step(closure)`` in a member, whose closure computes gradients of its own share.

Nearly all of torch's optimizers call a closure once, before all else. It is called here, and the
optimizer steps as it does without one. LBFGS calls it again and again, each time with other
parameters, and goes on by the loss and the gradients that it leaves. Each of these calls is a turn
of all members: gradients and loss are averaged, so that all members go the same way bit for bit.
Until the last turn the step may come again; what the optimizer has changed is taken back then.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import LBFGS, Optimizer

from paceline.base.errors import ConfigError
from paceline.runtime.group.loop import GroupLoop

_REMEDY = (
    "train it with --strategy allreduce, without deterministic, or in one process (python "
    "train.py), or take an optimizer that steps on the gradients of loss.backward()"
)


class StepLost(Exception):
    """Error of a step that comes again."""


def calls_again(optimizer: Optimizer) -> bool:
    """Tell whether an optimizer calls its closure several times within a step."""
    return isinstance(optimizer, LBFGS)


def check_calls(optimizer: Optimizer, *, may_again: bool) -> None:
    """Refuse an optimizer whose closure cannot be called as it needs it.

    Args:
        optimizer: that was prepared.
        may_again: whether there are several turns in a step.

    Raises:
        ConfigError: it calls its closure again, or nobody knows when.
    """
    if not calls_again(optimizer):
        return
    if not may_again:
        raise ConfigError(f"job.prepare: LBFGS has gradients computed again in its step; {_REMEDY}")
    _check_own(optimizer)


def _check_own(optimizer: Optimizer) -> None:
    """Raise ConfigError if it is not torch that calls the closure."""
    kind = type(optimizer)
    if not kind.step.__module__.startswith("torch.optim."):
        raise ConfigError(
            f"{kind.__name__}.step(closure) is not torch's own, and may call the closure when the "
            "workers' gradients are not averaged; if it needs them only once, call the closure "
            "yourself, and then step() without one; if not, train in one process (python train.py)"
        )


def step_by(
    closure: Callable[[], Any],
    optimizer: Optimizer,
    take: Callable[..., Any],
    loop: GroupLoop,
    number: int,
) -> Any:
    """Have an optimizer step; return the loss of the first call.

    Args:
        closure: of the script.
        optimizer: whose step it is.
        take: torch's own step.
        loop: that trains.
        number: of the optimizer.
    """
    _check_own(optimizer)
    loop.may_step(number)
    call = torch.enable_grad()(closure)
    if calls_again(optimizer):
        return _Calls(call, loop, number).step(take)
    loss = loop.evaluate(number, call, again=False)
    if loop.on_step(number):
        take()
    loop.stepped()
    return loss


class _Calls:
    """The calls of a closure within one step."""

    def __init__(self, closure: Callable[[], Any], loop: GroupLoop, number: int) -> None:
        self._closure, self._loop, self._number = closure, loop, number
        self._threads = torch.get_num_threads()
        self._first: list[Any] = []

    def step(self, take: Callable[..., Any]) -> Any:
        """Have the optimizer step."""
        found = self._evaluate()
        if self._loop.on_step(self._number):
            self._first = [self._agreed(found)]
            try:
                found = take(self._next)
            except StepLost:
                found = _plain(found)
            finally:
                _have_threads(self._threads)
        self._loop.stepped()
        return found

    def _next(self) -> Any:
        """Evaluate for torch; its first call was made already, before it changed anything."""
        if self._first:
            return self._first.pop()
        _have_threads(self._threads)
        loss = self._evaluate()
        if not self._loop.settle(self._number):
            raise StepLost
        return self._agreed(loss)

    def _evaluate(self) -> Any:
        return self._loop.evaluate(self._number, self._closure, again=True)

    def _agreed(self, loss: Any) -> Any:
        """The loss over all members.

        Until the next call the optimizer computes as all others do: sums differ in their last bits
        with the number of threads.
        """
        mean, threads = self._loop.evaluation
        _have_threads(threads)
        return torch.full_like(_plain(loss), mean) if isinstance(loss, Tensor) else mean


def _plain(loss: Any) -> Any:
    return loss.detach() if isinstance(loss, Tensor) else loss


def _have_threads(count: int) -> None:
    if torch.get_num_threads() != count:
        torch.set_num_threads(count)

"""Objects that a script gives to ``job.prepare``."""

import functools
import inspect
from collections.abc import Callable, Iterator
from numbers import Real
from typing import Any, ParamSpec, TypeVar

from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from paceline.base.errors import ConfigError

P = ParamSpec("P")
R = TypeVar("R")
NORM_ALONE = (
    "expected the largest norm, a number above 0: job.clip_grad_norm_(1.0) clips the gradients of "
    "all that was prepared, by their 2-norm, and job.clip_grad_norm_(1.0, optimizer) those of what "
    "one of several optimizers trains"
)


def takes_norm_alone(clip: Callable[P, R]) -> Callable[P, R]:
    """Refuse a call of `Job.clip_grad_norm_` with other arguments by an error that says which."""
    shape = inspect.signature(clip)

    @functools.wraps(clip)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        given = [*args[1:], *kwargs.values()]
        names = ", ".join(type(one).__name__ for one in given) or "nothing"
        try:
            norm = shape.bind(*args, **kwargs).arguments["max_norm"]
        except TypeError:
            raise ConfigError(f"job.clip_grad_norm_: got {names}; {NORM_ALONE}") from None
        if not (isinstance(norm, Real | Tensor) and float(norm) > 0):
            got = repr(norm) if isinstance(norm, Real) else names
            raise ConfigError(f"job.clip_grad_norm_: got {got}; {NORM_ALONE}")
        return clip(*args, **kwargs)

    return checked


def flatten(objects: Any) -> Iterator[Any]:
    """Yield what is in lists and tuples, in its order."""
    for one in objects:
        if isinstance(one, list | tuple):
            yield from flatten(one)
        else:
            yield one


def check_given(flat: list[Any], modules: list[nn.Module], optimizers: list[Optimizer]) -> None:
    """Raises ConfigError: something that is none of these, or no model among them."""
    for one in flat:
        if not isinstance(one, nn.Module | Optimizer | LRScheduler | GradScaler):
            raise ConfigError(
                f"job.prepare got a {type(one).__name__}; it takes nn.Modules, torch optimizers, "
                "learning rate schedulers, GradScalers and DataLoaders (and lists of them)"
            )
        if isinstance(one, LRScheduler) and one.optimizer not in optimizers:
            raise ConfigError(
                f"job.prepare got a {type(one).__name__} whose optimizer was not given; pass both "
                "in one call"
            )
    if not modules:
        raise ConfigError("job.prepare got no model; call job.prepare(model, optimizer)")

"""What a script gives to ``job.prepare``."""

from collections.abc import Iterator
from typing import Any

from torch import nn
from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from paceline.base.errors import ConfigError


def flatten(objects: Any) -> Iterator[Any]:
    """What is in lists and tuples, in its order."""
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
                "learning rate schedulers and GradScalers (and lists of them)"
            )
        if isinstance(one, LRScheduler) and one.optimizer not in optimizers:
            raise ConfigError(
                f"job.prepare got a {type(one).__name__} whose optimizer was not given; pass both "
                "in one call"
            )
    if not modules:
        raise ConfigError("job.prepare got no model; call job.prepare(model, optimizer)")

"""Learning rate schedulers that follow the job's steps."""

from collections.abc import Callable

from torch.optim.lr_scheduler import LRScheduler


def replace_step(scheduler: LRScheduler, step: Callable[..., None]) -> None:
    """Have ``scheduler.step()`` call this, with the scheduler first."""
    kind = kind_of(scheduler)
    # A class of its own, since what an object holds itself is in its state_dict.
    scheduler.__class__ = type(kind.__name__, (kind,), {"step": step, "_made_of": kind})


def kind_of(scheduler: LRScheduler) -> type[LRScheduler]:
    """Return the class that a scheduler was made of."""
    kind: type[LRScheduler] = getattr(type(scheduler), "_made_of", type(scheduler))
    return kind

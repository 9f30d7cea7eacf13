"""Learning rate schedulers that follow the job's steps."""

import sys
from collections.abc import Callable
from typing import Any

from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau


def replace_step(scheduler: LRScheduler, step: Callable[..., None]) -> None:
    """Have ``scheduler.step()`` call this, with the scheduler first."""
    kind = type(scheduler)
    # A class of its own, since what an object holds itself is in its state_dict.
    scheduler.__class__ = type(kind.__name__, (kind,), {"step": step})


def follow_steps(scheduler: LRScheduler, num_steps: Callable[[], int]) -> None:
    """Make ``scheduler.step()`` follow the job's steps instead of the batches of this worker.

    Args:
        scheduler: changed in place.
        num_steps: how many it is to take when it is called for the batch in hand.
    """
    kind = type(scheduler)
    at_most = 1 if isinstance(scheduler, ReduceLROnPlateau) else sys.maxsize

    def step(self: LRScheduler, *args: Any, **kwargs: Any) -> None:
        for _ in range(min(num_steps(), at_most)):
            kind.step(self, *args, **kwargs)

    replace_step(scheduler, step)

"""Learning rate schedulers that follow the job's steps."""

import sys
from collections.abc import Callable
from types import MethodType
from typing import Any

from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau


def follow_steps(scheduler: LRScheduler, num_steps: Callable[[], int]) -> None:
    """Make ``scheduler.step()`` follow the job's steps instead of the batches of this worker.

    Args:
        scheduler: changed in place.
        num_steps: how many it is to take when it is called for the batch in hand.
    """
    take = scheduler.step
    at_most = 1 if isinstance(scheduler, ReduceLROnPlateau) else sys.maxsize

    def step(self: LRScheduler, *args: Any, **kwargs: Any) -> None:
        for _ in range(min(num_steps(), at_most)):
            take(*args, **kwargs)

    scheduler.step = MethodType(step, scheduler)  # type: ignore[method-assign]

"""Steps of schedulers that a script takes between its loops over ``job.batches``.

Where a script is between two loops is nobody's step: a peer's state, or a cut, may be of before
such a call or of after it. So the state counts them, and who takes it over makes up for those that
its own script has made and the state lacks, or skips those that the state has already.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch.optim.lr_scheduler import LRScheduler

from paceline.runtime.schedules import replace_step

Call = tuple[tuple[Any, ...], dict[str, Any]]


class Outside:
    """The calls of schedulers between loops, in one process.

    Args:
        schedulers: changed in place: their ``step`` follows the job's.
        num_steps: how many steps a call of this scheduler is within a loop; None: there is no loop.
        take: called with a scheduler's number, itself and the arguments of a call that counts;
            None: its own ``step`` is.
    """

    def __init__(
        self,
        schedulers: Sequence[LRScheduler],
        num_steps: Callable[[LRScheduler], int | None],
        take: Callable[..., None] | None = None,
    ) -> None:
        self._schedulers, self._num_steps = schedulers, num_steps
        self._steps = [
            type(one).step if take is None else partial(take, number)
            for number, one in enumerate(schedulers)
        ]
        #: What the script has called, and how much more of it the state has already.
        self._calls: list[list[Call]] = [[] for _ in schedulers]
        self._ahead = [0] * len(schedulers)
        for number, scheduler in enumerate(schedulers):
            self._follow(scheduler, number)

    def _follow(self, scheduler: LRScheduler, number: int) -> None:
        def step(own: LRScheduler, *args: Any, **kwargs: Any) -> None:
            times = self._num_steps(own)
            if times is None:
                times = 1
                self._calls[number].append((args, kwargs))
                if self._ahead[number]:
                    self._ahead[number] -= 1
                    return
            for _ in range(times):
                self._steps[number](own, *args, **kwargs)

        replace_step(scheduler, step)

    def counts(self) -> list[int]:
        """Such calls that the schedulers' state contains."""
        return [len(calls) + more for calls, more in zip(self._calls, self._ahead, strict=True)]

    def became(self, counts: Sequence[int]) -> None:
        """The schedulers' state is another one, which contains so many."""
        for number, (calls, count) in enumerate(zip(self._calls, counts, strict=True)):
            self._ahead[number] = max(0, count - len(calls))
            for args, kwargs in calls[count:]:
                self._steps[number](self._schedulers[number], *args, **kwargs)

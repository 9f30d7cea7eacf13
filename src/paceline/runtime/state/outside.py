"""Steps of schedulers that a script takes between its loops over ``job.batches``.

Where a script is between two loops is nobody's step: a peer's state, or a cut, may be of before
such a call or of after it. So the state counts them, and who takes it over makes up for those that
its own script has made and the state lacks, or skips those that the state has already. A script
that passes over epochs of ``job.epochs`` has made those of these epochs, too.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch.optim.lr_scheduler import LRScheduler

from paceline.runtime.process.process import Fenced
from paceline.wire.messages.feeds import ScriptPlace

START: ScriptPlace = (0, -1)
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
            kind_of(one).step if take is None else partial(take, number)
            for number, one in enumerate(schedulers)
        ]
        #: What the script has called, and how much more of it the state has already.
        self._calls: list[list[Call]] = [[] for _ in schedulers]
        self._ahead = [0] * len(schedulers)
        #: Calls of the epochs that the script has passed over, and where it began then.
        self._passed = [0] * len(schedulers)
        self._begun: ScriptPlace = START
        self.place: ScriptPlace = START
        """Loops over ``job.epochs`` that are over, and the epoch in hand."""
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

    def own(self) -> tuple[int, ...]:
        """Count such calls that the script has made, or passed over."""
        pairs = zip(self._passed, self._calls, strict=True)
        return tuple(passed + len(calls) for passed, calls in pairs)

    def counts(self) -> list[int]:
        """Count such calls that the schedulers' state contains."""
        return [own + more for own, more in zip(self.own(), self._ahead, strict=True)]

    def pass_over(self, place: ScriptPlace, calls: Sequence[int]) -> None:
        """The script begins here, where others had made so many calls."""
        self._begun = self.place = place
        held = self.counts()  # with strategy fsdp the state is here already
        self._passed = [*calls] if len(calls) == len(self._calls) else [0] * len(self._calls)
        self._calls = [[] for _ in self._calls]
        pairs = zip(held, self._passed, strict=True)
        self._ahead = [max(0, count - passed) for count, passed in pairs]

    def is_in_epoch_after(self, place: Sequence[int]) -> bool:
        """Tell whether the script has begun another epoch since it was at this place."""
        return self.place[1] != START[1] and self.place != tuple(place)

    def check(self, place: ScriptPlace | None) -> None:
        """Look whether this script can go on from a state of this place.

        Raises:
            Fenced: it is of before the place where this script began: A passed over epoch 4, and
                all who were in epoch 5 died before a cut of it. Another life begins there.
        """
        if place is not None and tuple(place) < self._begun:
            raise Fenced

    def became(self, counts: Sequence[int], place: ScriptPlace | None = None) -> None:
        """The schedulers' state is another one, which contains so many.

        Args:
            counts: as `counts` of the script whose state it was.
            place: where that script was; None: it is not known.

        Raises:
            Fenced: see `check`.
        """
        self.check(place)
        for number, (calls, count) in enumerate(zip(self._calls, counts, strict=True)):
            self._ahead[number] = max(0, count - self.own()[number])
            for args, kwargs in calls[max(0, count - self._passed[number]) :]:
                self._steps[number](self._schedulers[number], *args, **kwargs)


def replace_step(scheduler: LRScheduler, step: Callable[..., None]) -> None:
    """Have ``scheduler.step()`` call this, with the scheduler first."""
    kind = kind_of(scheduler)
    # A class of its own, since what an object holds itself is in its state_dict.
    scheduler.__class__ = type(kind.__name__, (kind,), {"step": step, "_made_of": kind})


def kind_of(scheduler: LRScheduler) -> type[LRScheduler]:
    """Return the class that a scheduler was made of."""
    kind: type[LRScheduler] = getattr(type(scheduler), "_made_of", type(scheduler))
    return kind

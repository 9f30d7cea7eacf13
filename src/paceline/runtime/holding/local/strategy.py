"""A script without `paceline run`: this process holds the model, torch's optimizers change it.

The same batches and the same arithmetic as in a job of strategy allreduce with one worker. Scripts
with sparse tables, whose rows torch's optimizers do not know, go to `holding.servers.in_process`.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from paceline.base.errors import ConfigError
from paceline.base.samples import SampleSet, between, num_samples
from paceline.runtime.data.growth import Growth
from paceline.runtime.data.local_feed import Dealing
from paceline.runtime.data.reader import Reader
from paceline.runtime.data.work import Array, Work
from paceline.runtime.process.feature_port import Links, LogPlace
from paceline.runtime.script.step_frame import NO_GRADIENT, StepFrame, StepInHand
from paceline.runtime.script.stepping import Stepping, clip_whole, params_of, trained_by
from paceline.runtime.script.strategy import (
    Entries,
    Evaluation,
    Reached,
    Readers,
    Results,
)
from paceline.wire.messages.base import Attempt
from paceline.wire.messages.feeds import Feed, ScriptPlace, SourceLine
from paceline.wire.spec import JobSpec


class Local(Stepping):
    """`Strategy` of the only worker there is."""

    takes_growth = is_alone = can_accumulate = True
    meets_in_bodies = takes_uneven_steps = takes_trainings = True
    regrouping = "freely"
    entries: Entries | None = None
    _loop: "LocalLoop | None"

    def __init__(self, spec: JobSpec) -> None:
        super().__init__(spec, rank=0)
        self._dealing = Dealing()
        self.step = 0
        """See `Strategy.step`."""
        self.samples = 0
        """See `Strategy.samples`."""
        self.global_batch: int | None = None
        """See `Strategy.global_batch`."""

    def prepare(
        self,
        modules: Sequence[nn.Module],
        optimizers: Sequence[Optimizer],
        schedulers: Sequence[LRScheduler],
        scalers: Sequence[GradScaler] = (),
    ) -> None:
        """Prepare the model; schedulers stay as they are, since every batch is a step."""
        self._follow_all(optimizers, scalers)
        self._dealing, self.step, self.samples = Dealing(), 0, 0

    def open_feed(self, feed: Feed, growth: Growth | None = None) -> Feed:
        return self._dealing.open_feed(feed, growth)

    def begun(self) -> None:
        """Do nothing: nobody was here before."""

    def underway(self, place: ScriptPlace) -> None:
        """Return None: nobody was here before."""

    calls: tuple[int, ...] = ()
    """See `Strategy.calls`: nobody makes up for any."""

    def meet(self, place: ScriptPlace, value: bytes, *, all_workers: bool) -> Sequence[bytes]:
        """Return our own value: nobody else is there."""
        return [value]

    def enter_place(self, place: ScriptPlace) -> None:
        """Do nothing: nobody takes it over."""

    def pass_over(self, begun: Reached) -> None:
        """Do nothing: nothing is ever passed over."""

    def source_line(self, line: int) -> SourceLine:
        return self._dealing.source_line(line)

    def check(self, measure: Callable[[Links], None]) -> None:
        """Nobody keeps it."""

    def train(self, feed: Feed, reader: Reader, ahead: int) -> Iterator[Any]:
        steps = self._steps(feed, reader, ahead)
        self._loop = LocalLoop(steps, reader, self._optimizers, self._count, self.accumulate)
        self.global_batch = feed.batch_size
        try:
            yield from self._loop.run()
        finally:
            self._loop = self.global_batch = None

    def _step_by(self, closure: Callable[[], Any], number: int) -> Any:
        assert self._loop is not None
        self._loop.has_closure = True
        found = self._takes[number](closure) if self._loop.on_step(number) else None
        self._loop.stepped()
        return found

    place_in_body: tuple[int, ...] = ()
    """See `Strategy.place_in_body`: nobody asks."""

    def _count(self, num_samples: int) -> None:
        self.step, self.samples = self.step + 1, self.samples + num_samples

    @property
    def num_workers(self) -> int | None:
        return None if self._loop is None else 1

    @property
    def log_place(self) -> LogPlace:
        """Place of the script: nobody keeps what it logs."""
        return LogPlace(Attempt(), self.step, self.samples)

    def _batches(self, feed: Feed, reader: Reader, ahead: int) -> Iterator[tuple[Any, int]]:
        """Yield all batches of a feed, and the samples of each."""
        while (work := self._dealing.next_work(feed.feed)) is not None:
            batch = reader.get(work)
            reader.ask(self._dealing.upcoming(feed.feed, ahead))
            yield batch, work.num_samples

    def _steps(self, feed: Feed, reader: Reader, ahead: int) -> Iterator[list[Work]]:
        """Yield all steps of a feed: the batches of each, asked for some steps ahead."""
        asked: deque[list[Work]] = deque()
        limit = -(-ahead // self.accumulate)
        while True:
            while len(asked) <= limit and (work := self._dealing.take_known(feed.feed)):
                asked.append(self._asked(work, reader))
            if not asked:
                work = self._dealing.next_work(feed.feed)
                if work is None:
                    return
                asked.append(self._asked(work, reader))
            parts = asked.popleft()
            if feed.ends:
                self.global_batch = num_of(parts)
            yield parts

    def _asked(self, work: Work, reader: Reader) -> list[Work]:
        """Have the batches of a step made, behind those before it."""
        parts = self._parts(work)
        reader.add(parts)
        return parts

    def _parts(self, work: Work) -> list[Work]:
        """The batches of a step, as many as the script takes; small ones are of all its samples."""
        count, size = self.accumulate, work.num_samples
        if count == 1:
            return [work]
        if size < count:
            parts = [work.spans] * count
        else:
            edges = [size * k // count for k in range(count + 1)]
            parts = [tuple(between(work.spans, low, high)) for low, high in pairwise(edges)]
        return [Work(work.feed, spans, num_samples(spans), work.step) for spans in parts]

    def evaluate(self, fn: Evaluation, feed: Feed, readers: Readers) -> Results:
        found: dict[str, list[Array]] = {}
        with readers() as reader, torch.no_grad():
            for batch, num_samples in self._batches(feed, reader, ahead=2):
                for name, values in fn(batch, num_samples).items():
                    found.setdefault(name, []).append(values)
        return {name: np.concatenate(parts) for name, parts in found.items()}

    def hand_over(self) -> None:
        """Do nothing: there is nobody to keep what we hold."""

    def checkpoint(self) -> None:
        """Do nothing: nobody keeps cuts of a job of one process."""

    def clip_grad_norm_(self, max_norm: float, optimizer: int | None = None) -> Tensor:
        if optimizer is not None:
            return clip_whole(self._trained_by(optimizer), max_norm)
        return clip_whole(trained_by(self._optimizers), max_norm)


class LocalLoop(StepFrame[StepInHand]):
    """One pass over one feed; torch adds up the gradients of a step's batches.

    Args:
        steps: the batches of each step.
        reader: makes them.
        optimizers: all.
        on_step: called after each step, with the number of its samples.
        accumulate: batches of a step.
    """

    may_accumulate = True

    def __init__(
        self,
        steps: Iterator[list[Work]],
        reader: Reader,
        optimizers: Sequence[Optimizer],
        on_step: Callable[[int], None],
        accumulate: int = 1,
    ) -> None:
        super().__init__(len(optimizers), accumulate)
        self._steps, self._reader = steps, reader
        self._optimizers, self._on_step = optimizers, on_step
        self._works: list[Work] = []
        self._num_samples = 0
        self._batch_no = 0
        self._counted = self._has_gradient = False
        self.has_closure = False
        """Whether an optimizer computes gradients within its step."""
        #: Gradients of the batches of a step that are not alike, by parameter, times what they are
        #: worth.
        self._sums: dict[Tensor, Tensor] = {}
        #: Gradients that were there when the batch began, and their versions.
        self._before: list[tuple[int, int]] = []

    def _begin_next(self) -> StepInHand | None:
        works = next(self._steps, None)
        self._counted = self._has_gradient = False
        self._sums.clear()
        self.step = None
        if works is not None:
            self._works, self._num_samples = works, num_of(works)
            self.step = StepInHand(batch=self._reader.get(works[0]))
            self.num_steps += 1
        return self.step

    def _batches(self, step: StepInHand) -> Iterator[Any]:
        for number, work in enumerate(self._works):
            if number:
                step.batch = self._reader.get(work)
            self._batch_no, self._before = number, self._gradients()
            yield step.batch
            self._finish(step)

    def _gradients(self) -> list[tuple[int, int]]:
        """Return what tells whether a backward has changed a gradient."""
        found = (param.grad for one in self._optimizers for param in params_of(one))
        return [(id(grad), grad._version) for grad in found if grad is not None]

    def _finish(self, step: StepInHand) -> None:
        if self._batch_no + 1 < self.accumulate:
            self._weigh()
            return
        if step.stepped:
            return
        # A batch that the script leaves out, as of a loss that is not finite.
        left = self.accumulate == 1 and self._may_miss_a_step()
        if not left or self._has_new_gradient():
            raise self._not_stepped(step)
        self._all_stepped(step)

    def _has_new_gradient(self) -> bool:
        """Tell whether a backward of this batch has left a gradient that is not zero."""
        if self._gradients() == self._before:
            return False
        params = (param for one in self._optimizers for param in params_of(one))
        return any(bool(param.grad.any()) for param in params if param.grad is not None)

    def _weigh(self) -> None:
        """Have a batch count for its samples, where those of the step differ in size."""
        if len(self._works) == 1:
            return
        sizes = [work.num_samples for work in self._works]
        if len(set(sizes)) == 1:
            return
        worth = self.accumulate * sizes[self._batch_no] / sum(sizes)
        for param in (param for one in self._optimizers for param in params_of(one)):
            if param.grad is not None:
                held = self._sums.get(param)
                value = param.grad * worth
                self._sums[param] = value if held is None else held.add_(value)
                param.grad = None

    def _take(self, step: StepInHand, optimizer: int) -> bool:
        self._check_place(self._batch_no)
        if not step.stepped:
            self._weigh()
            for param, value in self._sums.items():
                param.grad = value
        step.stepped.add(optimizer)
        if not self._has_gradient:
            groups = self._optimizers[optimizer].param_groups
            params = (param for group in groups for param in group["params"])
            self._has_gradient = any(param.grad is not None for param in params)
        lacks = not (self._has_gradient or self.has_closure)
        if lacks and len(step.stepped) == self.num_optimizers:
            raise ConfigError(NO_GRADIENT)
        self.has_taken = True
        self._count()
        return True

    def _all_stepped(self, step: StepInHand) -> None:
        self._count()

    def _count(self) -> None:
        """The batch is done: an optimizer has stepped on it, or none will."""
        if not self._counted:
            self._counted = True
            self._on_step(self._num_samples)


def num_of(works: Sequence[Work]) -> int:
    """Count the samples of a step, each once: a small one may be in all of its batches."""
    if len(works) == 1:
        return works[0].num_samples
    return len(SampleSet(span for work in works for span in work.spans))

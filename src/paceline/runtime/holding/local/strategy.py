"""A script without `paceline run`: this process holds the model, torch's optimizers change it.

The same batches and the same arithmetic as in a job of strategy allreduce with one worker. Scripts
with sparse tables, whose rows torch's optimizers do not know, go to `holding.servers.in_process`.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from paceline.base.errors import ConfigError
from paceline.runtime.data.growth import Growth
from paceline.runtime.data.local_feed import Dealing
from paceline.runtime.data.reader import Reader
from paceline.runtime.data.work import Array
from paceline.runtime.step_frame import NO_GRADIENT, StepFrame, StepInHand
from paceline.runtime.stepping import Stepping, clip_whole, params_of, trained_by
from paceline.runtime.strategy import Evaluation, Reached, Readers, Results
from paceline.wire.messages.checks import Checked
from paceline.wire.messages.feeds import Feed, ScriptPlace, SourceLine
from paceline.wire.spec import JobSpec


class Local(Stepping):
    """`Strategy` of the only worker there is."""

    takes_growth = is_alone = True
    _loop: "LocalLoop | None"

    def __init__(self, spec: JobSpec) -> None:
        super().__init__(spec, rank=0)
        self._params: list[nn.Parameter] = []
        self._dealing = Dealing()
        self.step = 0
        """See `Strategy.step`."""
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
        self._params = trained_by(optimizers)
        self._follow_all(optimizers, scalers)

    def open_feed(self, feed: Feed, growth: Growth | None = None) -> Feed:
        return self._dealing.open_feed(feed, growth)

    def begun(self) -> None:
        """Nobody was here before."""

    calls: tuple[int, ...] = ()
    """See `Strategy.calls`: nobody makes up for any."""

    def meet(self, place: ScriptPlace, value: bytes, *, all_workers: bool) -> Sequence[bytes]:
        """Nobody else is there."""
        return [value]

    def enter_place(self, place: ScriptPlace) -> None:
        """Nobody takes it over."""

    def pass_over(self, begun: Reached) -> None:
        """Nothing is ever passed over."""

    def source_line(self, line: int) -> SourceLine:
        return self._dealing.source_line(line)

    def check(self, measure: Callable[[], Checked]) -> None:
        """Nobody keeps it."""

    def train(self, feed: Feed, reader: Reader, ahead: int) -> Iterator[Any]:
        batches = self._batches(feed, reader, ahead)
        self._loop = LocalLoop(batches, self._optimizers, self._count)
        self.global_batch = feed.batch_size
        try:
            yield from self._loop.run()
        finally:
            self._loop = self.global_batch = None

    def _count(self) -> None:
        self.step += 1

    def _batches(self, feed: Feed, reader: Reader, ahead: int) -> Iterator[tuple[Any, int]]:
        """All batches of a feed, and the samples of each."""
        while (work := self._dealing.next_work(feed.feed)) is not None:
            batch = reader.get(work)
            reader.ask(self._dealing.upcoming(feed.feed, ahead))
            yield batch, work.num_samples

    def evaluate(self, fn: Evaluation, feed: Feed, readers: Readers) -> Results:
        found: dict[str, list[Array]] = {}
        with readers() as reader, torch.no_grad():
            for batch, num_samples in self._batches(feed, reader, ahead=2):
                for name, values in fn(batch, num_samples).items():
                    found.setdefault(name, []).append(values)
        return {name: np.concatenate(parts) for name, parts in found.items()}

    def hand_over(self) -> None:
        """There is nobody to keep it."""

    def checkpoint(self) -> None:
        """Nobody keeps cuts of a job of one process."""

    def clip_grad_norm_(self, max_norm: float) -> Tensor:
        return clip_whole(self._params, max_norm)


class LocalLoop(StepFrame[StepInHand]):
    """One pass over one feed, whose every batch is a step; ``on_step``: called after each."""

    def __init__(
        self,
        batches: Iterator[tuple[Any, int]],
        optimizers: Sequence[Optimizer],
        on_step: Callable[[], None],
    ) -> None:
        super().__init__(len(optimizers))
        self._feed, self._optimizers, self._on_step = batches, optimizers, on_step
        self._has_gradient = False

    def _begin_next(self) -> StepInHand | None:
        found = next(self._feed, None)
        self._has_gradient = False
        self.step = None if found is None else StepInHand(batch=found[0])
        return self.step

    def _take(self, step: StepInHand, optimizer: int) -> bool:
        step.stepped.add(optimizer)
        params = params_of(self._optimizers[optimizer])
        self._has_gradient |= any(param.grad is not None for param in params)
        if not self._has_gradient and len(step.stepped) == self.num_optimizers:
            raise ConfigError(NO_GRADIENT)
        return True

    def _all_stepped(self, step: StepInHand) -> None:
        self._on_step()

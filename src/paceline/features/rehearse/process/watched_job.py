"""The job of a script that is rehearsed: shorter than asked for, with notes of what it does."""

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import suppress
from itertools import takewhile
from typing import Any, ClassVar

import msgspec
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader

from paceline.base.errors import ConfigError
from paceline.features.rehearse.plan import BEFORE_STEP, LoggedValues, PreparedModel
from paceline.features.rehearse.process.looking import Looking
from paceline.runtime.script.batch_loop import BatchLoop
from paceline.runtime.script.dealt import DealtLoader
from paceline.runtime.script.job import Job, LoopAsked, LoopRead
from paceline.runtime.script.logged import checked_log
from paceline.runtime.script.strategy import Strategy
from paceline.wire.messages.feeds import Feed

WHOLE_ON_WORKERS = ("ps", "fsdp")
"""Strategies whose workers do not hold all of the model."""


class RehearsedJob(Job):
    """`Job` with a `Looking`. All that shortens is in `_read`, `_dealt` and `epochs`."""

    looking: ClassVar[Looking]
    num_trainings: ClassVar[int] = 0
    """Calls of ``job.prepare`` in this process."""
    on_prepared: ClassVar[list[Callable[[list[nn.Module]], None]]] = []
    """Called with the models before ``job.prepare`` takes them over."""

    def __init__(self, strategy: Strategy) -> None:
        super().__init__(strategy)
        # Libraries with loops of their own know how long their epochs are.
        self._shortens = not getattr(strategy, "whole_steps", False)
        self._size = 1
        self._of_training = ""
        self.looking.on_end.append(self._keep_end)

    # ------------------------------------------------------------------ shorter

    def _read(self, asked: LoopAsked, turn: int | None = None) -> LoopRead:
        read = super()._read(asked, turn)
        if not self._shortens:
            return read
        feed = _shortened(read.feed, self.looking.plan.batches, self._most())
        return read._replace(feed=feed, growth=None)

    def _dealt(self, loader: DataLoader[Any], accumulate: int) -> DealtLoader:
        """Return the loader, as long as the loop over it: an engine may count its batches."""
        dealt = super()._dealt(loader, accumulate)
        dealt.most = self.looking.plan.batches * accumulate if self._shortens else None
        return dealt

    def _most(self) -> int:
        return self.looking.plan.epochs

    def epochs(self, epochs: int) -> Iterator[int]:
        fewer = min(epochs, self._most()) if isinstance(epochs, int) and epochs > 0 else epochs
        return self._each(super().epochs(fewer))

    # ------------------------------------------------------------------ what is noted

    def _each(self, epochs: Iterator[int]) -> Iterator[int]:
        for epoch in epochs:
            try:
                yield epoch
            except GeneratorExit:
                if self.looking.is_leaving_a_loop():
                    self._take_end_of_epoch()
                raise
            self._take_end_of_epoch()

    def _take_end_of_epoch(self) -> None:
        # Not the one that the script began: a new life may have come in in a later one.
        self.looking.take(f"the end of epoch {self._course.epoch}{self._of_training}")

    def batches(self, dataset: Any, *args: Any, **given: Any) -> BatchLoop:
        loop = super().batches(dataset, *args, **given)
        return BatchLoop(self._watched(loop), loop._count, self._strategy.variables)

    def _watched(self, loop: BatchLoop) -> Generator[Any, None, None]:
        looking, count = self.looking, 0
        number = looking.begin_loop()
        try:
            for batch in loop:
                count, self._size = count + 1, _size_of(batch)
                step = (self._strategy.step or 0) + 1
                looking.take(f"{BEFORE_STEP}{step}{self._of_training}")
                looking.at_batch(number, count)
                yield batch
        except GeneratorExit:
            looking.leave_loop(number, count)
            raise
        finally:
            loop.close()
        looking.end_loop(number, count)
        if self._course.epoch is None:
            # Not the one that the script began: a new life may have come in in a later one.
            place = self._strategy.variables.place
            ended = place[-1] if place else number
            looking.take(f"the end of loop {ended + 1}{self._of_training}")

    def evaluate(self, fn: Any, dataset: Any, *args: Any, **given: Any) -> dict[str, Tensor]:
        found = super().evaluate(self.looking.evaluating(fn), dataset, *args, **given)
        self.looking.evaluated(draws=any(_draws(one) for one in self._modules))
        return found

    def log(
        self, values: Mapping[str, float | Tensor] | None = None, /, **named: float | Tensor
    ) -> None:
        super().log(values, **named)
        numbers = checked_log({} if values is None else values) | checked_log(named)
        plain = {name: float(value) for name, value in numbers.items()}
        size = self._size if self._looping else 1
        self.looking.note(LoggedValues(self._strategy.log_place.step, plain, size))

    def prepare(self, *objects: Any, accumulate: int = 1) -> Any:
        flat = [*_flat(objects)]
        modules = [one for one in flat if isinstance(one, nn.Module)]
        RehearsedJob.num_trainings += 1
        if self.num_trainings > 1:
            self._of_training = f" of training {self.num_trainings}"
        self.looking.note(_described(modules, self.looking.place()[1]))
        for call in self.on_prepared:
            call(modules)
        self._keep("began", modules)
        return super().prepare(*objects, accumulate=accumulate)

    # ------------------------------------------------------------------ weights

    def _keep_end(self) -> None:
        if not self._modules:
            return
        if self._strategy.is_alone or self._strategy.spec.strategy not in WHOLE_ON_WORKERS:
            with suppress(ConfigError):
                self._keep_state("ended", self.state_dict())

    def _keep(self, word: str, modules: list[nn.Module]) -> None:
        if len(modules) == 1:
            self._keep_state(word, modules[0].state_dict())
            return
        merged: dict[str, Any] = {}
        for number, module in enumerate(modules):
            merged |= module.state_dict(prefix=f"{number}.")
        self._keep_state(word, merged)

    def _keep_state(self, word: str, state: Mapping[str, Any]) -> None:
        if self._strategy.is_alone:  # a shard of one worker is all of a tensor
            state = {name: _whole(value) for name, value in state.items()}
        plain = {name: value for name, value in state.items() if type(value) in _PLAIN}
        self.looking.keep(word, {name: _array(value) for name, value in plain.items()})


_PLAIN = (Tensor, nn.Parameter)


def _whole(value: Any) -> Any:
    return value.full_tensor() if isinstance(value, DTensor) else value


def _array(value: Tensor) -> Any:
    plain = value.detach().cpu()
    exact = plain.dtype in (torch.float32, torch.float64)
    return (plain if exact else plain.to(torch.float64)).clone().numpy()


def _shortened(feed: Feed, batches: int, epochs: int) -> Feed:
    """Return the same feed over the first batches of its records."""
    most = batches * feed.batch_size
    ends = tuple(takewhile(lambda end: end <= most, feed.ends)) or feed.ends[:1]
    if ends:
        most = ends[-1]
    length = most if feed.num_samples is None else min(most, feed.num_samples)
    return msgspec.structs.replace(
        feed, num_samples=length, ends=ends, epochs=min(feed.epochs, epochs)
    )


def _size_of(batch: Any) -> int:
    """The number of samples of a batch; 1: it does not say."""
    match batch:
        case Tensor() if batch.ndim:
            return len(batch)
        case Mapping():
            parts = list(batch.values())
        case list() | tuple():
            parts = list(batch)
        case _:
            parts = list(vars(batch).values()) if hasattr(batch, "__dict__") else []
    return next((size for one in parts if (size := _size_of(one)) != 1), 1)


def _flat(objects: Any) -> Iterator[Any]:
    for one in objects:
        if isinstance(one, list | tuple):
            yield from _flat(one)
        else:
            yield one


_DROPOUT = nn.modules.dropout._DropoutNd


def _draws(model: nn.Module) -> bool:
    drops = (one for one in model.modules() if isinstance(one, _DROPOUT))
    return any(one.training and one.p > 0 for one in drops)


def _described(modules: list[nn.Module], line: int) -> PreparedModel:
    named = [(name, one) for root in modules for name, one in root.named_modules()]
    draws = tuple(
        f"{name or type(one).__name__} ({type(one).__name__})"
        for name, one in named
        if isinstance(one, _DROPOUT) and one.p > 0
    )
    norms = (
        f"{name or type(one).__name__} ({type(one).__name__})"
        for name, one in named
        if isinstance(one, nn.modules.batchnorm._BatchNorm)
    )
    return PreparedModel(line, draws, tuple(norms))

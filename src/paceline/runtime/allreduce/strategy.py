"""Strategy allreduce: every worker holds the model, and torch's own optimizers change it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from time import monotonic
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from paceline.base.errors import ConfigError, InternalError
from paceline.runtime.allreduce.blocks import BlockReducer
from paceline.runtime.allreduce.buffers import Buffers
from paceline.runtime.allreduce.client import GroupClient
from paceline.runtime.allreduce.loop import Loop
from paceline.runtime.allreduce.outside import Outside
from paceline.runtime.allreduce.reducer import Reducer
from paceline.runtime.allreduce.replica import Replica
from paceline.runtime.allreduce.scaling import follow_steps
from paceline.runtime.data.growth import Growth
from paceline.runtime.data.reader import Reader
from paceline.runtime.data.work import Array
from paceline.runtime.process import Process
from paceline.runtime.ps.embedding import Embedding
from paceline.runtime.strategy import Evaluation
from paceline.wire.messages.checks import NodeSpeed
from paceline.wire.messages.feeds import Feed, SourceLine
from paceline.wire.messages.group import NO_STEP


class HeldByAll:
    """`Strategy` of a member of an elastic group."""

    takes_growth = False

    def __init__(self, process: Process) -> None:
        self.spec, self.rank = process.spec, process.rank
        self.client = GroupClient(process)
        self._reducer: Reducer | None = None
        self._optimizers: Sequence[Optimizer] = ()
        self._params: list[nn.Parameter] = []
        self._loop: Loop | None = None
        self.largest: int | None = None
        """Samples of a yielded batch at most; a larger share comes as several batches."""
        #: What the optimizers' own steps are.
        self._takes: list[Callable[[], Any]] = []
        if self.spec.deterministic:
            torch.use_deterministic_algorithms(True)

    def prepare(
        self,
        modules: Sequence[nn.Module],
        optimizers: Sequence[Optimizer],
        schedulers: Sequence[LRScheduler],
        scalers: Sequence[GradScaler] = (),
    ) -> None:
        """See `Strategy.prepare`."""
        _check_dense(modules)
        self._params = _trained(optimizers)
        # With several optimizers a backward may belong to any of them: nothing leaves before all
        # of them step.
        early = len(optimizers) == 1
        if self.spec.deterministic:
            self._reducer = BlockReducer(self._params, Buffers(modules), early=early)
        else:
            self._reducer = Reducer(self._params, early=early)
        self._optimizers = optimizers
        for number, optimizer in enumerate(optimizers):
            self._follow(optimizer, number)
        outside = Outside(schedulers, self._num_schedules)
        for scaler in scalers:
            follow_steps(scaler, optimizers, lambda: self._loop)
        self.client.start(Replica(modules, optimizers, schedulers, outside, scalers))

    def _follow(self, optimizer: Optimizer, number: int) -> None:
        """Make ``optimizer.step()`` apply the mean over all members, or nothing."""
        take = optimizer.step
        known = {id(param): param.requires_grad for param in _all_of(optimizer)}
        self._takes.append(take)

        def step(own: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
            if closure is not None:
                raise ConfigError(
                    f"{type(own).__name__}.step() was given a closure, which computes gradients "
                    "again and again; strategy allreduce takes optimizers that use them once"
                )
            if self._loop is None:
                raise ConfigError(
                    "optimizer.step() was called outside of a loop over job.batches; only batches "
                    "of the job can be trained on"
                )
            own._opt_called = True  # type: ignore[attr-defined]
            _check_known(own, known)
            if self._loop.on_step(number):
                take()
            self._loop.stepped()
            return None

        # What schedulers made before look for, to see whether somebody took `step` away from them.
        step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
        optimizer.step = MethodType(step, optimizer)  # type: ignore[method-assign]

    def _num_schedules(self) -> int | None:
        """A step that broke comes again; None: there is no loop."""
        if self._loop is None:
            return None
        return int(self._loop.step is None or self._loop.step.holds)

    def open_feed(self, feed: Feed, growth: Growth | None = None) -> Feed:
        """See `Strategy.open_feed`."""
        return self.client.open_feed(feed)

    def source_line(self, line: int) -> SourceLine:
        """See `Strategy.source_line`."""
        return self.client.source_line(line)

    def check(self, measure: Callable[[], NodeSpeed]) -> None:
        """See `Strategy.check`."""
        self.client.check(measure)

    def train(self, feed: Feed, reader: Reader, ahead: int) -> Iterator[Any]:
        """See `Strategy.train`."""
        if self._reducer is None:
            raise InternalError("the model was used before it was prepared")
        if self.client.is_complete(feed.feed):
            self.client.load_end(feed)
            return
        if self.client.joins_others and self.client.state.step == NO_STEP:
            self._make_room()
        number = len(self._optimizers)
        self._loop = Loop(self.client, self._reducer, feed, reader, ahead, number, self.largest)
        try:
            yield from self._loop.run()
        finally:
            self._loop = None

    def _make_room(self) -> None:
        """Have the optimizers make their state, which is copied from a peer while others wait.

        Memory that is written to for the first time costs more than what is written.
        """
        self.client.touched = True
        for param in self._params:
            param.grad = torch.zeros_like(param)
        for take in self._takes:
            take()
        for param in self._params:
            param.grad = None

    @property
    def in_step(self) -> bool:
        """See `Strategy.in_step`."""
        step = self._loop.step if self._loop is not None else None
        return step is not None and not step.stepped

    @property
    def holds(self) -> bool:
        """Whether ``optimizer.step()`` would change the model now, after ``loss.backward()``.

        It would not where another batch of the step follows, or all of it because the group broke.
        """
        if self._loop is None:
            return False
        self._loop.settle()
        return self._loop.step is not None and self._loop.step.holds

    def evaluate(
        self, fn: Evaluation, feed: Feed, readers: Callable[[], AbstractContextManager[Reader]]
    ) -> Mapping[str, Array]:
        """See `Strategy.evaluate`."""
        start_s = monotonic()
        self.client.unmark()
        results = None
        if not self.client.is_complete(feed.feed):
            self.client.await_state()
        while results is None:
            with readers() as reader, torch.no_grad():
                while (work := self.client.next_work(feed.feed)) is not None:
                    self.client.evaluate_put(work, fn(reader.get(work), work.num_samples))
            results = self.client.evaluate_get(feed.feed)
        if self._loop is not None:
            self._loop.excluded_s += monotonic() - start_s
        return results

    def checkpoint(self) -> None:
        """See `Strategy.checkpoint`."""
        self.client.checkpoint()

    def clip_grad_norm_(self, max_norm: float) -> Tensor:
        """See `Strategy.clip_grad_norm_`: of the mean over all members."""
        if self._loop is not None:
            self._loop.settle()
        return clip_grad_norm_(self._params, max_norm)


def _all_of(optimizer: Optimizer) -> list[nn.Parameter]:
    return [param for group in optimizer.param_groups for param in group["params"]]


def _check_known(optimizer: Optimizer, known: dict[int, bool]) -> None:
    """Raises ConfigError: it would train something by the gradients of this worker alone."""
    for param in _all_of(optimizer):
        if not known.get(id(param), False) and param.grad is not None:
            raise ConfigError(
                f"a parameter of shape {tuple(param.shape)} has a gradient, but was frozen, or not "
                "in its optimizer, at job.prepare, so that it is not averaged over the workers; "
                "prepare it with requires_grad=True"
            )


def _check_dense(modules: Sequence[nn.Module]) -> None:
    """Raises ConfigError: a table whose rows only servers hold."""
    for root in modules:
        for name, module in root.named_modules():
            if isinstance(module, Embedding) or getattr(module, "sparse", False):
                raise ConfigError(
                    f"job.prepare: {name or type(module).__name__} is a sparse table, whose rows "
                    "live on parameter servers; run the job with --strategy ps, or make it an "
                    "nn.Embedding without sparse=True"
                )


def _trained(optimizers: Sequence[Optimizer]) -> list[nn.Parameter]:
    """The parameters of all optimizers, each once, in their order.

    Raises:
        ConfigError: one that is not there, or is in two optimizers.
    """
    params: list[nn.Parameter] = []
    for optimizer in optimizers:
        params += [param for param in _all_of(optimizer) if param.requires_grad]
    if len({id(param) for param in params}) < len(params):
        raise ConfigError("a parameter is in two optimizers (or twice in one); give it to one")
    return params

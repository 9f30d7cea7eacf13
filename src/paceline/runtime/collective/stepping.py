"""What is alike in strategies whose workers change the model with torch's own optimizers."""

from collections.abc import Callable, Sequence
from types import MethodType
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from paceline.base.errors import ConfigError
from paceline.runtime.collective.loop import Loop
from paceline.runtime.collective.member import MemberClient
from paceline.runtime.data.growth import Growth
from paceline.runtime.process import Process
from paceline.runtime.ps.embedding import Embedding
from paceline.wire.messages.feeds import Feed, SourceLine


class Stepping:
    """The part of a `Strategy` that makes ``optimizer.step()`` a step of the job."""

    takes_growth = False

    def __init__(self, process: Process, client: MemberClient) -> None:
        self.spec, self.rank = process.spec, process.rank
        self._member = client
        self._optimizers: Sequence[Optimizer] = ()
        self._loop: Loop | None = None
        #: What the optimizers' own steps are.
        self._takes: list[Callable[[], Any]] = []

    def _follow_all(self, optimizers: Sequence[Optimizer]) -> None:
        self._optimizers = optimizers
        for number, optimizer in enumerate(optimizers):
            self._follow(optimizer, number)

    def _follow(self, optimizer: Optimizer, number: int) -> None:
        """Make ``optimizer.step()`` apply the mean over all members, or nothing."""
        take = optimizer.step
        known = {id(param): param.requires_grad for param in params_of(optimizer)}
        self._takes.append(take)

        def step(own: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
            if closure is not None:
                raise ConfigError(
                    f"{type(own).__name__}.step() was given a closure, which computes gradients "
                    f"again and again; strategy {self.spec.strategy} takes optimizers that use "
                    "them once"
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

    @property
    def global_batch(self) -> int | None:
        """See `Strategy.global_batch`."""
        step = self._loop.step if self._loop is not None else None
        return step.global_batch if step is not None else None

    def open_feed(self, feed: Feed, growth: Growth | None = None) -> Feed:
        """See `Strategy.open_feed`."""
        return self._member.open_feed(feed)

    def source_line(self, line: int) -> SourceLine:
        """See `Strategy.source_line`."""
        return self._member.source_line(line)

    @property
    def in_step(self) -> bool:
        """See `Strategy.in_step`."""
        step = self._loop.step if self._loop is not None else None
        return step is not None and not step.stepped

    def checkpoint(self) -> None:
        """See `Strategy.checkpoint`."""
        self._member.checkpoint()


def params_of(optimizer: Optimizer) -> list[nn.Parameter]:
    """All of its groups, in their order."""
    return [param for group in optimizer.param_groups for param in group["params"]]


def _check_known(optimizer: Optimizer, known: dict[int, bool]) -> None:
    """Raises ConfigError: it would train something by the gradients of this worker alone."""
    for param in params_of(optimizer):
        if not known.get(id(param), False) and param.grad is not None:
            raise ConfigError(
                f"a parameter of shape {tuple(param.shape)} has a gradient, but was frozen, or not "
                "in its optimizer, at job.prepare, so that it is not averaged over the workers; "
                "prepare it with requires_grad=True"
            )


def trained_by(optimizers: Sequence[Optimizer]) -> list[nn.Parameter]:
    """The parameters of all optimizers, each once, in their order.

    Raises:
        ConfigError: one that is not there, or is in two optimizers.
    """
    params: list[nn.Parameter] = []
    for optimizer in optimizers:
        params += [param for param in params_of(optimizer) if param.requires_grad]
    if len({id(param) for param in params}) < len(params):
        raise ConfigError("a parameter is in two optimizers (or twice in one); give it to one")
    return params


def device_of(params: Sequence[nn.Parameter]) -> torch.device:
    """Where all of them are.

    Raises:
        ConfigError: they are on several devices.
    """
    devices = {str(param.device): param.device for param in params}
    if len(devices) > 1:
        first, second, *_ = sorted(devices)
        raise ConfigError(
            f"job.prepare: parameters are on {first} and on {second}; a worker trains on one "
            "device: move all of the model there, before its optimizer is made"
        )
    return next(iter(devices.values()), torch.device("cpu"))


def check_dense(modules: Sequence[nn.Module]) -> None:
    """Raises ConfigError: a table whose rows only servers hold."""
    for root in modules:
        for name, module in root.named_modules():
            if isinstance(module, Embedding) or getattr(module, "sparse", False):
                raise ConfigError(
                    f"job.prepare: {name or type(module).__name__} is a sparse table, whose rows "
                    "live on parameter servers; run the job with --strategy ps, or make it an "
                    "nn.Embedding without sparse=True"
                )

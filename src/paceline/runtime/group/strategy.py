"""What is alike in strategies whose workers are members of a group."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.optim.swa_utils import AveragedModel

from paceline.base.errors import ConfigError
from paceline.runtime.averages import update_when
from paceline.runtime.data.growth import Growth
from paceline.runtime.embedding import Embedding
from paceline.runtime.group.loop import GroupLoop
from paceline.runtime.group.member import MemberClient
from paceline.runtime.prepared import why_empty
from paceline.runtime.process import Process
from paceline.runtime.state.tree import why_unmovable
from paceline.runtime.stepping import Stepping
from paceline.wire.messages.feeds import Feed, SourceLine
from paceline.wire.messages.group import NO_STEP


class Together(Stepping):
    """The part of a member's `Strategy` that makes ``optimizer.step()`` a step of all members."""

    takes_growth = False
    _loop: GroupLoop | None

    def __init__(self, process: Process, client: MemberClient) -> None:
        super().__init__(process.spec, process.rank)
        self._member = client
        self.script_state.on_set = self._keep

    def _num_schedules(self, scheduler: LRScheduler) -> int | None:
        """Of a call in the body of a loop; None: there is no loop.

        A step that broke comes again. One that lacks samples may complete no global batch, or one
        more. What looks at a measure looks once for each step: it does not count batches.

        Raises:
            ConfigError: whether the step breaks is not known yet: the call would come to nothing.
        """
        step = self._loop.step if self._loop is not None else None
        if step is not None and not step.stepped:
            raise ConfigError(
                f"{type(scheduler).__name__}.step() was called before optimizer.step() of its "
                "batch; call it after it, or between two loops over job.batches"
            )
        if step is None or isinstance(scheduler, ReduceLROnPlateau):
            return None if self._loop is None else int(step is None or step.holds)
        return step.num_batches if step.holds else 0

    @property
    def global_batch(self) -> int | None:
        """See `Strategy.global_batch`."""
        step = self._loop.step if self._loop is not None else None
        return step.global_batch if step is not None else None

    @property
    def step(self) -> int | None:
        """See `Strategy.step`."""
        state = self._member.state
        if state.step == NO_STEP:  # at most a cut of the end was read, for which no group is needed
            return state.position.value
        return state.position.at(state.step)

    @property
    def num_steps(self) -> int | None:
        """Steps in the model, those that completed no global batch too; None: not known yet."""
        step = self._member.state.step
        return None if step == NO_STEP else step

    def _keep(self, value: Any) -> None:
        if isinstance(value, AveragedModel):
            self._follow_average(value)

    def _average_once_per_step(self, modules: Sequence[nn.Module]) -> None:
        """Have averages of weights updated once for each step, also where one comes again."""
        for module in modules:
            if isinstance(module, AveragedModel):
                self._follow_average(module)

    def _follow_average(self, average: AveragedModel) -> None:
        last: int | None = None

        def is_due() -> bool:
            nonlocal last
            # The body of a step that broke runs again, with the weights of the step before.
            # So does the body for each batch of a step, of which only the last changes them.
            now = self._loop.step if self._loop is not None else None
            unchanged = now is not None and bool(now.stepped) and not now.holds
            if unchanged or (self.num_steps is not None and self.num_steps == last):
                return False
            last = self.num_steps
            return True

        update_when(average, is_due)

    def open_feed(self, feed: Feed, growth: Growth | None = None) -> Feed:
        """See `Strategy.open_feed`."""
        return self._member.open_feed(feed)

    def source_line(self, line: int) -> SourceLine:
        """See `Strategy.source_line`."""
        return self._member.source_line(line)

    def checkpoint(self) -> None:
        """See `Strategy.checkpoint`."""
        self._member.checkpoint()

    def hand_over(self) -> None:
        """See `Strategy.hand_over`."""
        if self._loop is not None:
            self._loop.abandon()
        self._member.hand_over()


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


def check_movable(modules: Sequence[nn.Module]) -> None:
    """Raises ConfigError: a parameter or buffer that no other worker could take over."""
    for root in modules:
        saved = dict(root.named_parameters())
        for path, owner in root.named_modules():
            for name, buffer in owner._buffers.items():
                if buffer is not None and name not in owner._non_persistent_buffers_set:
                    saved[f"{path}.{name}".lstrip(".")] = buffer
        for name, tensor in saved.items():
            why = why_empty(tensor) or why_unmovable(tensor)
            if why is not None:
                raise ConfigError(f"job.prepare: {name} cannot be kept or copied: it is {why}")

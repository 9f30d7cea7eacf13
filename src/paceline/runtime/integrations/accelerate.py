"""Hugging Face's Accelerator as a member of a job.

The loop is the script's: it gets every batch of this worker's shares, as from ``job.batches``, and
calls ``optimizer.step()`` for each; the model changes with the last one of a step.
"""

import dataclasses
import sys
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import accelerate
from accelerate.utils import DistributedType, send_to_device
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from paceline.base.errors import ConfigError
from paceline.runtime.integrations.steps import SharedLoader, ThisMember, join
from paceline.runtime.script.job import Job
from paceline.runtime.script.step_frame import OUTSIDE

_SPLIT_BATCHES = 1
"""Place of this argument."""


def take_rank(member: ThisMember) -> None:
    """Let accelerate know who logs and saves.

    The number of processes stays 1: nobody but the job gathers, cuts up or waits for
    anything.
    """
    state = accelerate.PartialState()
    state.process_index = state.local_process_index = member.rank


class Accelerator(accelerate.Accelerator):
    """`accelerate.Accelerator` in whose place it is put; see docs/howto/trainers.md.

    Without `paceline run`, or in a torchrun script, it is that class alone. In a job of
    strategy allreduce a step has the loader's ``batch_size * gradient_accumulation_steps`` samples
    for each of the workers that the job was asked for; for all of them with
    ``dataloader_config=DataLoaderConfiguration(split_batches=True)``.

    Raises:
        ConfigError: a plugin or a precision that cannot hold in a job whose workers come and go.
    """

    def __init__(
        self,
        *given: Any,
        gradient_accumulation_steps: int = 1,
        gradient_accumulation_plugin: Any = None,
        **named: Any,
    ) -> None:
        self._member = join("Accelerator")
        self._accumulation = gradient_accumulation_steps
        self._computing = False
        self._held: list[Any] = []
        """Models, optimizers and schedulers that will train together."""
        self._waits = False
        """Whether the job does not have all of them yet: it gets them when a loader is read."""
        plugin = gradient_accumulation_plugin
        if self._member is not None:
            take_rank(self._member)
            if plugin is not None:
                self._accumulation = plugin.num_steps
                plugin = dataclasses.replace(plugin, num_steps=1)
            gradient_accumulation_steps = 1
        super().__init__(
            *given,
            gradient_accumulation_steps=gradient_accumulation_steps,
            gradient_accumulation_plugin=plugin,
            **named,
        )
        if self._member is None:
            return
        asked = named.get("split_batches") or given[_SPLIT_BATCHES : _SPLIT_BATCHES + 1] == (True,)
        if asked is True and not self.split_batches:
            sys.stderr.write(
                f"paceline: accelerate {accelerate.__version__} does not heed "
                "Accelerator(split_batches=True), so the loader's batch is that of each worker. "
                "If it is to be that of all workers, say "
                "dataloader_config=DataLoaderConfiguration(split_batches=True)\n"
            )
        if self.distributed_type != DistributedType.NO:
            raise ConfigError(
                f"Accelerator distributes by {self.distributed_type}, which is the job's part; "
                "leave its plugins out"
            )
        if self.scaler is not None:
            raise ConfigError(
                "Accelerator(mixed_precision='fp16') in a job of paceline: the library's own "
                "scaler is not the job's; use bf16"
            )

    @property
    def job(self) -> Job | None:
        """The job that this loop trains in; None: without `paceline run`."""
        return None if self._member is None else self._member.job

    @property
    def sync_gradients(self) -> bool:
        """Whether the batch in hand completes a step of the job.

        Accelerate's own state says so of every batch, since ``optimizer.step()`` is called for
        every batch: the job finds itself which of them are the last of this worker's share.
        """
        if self._member is None:
            return bool(super().sync_gradients)
        return self._member.strategy.completes_step

    @sync_gradients.setter
    def sync_gradients(self, sync_gradients: bool) -> None:
        self.gradient_state.sync_gradients = sync_gradients

    @property
    def gradient_accumulation_steps(self) -> int:
        """Batches of a worker in a step, as the script has said."""
        if self._member is None or self._computing:
            return int(self.gradient_state.num_steps)
        return self._accumulation

    @gradient_accumulation_steps.setter
    def gradient_accumulation_steps(self, gradient_accumulation_steps: int) -> None:
        if self._member is None:
            own = {"num_steps": gradient_accumulation_steps}
            self.gradient_state.plugin_kwargs.update(own)
        else:
            self._accumulation = gradient_accumulation_steps

    def backward(self, loss: Any, **named: Any) -> None:
        """Do as accelerate does, but divide by nothing: the job weighs batches by their samples."""
        self._computing = True
        try:
            super().backward(loss, **named)
        finally:
            self._computing = False

    def prepare(self, *given: Any, **named: Any) -> Any:
        """Prepare as accelerate does; the job gets all when a loader is read for training.

        If a model is in training mode when a loader is read, the loader is dealt out among the
        workers; otherwise each worker reads all of it. Several calls before that make one training;
        a later call that brings a model begins the next one.
        """
        if self._member is None:
            return super().prepare(*given, **named)
        held = [one for one in given if isinstance(one, nn.Module | Optimizer | LRScheduler)]
        if held:
            self._hold(held)
        prepared = super().prepare(*given, **named)
        every = prepared if isinstance(prepared, tuple) else (prepared,)
        found = tuple(
            _Dealt(self, self._member, one) if isinstance(one, DataLoader) else one for one in every
        )
        return found if isinstance(prepared, tuple) else found[0]

    def _hold(self, held: list[Any]) -> None:
        is_next = not self._waits and any(isinstance(one, nn.Module) for one in held)
        self._held = [*([] if is_next else self._held), *held]
        self._waits = True
        for one in held:
            if isinstance(one, Optimizer):
                one.register_step_pre_hook(self._check_begun)

    def _check_begun(self, *_: Any) -> None:
        """Raise ConfigError if an optimizer steps that the job does not have."""
        if self._waits:
            raise ConfigError(OUTSIDE)

    def _begin(self) -> None:
        """Give the job what will train together."""
        if self._waits and self._member is not None:
            self._waits = False
            self._member.job.prepare(*self._held)
            # Accelerate's own around these, by which a script calls them.
            own = [*self._models, *self._optimizers, *self._schedulers]
            self._member.strategy.variables.others |= set(map(id, own))

    @property
    def _trains(self) -> bool:
        return any(one.training for one in self._held if isinstance(one, nn.Module))


class _Dealt:
    """A prepared loader."""

    def __init__(self, accelerator: Accelerator, member: ThisMember, loader: Any) -> None:
        self._accelerator, self._member, self._loader = accelerator, member, loader
        self._shared: SharedLoader | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def _dealt(self) -> SharedLoader:
        if self._shared is None:
            accelerator, loader = self._accelerator, self._loader
            self._shared = SharedLoader(
                self._member, loader, accelerator._accumulation, splits=accelerator.split_batches
            )
        return self._shared

    def __len__(self) -> int:
        """Return what scripts expect: optimizer steps of an epoch times accumulation."""
        if not self._accelerator._trains:
            return len(self._loader)
        return len(self._dealt()) * self._accelerator._accumulation

    def __iter__(self) -> Iterator[Any]:
        if not self._accelerator._trains:
            yield from self._loader
            return
        self._accelerator._begin()
        with closing(self._dealt().batches()) as batches:
            for batch in batches:
                yield send_to_device(batch, self._accelerator.device)

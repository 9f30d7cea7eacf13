"""Hugging Face's Accelerator as a member of a job.

The loop is the script's: it gets every batch of this worker's shares, as from ``job.batches``, and
calls ``optimizer.step()`` for each; the model changes with the last one of a step.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import accelerate
from accelerate.utils import DistributedType, send_to_device
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from paceline.base.errors import ConfigError
from paceline.runtime.integrations.steps import Steps, ThisMember, join


def take_rank(member: ThisMember) -> None:
    """Let accelerate know who logs and saves.

    The number of processes stays 1: nothing is to be gathered, cut up or waited for by anybody
    else than the job.
    """
    state = accelerate.PartialState()
    state.process_index = state.local_process_index = member.rank


class Accelerator(accelerate.Accelerator):
    """`accelerate.Accelerator` in whose place it is put; see docs/howto/trainers.md.

    Without `paceline run`, or in a torchrun script, it is that class alone. In a job of
    strategy allreduce a step has the loader's ``batch_size * gradient_accumulation_steps`` samples
    for each of the workers that the job was asked for.

    Raises:
        ConfigError: a plugin or a precision that cannot hold in a job whose workers come and go.
    """

    def __init__(self, *given: Any, gradient_accumulation_steps: int = 1, **named: Any) -> None:
        self._member = join("Accelerator")
        self._accumulation = gradient_accumulation_steps
        if self._member is not None:
            take_rank(self._member)
            gradient_accumulation_steps = 1
        super().__init__(*given, gradient_accumulation_steps=gradient_accumulation_steps, **named)
        if self._member is None:
            return
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
        if self.gradient_accumulation_steps != 1:
            raise ConfigError(
                "Accelerator(gradient_accumulation_plugin=...) in a job of paceline: say "
                "gradient_accumulation_steps=... instead"
            )

    def prepare(self, *given: Any, **named: Any) -> Any:
        """Prepare as accelerate does; models, optimizers and schedulers in one call.

        If a model is in training mode when a loader is read, the loader is dealt out among the
        workers; otherwise each worker reads all of it.
        """
        if self._member is None:
            return super().prepare(*given, **named)
        held = [one for one in given if isinstance(one, nn.Module | Optimizer | LRScheduler)]
        if held:
            self._member.job.prepare(*held)
            self._models_held = [one for one in held if isinstance(one, nn.Module)]
        prepared = super().prepare(*given, **named)
        every = prepared if isinstance(prepared, tuple) else (prepared,)
        found = tuple(
            _Dealt(self, self._member, one) if isinstance(one, DataLoader) else one for one in every
        )
        return found if isinstance(prepared, tuple) else found[0]


class _Dealt:
    """A prepared loader."""

    def __init__(self, accelerator: Accelerator, member: ThisMember, loader: Any) -> None:
        self._accelerator, self._member, self._loader = accelerator, member, loader
        self._steps: Steps | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    @property
    def _training(self) -> bool:
        models: Sequence[nn.Module] = getattr(self._accelerator, "_models_held", ())
        return any(one.training for one in models)

    def _dealt(self) -> Steps:
        if self._steps is None:
            self._steps = Steps(self._member, self._loader, self._accelerator._accumulation)
        return self._steps

    def __len__(self) -> int:
        """Return what scripts expect: optimizer steps of an epoch times accumulation."""
        if not self._training:
            return len(self._loader)
        return len(self._dealt()) * self._accelerator._accumulation

    def __iter__(self) -> Iterator[Any]:
        if not self._training:
            yield from self._loader
            return
        for batch in self._dealt():
            yield send_to_device(batch, self._accelerator.device)

"""Preparation on servers (``job.prepare``): the holder gets the model, the script its triggers."""

from collections.abc import Callable, Sequence
from functools import partial

from torch import nn
from torch.amp import GradScaler

from paceline.base.errors import ConfigError
from paceline.runtime.holding.servers.lookup import Lookups
from paceline.runtime.holding.servers.loop import ServersLoop
from paceline.runtime.holding.servers.model import Model
from paceline.runtime.holding.servers.optimizer import replace_step
from paceline.runtime.holding.servers.port import TrainingPort
from paceline.runtime.holding.servers.state_dict import Gatherer
from paceline.runtime.script.averages import refuse_averages_of
from paceline.runtime.script.prepared import refuse_empty
from paceline.runtime.script.step_frame import OUTSIDE
from paceline.runtime.server.rules import INSTEAD

Current = Callable[[], ServersLoop | None]
"""The loop that trains; None: there is none."""


def refuse(modules: Sequence[nn.Module], scalers: Sequence[GradScaler]) -> None:
    """Raises ConfigError: something that servers cannot follow or hold."""
    if scalers:
        raise ConfigError(
            "job.prepare got a GradScaler, which parameter servers cannot follow: it looks at "
            f"gradients that no worker sees; take bfloat16, which needs no scaler. {INSTEAD}"
        )
    refuse_empty(modules)


def take_over(
    model: Model,
    trainer: TrainingPort,
    lookups: Lookups,
    current: Current,
    has_trained: Callable[[], bool],
) -> None:
    """Have the model held, look-ups answered, and gradients handed over by ``optimizer.step()``.

    Args:
        model: what was prepared.
        trainer: the holder.
        lookups: of its tables.
        current: the loop that trains.
        has_trained: whether the script has come to a loop, or passed over one.
    """

    def check_over() -> None:
        if current() is not None:
            raise ConfigError(
                "load_state_dict was called on a prepared model in the body of a loop, whose "
                "values parameter servers hold; call it after the last loop, or run the job with "
                "--strategy allreduce"
            )
        if not has_trained():
            raise ConfigError(
                "load_state_dict was called on a prepared model, whose values the worker does not "
                "hold; call it before job.prepare"
            )

    trainer.prepare(model.schema, model.initial)
    lookups.tables = [bound.lookup for bound in model.tables]
    model.attach(lookups)
    Gatherer(trainer, model, check_over).attach()
    refuse_averages_of(param for module in model.modules for param in module.parameters())
    for number, optimizer in enumerate(model.optimizers):
        replace_step(optimizer, partial(_step, current, number))


def _step(current: Current, optimizer: int) -> None:
    loop = current()
    if loop is None:
        raise ConfigError(OUTSIDE)
    loop.on_step(optimizer)
    loop.stepped()

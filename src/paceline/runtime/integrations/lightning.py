"""Lightning's Trainer as a member of a job: a strategy of its own.

One training batch of Lightning is one step of the job. Lightning hands ``optimizer.step()`` a
closure that computes the gradients; it runs before the step, as often as the step has batches.
"""

import inspect
import os
import signal
from collections.abc import Callable
from typing import Any

import torch
from lightning.pytorch import Callback
from lightning.pytorch import __version__ as version
from lightning.pytorch.loggers import Logger
from lightning.pytorch.strategies import SingleDeviceStrategy
from lightning.pytorch.trainer.states import RunningStage, TrainerFn
from lightning.pytorch.utilities import rank_zero_only
from torch import nn
from torch.optim import Optimizer

from paceline.base.errors import ConfigError
from paceline.runtime.integrations.lightning_folders import Folders
from paceline.runtime.integrations.steps import Steps, ThisMember, followed, join
from paceline.runtime.process.seeding import all_kept
from paceline.runtime.script.job import Job
from paceline.runtime.variables.look import Attributes


class PacelineStrategy(SingleDeviceStrategy):
    """``Trainer(strategy=PacelineStrategy())``; see docs/howto/trainers.md.

    Without `paceline run` it is Lightning's strategy for one device. In a job of strategy allreduce
    a step has the loader's ``batch_size * accumulate_grad_batches`` samples for each of the workers
    that the job was asked for. The first worker logs and saves.

    Raises:
        ConfigError: the module or the Trainer wants what cannot hold in a job whose workers come
            and go.
    """

    strategy_name = "paceline"

    def __init__(self, device: str = "cpu", **named: Any) -> None:
        super().__init__(device, **named)
        give_back = _seeded()
        self._member = join("Lightning's Trainer")
        give_back()
        self._steps: Steps | None = None
        #: Another batch of the step in hand, where the first one was not all.
        self._batch: Any = None
        #: Checkpoint from which the script wanted to resume.
        self._former: Any = None
        self._on_terminate = signal.getsignal(signal.SIGTERM)
        if self._member is not None:
            self.global_rank = self.local_rank = rank_zero_only.rank = self._member.rank

    @property
    def job(self) -> Job | None:
        """The job that this loop trains in; None: without `paceline run`."""
        return None if self._member is None else self._member.job

    @property
    def is_global_zero(self) -> bool:
        """Return whether this process is the one that logs and saves."""
        return self.global_rank == 0

    def setup_environment(self) -> None:
        """Name the folder of logs before anything is written into it."""
        super().setup_environment()
        if self._member is not None:
            Folders(self._member, self._trainer).be_of_job()

    def setup(self, trainer: Any) -> None:
        """Have the job hold what there is."""
        super().setup(trainer)
        if self._member is None or trainer.state.fn != TrainerFn.FITTING:
            return
        self._check(trainer)
        schedulers = [config.scheduler for config in self.lr_scheduler_configs]
        self._member.job.prepare(self.model, *self.optimizers, *schedulers)
        if self._former:
            self._member.leave_aside(self._former, "fit(ckpt_path=...)")
        self._member.follow(
            trainer=Attributes(trainer, ("should_stop",)),
            **followed(trainer.callbacks, _has_state),
        )
        # A Trainer without loggers asked for no logs; and checkpoints go to the first one's folder.
        if trainer.loggers and not any(isinstance(one, _Curves) for one in trainer.loggers):
            trainer.loggers = [*trainer.loggers, _Curves(self._member)]

    def process_dataloader(self, dataloader: Any) -> Any:
        """Deal one batch per step, of those that are trained on."""
        trainer = self._trainer
        if self._member is None or trainer.state.stage != RunningStage.TRAINING:
            return dataloader
        self._steps = Steps(self._member, dataloader, trainer.accumulate_grad_batches)
        trainer.accumulate_grad_batches = 1
        return self._steps

    def on_train_start(self) -> None:
        """Begin in the epoch that the job is in."""
        if self._member is None or self._steps is None:
            return
        # Lightning's handler would make a failure of the job's order to stop.
        signal.signal(signal.SIGTERM, self._on_terminate)
        loop = self._trainer.fit_loop
        epochs = loop.epoch_progress
        epochs.current.processed = epochs.current.completed = self._steps.skip(loop.max_epochs)
        done = loop.epoch_loop.automatic_optimization.optim_progress.optimizer.step.total
        # The step of a cut, if we had no batch.
        done.ready = done.completed = self._member.strategy.step or 0

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """Train on the batch that is in hand."""
        if self._batch is not None:
            args = (self._batch, *args[1:])
        return super().training_step(*args, **kwargs)

    def optimizer_step(
        self,
        optimizer: Optimizer,
        closure: Callable[[], Any],
        model: nn.Module | None = None,
        **kwargs: Any,
    ) -> Any:
        """Compute until ``optimizer.step()`` changes the model, and have it do so."""
        if self._steps is None:
            return super().optimizer_step(optimizer, closure, model, **kwargs)
        loss = closure()
        try:
            while not self._steps.ready:
                optimizer.step()
                # StopIteration: the last step of the epoch came from a peer; Lightning's loop ends
                # with it, as with that of a loader.
                self._batch = self._moved(self._steps.more())
                loss = closure()
        finally:
            self._batch = None
        # Hooks and clipping, on the averaged gradients.
        self.precision_plugin._after_closure(self.lightning_module, optimizer)
        optimizer.step()
        self._count(self._steps)
        return loss

    def on_train_end(self) -> None:
        """Finish no earlier than here: what validation does to a scheduler belongs to the epoch."""
        if self._steps is not None:
            self._steps.finish()

    def load_checkpoint(self, checkpoint_path: Any, *args: Any, **kwargs: Any) -> Any:
        """Load as Lightning does; resuming is the job's."""
        if self._member is not None and self._trainer.state.fn == TrainerFn.FITTING:
            self._former = checkpoint_path
            return _LeftAside()
        return super().load_checkpoint(checkpoint_path, *args, **kwargs)

    # ------------------------------------------------------------------ inside

    @property
    def _trainer(self) -> Any:
        return self.lightning_module.trainer

    def _moved(self, batch: Any) -> Any:
        """Do to a batch what Lightning does before it is trained on."""
        batch = self.precision_plugin.convert_input(batch)
        batch = self.lightning_module._on_before_batch_transfer(batch, dataloader_idx=0)
        return self.batch_to_device(batch)

    def _count(self, steps: Steps) -> None:
        """Set the steps done: a worker that joins has seen only some; Lightning adds 1 to them."""
        assert self._member is not None
        loop = self._trainer.fit_loop.epoch_loop
        done = loop.automatic_optimization.optim_progress.optimizer.step.total
        done.ready, done.completed = self._member.step, self._member.step - 1
        loop.batch_progress.current.ready = steps.position
        loop._batches_that_stepped = self._member.step - 1  # what loggers call the step

    def _check(self, trainer: Any) -> None:
        """Raises ConfigError: something that cannot hold."""
        module = self.lightning_module
        wrong = {
            "automatic_optimization=False": not module.automatic_optimization
            and "a step may take its batches several times, which only Lightning's own loop can do",
            "training_step(dataloader_iter)": "dataloader_iter"
            in inspect.signature(module.training_step).parameters
            and "it would take batches out of their steps; take the batch itself",
            "precision 16-mixed": getattr(self.precision_plugin, "scaler", None) is not None
            and "the library's own scaler is not the job's; use bf16-mixed",
            "limit_train_batches, overfit_batches or fast_dev_run": (
                # 1 is one batch, and 1.0 all.
                repr(trainer.limit_train_batches) != "1.0" or trainer.overfit_batches
            )
            and "an epoch is every sample once; give a smaller dataset",
            "max_epochs=-1": trainer.max_epochs in (None, -1) and "say how many there are",
        }
        for what, reason in wrong.items():
            if reason:
                raise ConfigError(f"{what} in a job of paceline: {reason}")


def _has_state(kind: type) -> bool:
    """Tell whether a class of callbacks has a state that goes into checkpoints."""
    return "state_dict" in vars(kind) and kind is not Callback


class _LeftAside(dict[str, Any]):
    """A checkpoint of which Lightning restores nothing: it asks whether it has one."""

    def __init__(self) -> None:
        super().__init__({"pytorch-lightning_version": version})

    def __bool__(self) -> bool:
        return False


def _seeded() -> Callable[[], None]:
    """Return what puts the generators back, if ``seed_everything`` has seeded them in all workers.

    LightningCLI calls that, then makes the strategy, and then the module.
    """
    told = os.environ.get("PL_GLOBAL_SEED", "")
    is_seeded = told.isdecimal() and int(told) == torch.initial_seed()
    return all_kept() if is_seeded else lambda: None


class _Curves(Logger):
    """Logger that has what the module logs in the job's curves, too: the mean of all workers."""

    def __init__(self, member: ThisMember) -> None:
        super().__init__()
        self._member = member

    @property
    def name(self) -> str:
        """Name by which callbacks know the logger."""
        return "paceline"

    @property
    def version(self) -> int:
        """The only version."""
        return 0

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        """Leave them to others: they are no curve."""

    def log_metrics(self, metrics: Any, step: int | None = None) -> None:
        """Give them to the job, which knows the step."""
        self._member.log(metrics)

"""Hugging Face's Trainer as a member of a job.

One update of the Trainer is one step of the job: what the Trainer does after ``training_step``
(clipping, the optimizer, schedulers, logs, checkpoints) it does once per step, when the averaged
gradients are there. So that part of it is as it was.
"""

import copy
from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers.trainer_callback import ExportableState

from paceline.base.errors import ConfigError
from paceline.runtime.integrations.accelerate import take_rank
from paceline.runtime.integrations.steps import Steps, ThisMember, followed, join
from paceline.runtime.script.job import Job
from paceline.runtime.variables.look import Attributes


class Trainer(transformers.Trainer):
    """`transformers.Trainer` in whose place it is put; see docs/howto/trainers.md.

    Without `paceline run`, or in a torchrun script, it is that class alone. In a job of
    strategy allreduce a step has ``per_device_train_batch_size * gradient_accumulation_steps``
    samples for each of the workers that the job was asked for. The first worker logs and saves.

    Raises:
        ConfigError: arguments that cannot hold in a job whose workers come and go.
    """

    def __init__(
        self,
        model: Any = None,
        args: transformers.TrainingArguments | None = None,
        *others: Any,
        **named: Any,
    ) -> None:
        self._member = join("Trainer")
        self._steps: Steps | None = None
        self._accumulation = 1
        #: The last step of an epoch broke here, and came from a peer.
        self._copied = False
        #: Checkpoint from which the script wanted to resume.
        self._former: Any = None
        if self._member is not None:
            args = args or transformers.TrainingArguments(output_dir="tmp_trainer")
            _check(args)
            self._accumulation = args.gradient_accumulation_steps
            args = copy.copy(args)
            args.gradient_accumulation_steps = 1
            take_rank(self._member)
        super().__init__(model, args, *others, **named)
        if self._member is not None:
            self.add_callback(_Following(self, self._member))

    @property
    def job(self) -> Job | None:
        """The job that this loop trains in; None: without `paceline run`."""
        return None if self._member is None else self._member.job

    def train(self, resume_from_checkpoint: Any = None, *others: Any, **named: Any) -> Any:
        """Train as transformers does; resuming is the job's."""
        if self._member is not None:
            self._former, resume_from_checkpoint = resume_from_checkpoint, None
        return super().train(resume_from_checkpoint, *others, **named)

    def get_train_dataloader(self) -> Any:
        """Deal one batch per step."""
        if self._member is None:
            return super().get_train_dataloader()
        loader: DataLoader[Any] = super().get_train_dataloader()
        self._steps = Steps(self._member, loader, self._accumulation)
        return self._steps

    def get_total_train_batch_size(self, args: transformers.TrainingArguments) -> int:
        """Samples of a step."""
        if self._steps is None:
            return int(super().get_total_train_batch_size(args))
        return self._steps.batch_size

    def training_step(
        self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None
    ) -> Tensor:
        """Compute until ``optimizer.step()`` changes the model; the mean of the losses."""
        loss: Tensor = super().training_step(model, inputs, num_items_in_batch)
        steps, losses = self._steps, [loss]
        if steps is None:
            return loss
        self._copied = False
        while not steps.ready:
            self.optimizer.step()
            model.zero_grad()
            try:
                inputs = steps.more()
            except StopIteration:
                self._copied = True
                break
            count = self._get_num_items_in_batch([inputs], self.args.device)
            losses.append(super().training_step(model, inputs, count))
        return torch.stack(losses).mean()

    def _save_rng_state(self, output_dir: str) -> None:
        """Save the state of the first worker alone, as all that it saves."""
        if self._member is None or self.args.should_save:
            super()._save_rng_state(output_dir)


class _Following(transformers.TrainerCallback):
    """Gives the job what it must hold, and the Trainer the job's count of steps.

    The last of all callbacks: what others have asked for is known.
    """

    def __init__(self, trainer: Trainer, member: ThisMember) -> None:
        self._trainer, self._member = trainer, member
        self._seen = 0
        self._begun = False
        #: True: training should stop at the end of the epoch that was over before we came.
        self._stopped = False

    @property
    def _steps(self) -> Steps:
        steps = self._trainer._steps
        assert steps is not None
        return steps

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Prepare the job: everything is made."""
        # Accelerate may have wrapped both.
        optimizer = getattr(kwargs["optimizer"], "optimizer", kwargs["optimizer"])
        scheduler = getattr(kwargs["lr_scheduler"], "scheduler", kwargs["lr_scheduler"])
        # From transformers 5.18 on it is made for the wrapper; both have the same groups.
        scheduler.optimizer = optimizer
        self._member.job.prepare(kwargs["model"], optimizer, scheduler)
        if self._trainer._former:
            self._member.leave_aside(self._trainer._former, "resume_from_checkpoint")
        others = [one for one in self._trainer.callback_handler.callbacks if one is not self]
        stops = Attributes(control, ("should_training_stop",))
        losses = Attributes(self._trainer, ("_total_loss_scalar",))
        self._member.follow(
            state=state, control=stops, losses=losses, **followed(others, _has_state)
        )

        def note() -> None:
            self._stopped = control.should_training_stop

        self._steps.on_empty = note

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Have what the Trainer logs in the job's curves: of all workers, so the mean of theirs."""
        if self._begun and logs:
            self._member.log(logs)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Say in accelerate's words whether optimizer and scheduler should step."""
        copied = self._trainer._copied
        self._trainer.accelerator.gradient_state._set_sync_gradients(not copied)
        self._trainer.optimizer._is_overflow = copied

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The Trainer adds 1 after this."""
        if not self._begun:
            # The mean loss that is logged first is over the steps of this process.
            self._trainer._globalstep_last_logged = self._member.step - 1
            self._begun = True
        self._seen += 1
        state.global_step = self._member.step - 1

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Set the epoch: a worker that joins is in the middle of one."""
        state.epoch = self._member.step / len(self._steps)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """An epoch that was over before we came is nothing to log, evaluate or save for.

        If nobody goes on behind it, what was decided there holds.
        """
        if not self._seen:
            # The Trainer has taken it for the end of the data.
            control.should_training_stop = self._steps.is_last and self._stopped
            control.should_log = control.should_evaluate = control.should_save = False
        self._seen = 0

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Finish no earlier than here: what evaluation does to a scheduler belongs to the epoch."""
        self._steps.finish()


def _has_state(kind: type) -> bool:
    """Tell whether a class of callbacks has a state that goes into checkpoints."""
    return "state" in vars(kind) and kind is not ExportableState


def _check(args: transformers.TrainingArguments) -> None:
    """Raises ConfigError: an argument that cannot hold."""
    reasons: dict[str, tuple[Callable[[], bool], str]] = {
        "deepspeed": (lambda: bool(args.deepspeed), "it divides the model its own way"),
        "fsdp": (lambda: bool(args.fsdp), "it divides the model its own way"),
        "fp16": (lambda: args.fp16, "the library's own scaler is not the job's; use bf16"),
        "load_best_model_at_end": (
            lambda: args.load_best_model_at_end,
            "a worker that joins knows nothing of checkpoints before; choose one after training",
        ),
        "auto_find_batch_size": (
            lambda: args.auto_find_batch_size,
            "steps are of one size in all workers; give per_device_train_batch_size",
        ),
        "resume_from_checkpoint": (
            lambda: bool(args.resume_from_checkpoint),
            "the job resumes on its own, from cuts (paceline run --resume)",
        ),
    }
    for name, (is_asked, reason) in reasons.items():
        if is_asked():
            raise ConfigError(f"TrainingArguments({name}=...) in a job of paceline: {reason}")

"""The frame of a training loop: a batch goes out, each optimizer steps on it once, then the next.

A holder's loop fills it in: where batches come from, and what becomes of their gradients.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Generic, TypeVar

from paceline.base.errors import ConfigError
from paceline.runtime.data.work import StepTimes, Work
from paceline.runtime.process.process import Process, current
from paceline.runtime.process.seeding import reseed, seed_of

OUTSIDE = (
    "optimizer.step() was called outside of a loop over job.batches; only batches of the job can "
    "be trained on: loop over job.batches(dataset or loader, ...), or, with the model in training "
    "mode, over a DataLoader that job.prepare has returned"
)
BEFORE = (
    "optimizer.step() was called before the first batch; call it once for each batch of job.batches"
)
TWICE = (
    "optimizer.step() was called twice for one batch; a batch counts once: call it once, after all "
    "of loss.backward()"
)
CLOSED = (
    "optimizer.step() was called after job.evaluate, before which another optimizer had stepped "
    "on this batch; call job.evaluate after the last optimizer.step() of a batch"
)
NO_GRADIENT = (
    "optimizer.step() was called, but no parameter has a gradient; call loss.backward() before it, "
    "and optimizer.zero_grad() after it"
)
NO_BACKWARD = (
    "the closure of optimizer.step() has left no gradient; call loss.backward() in each of its "
    "calls, and to leave a batch out do so before optimizer.step()"
)
LEFT = (
    "the script asks for the next batch, but optimizer.step(closure) was left by an error; do not "
    "catch what a closure raises"
)

BY_HAND = (
    ", or say accumulate=4 to job.batches, or where a loader is prepared to job.prepare, to call "
    "it for every 4th"
)

PATIENCE_STEPS = 16
"""Batches that may be left out before the first step: more is a script that never steps."""


@dataclass(slots=True, kw_only=True)
class StepInHand:
    """The step whose batch the script has: which optimizers have stepped, and what it took."""

    batch: Any = None
    stepped: set[int] = field(default_factory=set)
    """Optimizers that were told to step on this batch."""
    evaluating: bool = False
    """Whether an optimizer is in its step, and may call its closure again."""
    has_gradients: bool = False
    """Whether a parameter had a gradient when an optimizer was told to step."""
    closed: bool = False
    """Whether the optimizers that have not stepped on the batch never will."""
    samples: int = 0
    start_s: float = 0.0
    """Time at which its batch was ready."""
    wait_s: float = 0.0
    data_s: float = 0.0
    """Seconds from when batches were wanted until they were read and made."""
    compute_s: float = 0.0
    server_s: float = 0.0
    message_s: float = 0.0

    def times(self, number: int, bpt_s: float) -> StepTimes:
        """Return the times that it took, as step ``number`` of this process."""
        return StepTimes(
            step=number,
            samples=self.samples,
            start_s=self.start_s,
            bpt_s=bpt_s,
            compute_s=self.compute_s,
            server_s=self.server_s,
            message_s=self.message_s,
            wait_s=self.wait_s,
            data_s=self.data_s,
        )


Step = TypeVar("Step", bound=StepInHand)


class StepFrame(ABC, Generic[Step]):
    """One pass over one feed. The strategy calls ``on_step`` for every ``optimizer.step()``."""

    may_accumulate = False
    """Whether a script could ask for several batches of a step."""

    def __init__(self, num_optimizers: int, accumulate: int = 1) -> None:
        self.num_optimizers, self.accumulate = num_optimizers, accumulate
        self.has_taken = False
        """Whether an optimizer has changed its parameters."""
        self.num_steps = 0
        """Steps that have begun."""
        self.excluded_s = 0.0
        """Time since the batch was ready that was spent on something else: an evaluation, or a wait
        at the gate of a shared device."""
        self.step: Step | None = None
        """The newest step, until the next begins."""

    @property
    def is_left_out(self) -> bool:
        """Whether another worker leaves out the step in hand, so that its gradients are gone."""
        return False

    def run(self) -> Iterator[Any]:
        """Yield batch after batch until the feed is complete."""
        process = current()
        if process is not None:
            process.on_held = self._exclude
        try:
            while (step := self._await_next(process)) is not None:
                yield from self._batches(step)
            self._complete()
        finally:
            self.abandon()

    def _await_next(self, process: Process | None) -> Step | None:
        """Get the next step ready, while others may use the device that the job shares."""
        if process is None:
            return self._begin_next()
        process.between_steps()
        with process.gaps:
            return self._begin_next()

    def _exclude(self, took_s: float) -> None:
        """Count a part of the step's time as none."""
        if self.step is not None:
            self.excluded_s += took_s

    @abstractmethod
    def _begin_next(self) -> Step | None:
        """Get the next step ready and `_start` it; None: the feed is complete."""

    def _batches(self, step: Step) -> Iterator[Any]:
        """Yield the batches in which the script computes a step."""
        yield step.batch
        self._finish(step)

    def _finish(self, step: Step) -> None:
        """The script asks for the next batch.

        Raises:
            ConfigError: an optimizer did not step on this one.
        """
        if len(step.stepped) < self.num_optimizers:
            raise self._not_stepped(step)

    def _not_stepped(self, step: Step) -> ConfigError:
        missing = self.num_optimizers - len(step.stepped)
        or_else = BY_HAND if self.may_accumulate else ""
        return ConfigError(
            f"a batch went by without optimizer.step() ({missing} of {self.num_optimizers} "
            "prepared optimizers did not step), so its samples would never count; call it once "
            f"per batch{or_else}, and use job.evaluate for batches that are not trained on"
        )

    def _may_miss_a_step(self) -> bool:
        """Tell whether the script may leave this batch out: not if it has never stepped so far."""
        return self.has_taken or self.num_steps < PATIENCE_STEPS

    def _check_place(self, batch_no: int) -> None:
        """Raise ConfigError for a step before all batches of one are there."""
        count = batch_no % self.accumulate + 1
        if count < self.accumulate:
            raise ConfigError(
                f"optimizer.step() was called after {count} of the {self.accumulate} batches that "
                f"accumulate={self.accumulate} asks for; call it after the last one of each "
                f"{self.accumulate}, counted from the first of the loop"
            )

    def _complete(self) -> None:
        """Act on the end of a feed, all of which is in a model."""

    def abandon(self) -> None:
        """The loop is left: nothing of an unfinished step counts; again: nothing."""
        self.step = None

    # ------------------------------------------------------------------ optimizers

    def on_step(self, optimizer: int) -> bool:
        """Note that an optimizer steps; whether it changes its parameters.

        Raises:
            ConfigError: it steps twice for one batch, or what it would apply is not one gradient.
        """
        return self._take(self.may_step(optimizer), optimizer)

    def may_step(self, optimizer: int) -> Step:
        """Return the step in hand, in which an optimizer is about to step.

        Raises:
            ConfigError: it has stepped on this batch, or there is none.
        """
        step = self.step
        if step is None or optimizer in step.stepped:
            said = BEFORE if step is None else CLOSED if step.closed else TWICE
            raise ConfigError(said)
        return step

    @abstractmethod
    def _take(self, step: Step, optimizer: int) -> bool:
        """Take an optimizer's gradients and add it to those that stepped; see `on_step`."""

    def stepped(self) -> None:
        """An optimizer has changed its parameters, or was told not to."""
        step = self.step
        if step is None:
            return
        step.evaluating = False
        if len(step.stepped) == self.num_optimizers:
            self._all_stepped(step)

    @abstractmethod
    def _all_stepped(self, step: Step) -> None:
        """The last optimizer has stepped on this batch."""

    def close_step(self) -> None:
        """Optimizers that have not stepped on the batch in hand will not, if others have."""

    def has_stepped(self, optimizer: int) -> bool:
        """Tell whether an optimizer was told to step on the batch in hand."""
        return self.step is not None and optimizer in self.step.stepped

    def settle(self) -> bool:
        """Have the gradients of the step in place; tell whether they will change the model."""
        return True

    @property
    def in_step(self) -> bool:
        """Whether a batch is in hand on which no optimizer has stepped."""
        return self.step is not None and not self.step.stepped

    @staticmethod
    def _reseed(seed: int, work: Work) -> None:
        """Have what is drawn for a block follow its samples, not the worker that computes it."""
        first = work.spans[0]
        reseed(seed_of(seed, first.line, first.start))

    # ------------------------------------------------------------------ times

    def _start(self, step: Step, asked_s: float) -> None:
        """The first batch of a step is ready; the script asked for it at ``asked_s``."""
        now_s = monotonic()
        self._record(now_s)
        step.start_s, step.wait_s = now_s, now_s - asked_s
        self.step = step
        self.num_steps += 1

    def _record(self, now_s: float) -> None:
        """Have the times of the step that ends now noted."""
        if self.step is not None:
            self._note(self.step, now_s - self.step.start_s - self.excluded_s)
            self.excluded_s = 0.0

    def _note(self, step: Step, bpt_s: float) -> None:
        """Note what a step took, ``bpt_s`` from its first batch to the next step's."""

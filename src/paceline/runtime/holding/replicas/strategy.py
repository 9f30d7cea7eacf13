"""Strategy allreduce: every worker holds the model, and torch's own optimizers change it."""

import math
import os
from collections.abc import Iterator, Sequence
from time import monotonic
from typing import Any

import torch
from msgspec.structs import replace
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from paceline.base.errors import ConfigError
from paceline.protocol.holding.group.division import Sharing
from paceline.runtime.data.growth import Growth
from paceline.runtime.data.reader import Reader
from paceline.runtime.group.checks import (
    check_dense,
    check_movable,
    check_own_statistics,
    device_of,
)
from paceline.runtime.group.closures import calls_again
from paceline.runtime.group.reducer import Reducer
from paceline.runtime.group.strategy import Together
from paceline.runtime.group.transports import keep_to_network
from paceline.runtime.holding.replicas.averaging import Averaging
from paceline.runtime.holding.replicas.client import GroupClient
from paceline.runtime.process.process import Process
from paceline.runtime.script.strategy import Evaluation, Readers, Results
from paceline.runtime.state.replica import Replica
from paceline.wire.messages.feeds import Feed, ScriptPlace

SHORT_STEPS = ("backup_workers", "partial")
"""Solutions whose steps do not wait for all workers: so several optimizers step at one time."""


def begin(process: Process) -> "Replicated":
    """Make the strategy of a job's process."""
    return Replicated(process)


class Replicated(Together):
    """`Strategy` of a member of an elastic group."""

    regrouping = "between loops"
    meets_in_bodies = takes_uneven_steps = takes_trainings = True

    def __init__(self, process: Process) -> None:
        self.client = GroupClient(process)
        super().__init__(self.client)
        self._averaging: Averaging | None = None
        #: Whether a loop of this training was left in its midst, and the step of the one before.
        self._has_left = False
        self._left_at: int | None = None
        keep_to_network(self.spec, "NCCL_SOCKET_IFNAME", "=")
        self.can_accumulate = self.has_turns = not self.spec.deterministic
        if self.spec.deterministic:
            _be_deterministic()

    def prepare(
        self,
        modules: Sequence[nn.Module],
        optimizers: Sequence[Optimizer],
        schedulers: Sequence[LRScheduler],
        scalers: Sequence[GradScaler] = (),
    ) -> None:
        check_dense(modules)
        check_movable(modules)
        check_own_statistics(modules)
        if scalers and any(map(calls_again, optimizers)):
            raise ConfigError(
                "job.prepare: torch's GradScaler takes no closure, which LBFGS needs; compute in "
                "bfloat16, which needs no scaler"
            )
        begun = self._averaging
        self._training += begun is not None
        self._follow_all(optimizers, scalers)
        self._averaging = Averaging(
            modules,
            optimizers,
            schedulers,
            scalers,
            deterministic=self.spec.deterministic,
            in_turn=self.spec.solution not in SHORT_STEPS,
            training=self._training,
        )
        self._take_in(self._averaging)
        self._watcher = self._averaging.watcher
        self.client.on_another = self._watcher.watch.copied
        outside = self._outside(schedulers)
        self._average_once_per_step(modules)
        if begun is not None:
            begun.reducer.close()
            self._begin_next(modules, optimizers, schedulers, scalers, outside)
        else:
            replica = Replica(
                modules,
                optimizers,
                schedulers,
                outside,
                scalers,
                self.script_state,
                self.client.state.position,
            )
            replica.variables = self.variables
            self.client.start(replica)
        self._have_prepared(modules, optimizers, schedulers, scalers)
        self._keep_averages_of(modules)

    def _begin_next(self, *prepared: Any) -> None:
        """Hold this beside the state of the trainings before."""

        def hold(replica: Replica) -> None:
            replica.next_training(*prepared)
            if self._averaging is not None:
                self._averaging.watcher.trains(self._params, replica.describe())

        self.client.next_training(hold)
        # No cut need hold a loop that was left. With one that does, a worker that comes later can
        # pass over it.
        self._left_at = self.client.keep_end() if self._has_left else None
        self._has_left = False

    def open_feed(self, feed: Feed, growth: Growth | None = None) -> Feed:
        given = replace(feed, training=self._training, after=self._left_at)
        return super().open_feed(given, growth)

    def _take_in(self, averaging: Averaging) -> None:
        """Have the members train this from now on."""
        self._params = averaging.params
        self.client.device = device_of(self._params)
        self._know(self._params)

    def train(self, feed: Feed, reader: Reader, ahead: int) -> Iterator[Any]:
        if self.client.is_complete(feed.feed):
            with self.client.training(feed.feed):
                self.client.load_end(feed)
            return
        self._regroup()
        if self.client.joins_others and not (self.client.state.joining or self.client.has_model):
            self._make_room()
        reducer = self._averaging.reducer if self._averaging is not None else None
        self._has_left, before = True, self._has_left
        yield from self._run(reducer, self._sharing(feed), feed, reader, ahead)
        self._has_left = before

    def _regroup(self) -> Reducer | None:
        if self._averaging is None or not self._averaging.regroup():
            return None
        self._take_in(self._averaging)
        return self._averaging.reducer

    def _sharing(self, feed: Feed) -> Sharing:
        if not self.spec.deterministic:
            return Sharing(feed.batch_size, per_worker=feed.per_worker)
        fewest = math.ceil(feed.batch_size / self.largest) if self.largest else 1
        return Sharing(feed.batch_size, max(self.spec.blocks, fewest))

    def _make_room(self) -> None:
        """Have the optimizers make their state, into which that of a peer is copied.

        Memory that is written to for the first time costs more than what is written.
        """
        self.client.touched = True
        for param in self._params:
            param.grad = torch.zeros_like(param)
        for optimizer, take in zip(self._optimizers, self._takes, strict=True):
            if not calls_again(optimizer):
                take()
        for param in self._params:
            param.grad = None

    @property
    def holds(self) -> bool:
        """Whether ``optimizer.step()`` would change the model now, after ``loss.backward()``.

        It would not where another batch of the step follows, or all of it because the group broke.
        """
        return self._loop is not None and self._loop.settle()

    @property
    def completes_step(self) -> bool:
        """Whether the step ends with the batch in hand; True outside of loops."""
        step = self._loop.step if self._loop is not None else None
        return step is None or step.completes

    def meet(self, place: ScriptPlace, value: bytes, *, all_workers: bool) -> Sequence[bytes]:
        start_s = monotonic()
        self.client.unmark()
        values = super().meet(place, value, all_workers=all_workers)
        if self._loop is not None:
            self._loop.excluded_s += monotonic() - start_s
            if self._loop.in_step:
                self.client.mark(computing=True)
        return values

    def evaluate(self, fn: Evaluation, feed: Feed, readers: Readers) -> Results:
        start_s = monotonic()
        self.client.unmark()
        with self.client.within(feed.feed):
            results = self._evaluate(fn, feed, readers)
        if self._loop is not None:
            self._loop.excluded_s += monotonic() - start_s
        return results

    def _evaluate(self, fn: Evaluation, feed: Feed, readers: Readers) -> Results:
        results = None
        while results is None:
            if not self.client.is_complete(feed.feed):
                self.client.await_state(feed)
            with readers() as reader, torch.no_grad():
                while (work := self.client.next_work(feed.feed)) is not None:
                    self.client.evaluate_put(work, fn(reader.get(work), work.num_samples))
            results = self.client.evaluate_get(feed.feed)
        return results

    def clip_grad_norm_(self, max_norm: float, optimizer: int | None = None) -> Tensor:
        """Clip the mean gradient over all members."""
        if len(self._optimizers) == 1:
            optimizer = 0
        if self._loop is not None and optimizer is not None:
            self._loop.settle(optimizer)
        elif self._loop is not None:
            if self._loop.step is not None and self._loop.step.stepped and self._loop.in_step:
                raise ConfigError(
                    "job.clip_grad_norm_ was called between the steps of two optimizers on one "
                    "batch, and clips the gradients of all of them: call it before the first step, "
                    "or name the optimizer that steps next: job.clip_grad_norm_(1.0, optimizer)"
                )
            self._loop.settle()
        params = self._params if optimizer is None else self._trained_by(optimizer)
        return clip_grad_norm_(params, max_norm)


def _be_deterministic() -> None:
    """Have torch compute equal bits; scripts that saw to it themselves keep their settings."""
    # Without it torch refuses to multiply matrices on a GPU; read when it first does.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    if not torch.are_deterministic_algorithms_enabled():
        torch.use_deterministic_algorithms(True)
        # It finds reads of memory that nobody has written to, at the cost of writing all of it.
        settings: Any = torch.utils.deterministic  # set by a property that torch's stubs lack
        settings.fill_uninitialized_memory = False

"""Strategy allreduce: every worker holds the model, and torch's own optimizers change it."""

import math
import os
from collections.abc import Iterator, Sequence
from time import monotonic
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from paceline.protocol.holding.group.division import Sharing
from paceline.runtime.data.reader import Reader
from paceline.runtime.group.checks import (
    check_dense,
    check_movable,
    check_own_statistics,
    device_of,
)
from paceline.runtime.group.reducer import Reducer
from paceline.runtime.group.strategy import Together
from paceline.runtime.group.transports import keep_to_network
from paceline.runtime.group.watcher import Watcher
from paceline.runtime.holding.replicas.blocks import BlockReducer
from paceline.runtime.holding.replicas.buffers import Buffers
from paceline.runtime.holding.replicas.client import GroupClient
from paceline.runtime.prepared import check_parameters
from paceline.runtime.process import Process
from paceline.runtime.state.replica import Replica
from paceline.runtime.stepping import params_of, trained_by
from paceline.runtime.strategy import Evaluation, Readers, Results
from paceline.wire.messages.feeds import Feed


def begin(process: Process) -> "Replicated":
    """Make the strategy of a job's process."""
    return Replicated(process)


class Replicated(Together):
    """`Strategy` of a member of an elastic group."""

    regrouping = "between loops"

    def __init__(self, process: Process) -> None:
        self.client = GroupClient(process)
        super().__init__(self.client)
        self._reducer: Reducer | None = None
        self._modules: Sequence[nn.Module] = ()
        self._buffers: Buffers | None = None
        #: What is trained though it may be frozen now: it was not when it was prepared.
        self._first: Sequence[nn.Parameter] = ()
        keep_to_network(self.spec, "NCCL_SOCKET_IFNAME", "=")
        self.can_accumulate = not self.spec.deterministic
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
        self._modules = modules
        self._follow_all(optimizers, scalers)
        if self.spec.deterministic:
            self._buffers = Buffers(modules)
            self._watcher = Watcher(modules, optimizers, self._buffers.named)
        else:
            self._watcher = Watcher(modules, optimizers)
        self._first = trained_by(optimizers)
        self._begin_to_train(self._first, self._watcher)
        self.client.on_another = self._watcher.watch.copied
        outside = self._outside(schedulers)
        self._average_once_per_step(modules)
        self.client.start(
            Replica(
                modules,
                optimizers,
                schedulers,
                outside,
                scalers,
                self.script_state,
                self.client.state.position,
            )
        )

    def _begin_to_train(self, params: list[nn.Parameter], watcher: Watcher) -> None:
        """From now on the members average the gradients of these."""
        self._params = params
        self.client.device = device_of(params)
        self._know(params)
        watcher.trains(params)
        if self._reducer is not None:
            self._reducer.close()
        # With several optimizers a backward may belong to any of them: nothing leaves before all
        # of them step.
        early = len(self._optimizers) == 1
        if self._buffers is not None:
            self._reducer = BlockReducer(params, self._buffers, early=early)
        else:
            self._reducer = Reducer(params, early=early)

    def _regroup(self) -> None:
        """Take in what the script has thawed, or added to an optimizer, between two loops."""
        params = trained_by(self._optimizers, self._first)
        known = {id(param) for one in self._optimizers for param in params_of(one)}
        if self._watcher is None or (_ids(params), known) == (_ids(self._params), {*self._known}):
            return
        check_parameters(self._modules, self._optimizers, alone=False)
        self._begin_to_train(params, self._watcher)

    def train(self, feed: Feed, reader: Reader, ahead: int) -> Iterator[Any]:
        if self.client.is_complete(feed.feed):
            self.client.load_end(feed)
            return
        self._regroup()
        if self.client.joins_others and not self.client.state.joining:
            self._make_room()
        yield from self._run(self._reducer, self._sharing(feed), feed, reader, ahead)

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
        for take in self._takes:
            take()
        for param in self._params:
            param.grad = None

    @property
    def holds(self) -> bool:
        """Whether ``optimizer.step()`` would change the model now, after ``loss.backward()``.

        It would not where another batch of the step follows, or all of it because the group broke.
        """
        if self._loop is None:
            return False
        self._loop.settle()
        return self._loop.step is not None and self._loop.step.holds

    def evaluate(self, fn: Evaluation, feed: Feed, readers: Readers) -> Results:
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

    def clip_grad_norm_(self, max_norm: float) -> Tensor:
        """Clip the mean gradient over all members."""
        if self._loop is not None:
            self._loop.settle()
        return clip_grad_norm_(self._params, max_norm)


def _ids(params: Sequence[nn.Parameter]) -> list[int]:
    return list(map(id, params))


def _be_deterministic() -> None:
    """Have torch compute equal bits; scripts that saw to it themselves keep their settings."""
    # Without it torch refuses to multiply matrices on a GPU; read when it first does.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    if not torch.are_deterministic_algorithms_enabled():
        torch.use_deterministic_algorithms(True)
        # It finds reads of memory that nobody has written to, at the cost of writing all of it.
        settings: Any = torch.utils.deterministic  # set by a property that torch's stubs lack
        settings.fill_uninitialized_memory = False

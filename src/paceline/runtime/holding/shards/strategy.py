"""Strategy fsdp: torch's FSDP2 divides the model, its steps and its batches are the job's.

Torch averages the gradients itself, all members alike: so all compute equal numbers of samples of
each step. The last slice of an epoch may not be divisible; of that every member computes all.
"""

from collections.abc import Iterator, Sequence
from datetime import timedelta
from time import monotonic
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.distributed.fsdp import FSDPModule
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from paceline.base.errors import ConfigError
from paceline.runtime.data.growth import Growth
from paceline.runtime.data.reader import Reader
from paceline.runtime.group.checks import check_dense, check_movable
from paceline.runtime.group.reducer import Reducer
from paceline.runtime.group.strategy import Together
from paceline.runtime.group.transports import LONGEST_S, keep_to_network
from paceline.runtime.group.watcher import Watcher
from paceline.runtime.holding.shards.client import ShardClient
from paceline.runtime.holding.shards.shards import Shards, check_sharded
from paceline.runtime.holding.shards.shares import Evenly, evaluate_in_turn
from paceline.runtime.process.process import Process
from paceline.runtime.script.stepping import clip_whole, trained_by
from paceline.runtime.script.strategy import Evaluation, Readers, Results
from paceline.wire.messages.feeds import Feed, SourceLine, feed_of

OWN = 1 << 30
"""The number of the first feed of which each member knows on its own."""


def begin(process: Process) -> "Sharded":
    """Make the strategy of a job's process."""
    return Sharded(process)


class Sharded(Together):
    """`Strategy` of a member; made when all members are there, with torch's default group."""

    def __init__(self, process: Process) -> None:
        self._client = ShardClient(process)
        super().__init__(self._client)
        self._group, store = self._client.come_together()
        keep_to_network(self.spec, "GLOO_SOCKET_IFNAME")
        dist.init_process_group(
            "gloo",
            store=store,
            rank=self._group.rank,
            world_size=self._group.size,
            timeout=timedelta(seconds=LONGEST_S),
        )
        self._feeds: dict[int, Feed] = {}

    def prepare(
        self,
        modules: Sequence[nn.Module],
        optimizers: Sequence[Optimizer],
        schedulers: Sequence[LRScheduler],
        scalers: Sequence[GradScaler] = (),
    ) -> None:
        if scalers:
            raise ConfigError("job.prepare: strategy fsdp takes no GradScaler; bfloat16 needs none")
        check_dense(modules)
        check_movable(modules)
        if not any(isinstance(one, FSDPModule) for root in modules for one in root.modules()):
            raise ConfigError(
                "job.prepare: no model is sharded; call fully_shard(model) before it, or run the "
                "job with --strategy allreduce, where every worker holds all of the model"
            )
        self._params = trained_by(optimizers)
        check_sharded(modules, self._params, self._group.size)
        self._follow_all(optimizers)
        outside = self._outside(schedulers)
        part = self._group.rank, self._group.size
        self._average_once_per_step(modules)
        shards = Shards(
            modules,
            optimizers,
            schedulers,
            part=part,
            outside=outside,
            script=self.script_state,
            position=self._client.state.position,
        )
        shards.variables = self.variables
        self._have_prepared(modules, optimizers, schedulers, scalers)
        self._watcher = Watcher(modules, optimizers, checks=False)
        self._client.start(shards, self._group)

    def open_feed(self, feed: Feed, growth: Growth | None = None) -> Feed:
        """Open a feed; the master need not know of an evaluation."""
        if feed.purpose != "train":
            # Its number is one that the master, which does not know it, gives to no other.
            own = feed.numbered(OWN + feed.feed)
            self._feeds[own.feed] = own
            return own
        size = self._group.size
        if feed.global_batch(size) % size:
            more = feed.batch_size + size - feed.batch_size % size
            raise ConfigError(
                f"job.batches: {feed.batch_size} samples cannot be divided evenly among {size} "
                f"workers, as strategy fsdp needs it; make batch_size a multiple of {size}, as "
                f"{more}, give batch_per_worker instead, or run the job with another --workers"
            )
        feed = super().open_feed(feed, growth)
        self._feeds[feed.feed] = feed
        return feed

    def source_line(self, line: int) -> SourceLine:
        return SourceLine(line, "", self._feeds[feed_of(line)].num_samples)

    def train(self, feed: Feed, reader: Reader, ahead: int) -> Iterator[Any]:
        if self._client.is_complete(feed.feed):
            return
        averaged = Reducer(())  # torch has averaged all gradients when backward ends
        yield from self._run(averaged, Evenly(feed.batch_size), feed, reader, ahead)

    def evaluate(self, fn: Evaluation, feed: Feed, readers: Readers) -> Results:
        """Evaluate batches in turn, since all members run the model together."""
        start_s = monotonic()
        self._client.unmark()
        with readers() as reader, torch.no_grad():
            found = evaluate_in_turn(fn, feed, reader, self._group.rank, self._group.size)
        if self._loop is not None:
            self._loop.excluded_s += monotonic() - start_s
        return found

    def clip_grad_norm_(self, max_norm: float, optimizer: int | None = None) -> Tensor:
        """Clip the whole gradient; all workers call it."""
        params = self._params if optimizer is None else self._trained_by(optimizer)
        return clip_whole(params, max_norm)

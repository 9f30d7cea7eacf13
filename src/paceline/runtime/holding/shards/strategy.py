"""Strategy fsdp: torch's FSDP2 divides the model, its steps and its batches are the job's.

Torch averages the gradients itself, all members alike: so all compute equal numbers of samples of
each step. The last slice of an epoch may not be divisible; of that every member computes all.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from time import monotonic
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.distributed.fsdp import FSDPModule
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from paceline.base.errors import ConfigError, InternalError
from paceline.base.samples import Span
from paceline.protocol.holding.group.division import Sharing
from paceline.runtime.data.growth import Growth
from paceline.runtime.data.reader import Reader
from paceline.runtime.data.work import Array, Work
from paceline.runtime.group.loop import GroupLoop
from paceline.runtime.group.reducer import Reducer
from paceline.runtime.group.strategy import Together, check_dense, check_movable
from paceline.runtime.group.transports import LONGEST_S, keep_to_network
from paceline.runtime.group.watcher import Watcher
from paceline.runtime.holding.shards.client import ShardClient
from paceline.runtime.holding.shards.shards import Shards, check_sharded
from paceline.runtime.process import Process
from paceline.runtime.state.outside import Outside
from paceline.runtime.stepping import clip_whole, trained_by
from paceline.runtime.strategy import Evaluation
from paceline.wire.messages.checks import Checked
from paceline.wire.messages.feeds import Feed, Slice, SourceLine, feed_of
from paceline.wire.messages.group import Division


class Evenly(Sharing):
    """Equal shares; of a slice that cannot be divided so, all of it for everybody.

    The mean of equal gradients is the gradient: exact, for some work done more than once.
    """

    __slots__ = ()

    def runs(
        self, whole: Slice, num_members: int, division: Division, absent: Sequence[int] = ()
    ) -> list[range]:
        """See `Sharing.runs`."""
        units = self.num_units(whole)
        if units % num_members or units < self._least(num_members) * num_members:
            return [range(units)] * num_members
        return super().runs(whole, num_members, division, absent)


def begin(process: Process) -> "Sharded":
    """Make the strategy of a job's process."""
    return Sharded(process)


class Sharded(Together):
    """`Strategy` of a member; made when all members are there, with torch's default group."""

    def __init__(self, process: Process) -> None:
        self._client = ShardClient(process)
        super().__init__(process, self._client)
        self._group, store = self._client.come_together()
        keep_to_network(self.spec, "GLOO_SOCKET_IFNAME")
        dist.init_process_group(
            "gloo",
            store=store,
            rank=self._group.rank,
            world_size=self._group.size,
            timeout=timedelta(seconds=LONGEST_S),
        )
        self._params: list[nn.Parameter] = []
        self._feeds: dict[int, Feed] = {}
        self._watcher: Watcher | None = None

    def prepare(
        self,
        modules: Sequence[nn.Module],
        optimizers: Sequence[Optimizer],
        schedulers: Sequence[LRScheduler],
        scalers: Sequence[GradScaler] = (),
    ) -> None:
        """See `Strategy.prepare`."""
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
        outside = Outside(schedulers, self._num_schedules)
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
        self._watcher = Watcher(modules, optimizers, checks=False)
        self._client.start(shards, self._group)

    def open_feed(self, feed: Feed, growth: Growth | None = None) -> Feed:
        """See `Strategy.open_feed`; of an evaluation the master need not know."""
        self._feeds[feed.feed] = feed
        if feed.purpose != "train":
            return feed
        size = self._group.size
        if feed.global_batch(size) % size:
            more = feed.batch_size + size - feed.batch_size % size
            raise ConfigError(
                f"job.batches: {feed.batch_size} samples cannot be divided evenly among {size} "
                f"workers, as strategy fsdp needs it; make batch_size a multiple of {size}, as "
                f"{more}, give batch_per_worker instead, or run the job with another --workers"
            )
        return super().open_feed(feed, growth)

    def source_line(self, line: int) -> SourceLine:
        """See `Strategy.source_line`."""
        return SourceLine(line, "", self._feeds[feed_of(line)].num_samples)

    def check(self, measure: Callable[[], Checked]) -> None:
        """See `Strategy.check`."""
        self._client.check(measure)

    def train(self, feed: Feed, reader: Reader, ahead: int) -> Iterator[Any]:
        """See `Strategy.train`."""
        if self._client.is_complete(feed.feed):
            return
        averaged = Reducer(())  # torch has averaged all gradients when backward ends
        sharing, number = Evenly(feed.batch_size), len(self._optimizers)
        if self._watcher is None:
            raise InternalError("the model was used before it was prepared")
        self._loop = GroupLoop(
            self._client,
            averaged,
            sharing,
            feed,
            reader,
            ahead,
            number,
            watcher=self._watcher,
        )
        try:
            yield from self._loop.run()
        finally:
            self._loop = None

    def evaluate(
        self, fn: Evaluation, feed: Feed, readers: Callable[[], AbstractContextManager[Reader]]
    ) -> Mapping[str, Array]:
        """See `Strategy.evaluate`: batches in turn, since all members run the model together.

        Who has no batch in the last round computes the last one once more, for nothing.
        """
        start_s = monotonic()
        self._client.unmark()
        spans = _batches_of(feed)
        found: dict[str, list[Array]] = {}
        with readers() as reader, torch.no_grad():
            for first in range(0, len(spans), self._group.size):
                span = spans[min(first + self._group.rank, len(spans) - 1)]
                values = fn(reader.get(Work(feed.feed, (span,), len(span))), len(span))
                of_round = spans[first : first + self._group.size]
                for name, mine in sorted(values.items()):
                    found.setdefault(name, []).extend(_all_gather(mine, of_round, self._group.size))
        if self._loop is not None:
            self._loop.excluded_s += monotonic() - start_s
        return {name: np.concatenate(parts) for name, parts in found.items()}

    def clip_grad_norm_(self, max_norm: float) -> Tensor:
        """See `Strategy.clip_grad_norm_`: of the whole gradient; all workers call it."""
        return clip_whole(self._params, max_norm)


def _batches_of(feed: Feed) -> list[Span]:
    """An evaluation's batches, in order."""
    total = feed.num_samples or 0
    starts = range(0, total, feed.batch_size)
    return [Span(feed.line(), start, min(start + feed.batch_size, total)) for start in starts]


def _all_gather(mine: Array, spans: Sequence[Span], size: int) -> list[Array]:
    """What each member has computed, ``[len(span), ...]``; as bytes: gloo lacks some dtypes."""
    longest = max(map(len, spans))
    padded = np.zeros((longest, *mine.shape[1:]), mine.dtype)
    padded[: len(mine)] = mine
    ours = torch.from_numpy(padded.reshape(-1).view(np.uint8))
    all_of_them = [torch.empty_like(ours) for _ in range(size)]
    dist.all_gather(all_of_them, ours)
    return [
        one.numpy().view(mine.dtype).reshape(padded.shape)[: len(span)]
        for one, span in zip(all_of_them, spans, strict=False)
    ]

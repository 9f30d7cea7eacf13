"""Strategy ps: the model lives with a `TrainingPort`, parameter servers or this process alone."""

from collections.abc import Callable, Iterator, Sequence
from time import monotonic
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from paceline.base.errors import ConfigError, InternalError
from paceline.runtime.data.growth import Growth
from paceline.runtime.data.reader import Reader
from paceline.runtime.holding.servers.lookup import Lookups
from paceline.runtime.holding.servers.loop import LeftLoop, ServersLoop
from paceline.runtime.holding.servers.model import Model
from paceline.runtime.holding.servers.port import TrainingPort
from paceline.runtime.holding.servers.preparing import refuse, take_over
from paceline.runtime.holding.servers.schedule import Schedule, place_of
from paceline.runtime.process.feature_port import Links, LogPlace
from paceline.runtime.process.process import Process
from paceline.runtime.script.strategy import (
    Entries,
    Evaluation,
    Reached,
    Readers,
    Results,
    begun_at,
)
from paceline.runtime.state.script_state import ScriptState
from paceline.runtime.variables.variables import Variables
from paceline.wire.messages.feeds import Feed, ScriptPlace, SourceLine, Underway

HAND_OVER_S = 5.0
"""Seconds to wait for a decision on what a worker has handed in, when its script has returned
within a loop."""


def begin(process: Process) -> "OnServers":
    """Make the strategy of a job's process."""
    # Imported late: a script started without `paceline run` begins sooner without it.
    from paceline.runtime.holding.servers.client import ServerTrainer

    return OnServers(ServerTrainer(process))


class OnServers:
    """`Strategy`: the worker computes gradients on values that it is given for each batch."""

    stands_in = False
    """See `Strategy.stands_in`: where worker-0 cannot take part any more, nobody does."""

    def __init__(self, trainer: TrainingPort, script_state: ScriptState | None = None) -> None:
        self.trainer = trainer
        self.spec, self.rank = trainer.spec, trainer.rank
        self.takes_growth, self.is_alone = trainer.takes_growth, trainer.is_alone
        self.can_accumulate, self.accumulate = False, 1
        self.meets_in_bodies, self.takes_uneven_steps = trainer.is_alone, False
        self.takes_trainings = False
        self.script_state = ScriptState() if script_state is None else script_state
        """See `Strategy.script_state`."""
        self.variables = Variables()
        """See `Strategy.variables`: on servers none are found."""
        self.entries: Entries | None = None
        """See `Strategy.entries`."""
        self._model: Model | None = None
        self._lookups = Lookups((), trainer.rows)
        self._schedule = Schedule((), ())
        self._loop: ServersLoop | None = None
        self._left = LeftLoop((), self._refresh)
        self.global_batch: int | None = None
        """See `Strategy.global_batch`."""

    def prepare(
        self,
        modules: Sequence[nn.Module],
        optimizers: Sequence[Optimizer],
        schedulers: Sequence[LRScheduler],
        scalers: Sequence[GradScaler] = (),
    ) -> None:
        refuse(modules, scalers)
        model = Model(list(modules), list(optimizers), self.spec.seed)
        self._schedule = Schedule(optimizers, schedulers, self._count, self.script_state, modules)
        schedule = self._schedule
        take_over(
            model, self.trainer, self._lookups, lambda: self._loop, lambda: schedule.has_opened
        )
        self._model = model

    @property
    def model(self) -> Model:
        """Model that was prepared."""
        if self._model is None:
            raise InternalError("the model was used before it was prepared")
        return self._model

    def _count(self, feed: int) -> int:
        """Samples of a feed in the model, with all that this worker has pushed of it."""
        if not self.trainer.sums_workers:  # there the step that comes next has none of it
            self.trainer.drain()
        return self.trainer.count(feed)

    def open_feed(self, feed: Feed, growth: Growth | None = None) -> Feed:
        if feed.purpose == "train" and self.trainer.sums_workers:
            # A loop that was left: while its last step waits for others, they must come to it.
            self.trainer.settle()
        opened = self.trainer.open_feed(feed, growth)
        if opened.purpose == "train":
            self._schedule.opened(opened)
        return opened

    def begun(self) -> Reached | None:
        """Say how far the script's state is, which may be of another epoch than the model."""
        feeds = self.trainer.begun()
        found = self.trainer.script(None) if feeds else None
        return None if found is None else begun_at(*place_of(found[1]), feeds)

    def underway(self, place: ScriptPlace) -> Underway | None:
        return self.trainer.underway(place)

    @property
    def calls(self) -> tuple[int, ...]:
        return self._schedule.between.own()

    def meet(self, place: ScriptPlace, value: bytes, *, all_workers: bool) -> Sequence[bytes]:
        return self.trainer.meet(place, value, all_workers=all_workers)

    def enter_place(self, place: ScriptPlace) -> None:
        self._schedule.between.place = place

    def pass_over(self, begun: Reached) -> None:
        self._schedule.between.pass_over(begun.place, begun.calls)
        for feed in begun.feeds:
            self._schedule.opened(feed)
            self._schedule.reckoning.complete(feed)

    def source_line(self, line: int) -> SourceLine:
        return self.trainer.source_line(line)

    def check(self, measure: Callable[[Links], None]) -> None:
        measure(self.trainer.measure_links)

    def train(self, feed: Feed, reader: Reader, ahead: int) -> Iterator[Any]:
        if self.model.is_back:
            raise ConfigError(
                "job.batches was called after load_state_dict of a prepared model, but parameter "
                "servers go on from their own values; load a model after the last loop only, or "
                "run the job with --strategy allreduce"
            )
        self._loop = ServersLoop(
            self.trainer, self.model, self._lookups, self._schedule, feed, reader, ahead
        )
        self._left.close()
        self.global_batch = feed.batch_size
        if self.trainer.keeps_script:
            self._schedule.begin_loop(feed.feed)
        try:
            yield from self._loop.run()
        except GeneratorExit:
            self.trainer.left_loop(feed.feed)
            self._left = LeftLoop(self.model.modules, self._refresh)
            raise
        finally:
            self._loop = self.global_batch = None

    def _refresh(self) -> None:
        """Have the values that the job holds now."""
        self.model.check_values()
        self.trainer.settle()
        self.model.load(self.trainer.dense())

    @property
    def step(self) -> int | None:
        """The step; in a body before ``optimizer.step()`` where the batch begins."""
        step = self._loop.step if self._loop is not None else None
        return self._schedule.step(in_hand=step is not None and not step.pushed)

    @property
    def samples(self) -> int | None:
        """See `Strategy.samples`."""
        return self._schedule.reckoning.now

    @property
    def num_workers(self) -> int | None:
        return self.trainer.num_workers if self._loop is not None else None

    @property
    def log_place(self) -> LogPlace:
        step = self._loop.step if self._loop is not None else None
        restores = self.trainer.restores if step is None else step.restores
        return self._schedule.log_place(restores, in_body=step is not None)

    @property
    def place_in_body(self) -> tuple[int, ...]:
        """See `Strategy.place_in_body`: the number of the step whose batch the script has."""
        step = self._loop.step if self._loop is not None else None
        return (step.staged.work.step if step is not None else 0,)

    def close_step(self) -> None:
        """Do nothing: every optimizer steps on every batch."""

    @property
    def in_step(self) -> bool:
        return self._lookups.open

    def evaluate(self, fn: Evaluation, feed: Feed, readers: Readers) -> Results:
        start_s = monotonic()
        self._left.close()
        self.model.check_values()
        self.trainer.settle()
        results = None
        while results is None:
            self.model.load(self.trainer.dense())
            with readers() as reader, torch.no_grad():
                self._evaluate(fn, feed, reader)
            results = self.trainer.evaluate_get(feed.feed)
        if self._loop is not None:
            self._loop.excluded_s += monotonic() - start_s
        return results

    def _evaluate(self, fn: Evaluation, feed: Feed, reader: Reader) -> None:
        while (work := self.trainer.next_work(feed.feed)) is not None:
            batch = reader.get(work)
            reader.ask(self.trainer.upcoming(feed.feed, 2))
            self._lookups.begin({}, {})
            try:
                values = fn(batch, work.num_samples)
            finally:
                self._lookups.end()
            self.trainer.evaluate_put(work, values)

    def hand_over(self) -> None:
        """Hand over: servers hold what is trained, and the master has it kept.

        A step that lacks the share of another worker that left is never decided.
        """
        if self._model is None:
            return
        if self._loop is not None:
            self._loop.abandon()
        self._left.close()
        self.trainer.drain(HAND_OVER_S)

    def checkpoint(self) -> None:
        self.trainer.checkpoint()

    def clip_grad_norm_(self, max_norm: float, optimizer: int | None = None) -> Tensor:
        """Clip the gradient of a contribution.

        Raises:
            ConfigError: mode bsp, whose steps sum the gradients of all workers on the servers; or
                one optimizer is named.
        """
        if optimizer is not None:
            raise ConfigError(
                "job.clip_grad_norm_: on servers, and with sparse tables, it clips the gradients "
                "of all optimizers together; leave the optimizer out, or run the job with "
                "--strategy allreduce"
            )
        if self.trainer.sums_workers:
            raise ConfigError(
                "job.clip_grad_norm_: in mode bsp a step is the sum of all workers' gradients, "
                "which no worker sees; run the job with --mode asp or --mode ssp"
            )
        dense = [one.param for one in self.model.dense]
        rows = [torch.from_numpy(values) for _, values in self._lookups.gradients().values()]
        grads = [param.grad for param in dense if param.grad is not None]
        norm = get_total_norm([*grads, *rows])
        clip_grads_with_norm_([*dense, *self._lookups.leaves()], max_norm, norm)
        return norm

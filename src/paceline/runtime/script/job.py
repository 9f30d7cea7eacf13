"""The user's job: what ``paceline.init()`` returns.

    job = pl.init()
    model, optimizer = job.prepare(model, optimizer)
    for batch in job.batches(dataset, batch_size=4096, epochs=3):
        loss_fn(model(batch.x), batch.y).backward()
        optimizer.step(); optimizer.zero_grad()

The same script runs alone (this process holds the model) and under ``paceline run`` (parameter
servers do, or every worker). Only `paceline.runtime.script.strategy_choice` decides which. Alone,
it goes by what is prepared. The rest sees the `Strategy` port.
"""

import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from time import monotonic
from typing import Any, NamedTuple

import msgspec
import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from paceline.base.errors import ConfigError
from paceline.protocol.reasons import feed_difference
from paceline.runtime.data.reader import BatchLoader, Reader, loader_of
from paceline.runtime.data.torch_loader import DEFAULTS, Loaders, ReadingLoop, Selection
from paceline.runtime.data.work import Array
from paceline.runtime.process.process import LeftBehind, OpenLoop, Stopped, current
from paceline.runtime.process.seeding import seed_all, seed_of
from paceline.runtime.script.batch_loop import BatchLoop
from paceline.runtime.script.course import OUTSIDE, ScriptCourse
from paceline.runtime.script.dealt import DealtLoader, as_prepared, without_loaders
from paceline.runtime.script.draws import Draws
from paceline.runtime.script.evaluation import as_tensor, checked_values, untouched
from paceline.runtime.script.feed_requests import (
    Growing,
    check_number,
    feed_to_evaluate,
    feed_to_train,
)
from paceline.runtime.script.given import check_given, flatten, takes_norm_alone
from paceline.runtime.script.late_life import LateLife
from paceline.runtime.script.logged import checked_log
from paceline.runtime.script.strategy import Entry, Reached, Strategy
from paceline.runtime.script.strategy_choice import fitting, strategy_here
from paceline.runtime.state.packed import packed, unpacked
from paceline.runtime.state.restoring import group_sizes
from paceline.runtime.state.script_state import ScriptState
from paceline.wire.messages.feeds import BEHIND, Feed, ScriptPlace

CollateFn = Callable[[Any], Any]

CPU = torch.device("cpu")
MAX_VALUE_BYTES = 1 << 20
"""Bytes of a value that workers tell each other by `Job.agree` and its like, at most."""


class LoopAsked(NamedTuple):
    """A loop over batches, as the script asks for it."""

    given: Selection
    site: str
    """See `Variables.site`."""
    epochs: int
    accumulate: int
    batch_per_worker: int | None


class LoopRead(NamedTuple):
    """Data that such a loop reads."""

    reading: Selection
    feed: Feed
    growth: Growing | None


class LoopBegun(NamedTuple):
    """A loop over batches that the script has begun."""

    feed: Feed
    dataset: Any
    make_loader: Callable[[], BatchLoader]
    growth: Growing | None
    ahead: int
    """Batches made ahead."""


def init() -> "Job":
    """Join the job of this process; without `paceline run`, be a job of one worker.

    Seeds ``random``, numpy and torch from the job's seed, so that every worker builds the same
    initial model: call it before making the model.

    Again, for the next of several trainings: with strategy allreduce the job goes on with what is
    prepared then, and what this function returned before trains no more.
    """
    global _newest
    before = _newest
    strategy = strategy_here(None if before is None else before._strategy)
    job = begin(strategy)
    if before is not None and before._strategy is strategy:
        job._follow(before)
    _newest = None if strategy.is_alone else job
    return job


_newest: "Job | None" = None
"""The last one that `init` returned in a job's process."""


def begin(strategy: Strategy) -> "Job":
    """A job of this strategy; see `init`."""
    seed_all(strategy.spec.seed)
    return (kind or Job)(strategy)


kind: "type[Job] | None" = None
"""A class that looks on at all that the script asks of its job; None: `Job` itself."""


def _nothing() -> Generator[Any, None, None]:
    """A loop without a batch."""
    yield from ()


class Job:
    """One worker's view of its job. Not thread-safe: for the thread that trains."""

    def __init__(self, strategy: Strategy) -> None:
        self._strategy = strategy
        self._modules: Sequence[nn.Module] = ()
        self._optimizers: Sequence[Optimizer] = ()
        self._prepared_groups: list[list[int]] = []
        self._is_over = False
        """Whether `paceline.init` was called again, and returned another one."""
        self._looping = False
        self._num_feeds = 0
        self._loaders = Loaders()
        self._has_trainings = False
        """Whether something was prepared in this script."""
        self._draws = Draws()
        self._set_course(ScriptCourse(self._step_of_body, self._place_in_body))
        self._begun: Reached | None = None
        """Place of the state when this script asked, before its first loop over epochs."""
        self._has_asked = False
        self._of_epochs = 0
        """Epochs of the loop over epochs in hand; 0: in none."""
        self._calls: tuple[int, ...] = ()
        """Steps of schedulers between loops when the epoch in hand began."""

    def _set_course(self, course: ScriptCourse) -> None:
        self._course = course
        self._late = LateLife(lambda: self._strategy, course, self._draws)

    def _follow(self, before: "Job") -> None:
        """Go on with the job of this process; the object of ``before`` is over."""
        before._check_between("pl.init")
        self._set_course(before._course)
        self._has_trainings = before._has_trainings
        self._strategy.script_state.begin_again()
        before._is_over, before._modules, before._optimizers = True, (), ()

    @property
    def is_chief(self) -> bool:
        """True in exactly one worker: the one to print, save and plot.

        That is worker-0, also in its next lives. With all-reduce, where it is gone for good (with
        its machine, or since it cannot take part) and the others go on, it is the first of these,
        from their next group on. If ``paceline scale`` then brings worker-0 back, both are it
        until that one has joined.
        """
        return self._strategy.rank == 0 or self._strategy.stands_in

    @property
    def rank(self) -> int:
        """Number of this worker, from 0: a new life keeps it. To choose its device by.

        Numbers may have gaps once workers were taken away.
        """
        return self._strategy.rank

    @property
    def global_batch(self) -> int:
        """Samples of a whole step of those that train now; the last one of an epoch may have fewer.

        The same in all workers that are in the step, to scale a learning rate by. With servers it
        is ``batch_size``, of which an update in mode asp or ssp has one worker's part.

        Raises:
            ConfigError: outside of a loop over `batches`.
        """
        size = self._strategy.global_batch
        if size is None:
            raise ConfigError("job.global_batch is known within a loop over job.batches only")
        return size

    @property
    def step(self) -> int:
        """The position of the schedule: global batches in what was prepared last.

        The same in all workers, also in one that joins or goes on. To set learning rates and the
        like by, where no scheduler does: what a script counts itself differs among workers, and
        begins again with each life of one. It grows with the last ``optimizer.step()`` of a step,
        by one; after a step that lacks samples it may stay, or grow by more. Alone and with
        all-reduce the first of several optimizers that step on one batch counts. On servers a
        worker learns what a step lacked when the next batch comes, so set by its value at the
        beginning of a batch what all workers of a step must have alike. In modes asp and ssp it is
        what the model has, with what this worker has added, when the batch comes.

        Raises:
            ConfigError: before the first batch of `batches`.
        """
        return self._known("step", self._strategy.step)

    @property
    def samples(self) -> int:
        """Samples in the model, as this worker knows: it changes where `step` does.

        Raises:
            ConfigError: before the first batch of `batches`.
        """
        return self._known("samples", self._strategy.samples)

    @property
    def epoch(self) -> int:
        """The epoch of `epochs` in hand.

        Raises:
            ConfigError: outside of a loop over `epochs`.
        """
        if self._course.epoch is None:
            raise ConfigError("job.epoch is known within a loop over job.epochs only")
        return self._course.epoch

    @property
    def num_workers(self) -> int:
        """Workers that train now: members of the step in hand; on servers those that are up.

        Raises:
            ConfigError: outside of a loop over `batches`.
        """
        count = self._strategy.num_workers
        if count is None:
            raise ConfigError("job.num_workers is known within a loop over job.batches only")
        return count

    @property
    def state(self) -> ScriptState:
        """Values that the script keeps beside what it prepares: ``job.state["ema"] = ema``.

        Values are objects with ``state_dict`` and ``load_state_dict``, or plain data (numbers,
        strings, tensors, and lists and dicts of them). With strategies allreduce and fsdp they are
        copied and kept with the model of the same step: workers that join have them, and a job that
        is resumed. Set them under the same names in all workers, before the first batch; then what
        a peer or a cut holds takes their place. Change them between ``optimizer.step()`` and the
        next batch, once for each value of `step`, since the body of a loop runs again for a step
        that a lost worker breaks.
        torch's ``AveragedModel`` sees to that itself (strategies allreduce and fsdp). With
        allreduce an average of a prepared model is kept under a name of its own, without being set.

        On servers every worker has values of its own. What they keep, for workers that join and for
        a resumed job, are those of the worker that is furthest (`step`); of two at one place, those
        that come last. They are sent with each change, and may have 64 MiB. A cut may hold them as
        they were one step before its model: servers may write it before the body of the loop has
        ended. A restore replaces every worker's values by those of one worker.
        """
        return self._strategy.script_state

    def prepare(self, *objects: Any, accumulate: int = 1) -> Any:
        """Hand models, optimizers, schedulers and scalers over to the job, all in one call.

        Args:
            objects: ``nn.Module``s, torch optimizers and schedulers, and, with strategy allreduce
                or alone without sparse tables, ``torch.amp.GradScaler``s, also in lists and tuples.
                A ``DataLoader`` of training data may be among them.
            accumulate: of the loops over such DataLoaders; see `batches`.

        Call it again, with a new model, for the next of several trainings (alone, and with strategy
        allreduce). What was prepared before trains no more; `step` and `samples` begin at 0 again.

        Returns:
            What was given, in the same form (one object: that object); of a module that is wrapped
            in torch's DistributedDataParallel the module; of a DataLoader one in its place, over
            which a loop is a loop over `batches`. Models and optimizers are changed in place.
            Embeddings with ``sparse=True`` no longer hold their weight here, and what is frozen
            now (``requires_grad=False``, or in no optimizer) stays as it is.

        Raises:
            ConfigError: something that the job cannot hold or run.
        """
        self._check_may_prepare()
        objects = as_prepared(objects, partial(self._dealt, accumulate=accumulate))
        flat = without_loaders(flatten(objects), accumulate)
        modules = [one for one in flat if isinstance(one, nn.Module)]
        optimizers = [one for one in flat if isinstance(one, Optimizer)]
        check_given(flat, modules, optimizers)
        schedulers = [one for one in flat if isinstance(one, LRScheduler)]
        scalers = [one for one in flat if isinstance(one, GradScaler)]
        self._strategy = fitting(self._strategy, modules, optimizers)
        self._strategy.prepare(modules, optimizers, schedulers, scalers)
        self._modules, self._optimizers = modules, optimizers
        self._prepared_groups = group_sizes(optimizers)
        if self._has_trainings:
            self._num_feeds, self._loaders = 0, Loaders()
            self._begin_course()
        self._has_trainings = True
        return objects[0] if len(objects) == 1 else objects

    def _check_may_prepare(self) -> None:
        self._check_goes_on("job.prepare")
        if self._modules and not self._strategy.takes_trainings:
            raise ConfigError(
                "job.prepare was called twice; give it everything in one call, and train another "
                "model in another job, or with --strategy allreduce"
            )
        if self._has_trainings:
            self._check_between("job.prepare")

    def _dealt(self, loader: DataLoader[Any], accumulate: int) -> DealtLoader:
        read = partial(self.batches, accumulate=accumulate)
        return DealtLoader(
            loader,
            read,
            training=lambda: any(one.training for one in self._modules),
            waits=lambda: self._strategy.in_step,
        )

    def epochs(self, epochs: int) -> Iterator[int]:
        """Number the epochs of a script that goes through its data more than once, from 0.

            for epoch in job.epochs(12):
                for batch in job.batches(dataset, batch_size=4096):
                    ...
                validate(model)

        A worker that joins, and a job that is resumed, begin with the epoch that the model is in:
        what the body does between its loops is not done again for epochs that are over. An epoch
        has begun when a step of its first loop is in the model. If the job is resumed before that,
        the end of the epoch before is done again, with the model and `state` as they were then.
        What the script keeps from one epoch to the next belongs into `state`.

        Args:
            epochs: how many; ``epochs`` in the job's spec takes its place.

        Raises:
            ConfigError: a value is out of range, nothing was prepared, or another such loop is
                open.
        """
        self._check_prepared("job.epochs")
        check_number("job.epochs", "epochs", epochs)
        if self._course.epoch is not None or self._looping:
            raise ConfigError(
                "job.epochs was called within a loop over job.epochs or job.batches; finish that "
                "loop first"
            )
        return self._epochs(self._strategy.spec.epochs or epochs)

    def _epochs(self, count: int) -> Iterator[int]:
        if not self._has_asked:
            self._begun, self._has_asked = self._strategy.begun(), True
        first = self._course.first_epoch(self._begun.place if self._begun else None, count)
        self._of_epochs, epoch = count, first
        try:
            while epoch < count:
                self._course.enter(epoch)
                self._come_to(passed=epoch == first > 0)
                yield epoch
                # A life that had no batch of it may have come in in a later one.
                epoch = (self._course.epoch or 0) + 1
        finally:
            self._of_epochs = 0
            self._course.leave()
            self._come_to(passed=first == count)

    def batches(  # noqa: PLR0913
        self,
        dataset: Any,
        batch_size: int | None = None,
        epochs: int = 1,
        *,
        batch_per_worker: int | None = None,
        accumulate: int = 1,
        shuffle: bool = True,
        num_workers: int = 0,
        collate_fn: CollateFn | None = None,
        pin_memory: bool = False,
        prefetch: int = 2,
    ) -> BatchLoop:
        """The batches that this worker computes; call ``optimizer.step()`` once for each.

        The loss must be a mean over the yielded batch. A share of a step may come as several
        batches: the model changes after the last, on which prepared schedulers act. Leaving the
        loop early drops what is not stepped. The job's spec may override batch size and epochs.

        Args:
            dataset: anything with ``__len__`` and ``__getitem__`` (or ``__getitems__``), a torch
                ``DataLoader``, which then says all the rest (its batch size is that of the global
                batch), an ``IterableDataset`` with ``__len__``, or with ``state_dict`` and
                ``load_state_dict``, which every worker reads whole, or a ``StreamSource``: its
                records are read as they come, not shuffled, until it is finished (in modes asp and
                ssp, and alone). ``TextLines`` and ``CsvRows`` of more than 256 MiB are
                read while their lines are still being counted (mode bsp waits for the count).
            batch_size: samples of the global batch; how many of them come here is the job's affair.
            epochs: passes over the dataset. To do something between them, write a loop over
                `epochs` around this one.
            batch_per_worker: instead of ``batch_size`` (strategies allreduce and fsdp): the global
                batch is so many samples for each worker that does the step, and follows their
                number (`global_batch`). A slow worker may still have a smaller part of it.
            accumulate: batches for each ``optimizer.step()``, as of a script that adds up gradients
                (alone and with strategy allreduce). A step is of so many times ``batch_size``.
            shuffle: whether each epoch has a new order: of all records; in files and tables of the
                shards and within each; in text of more than 256 MiB of 64 shards at a time.
            num_workers: loader processes; 0: this process reads, in a thread what is known to draw
                no random numbers (paceline's own sources, those that say ``reads_in_thread``,
                ``TensorDataset``, lists and subsets of such, without ``collate_fn``), all else
                between steps.
            collate_fn: as in torch's DataLoader.
            pin_memory: as in torch's DataLoader.
            prefetch: batches made ahead, per loader process.

        Raises:
            ConfigError: a value is out of range, nothing was prepared, or another loop is open.
            Stopped: the job must stop; if it is not caught, it ends the script gracefully.
        """
        self._check_may_train()
        given = Selection(
            dataset, batch_size, shuffle, num_workers, collate_fn, pin_memory, prefetch
        )
        if self._course.epoch is None:
            epochs = self._strategy.spec.epochs or epochs
        variables, frame = self._strategy.variables, sys._getframe(1)
        site = variables.site(frame) + self._added_groups()
        asked = LoopAsked(given, site, epochs, accumulate, batch_per_worker)
        turn = self._loaders.turn_of(dataset) + 1
        variables.comes_to_loop(frame, self._course.coming, asked.site, turn)
        try:
            begun = self._begin(asked)
        except Stopped:
            variables.stopped()
            raise
        finally:
            variables.goes_on()
        if begun is None:
            return BatchLoop(_nothing(), 0, variables)
        feed, bodies = begun.feed, self._run(begun, asked)
        counts = feed.num_samples and not feed.per_worker
        num_batches = feed.num_slices * accumulate if counts else 0
        return BatchLoop(bodies, num_batches, variables)

    def _added_groups(self) -> str:
        """Return the groups of the optimizers, if the script has added some since `prepare`.

        They are part of a loop's site: a life whose script is still to add them does not enter
        that loop, but passes over those before it, and adds them on its way.
        """
        groups = group_sizes(self._optimizers)
        return f" with {groups}" if groups != self._prepared_groups else ""

    def _begin(self, asked: LoopAsked) -> LoopBegun | None:
        """Begin the loop that others are in, or the next one; None: it is behind the last one."""
        entry = self._late.entry(asked.site)
        begun = self._enter(asked, entry) if entry is not None else None
        if begun is None and self._late.is_behind_end():
            return None
        return begun or self._begin_loop(asked)

    def _enter(self, asked: LoopAsked, entry: Entry) -> LoopBegun | None:
        """Begin the loop that others are in; None: the script would read something else there."""
        here, turn = self._course.coming, self._loaders.turn_of(asked.given.dataset)
        self._move_to(entry.place)
        read = self._read(asked, entry.turn)
        if entry.feed is not None and feed_difference(entry.feed, read.feed):
            self._move_to(here)
            self._loaders.turn_back(asked.given.dataset, turn)
            self._strategy.variables.declined = True
            return None
        return self._begin_loop(asked, read)

    def _read(self, asked: LoopAsked, turn: int | None = None) -> LoopRead:
        """Return what must be read, as a feed that is not open yet."""
        loop = self._to_train(asked.epochs, asked.accumulate, asked.batch_per_worker)
        if self._course.epoch is None:
            loop = loop._replace(turn=turn)
        reading = self._loaders.read(asked.given, loop)
        feed, growth = feed_to_train(
            self._strategy,
            self._num_feeds,
            reading.dataset,
            batch_size=reading.batch_size,
            batch_per_worker=asked.batch_per_worker,
            accumulate=asked.accumulate,
            epochs=asked.epochs,
            shuffle=reading.shuffle,
        )
        turn = max(0, self._loaders.turn_of(asked.given.dataset))
        feed = msgspec.structs.replace(feed, site=asked.site, turn=turn)
        return LoopRead(reading, feed, growth)

    def _begin_loop(self, asked: LoopAsked, read: LoopRead | None = None) -> LoopBegun:
        reading, feed, growth = read or self._read(asked)
        self._strategy.accumulate = asked.accumulate
        feed = self._opened(feed, growth)
        if feed.feed >= BEHIND:
            self._late.begins_behind_end()
        if self._draws.first_feed is None:
            self._draws.first_feed = feed.feed
        ahead = reading.prefetch * max(reading.num_workers, 1)
        return LoopBegun(feed, reading.dataset, self._loader_of(reading, feed), growth, ahead)

    def _to_train(self, epochs: int, accumulate: int, batch_per_worker: int | None) -> ReadingLoop:
        check_number("job.batches", "accumulate", accumulate)
        spec, size = self._strategy.spec, 0
        if batch_per_worker is not None:
            check_number("job.batches", "batch_per_worker", batch_per_worker)
            size = spec.workers.count * batch_per_worker
        return ReadingLoop(
            "job.batches",
            spec,
            self._course.coming_in_training,
            epochs,
            self._course.epoch,
            size=size,
            accumulate=accumulate,
            underway=partial(self._strategy.underway, self._course.coming),
            passed=self._passed_over,
        )

    def _loader_of(self, reading: Selection, feed: Feed) -> Callable[[], BatchLoader]:
        return partial(
            loader_of,
            reading.dataset,
            feed,
            num_workers=reading.num_workers,
            collate_fn=reading.collate_fn,
            pin_memory=reading.pin_memory,
            prefetch=reading.prefetch,
            process_seed=self._process_seed(feed),
        )

    def _check_may_train(self) -> None:
        self._check_prepared("job.batches")
        if not self._optimizers:
            raise ConfigError(
                "job.batches: no optimizer was given to job.prepare; "
                "prepare(model, optimizer), or use job.evaluate"
            )
        if self._looping:
            raise ConfigError(
                "job.batches was called inside the loop of another job.batches; finish that "
                "loop first, and use job.evaluate for held-out data"
            )

    def _run(self, begun: LoopBegun, asked: LoopAsked) -> Generator[Any, None, None]:
        if self._looping:
            raise ConfigError("two loops over job.batches run at once; finish one, then the other")
        self._looping, process = True, current()
        # No step is known before the first batch.
        loop = OpenLoop(lambda: self._strategy.step or 0, self._miscount)
        if process is not None:
            process.open_loops.append(loop)
        try:
            self._check_node()
            while later := (yield from self._pass_or_next(begun, asked)):
                begun = later
            if not (self._draws.has_begun or self._strategy.variables.has_left):
                self._late.stand_by()
            if process is not None:
                process.open_loops.remove(loop)
        finally:
            loop.leave()
            self._looping = False
            self._draws.leave()
            self._loop_ended()

    def _pass_or_next(
        self, begun: LoopBegun, asked: LoopAsked
    ) -> Generator[Any, None, LoopBegun | None]:
        """Make one pass over a feed; return the loop of others that this life goes on with."""
        left: LeftBehind | None = None
        try:
            yield from self._pass(begun)
        except LeftBehind as error:
            left = error
        entry = self._late.next_entry(asked.site)
        later = self._enter(asked, entry) if entry is not None else None
        if later is not None and self._strategy.entries is not None:
            self._strategy.entries.goes_on()
        elif left is not None:
            raise left
        return later

    def _miscount(self) -> int:
        """See `ScriptCourse.miscount`; 0 where what the script counts follows the job."""
        return 0 if self._strategy.variables.follows else self._course.miscount

    def _pass(self, begun: LoopBegun) -> Iterator[Any]:
        """Make one pass over a feed."""
        feed = begun.feed
        self._strategy.variables.begin_loop(feed, begun.dataset)
        with begun.make_loader() as loader, begun.growth or nullcontext():
            line = self._strategy.source_line
            reader = Reader(loader, feed, line, partial(self._draws.begin, self._strategy, feed))
            yield from self._bodies(self._strategy.train(feed, reader, begun.ahead))

    def _bodies(self, batches: Iterator[Any]) -> Iterator[Any]:
        self._course.enter_loop(self._strategy.accumulate)
        is_passed = True
        try:
            for batch in batches:
                if is_passed:
                    self._late.tell_passed()
                is_passed = False
                self._course.enter_body()
                yield batch
            if is_passed and self._draws.has_begun:
                self._late.pass_loop()
        finally:
            self._course.leave_loop()
            if isinstance(batches, Generator):
                batches.close()

    def evaluate(
        self,
        fn: Callable[[Any], Mapping[str, Tensor]],
        dataset: Any,
        batch_size: int = 4096,
        *,
        num_workers: int = 0,
        collate_fn: CollateFn | None = None,
    ) -> dict[str, Tensor]:
        """Compute something for every record of ``dataset``, each once, shared among the workers.

        All workers call it, and get the same result. It runs without gradients on the values that
        the job holds when it begins. ``model.eval()`` and ``model.train()`` are left to the caller.
        A model that is in training mode has the buffers of before when it returns (BatchNorm):
        which worker computes which samples leaves no trace in it.

        Args:
            fn: batch -> name -> tensor with one entry per sample, ``[n, ...]``.
            dataset: as in ``batches``; read in order (that of its sampler, if it is a DataLoader).
            batch_size: samples per call of ``fn``.
            num_workers: as in ``batches``.
            collate_fn: as in ``batches``.

        Returns:
            name -> ``[len(dataset), ...]``, in the order of the dataset. All of it is in the memory
            of each worker.

        Raises:
            ConfigError: called between a batch and its ``optimizer.step()``, or ``fn`` returns
                something else.
        """
        self._check_prepared("job.evaluate")
        self._strategy.close_step()
        if self._strategy.in_step:
            raise ConfigError(
                "job.evaluate was called between a batch and its optimizer.step(); call it after"
            )
        check_number("job.evaluate", "batch_size", batch_size)
        given = DEFAULTS._replace(dataset=dataset, num_workers=num_workers, collate_fn=collate_fn)
        loop = ReadingLoop(
            "job.evaluate",
            self._strategy.spec,
            self._course.coming_in_training,
            size=batch_size,
        )
        reading = self._loaders.read(given, loop)
        size = reading.batch_size or batch_size
        asked = feed_to_evaluate(self._strategy, self._num_feeds, reading.dataset, size)
        feed = self._opened(asked)

        @contextmanager
        def reader() -> Iterator[Reader]:
            with self._loader_of(reading, feed)() as loader:
                yield Reader(loader, feed, self._strategy.source_line)

        def compute(batch: Any, num_samples: int) -> dict[str, Array]:
            with untouched((*self._modules, *self.state.values())):
                return checked_values(fn(batch), num_samples)

        results = self._strategy.evaluate(compute, feed, reader)
        return dict(as_tensor(name, values) for name, values in results.items())

    def checkpoint(self) -> None:
        """Have what was trained so far kept on disk, as soon as possible; does not wait.

        The job makes cuts on its own (``checkpoint`` in its spec); this is for moments that matter,
        for example the end of a phase. If the worker leaves before a cut begins, its request is
        dropped. The cut holds at least the steps that this worker has taken (modes asp and ssp:
        what the servers hold when they hear of it). Any worker may call it, at any time after
        ``prepare``; one cut serves calls in a row.
        Without `paceline run` a job keeps no cuts, and this does nothing.

        Raises:
            ConfigError: nothing was prepared.
        """
        self._check_prepared("job.checkpoint")
        self._strategy.checkpoint()

    @takes_norm_alone
    def clip_grad_norm_(self, max_norm: float, optimizer: Optimizer | None = None) -> Tensor:
        """Scale the gradients of the batch in hand to a norm of at most ``max_norm``.

        As ``torch.nn.utils.clip_grad_norm_`` over all that was prepared, looked-up rows included;
        call it between ``loss.backward()`` and ``optimizer.step()``.

        Args:
            max_norm: largest 2-norm of all gradients together, > 0.
            optimizer: one of several; then only gradients of what it trains count, and are scaled.
                Of optimizers that step in turn each is clipped so, before it steps.

        Returns:
            The norm before, a scalar.

        Raises:
            ConfigError: mode bsp, whose steps sum the gradients of all workers on the servers; or
                something else than a positive ``max_norm`` and a prepared optimizer is given.
        """
        self._check_prepared("job.clip_grad_norm_")
        if optimizer is None:
            return self._strategy.clip_grad_norm_(max_norm)
        for number, one in enumerate(self._optimizers):
            if one is optimizer:
                return self._strategy.clip_grad_norm_(max_norm, number)
        raise ConfigError(
            f"job.clip_grad_norm_: got a {type(optimizer).__name__} that job.prepare did not get; "
            "give one of the prepared optimizers, or none to clip the gradients of all"
        )

    def state_dict(self) -> dict[str, Any]:
        """The prepared models' values as the job holds them now.

        One model: as its own ``state_dict()``, which after ``prepare`` gives the same. Several:
        names begin with the number of the model, in the order of ``prepare``. Buffers (BatchNorm's
        statistics) are this worker's own; a cut has those of one worker.
        """
        self._check_prepared("job.state_dict")
        if len(self._modules) == 1:
            return self._modules[0].state_dict()
        merged: dict[str, Any] = {}
        for number, module in enumerate(self._modules):
            merged |= module.state_dict(prefix=f"{number}.")
        return merged

    def log(
        self, values: Mapping[str, float | Tensor] | None = None, /, **named: float | Tensor
    ) -> None:
        """Have values of this step in the curves of the job: ``job.log(loss=loss, acc=acc)``.

        Cheap enough for each batch: nothing is sent here, and tensors on a GPU are waited for once
        a second at most. A value belongs to the step whose batch is in hand, before and after
        ``optimizer.step()``; between loops it belongs to the last one. The curve has the mean of
        all values that the workers logged for a step. If a step comes again, what is logged then
        takes the place of what was logged for it, and for later steps, before.

        Without `paceline run`, and in a process that the script forks, values are checked, and
        nobody keeps them.

        Args:
            values: name -> number or tensor of no dimensions; also what is not finite. Names are
                plain, with ``/`` between parts (``{"val/auc": auc}``), at most 100 in a job.
            named: more of them.

        Raises:
            ConfigError: nothing was prepared, a name that is not plain, or a value that is no
                number.
        """
        self._check_prepared("job.log")
        numbers = checked_log({} if values is None else values) | checked_log(named)
        process = current()
        if process is None or process.is_fork:
            return
        if process.features is not None:
            process.features.logged(self._strategy.log_place, numbers, monotonic())

    def agree(self, value: Any) -> Any:
        """Decide something once for all workers: the value of the first one that calls.

            if job.agree(bad_epochs >= 2):
                break

        All workers make the call, and get the same value, also those that come there later, or
        again: after a resume, or where the step of a body comes again.

        Args:
            value: plain data or tensors, up to 1 MiB.

        Raises:
            ConfigError: something that cannot be sent, or in a loop body of mode asp or ssp.
        """
        self._check_prepared("job.agree")
        apart = self._strategy.takes_growth and not self._strategy.is_alone
        if self._course.in_body and apart:
            raise ConfigError(
                "job.agree was called within a loop over job.batches, whose workers share no step "
                "in modes asp and ssp; call it between two loops, or run the job with --mode bsp"
            )
        return self._meet("job.agree", value, all_workers=False)[0]

    def all_gather(self, value: Any) -> list[Any]:
        """The values of all workers, by rank; all of them make the call.

        A worker that dies is no longer waited for, so there may be fewer values than workers. One
        that comes later, or again, gets the same list. With strategy allreduce the call may stand
        in the body of a loop, too: there it hears the workers that are in the step.

        Args:
            value: plain data or tensors, up to 1 MiB.

        Raises:
            ConfigError: something that cannot be sent, or called in the body of a loop (not
                with strategy allreduce).
        """
        return self._meet_all("job.all_gather", value)

    def broadcast(self, value: Any) -> Any:
        """The value of the worker with the lowest rank that lives; see `all_gather`."""
        return self._meet_all("job.broadcast", value)[0]

    def barrier(self) -> None:
        """Return when all workers that live have come here; see `all_gather`."""
        self._meet_all("job.barrier", None)

    def _meet_all(self, caller: str, value: Any) -> list[Any]:
        self._check_prepared(caller)
        if self._looping and not self._strategy.meets_in_bodies:
            raise ConfigError(
                f"{caller} was called within a loop over job.batches, where a worker that dies "
                "would leave the others waiting; call it between two loops, use job.agree or "
                "job.evaluate, or run the job with --strategy allreduce"
            )
        return self._meet(caller, value, all_workers=True)

    def _meet(self, caller: str, value: Any, *, all_workers: bool) -> list[Any]:
        sent = packed(value, caller)
        if len(sent) > MAX_VALUE_BYTES:
            raise ConfigError(
                f"{caller} got a value of {len(sent):,} bytes, and takes up to "
                f"{MAX_VALUE_BYTES:,}; put what is larger into a file"
            )
        place = self._course.meeting()
        return [*map(unpacked, self._strategy.meet(place, sent, all_workers=all_workers))]

    # ------------------------------------------------------------------ inside

    def _opened(self, feed: Feed, growth: Growing | None = None) -> Feed:
        self._num_feeds += 1
        place = self._course.next()
        given = {
            "place": place,
            "of_epochs": self._of_epochs,
            "calls": self._calls,
        }
        feed = msgspec.structs.replace(feed, **given)
        return self._strategy.open_feed(feed, growth)

    def _known(self, name: str, value: int | None) -> int:
        """Return how far the job is, for a script that asks for it."""
        self._course.asked()
        if value is None:
            raise ConfigError(
                f"job.{name} is known from the first batch of job.batches on; read it in the loop"
            )
        return value

    def _check_goes_on(self, caller: str) -> None:
        if self._is_over:
            raise ConfigError(
                f"{caller} was called of a job that is over: pl.init() was called again, and "
                "returned the one that goes on"
            )

    def _check_prepared(self, caller: str) -> None:
        self._check_goes_on(caller)
        if not self._modules:
            raise ConfigError(
                f"{caller} was called before job.prepare; call "
                "model, optimizer = job.prepare(model, optimizer) first"
            )

    def _check_between(self, caller: str) -> None:
        """Raise ConfigError within a loop, whose training is not over."""
        if self._course.epoch is not None or self._looping:
            raise ConfigError(
                f"{caller} was called within a loop over job.epochs or job.batches, and begins the "
                "next training; finish that loop, or leave it, first. For one training, call it "
                "once, before its loops"
            )

    def _begin_course(self) -> None:
        """Begin the training of the objects that were prepared last."""
        self._course.next_training()
        self._late.begin_training()
        self._begun, self._has_asked = None, False
        self._come_to(passed=False)

    def _move_to(self, place: ScriptPlace) -> None:
        self._course.come_in(place)
        self._strategy.enter_place(self._course.place)

    def _come_to(self, *, passed: bool) -> None:
        """The script is at its next place, or ``passed`` over what was done before."""
        self._strategy.enter_place(self._course.place)
        if passed and self._begun is not None and self._course.reaches_target:
            self._strategy.pass_over(self._begun)
        self._calls = self._strategy.calls

    def _step_of_body(self) -> int:
        """The step of the body in hand, where all workers compute each step together."""
        return OUTSIDE if self._strategy.takes_growth else self._strategy.step or 0

    def _place_in_body(self) -> tuple[int, ...]:
        return (OUTSIDE,) if self._strategy.takes_growth else self._strategy.place_in_body

    def _process_seed(self, feed: Feed) -> int:
        process = current()
        life = process.inc if process is not None else 0
        return seed_of(feed.seed, self._strategy.rank, life)

    def _passed_over(self, seconds: float) -> None:
        """Note time in which others' records were read: a worker that comes late does not hang."""
        process = current()
        if process is not None:
            process.ledger.delay(seconds)

    def _check_node(self) -> None:
        """Have features measure the node, if one asks for it: once, before the first step."""
        process = current()
        if process is not None and process.features is not None:
            device = next((one.device for one in self._modules[0].parameters()), CPU)
            if (measure := process.features.measuring(device)) is not None:
                self._strategy.check(measure)

    def _loop_ended(self) -> None:
        """Tell features that a loop is over, or was left."""
        process = current()
        if process is not None and process.features is not None:
            process.features.loop_ended()

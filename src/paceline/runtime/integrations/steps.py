"""A job's steps for a library that has a training loop of its own.

Such a loop counts what its loader yields, and takes every ``optimizer.step()`` for a change of the
model. So it gets one batch per step. What else a step takes, more batches of this worker's share,
or all of it once more where the group broke, is asked for from within:

    for batch in steps:                # the library's own loop
        loss_of(batch).backward()
        while not steps.ready:         # optimizer.step() would change nothing yet
            optimizer.step()
            batch = steps.more()
            loss_of(batch).backward()
        optimizer.step()

An epoch of the library is a feed of the job.
"""

import math
import os
import re
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    default_collate,
)

from paceline.base.errors import ConfigError
from paceline.base.jobdir import JobDir
from paceline.runtime.data.torch_loader import DEFAULTS, is_plain, is_random, without_rest
from paceline.runtime.holding.replicas.strategy import Replicated
from paceline.runtime.job import Job, begin
from paceline.runtime.logged import PLAIN
from paceline.runtime.process import Process, managed
from paceline.runtime.seeding import seed_of
from paceline.wire.spec import SHORT_STEPS, load

_UNPLAIN = re.compile(r"[^A-Za-z0-9_.\-/]+")
"""What names of curves do not have."""


class ThisMember(NamedTuple):
    """This process in a job of strategy allreduce."""

    job: Job
    strategy: Replicated

    @property
    def rank(self) -> int:
        """The rank of this worker; 0 is the chief."""
        return self.strategy.rank

    @property
    def step(self) -> int:
        """Steps that are in the model, over all epochs; the same in all members that hold it."""
        return self.strategy.client.state.step

    def log(self, values: Mapping[str, Any]) -> None:
        """Have the numbers that a library logs in the job's curves, under names that they allow."""
        numbers: dict[str, float | Tensor] = {
            _UNPLAIN.sub("_", name).strip("_/"): value
            for name, value in values.items()
            if isinstance(value, int | float | Tensor)
        }
        self.job.log(**{name: value for name, value in numbers.items() if PLAIN.fullmatch(name)})


def join(library: str) -> ThisMember | None:
    """Join the job that this process was started for.

    Args:
        library: which library's loop is to train, for messages.

    Returns:
        None: the library is to do without us. The script was started without `paceline run`, or
        its job leaves distribution to it (strategy script).

    Raises:
        ConfigError: the job cannot train this way.
    """
    process = None if "PACELINE_NODE" not in os.environ or _is_by_itself() else managed()
    if process is None:
        return None
    if not process.spec.traits.other_loops:
        raise ConfigError(
            f"{library} changes the model with torch's optimizers, so every worker must hold it; "
            "run the job with --strategy allreduce"
        )
    if process.spec.epochs is not None:
        raise ConfigError(
            f"epochs is {process.spec.epochs} in the job's spec, but {library} counts epochs "
            "itself; say it there"
        )
    if process.spec.solution in SHORT_STEPS:
        raise ConfigError(
            f"--solution {process.spec.solution} makes epochs longer than {library} knows them to "
            "be, since what a step lacks comes in more steps; use another one, as auto"
        )
    return _member_of(process)


def _is_by_itself() -> bool:
    """Whether the job of this process, or of the one that started it, is of strategy script."""
    return not load(JobDir(Path(os.environ["PACELINE_JOB_DIR"])).spec).traits.trains


@cache
def _member_of(process: Process) -> ThisMember:
    """One for all loops of a script: some only evaluate."""
    if process.joined:
        raise ConfigError(
            "pl.init() was called before in this script; leave it out (the adapter has the job as "
            "its attribute `job`), or train with a loop over job.batches"
        )
    strategy = Replicated(process)
    process.join(strategy.hand_over)
    strategy.whole_steps = True
    # A step that comes again is asked for in the midst of the script's body, and not at its end.
    strategy.variables.found, strategy.entries = False, None
    return ThisMember(begin(strategy), strategy)


class Steps:
    """One batch per step, epoch after epoch; see the module.

    A step is ``accumulation`` of the loader's batches for each of the workers that the job was
    asked for, or what the job's spec says; it stays so when members come and go. No batch is larger
    than the loader's.

    Args:
        member: see `join`.
        loader: says what is read and how. Its own iterator is not used.
        accumulation: batches of one worker in a step, as the library was told.
        splits: a batch of the loader is that of all workers.

    Raises:
        ConfigError: it reads in a way that cannot be dealt out.
    """

    def __init__(
        self, member: ThisMember, loader: Any, accumulation: int = 1, *, splits: bool = False
    ) -> None:
        self._member = member
        self._loader, sampler = _checked(loader)
        self.dataset: Any = self._loader.dataset
        self._shuffle = not isinstance(sampler.sampler, SequentialSampler)
        member.strategy.largest = sampler.batch_size
        spec = member.strategy.spec
        asked = sampler.batch_size * accumulation * (1 if splits else spec.workers.count)
        self.batch_size = spec.batch_size or asked
        """Samples of a step."""
        self._drop_last = sampler.drop_last
        count: int = len(self._loader.dataset)  # type: ignore[arg-type]
        if self._drop_last and count < self.batch_size:
            raise ConfigError(
                f"the training data has drop_last=True and {count} samples, fewer than "
                f"the {self.batch_size} of a step; leave drop_last out, or give smaller batches"
            )
        self._num_epochs = 0
        self._batches: Iterator[Any] = iter(())
        self._first: list[Any] = []
        """Of an epoch that was looked into."""

    def __len__(self) -> int:
        """Steps of an epoch."""
        if self._drop_last:
            return len(self.dataset) // self.batch_size
        return math.ceil(len(self.dataset) / self.batch_size)

    def __iter__(self) -> Iterator[Any]:
        if not self._first:
            self._open()
        while self._first:
            yield self._first.pop()
        # Not `yield from`, which would end the epoch with the library's iterator.
        for batch in self._batches:  # noqa: UP028
            yield batch

    def more(self) -> Any:
        """The next batch of the step in hand.

        Raises:
            StopIteration: the epoch is over: the step broke here, but not everywhere.
        """
        return next(self._batches)

    @property
    def ready(self) -> bool:
        """Whether ``optimizer.step()`` would change the model now, after ``loss.backward()``."""
        return self._member.strategy.holds

    @property
    def position(self) -> int:
        """Steps of the present epoch that are in the model."""
        return self._member.step - (self._num_epochs - 1) * len(self)

    def skip(self, most: int) -> int:
        """Pass by epochs that were over before we came, at most so many; how many there were."""
        while self._num_epochs < most and not self._first:
            self._open()
            self._first = list(islice(self._batches, 1))
        return self._num_epochs - len(self._first)

    def finish(self) -> None:
        """End the epoch: wait until it is saved, if all of it is in the model; or leave it."""
        if self._num_epochs and self.position == len(self):
            next(self._batches, None)
        if hasattr(self._batches, "close"):
            self._batches.close()

    def _open(self) -> None:
        self.finish()
        self._num_epochs += 1
        loader, (dataset, shuffle) = self._loader, self._of_epoch()
        self._batches = self._member.job.batches(
            dataset,
            self.batch_size,
            shuffle=shuffle,
            num_workers=loader.num_workers,
            collate_fn=None if loader.collate_fn is default_collate else loader.collate_fn,
            pin_memory=loader.pin_memory,
            prefetch=loader.prefetch_factor or 2,
        )

    def _of_epoch(self) -> tuple[Any, bool]:
        """What the epoch reads, and whether the job is to shuffle it.

        With ``drop_last`` these are whole steps, in each epoch of other samples.
        """
        if not self._drop_last:
            return self.dataset, self._shuffle
        seed = seed_of(self._member.strategy.spec.data_seed, self._num_epochs)
        given = DEFAULTS._replace(dataset=self.dataset, shuffle=self._shuffle)
        read = without_rest(given, self.batch_size, seed)
        return read.dataset, read.shuffle


def _checked(loader: Any) -> tuple[DataLoader[Any], BatchSampler]:
    """Raises ConfigError: what it yields follows from more than a dataset and a batch size."""
    if not isinstance(loader, DataLoader):
        raise ConfigError(
            f"the training data comes from a {type(loader).__name__}; give one torch DataLoader"
        )
    batches: Any = loader.batch_sampler
    if not is_plain(batches) or isinstance(loader.dataset, IterableDataset):
        raise ConfigError(
            "the training data is iterable, or has a batch_sampler, or no batch_size; give a "
            "map-style dataset with batch_size: the job says who reads which samples"
        )
    sampler = batches.sampler
    plain = isinstance(sampler, SequentialSampler) or (
        (isinstance(sampler, RandomSampler) or is_random(sampler))
        and not sampler.replacement
        and sampler.num_samples == len(loader.dataset)  # type: ignore[arg-type]
    )
    if not plain:
        raise ConfigError(
            f"the training data has a {type(sampler).__name__}; the job shuffles on its own, and "
            "every sample counts once per epoch: leave it out, or shuffle=False for the given order"
        )
    return loader, batches

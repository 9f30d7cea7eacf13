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

import dis
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from itertools import islice
from pathlib import Path
from types import FunctionType
from typing import Any, NamedTuple

from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
)

from paceline.base.errors import ConfigError
from paceline.base.jobdir import JobDir
from paceline.runtime.data.torch_loader import is_plain, is_random
from paceline.runtime.holding.replicas.strategy import Replicated
from paceline.runtime.process.process import Process, managed
from paceline.runtime.script.batch_loop import BatchLoop
from paceline.runtime.script.job import Job, begin
from paceline.runtime.script.logged import PLAIN
from paceline.runtime.script.strategy import Entries
from paceline.runtime.variables.look import Besides, is_own
from paceline.wire.messages.feeds import ScriptPlace
from paceline.wire.spec import SHORT_STEPS, load

_UNPLAIN = re.compile(r"[^A-Za-z0-9_.\-/]+")
"""Characters that names of curves do not have."""


class ThisMember(NamedTuple):
    """This process in a job of strategy allreduce."""

    job: Job
    strategy: Replicated
    entries: Entries | None
    """Loops where a life that has had no batch can come in; None: the script says what is kept."""

    def follow(self, **objects: Any) -> None:
        """Have what these of a library keep follow to workers that join, like the script's own.

        For a loop of the library's own, which is left and asks for more in its midst: it numbers
        its epochs itself, and takes nothing back.
        """
        variables = self.strategy.variables
        variables.objects |= objects
        variables.takes_back, self.strategy.entries = False, None

    @property
    def job_id(self) -> str:
        """The job's name, which its resumes keep."""
        return JobDir(Path(os.environ["PACELINE_JOB_DIR"])).job_id

    @property
    def rank(self) -> int:
        """The rank of this worker; 0 is the chief."""
        return self.strategy.rank

    @property
    def step(self) -> int:
        """Steps that are in the model, over all epochs; the same in all members that hold it."""
        return self.strategy.client.state.step

    @property
    def place(self) -> ScriptPlace:
        """Place of the newest epoch that was begun here."""
        return self.strategy.variables.place

    def leave_aside(self, checkpoint: Any, said: str) -> None:
        """Say that a checkpoint is not loaded from which a library should resume.

        A script that looks for its newest checkpoint finds none when the job starts, and one of
        the job's own in each later life. The job's state is newer, so the life goes on from that.
        Call it after ``job.prepare``.

        Args:
            checkpoint: path that the script has given.
            said: argument by which it did, for messages.

        Raises:
            ConfigError: the job has not trained so far, so the checkpoint is of another run.
        """
        if self.strategy.begun() is None:
            raise ConfigError(
                f"{said}: the job resumes on its own, from cuts that know every sample "
                "(paceline run --resume); leave it out, and to begin with the weights of a "
                "checkpoint load the model from it"
            )
        sys.stderr.write(
            f"paceline: {said} names {checkpoint}, which is left aside: the job has trained "
            "before, and goes on from its own state\n"
        )

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
        library: which library's loop will train, for messages.

    Returns:
        None: the library must do without us. The script was started without `paceline run`, or
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


def followed(callbacks: Iterable[Any], has_state: Callable[[type], bool]) -> dict[str, Besides]:
    """Return the parts of a library's callbacks that follow, by names that all workers share.

    What a library's class sets in its object is followed if the class says that it has a state.
    Else it is of this process: bars and their numbers, files, clients.

    Args:
        callbacks: of the library, of the script, and the script's own that extend the library's.
        has_state: whether a class of a library says so.
    """
    found = dict[str, Besides]()
    for one in callbacks:
        name = type(one).__name__
        handles = _handles_of(type(one), has_state)
        found[f"{name}#{len(found)}" if name in found else name] = Besides(one, handles)
    return found


def _handles_of(kind: type, has_state: Callable[[type], bool]) -> frozenset[str]:
    """Names that the classes of libraries give to what is of one process."""
    classes = [one for one in kind.__mro__ if not is_own(one)]
    if any(map(has_state, classes)):
        return frozenset()
    held = [one for kind in classes for one in vars(kind).values()]
    functions = [getattr(one, "fget", None) or getattr(one, "fset", None) or one for one in held]
    return frozenset(
        step.argval
        for one in functions
        if isinstance(one, FunctionType)
        for step in dis.get_instructions(one)
        if step.opname == "STORE_ATTR"
    )


def _is_by_itself() -> bool:
    """Tell whether the job of this process, or of its parent, is of strategy script."""
    return not load(JobDir(Path(os.environ["PACELINE_JOB_DIR"])).spec).traits.trains


@cache
def _member_of(process: Process) -> ThisMember:
    """Make the one member for all loops of a script: some only evaluate."""
    if process.joined:
        raise ConfigError(
            "pl.init() was called before in this script; leave it out (the adapter has the job as "
            "its attribute `job`), or train with a loop over job.batches"
        )
    strategy = Replicated(process)
    process.join(strategy.hand_over)
    strategy.whole_steps = True
    return ThisMember(begin(strategy), strategy, strategy.entries)


class SharedLoader:
    """A library's loader as the job reads it, in batches that all workers share.

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
        loader, sampler = _checked(loader)
        self.dataset: Any = loader.dataset
        member.strategy.largest, member.strategy.bodies = sampler.batch_size, accumulation
        spec = member.strategy.spec
        asked = sampler.batch_size * accumulation * (1 if splits else spec.workers.count)
        self.batch_size = spec.batch_size or asked
        """Samples of a step."""
        count = len(self.dataset)
        if sampler.drop_last and count < self.batch_size:
            raise ConfigError(
                f"the training data has drop_last=True and {count} samples, fewer than "
                f"the {self.batch_size} of a step; leave drop_last out, or give smaller batches"
            )
        self._read: DataLoader[Any] = DataLoader(
            self.dataset,
            self.batch_size,
            shuffle=not isinstance(sampler.sampler, SequentialSampler),
            num_workers=loader.num_workers,
            collate_fn=loader.collate_fn,
            pin_memory=loader.pin_memory,
            drop_last=sampler.drop_last,
            prefetch_factor=loader.prefetch_factor,
        )

    def __len__(self) -> int:
        """Steps of an epoch."""
        return len(self._read)

    def batches(self) -> BatchLoop:
        """Begin an epoch: the batches of it that this worker computes."""
        return self._member.job.batches(self._read)


class Steps(SharedLoader):
    """One batch per step, epoch after epoch; see the module."""

    def __init__(self, member: ThisMember, loader: Any, accumulation: int = 1) -> None:
        super().__init__(member, loader, accumulation)
        self._num_epochs = 0
        self._batches: Iterator[Any] = iter(())
        self._first: list[Any] = []
        """First batch of an epoch that was looked into; empty: there is none."""
        self.on_empty: Callable[[], None] = lambda: None
        """Called where an epoch has no batch for us."""

    def __iter__(self) -> Iterator[Any]:
        if not self._first:
            self._open()
            self._look()
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
        """Pass by epochs that were over before we came, at most so many; how many there were.

        None behind the last one that others have begun is begun.
        """
        while self._num_epochs < most and not self._first:
            self._open()
            self._look()
            if not self._first and self.is_last:
                break
        return self._num_epochs - len(self._first)

    @property
    def is_last(self) -> bool:
        """Whether no others go on behind the epoch, of which we had no batch; waits for them."""
        entries, place = self._member.entries, self._member.place
        if entries is None:
            return False
        newest = entries.newest()
        if newest is not None and newest.place > place:
            return False
        return entries.next_after(place) is None

    def finish(self) -> None:
        """End the epoch: wait until it is saved, if all of it is in the model; or leave it."""
        if self._num_epochs and self.position == len(self):
            next(self._batches, None)
        if hasattr(self._batches, "close"):
            self._batches.close()

    def _open(self) -> None:
        self.finish()
        self._num_epochs += 1
        self._batches = self.batches()

    def _look(self) -> None:
        self._first = list(islice(self._batches, 1))
        if not self._first:
            self.on_empty()


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

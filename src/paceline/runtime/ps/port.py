"""What a job's training loop needs from whoever holds the model: servers, or this process itself.

`paceline.runtime.job` calls this port from the training thread only. ``alone.py`` implements it on
one `Store` in the process, ``client.py`` on parameter servers. Nothing here knows torch.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from paceline.base.samples import Span
from paceline.runtime.ps.store import Gradients
from paceline.wire.messages.feeds import Feed, SourceLine
from paceline.wire.schema import ModelSchema
from paceline.wire.spec import JobSpec

Array = NDArray[np.generic]
Ids = NDArray[np.int64]


class Stopped(SystemExit):
    """The job is told to stop: raised out of ``job.batches`` after a finished step, exit code 0."""

    def __init__(self) -> None:
        super().__init__(0)


@dataclass(slots=True, eq=False)
class Work:
    """The samples of one batch; the object itself names it (no two are equal)."""

    feed: int
    spans: tuple[Span, ...]
    num_samples: int
    step: int = 0
    """Synchronous modes: the step that these samples belong to."""
    ends_contribution: bool = True
    """Its gradients are handed over with those of the batches before it; False: they are kept for
    the next. Known when ``next_work`` returns it, as is the following."""
    ends_step: bool = True
    """As far as is known nothing more of its step comes."""


@dataclass(frozen=True, slots=True)
class Pulled:
    """The model as one contribution sees it."""

    dense: Mapping[str, Array]
    """dtype -> flat vector of all dense parameters of that dtype. Valid until the next call."""
    rows: Mapping[int, Array]
    """Table -> ``[n, dim]``, row i belongs to ids[i] of ``start_pull``. Belongs to the caller."""
    server_s: float = 0.0
    """T^s: the longest handler time over servers, without updates and others' answers."""
    message_s: float = 0.0
    """T^m: round trip minus T^s, and minus what the servers waited for other workers."""


@dataclass(frozen=True, slots=True)
class StepTimes:
    """How one contribution spent its time, in seconds (antdt, section II)."""

    step: int
    """Contributions of this process so far, this one included."""
    samples: int
    start_s: float
    """When the batch was ready; monotonic clock."""
    bpt_s: float
    """Wall time from one yielded batch to the next."""
    compute_s: float
    """T^w: time of the training thread from batch ready to gradients ready, without its waits.
    Wall time: a thread that gets less of its core is slow, though its cpu time is not."""
    server_s: float
    message_s: float
    wait_s: float
    """Time in which the training thread waited for data or for the pull."""


class Growth(Protocol):
    """How far a source of unknown length can be read by now."""

    def look(self) -> tuple[Mapping[str, int], bool]:
        """Partition -> its end as last seen, and whether these are final. Never blocks.

        Raises what the source raised.
        """

    def wait(self) -> None:
        """Block until ``look`` may say something else, or for some tenths of a second."""


class Trainer(Protocol):
    """Who deals out samples, holds the model and takes gradients. One training thread calls it.

    Every method that blocks raises `Stopped` when the job is told to stop.
    """

    spec: JobSpec
    """The job as asked for; ``batch_size``, ``epochs``, ``seed`` and ``data`` are read here."""
    rank: int
    num_workers: int
    overlap: bool
    """Whether the pull of the next work may start before this one's push (ASP, SSP)."""
    sums_workers: bool
    """Whether a step is the sum of several workers' gradients (BSP)."""
    takes_growth: bool
    """Whether feeds of unknown length can be read: not where a step is one global batch for all
    (BSP)."""

    def prepare(
        self,
        schema: ModelSchema,
        initial: Callable[[], tuple[Mapping[str, Array], Mapping[int, Array]]],
    ) -> None:
        """Return when the model is held.

        Args:
            schema: the model.
            initial: makes the initial values (dtype -> flat vector, table of fixed size ->
                ``[num_rows, dim]``) as `layout.initial_arrays` takes them; called only here, and
                only where they are needed.
        """

    def open_feed(self, feed: Feed, growth: Growth | None = None) -> Feed:
        """Open a feed, known to all workers by its number; return it as the job reads it.

        Args:
            feed: as this worker's script asks for it.
            growth: of a feed whose ``num_samples`` is None; ``takes_growth`` must hold.
        """

    def source_line(self, line: int) -> SourceLine:
        """What a line of a work's spans is at its source."""

    def next_work(self, feed: int) -> Work | None:
        """Block for this worker's next samples; None: the feed is complete."""

    def upcoming(self, feed: int, limit: int) -> tuple[Work, ...]:
        """What ``next_work`` will likely return next, as far as known; never blocks."""

    def start_pull(self, work: Work, ids: Mapping[int, Ids]) -> None:
        """Begin to fetch what ``work`` computes on; ids are unique per table, in any order."""

    def wait_pull(self, work: Work) -> Pulled | None:
        """Block for the answer to ``start_pull``; None: the work was withdrawn, take the next."""

    def rows(self, table: int, ids: Ids) -> Array:
        """Fetch more rows for the work in hand; blocks. Returns ``[n, dim]``."""

    def push(self, works: Sequence[Work], gradients: Gradients) -> None:
        """Hand over the whole model's gradients, arrays included; does not wait.

        Args:
            works: the batches of one contribution.
            gradients: their mean over all samples, whose number is ``weight``; ids are unique per
                table. Dropped if one of the works was withdrawn; the others come again.
        """

    def give_back(self, work: Work) -> None:
        """The work was taken, but will not be pushed."""

    def drain(self) -> None:
        """Block until everything that this worker pushed is in the model."""

    def dense(self) -> Mapping[str, Array]:
        """The dense parameters now: dtype -> flat vector, owned by the caller. Blocks."""

    def export(self, table: int) -> tuple[Ids, Array]:
        """All keys of a table and their rows ``[n, dim]``, in any order. Blocks."""

    def evaluate_put(self, work: Work, values: Mapping[str, Array]) -> None:
        """Hand in the results for an evaluation's work: name -> ``[num_samples, ...]``."""

    def evaluate_get(self, feed: int) -> Mapping[str, Array] | None:
        """Block for the results of all workers, by position: name -> ``[N, ...]``.

        None: the model was restored meanwhile; there is work again.
        """

    def record(self, times: StepTimes) -> None:
        """Note what a finished step took; no system call."""

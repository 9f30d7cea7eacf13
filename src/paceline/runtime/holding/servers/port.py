"""Port from a job's training loop to the model's holder: servers, or this process itself.

`paceline.runtime.script.job` calls this port from the training thread only. ``in_process.py`` has
it on one `Store` in the process, ``client.py`` on parameter servers. Nothing here knows torch.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from paceline.runtime.data.growth import Growth
from paceline.runtime.data.work import Array, StepTimes, Work
from paceline.runtime.server.store import Gradients
from paceline.wire.messages.base import Link
from paceline.wire.messages.data import Script
from paceline.wire.messages.feeds import Feed, ScriptPlace, SourceLine, Underway
from paceline.wire.schema import ModelSchema
from paceline.wire.spec import JobSpec

Ids = NDArray[np.int64]
Initial = Callable[[], tuple[Mapping[str, Array], Mapping[int, Array]]]
"""Makes the initial values (dtype -> flat vector, table of fixed size -> ``[num_rows, dim]``) as
`layout.initial_arrays` takes them."""


@dataclass(frozen=True, slots=True)
class PulledModel:
    """The model as one contribution sees it."""

    dense: Mapping[str, Array]
    """dtype -> flat vector of all dense parameters of that dtype. Valid until the next call."""
    rows: Mapping[int, Array]
    """Table -> ``[n, dim]``, row i belongs to ids[i] of ``start_pull``. Belongs to the caller."""
    server_s: float = 0.0
    """T^s: the longest handler time over servers, without updates and others' answers."""
    script: Script | None = None
    """The script's state, where it was asked for."""
    counted: int | None = None
    """Samples of the work's feed that come before it: in the model, or (without steps) pushed by
    this worker; None: every batch is a step."""
    whole: int = 0
    """Samples of the work's step, if it lacks none."""
    message_s: float = 0.0
    """T^m: round trip minus T^s, and minus what the servers waited for other workers."""


class TrainingPort(Protocol):
    """The side that deals out samples, holds the model and takes gradients.

    One training thread calls it.

    Every method that blocks raises `Stopped` when the job must stop.
    """

    spec: JobSpec
    """The job as asked for; ``batch_size``, ``epochs``, ``seed`` and ``data`` are read here."""
    rank: int
    overlap: bool
    """Whether the pull of the next work may start before this one's push (ASP, SSP)."""
    sums_workers: bool
    """Whether a step is the sum of several workers' gradients (BSP)."""
    takes_growth: bool
    """Whether feeds of unknown length can be read: not where a step is one global batch for all
    (BSP)."""
    is_alone: bool
    """Whether no other worker can be there."""
    keeps_script: bool
    """Whether anybody keeps the script's state, for workers that join and for cuts."""

    def prepare(self, schema: ModelSchema, initial: Initial) -> None:
        """Return when the model is held; ``initial`` is called only here, and only if needed."""

    def open_feed(self, feed: Feed, growth: Growth | None = None) -> Feed:
        """Open a feed, known to all workers by its number; return it as the job reads it.

        Args:
            feed: as this worker's script asks for it.
            growth: of a feed whose ``num_samples`` is None; ``takes_growth`` must hold.
        """

    def source_line(self, line: int) -> SourceLine:
        """Return what a line of a work's spans is at its source."""

    def next_work(self, feed: int) -> Work | None:
        """Block for this worker's next samples; None: the feed is complete."""

    def upcoming(self, feed: int, limit: int) -> tuple[Work, ...]:
        """Return what ``next_work`` will likely return next, as far as known; never blocks."""

    def start_pull(self, work: Work, ids: Mapping[int, Ids]) -> None:
        """Begin to fetch what ``work`` computes on; ids are unique per table, in any order."""

    def wait_pull(self, work: Work) -> PulledModel | None:
        """Block for the answer to ``start_pull``; None: the work was withdrawn, take the next."""

    @property
    def num_workers(self) -> int:
        """Workers that train now, as far as this one knows."""

    @property
    def restores(self) -> int:
        """Number of times that the model went back to an earlier state, or was first held."""

    def begun(self) -> Sequence[Feed]:
        """The feeds to train on that the model has samples of. Blocks."""

    def underway(self, place: ScriptPlace) -> Underway | None:
        """See `Strategy.underway`."""

    def meet(self, place: ScriptPlace, value: bytes, *, all_workers: bool) -> Sequence[bytes]:
        """See `Strategy.meet`."""

    def script(self, position: int | None) -> tuple[int, bytes] | None:
        """The state of the script at a position, or the newest before it that the holder has.

        Blocks, shortly, for one of this position.

        Args:
            position: of the schedule; None: the newest, whatever its position.

        Returns:
            The position that it is of, and the state; None: there is none so old.
        """

    def count(self, feed: int) -> int:
        """Samples of a feed in the model. Blocks."""

    def keep_script(self, position: int, state: bytes) -> None:
        """Have the script's state kept beside the model; does not wait."""

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

    def left_loop(self, feed: int) -> None:
        """The script has left its loop over a feed before the end; again: the same."""

    def drain(self, within_s: float = float("inf")) -> bool:
        """Block until everything that this worker pushed is in the model, at most so long.

        Returns:
            Whether it is.
        """

    def settle(self) -> None:
        """Drain for the script, which may have left its loop in the middle of a step.

        What other workers have of that step may never come, if they have left theirs: the wait is
        bounded, and the worker says so.
        """

    def dense(self) -> Mapping[str, Array]:
        """The dense parameters now: dtype -> flat vector, owned by the caller. Blocks."""

    def export(self, table: int) -> tuple[Ids, Array]:
        """Read all keys of a table and their rows ``[n, dim]``, in any order. Blocks."""

    def evaluate_put(self, work: Work, values: Mapping[str, Array]) -> None:
        """Hand in the results for an evaluation's work: name -> ``[num_samples, ...]``."""

    def evaluate_get(self, feed: int) -> Mapping[str, Array] | None:
        """Block for the results of all workers, by position: name -> ``[N, ...]``.

        None: the model was restored meanwhile; there is work again.
        """

    def checkpoint(self) -> None:
        """Ask for a cut of what is trained so far; does not wait."""

    def measure_links(self) -> tuple[Link, ...]:
        """Measure what the links to the servers carry."""

    def record(self, times: StepTimes) -> None:
        """Note what a finished step took; no system call."""

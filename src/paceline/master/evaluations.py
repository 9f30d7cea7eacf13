"""Results of evaluations, as workers hand them in: one file per span, in the job directory.

A worker sends the values of each span (``EvaluateResult``, repeated until ``Evaluated`` answers)
and then asks with an empty span until the answer says that all are there.
Each epoch has its own results, since a restored model gives other values. The files survive the
master; nothing of them is journalled. Within an epoch they stay: a worker that is started again
runs its script from the top, and gets what was evaluated then without computing it again.
"""

import shutil
from collections.abc import Iterator

from paceline.base.jobdir import JobDir
from paceline.base.samples import Span
from paceline.cuts.store import results_of
from paceline.wire.messages.feeds import LINES_PER_FEED
from paceline.wire.messages.node import EvaluateResult

SUFFIX = ".safetensors"


class Evaluations:
    """The files of one job: ``<epoch_no>/<feed>/<start>-<stop>.safetensors``."""

    def __init__(self, job: JobDir) -> None:
        self._job, self._root = job, job.evaluations

    def where(self, epoch_no: int, feed: int) -> str:
        """Where the parts of one evaluation are, for people."""
        return results_of(self._job, epoch_no).where(feed)

    def store(self, result: EvaluateResult) -> None:
        """Write one part; it is there completely, or not at all.

        Raises:
            OSError: it is not.
        """
        directory = results_of(self._job, result.epoch_no).folder(result.feed)
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / f"{result.span.start}-{result.span.stop}{SUFFIX}"
        partial = path.with_suffix(".partial")
        try:
            partial.write_bytes(result.values)
        except OSError:
            partial.unlink(missing_ok=True)
            raise
        partial.replace(path)

    def stored(self, epoch_no: int) -> Iterator[tuple[int, Span]]:
        """What is there of this epoch: feeds and spans, for a master that was restarted."""
        for path in (self._root / str(epoch_no)).glob(f"*/*{SUFFIX}"):
            feed = int(path.parent.name)
            start, _, stop = path.stem.partition("-")
            yield feed, Span(feed * LINES_PER_FEED, int(start), int(stop))

    def delete(self, before: int | None = None) -> None:
        """Delete the results of epochs with smaller numbers than ``before``; None: of all."""
        for path in self._root.glob("*"):
            if before is None or int(path.name) < before:
                shutil.rmtree(path, ignore_errors=True)

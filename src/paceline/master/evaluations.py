"""Results of evaluations, as workers hand them in: one file per span, in the job directory.

A worker sends the values of each span (``EvaluateResult``, repeated until ``Evaluated`` answers)
and then asks with an empty span until the answer says that all are there.
Each epoch has its own results, since a restored model gives other values. The files survive the
master; nothing of them is journalled. Within an epoch they stay: a worker that is started again
runs its script from the top, and gets what was evaluated then without computing it again.
"""

import logging
import shutil

from paceline.base.numbering import NO_EPOCH
from paceline.base.samples import Span
from paceline.cuts.store import results_of
from paceline.master.parts import MasterParts
from paceline.master.training_core import TrainingCore
from paceline.wire.messages.feeds import LINES_PER_FEED
from paceline.wire.messages.node import Evaluated, EvaluateResult

SUFFIX = ".safetensors"

_log = logging.getLogger(__name__)


class Evaluations:
    """The files of one job: ``<epoch_no>/<feed>/<start>-<stop>.safetensors``."""

    def __init__(self, parts: MasterParts, core: TrainingCore) -> None:
        self._job, self._root, self._outbox = parts.job, parts.job.evaluations, parts.outbox
        self._state, self._do, self._fail = core.state, core.do, core.fail
        #: Feeds of which a result was dropped.
        self._dropped: set[int] = set()

    def handle(self, result: EvaluateResult) -> None:
        """Store a part and answer; an empty one asks whether all parts are there."""
        state = self._state
        # A worker that came when all was evaluated is in no epoch, and only asks.
        asks = len(result.span) == 0
        known = result.epoch_no == state.epoch_no or (asks and result.epoch_no == NO_EPOCH)
        if not known or result.feed not in state.ledger.feeds:
            return
        stored = True
        if asks:
            stored = state.ledger.is_complete(result.feed)
        elif state.ledger.done.missing(result.span):
            lease = state.ledger.leases.get(result.inc)
            if lease is None or lease.missing(result.span):
                self._drop(result)
                return
            try:
                self._store(result)
            except OSError as error:
                where = results_of(self._job, result.epoch_no).where(result.feed)
                self._fail(
                    f"cannot store the results of job.evaluate in {where}: {error.strerror}; make "
                    "room there, or set PACELINE_HOME to a folder that has it, and start the job "
                    "again"
                )
                return
            self._do(state.evaluated(result.feed, result.span))
        answer = Evaluated(
            inc=result.inc,
            feed=result.feed,
            span=result.span,
            stored=stored,
            epoch_no=state.epoch_no,
        )
        self._outbox.to_process(result.inc, answer)

    def _drop(self, result: EvaluateResult) -> None:
        """Say once per feed that who has no lease of a span has handed in its result."""
        if result.feed not in self._dropped:
            self._dropped.add(result.feed)
            _log.warning(
                "evaluation_dropped feed=%d inc=%d span=%s: not leased to it",
                result.feed,
                result.inc,
                result.span,
            )

    def _store(self, result: EvaluateResult) -> None:
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

    def resume(self) -> None:
        """Count what a master before this one has stored of the present epoch."""
        for path in (self._root / str(self._state.epoch_no)).glob(f"*/*{SUFFIX}"):
            feed = int(path.parent.name)
            start, _, stop = path.stem.partition("-")
            span = Span(feed * LINES_PER_FEED, int(start), int(stop))
            self._do(self._state.evaluated(feed, span))

    def delete(self, before: int | None = None) -> None:
        """Delete the results of epochs with smaller numbers than ``before``; None: of all."""
        for path in self._root.glob("*"):
            if before is None or int(path.name) < before:
                shutil.rmtree(path, ignore_errors=True)

"""The master's part in the history of jobs: it reads what earlier jobs learned, and adds its own.

Threads do both, and training waits for neither. Without a usable history a job only lacks what it
could have learned.
"""

import asyncio
import logging
import threading
from collections.abc import Callable

from msgspec.structs import replace

from paceline.base.errors import PacelineError
from paceline.jobs.history import read_events, read_metrics
from paceline.jobs.outcome import Outcome
from paceline.jobs.past.making import past_job, submitted_features
from paceline.jobs.past.place import HistoryPlace, history_place
from paceline.master.controller import MAX_OUTCOMES
from paceline.master.facts import PastRead
from paceline.master.inbox import Inbox
from paceline.master.parts import MasterParts
from paceline.master.restart_history import own_outcomes
from paceline.policy.resources.features import JobFeatures
from paceline.protocol.training import MasterState
from paceline.wire.events.job import HistoryUnusableEvent
from paceline.wire.spec import JobSpec

READ_AFTER_S = 5.0
"""A job that ends sooner has no use for the history, and starts sooner without it."""
ADD_S = 8.0
"""For a job that has ended to be added: its supervisor waits 10 s for the master to leave."""

_log = logging.getLogger(__name__)


class Remembering:
    """Reads the history of jobs once, and adds this job at its end."""

    def __init__(self, parts: MasterParts, state: MasterState, inbox: Inbox) -> None:
        self._job, self._spec, self._tell = parts.job, parts.spec, parts.outbox.tell
        self._state, self._inbox = state, inbox
        self._started_s: float | None = None
        self._is_read = self._failed = False

    def tick(self, now_s: float) -> None:
        """Read what earlier jobs have learned, some time after the start; it comes as a fact."""
        if self._started_s is None:
            self._started_s = now_s
        if not self._is_read and now_s - self._started_s >= READ_AFTER_S:
            self._is_read = True
            post, spec = self._inbox.for_threads(), self._spec
            _in_thread(lambda: post(read_past(spec)))

    def read(self, found: PastRead) -> None:
        """The history was read, or cannot be."""
        if found.error:
            self._fail(found.error)

    async def add(self, outcome: Outcome) -> None:
        """Add this job, whose outcome is written; return when that is done, or has failed."""
        spec, features = self._spec, features_of(self._spec, self._state)
        loop, done = asyncio.get_running_loop(), asyncio.Event()
        errors: list[str] = []

        def add() -> None:
            try:
                if (place := history_place(spec)) is not None:
                    self._add(place, outcome, features)
            except (PacelineError, OSError) as error:
                errors.append(str(error))
            loop.call_soon_threadsafe(done.set)

        _in_thread(add)
        try:
            await asyncio.wait_for(done.wait(), ADD_S)
        except TimeoutError:
            errors.append(f"nothing was heard of it for {ADD_S:.0f} s")
        if errors:
            self._fail(errors[0])

    def _add(self, place: HistoryPlace, outcome: Outcome, features: JobFeatures) -> None:
        # Only now: it takes 0.2 s to import.
        from paceline.jobs.past.book import PastJobs

        job = self._job
        found = past_job(
            job.job_id,
            self._spec,
            outcome,
            launched_s=job.launched_s(),
            features=features,
            events=read_events(job.events),
            points=read_metrics(job.metrics),
            restarts=own_outcomes(job.path),
        )
        PastJobs(place).add(found)

    def _fail(self, error: str) -> None:
        _log.warning("history_unusable error=%s", error)
        if not self._failed:
            self._failed = True
            self._tell(HistoryUnusableEvent(error=error))


def read_past(spec: JobSpec) -> PastRead:
    """Read what a job can learn from the history."""
    from paceline.jobs.past.book import PastJobs

    try:
        place = history_place(spec)
        return PastRead(
            restarts=tuple(PastJobs(place).restarts(spec.backend, MAX_OUTCOMES)) if place else ()
        )
    except PacelineError as error:
        return PastRead(error=str(error))


def features_of(spec: JobSpec, state: MasterState) -> JobFeatures:
    """Return what the job was like, as far as its master knows."""
    feeds = [feed for feed in state.ledger.feeds.values() if feed.purpose == "train"]
    feed = feeds[0] if feeds else None
    model = state.model
    tables = model.tables if model else ()
    rows = {table.name: table.num_rows for table in tables if table.num_rows is not None}
    row_bytes = {table.name: table.value_bytes for table in tables}
    return replace(
        submitted_features(spec),
        batch_size=spec.batch_size or (feed.batch_size if feed else None),
        data=(feed.contents or None) if feed else None,
        num_samples=feed.num_samples if feed else None,
        dense_bytes=(model.dense_bytes or None) if model else None,
        table_rows=rows or None,
        table_bytes=sum(count * row_bytes[name] for name, count in rows.items()) or None,
    )


def _in_thread(work: Callable[[], None]) -> None:
    """Run this in a thread that keeps no process from its end."""
    threading.Thread(target=work, name="history", daemon=True).start()

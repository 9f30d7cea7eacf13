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
from paceline.jobs.past.making import past_job
from paceline.jobs.past.place import HistoryPlace, usable_place
from paceline.jobs.restart_outcomes import own_outcomes
from paceline.master.facts import PastRead
from paceline.master.inbox import Inbox
from paceline.master.parts import MasterParts
from paceline.master.past_facts import features_of, read_past
from paceline.master.size_facts import SizeAtStart
from paceline.policy.resources.features import JobFeatures
from paceline.protocol.training import MasterState
from paceline.wire.events.job import HistoryUnusableEvent

READ_AFTER_S = 5.0
"""A job that ends sooner has no use for the history, and starts sooner without it."""
ADD_S = 8.0
"""Seconds to add a job that has ended: its supervisor waits 10 s for the master to leave."""

_log = logging.getLogger(__name__)


class Remembering:
    """Reads the history of jobs once, and adds this job at its end."""

    def __init__(self, parts: MasterParts, state: MasterState, inbox: Inbox) -> None:
        self._job, self._spec, self._tell = parts.job, parts.spec, parts.outbox.tell
        self._state, self._inbox = state, inbox
        self._begun_with = SizeAtStart(workers=parts.spec.workers, servers=parts.spec.servers)
        self._started_s: float | None = None
        self._is_read = self._failed = False

    def apply(self, record: SizeAtStart) -> None:
        """Take in the nodes that the job began with: the spec may say nothing of them any more."""
        self._begun_with = record

    @property
    def records(self) -> list[SizeAtStart]:
        """What a journal that begins, or begins again, needs."""
        return [self._begun_with]

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
                if (place := usable_place(spec)) is not None:
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

        job, begun = self._job, self._begun_with
        found = past_job(
            job.job_id,
            replace(self._spec, workers=begun.workers, servers=begun.servers),
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


def _in_thread(work: Callable[[], None]) -> None:
    """Run this in a thread that keeps no process from its end."""
    threading.Thread(target=work, name="history", daemon=True).start()

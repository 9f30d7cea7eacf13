"""The history in a master: reads what earlier jobs learned, and adds its own job at the end.

Threads do both, and training waits for neither. Without a usable history a job only lacks what it
could have learned.
"""

import logging
from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from paceline.base.errors import PacelineError
from paceline.features.history.making import past_job, submitted_features
from paceline.features.history.place import HistoryPlace, usable_place
from paceline.features.history.policy.features import JobFeatures
from paceline.jobs.history import read_events, read_metrics
from paceline.jobs.outcome import Outcome
from paceline.jobs.restart_outcomes import own_outcomes
from paceline.master.asking import PolicyAnswer, PolicyRaised
from paceline.master.feature_port import Core, MasterPart
from paceline.policy.observation import MAX_OUTCOMES, RestartOutcome
from paceline.protocol.training import MasterState
from paceline.wire.events.base import FeatureEvent
from paceline.wire.spec import JobSpec, NodeSpec

READ_AFTER_S = 5.0
"""A job that ends sooner has no use for the history, and starts sooner without it."""

_log = logging.getLogger(__name__)


class HistoryUnusableEvent(FeatureEvent, frozen=True):
    """The history of jobs cannot be read, or cannot be written."""

    feature_name = "history"
    error: str

    clause_words = "{0.error}; the job goes on, learns nothing from earlier ones, and is not kept"
    sentence_words = "{0.clause}"


class SizeAtStart(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Record: the nodes that the job began with; its spec has their newest limits."""

    workers: NodeSpec
    servers: NodeSpec


_decode = msgspec.msgpack.Decoder(SizeAtStart).decode


class HistoryPart(MasterPart):
    """Reads the history of jobs once, and adds this job at its end."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._begun_with = SizeAtStart(workers=core.spec.workers, servers=core.spec.servers)
        self._started_s: float | None = None
        self._is_kept = self._is_read = self._failed = False

    def apply(self, record: msgspec.Raw) -> None:
        """Take in the nodes that the job began with: the spec may say nothing of them any more."""
        self._begun_with, self._is_kept = _decode(record), True

    def kept(self) -> list[SizeAtStart]:
        return [self._begun_with]

    def begin(self) -> None:
        if not self._is_kept:
            self._core.keep(self._begun_with)

    def tick(self, now_s: float) -> None:
        """Read what earlier jobs have learned, some time after the start."""
        if self._started_s is None:
            self._started_s = now_s
        if not self._is_read and now_s - self._started_s >= READ_AFTER_S:
            self._is_read = True
            spec = self._core.spec
            self._core.ask(lambda: read_past(spec), self._read)

    def _read(
        self, answer: PolicyAnswer[tuple[RestartOutcome, ...] | str] | PolicyRaised, _now_s: float
    ) -> None:
        """The history was read, or cannot be."""
        if isinstance(answer, PolicyRaised):
            _log.error("history_unreadable\n%s", answer.traceback)
            self.not_done(answer.traceback.strip().rpartition("\n")[2])
        elif isinstance(answer.value, str):
            self.not_done(answer.value)
        else:
            self._core.remember(answer.value)

    def ended(self, outcome: Outcome) -> Callable[[], None]:
        """Return what adds this job, whose outcome is written."""
        spec, features = self._core.spec, features_of(self._core.spec, self._core.scene.state)

        def add() -> None:
            if (place := usable_place(spec)) is not None:
                self._add(place, outcome, features)

        return add

    def _add(self, place: HistoryPlace, outcome: Outcome, features: JobFeatures) -> None:
        # Only now: it takes 0.2 s to import.
        from paceline.features.history.book import PastJobs

        job, begun = self._core.job, self._begun_with
        found = past_job(
            job.job_id,
            replace(self._core.spec, workers=begun.workers, servers=begun.servers),
            outcome,
            launched_s=job.launched_s(),
            features=features,
            events=read_events(job.events),
            points=read_metrics(job.metrics),
            restarts=own_outcomes(job.path),
        )
        PastJobs(place).add(found)

    def not_done(self, error: str) -> None:
        """Tell once that the history cannot be used."""
        _log.warning("history_unusable error=%s", error)
        if not self._failed:
            self._failed = True
            self._core.tell(HistoryUnusableEvent(error=error))


def read_past(spec: JobSpec) -> tuple[RestartOutcome, ...] | str:
    """Read from the history what a job can learn of restarts in earlier ones; or why not."""
    try:
        place = usable_place(spec)
        if place is None:
            return ()
        from paceline.features.history.book import PastJobs  # with SQLAlchemy: 0.2 s

        return tuple(PastJobs(place).restarts(spec.backend, MAX_OUTCOMES))
    except PacelineError as error:
        return str(error)


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

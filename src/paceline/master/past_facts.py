"""What a master learns from the history of jobs, and what it can say of its own job there."""

from msgspec.structs import replace

from paceline.base.errors import PacelineError
from paceline.jobs.past.making import submitted_features
from paceline.jobs.past.place import usable_place
from paceline.master.facts import PastRead
from paceline.policy.observation import MAX_OUTCOMES
from paceline.policy.resources.features import JobFeatures
from paceline.protocol.training import MasterState
from paceline.wire.spec import JobSpec


def read_past(spec: JobSpec) -> PastRead:
    """Read from the history what a job can learn of restarts in earlier ones."""
    try:
        place = usable_place(spec)
        if place is None:
            return PastRead()
        from paceline.jobs.past.book import PastJobs  # with SQLAlchemy: 0.2 s

        return PastRead(restarts=tuple(PastJobs(place).restarts(spec.backend, MAX_OUTCOMES)))
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

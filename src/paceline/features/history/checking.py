"""Checks of a job's history: of what the spec says, and of the database before the job starts."""

from collections.abc import Iterator

from paceline.base.errors import ConfigError
from paceline.features.history.place import history_place, without_password
from paceline.jobs.spec_draft import SpecDraft
from paceline.wire.spec import JobSpec


def check_history(draft: SpecDraft) -> None:
    """Refuse a password, which would be shown by ``--dry-run`` and written beside the cuts."""
    key, url = "history", draft.get("history")
    if not draft.is_sound([key]):
        return
    if isinstance(url, str) and (shown := without_password(url)) != url:
        expected = "it without a password, which would be written to files and beside the cuts"
        remedy = (
            "put it into ~/.pgpass or PGPASSWORD, or name the database in PACELINE_HISTORY, which "
            "is written nowhere"
        )
        draft.complain(key, shown, expected, remedy)


def lacks(spec: JobSpec) -> Iterator[str]:
    """Try the history that somebody has named; the usual one is no condition of a job."""
    try:
        place = history_place(spec)
        if place is not None and place.named:
            # SQLAlchemy takes 0.2 s to import, and few jobs name a history.
            from paceline.features.history.book import PastJobs

            PastJobs(place).check()
    except ConfigError as error:
        yield str(error)

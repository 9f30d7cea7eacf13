"""The history of jobs in a database: SQLite in PACELINE_HOME, or PostgreSQL, by SQLAlchemy.

Masters of jobs that end at one moment write to it side by side: a job is one transaction, which in
SQLite holds the whole database for some milliseconds. No call takes longer than `WAIT_S` for a lock
or a connection. Imports SQLAlchemy (0.2 s), so it is imported where it is used.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from paceline.base.errors import ConfigError
from paceline.base.optional import extra_for
from paceline.features.history.job import PastJob, SizeChange
from paceline.features.history.place import HistoryPlace, without_password
from paceline.features.history.tables import JOBS, RESTARTS, SIZES
from paceline.policy.observation import RestartOutcome

with extra_for("the history of jobs"):
    import sqlalchemy as sql

WAIT_S = 5
NEWEST = "0001"
"""The version of the tables: the newest file in ``migrations/versions``."""
LOCK = 0x5061_6365
"""Key of the PostgreSQL lock under which one process at a time changes a database's tables."""
_VERSIONS = sql.table("alembic_version", sql.column("version_num"))
_COLUMNS = {column.name for column in JOBS.columns}
_FEATURES = ("user", "script", "strategy", "mode")


class JobFilter(msgspec.Struct, frozen=True, kw_only=True):
    """A choice of a history's jobs; a field that is None takes any."""

    user: str | None = None
    script: str | None = None
    """The path, or its last part."""
    backend: str | None = None
    strategy: str | None = None
    mode: str | None = None
    end: str | None = None


PATHS = frozenset({"script"})
"""Columns in which the end of a path names it."""


class PastJobs:
    """The history at one place; every method opens it and closes it again."""

    def __init__(self, place: HistoryPlace) -> None:
        """Connect to nothing yet.

        Raises:
            ConfigError: the driver of the database is not installed.
        """
        self._place = place
        self._shown = without_password(place.url)
        try:
            url = sql.engine.make_url(place.url)
            self._is_file = url.get_backend_name() == "sqlite"
            self._file = Path(url.database or "")
            self._engine = sql.create_engine(
                url, poolclass=sql.pool.NullPool, connect_args=_patience(is_file=self._is_file)
            )
        except (ModuleNotFoundError, sql.exc.SQLAlchemyError) as error:
            remedy = "install it, e.g. `pip install 'paceline[postgresql]'`"
            raise ConfigError(f"{self._where}: {error}; {remedy}") from error
        if self._is_file:
            _take_over_transactions(self._engine)

    @property
    def _where(self) -> str:
        named = self._place.named
        if named and not named.endswith("history"):
            named = f"{named}: history"
        return f"{named or 'history'} {self._shown}"

    # ------------------------------------------------------------------ use

    def check(self) -> None:
        """See that jobs can be written to it; where its tables are missing or old, make them so.

        Raises:
            ConfigError: it cannot be reached, is of a later version, or is no history.
        """
        with self._open():
            pass

    def add(self, job: PastJob) -> None:
        """Keep a job; what was kept of it before is replaced.

        Raises:
            ConfigError: as for `check`.
        """
        row = _row_of(job)
        of_job = {"job_id": job.job_id}
        sizes = [_numbered(one) | of_job | {"number": at} for at, one in enumerate(job.sizes)]
        restarts = [
            of_job | {"number": at, "outcome": msgspec.to_builtins(one)}
            for at, one in enumerate(job.restarts)
        ]
        with self._open() as connection:
            for table in (SIZES, RESTARTS, JOBS):
                connection.execute(sql.delete(table).where(table.c.job_id == job.job_id))
            connection.execute(sql.insert(JOBS), [row])
            if sizes:
                connection.execute(sql.insert(SIZES), sizes)
            if restarts:
                connection.execute(sql.insert(RESTARTS), restarts)

    def newest(self, limit: int, wanted: JobFilter | None = None) -> list[PastJob]:
        """Read the newest jobs, the newest first.

        Raises:
            ConfigError: as for `check`.
        """
        asked = sql.select(JOBS).order_by(JOBS.c.ended_s.desc(), JOBS.c.job_id).limit(limit)
        for name, value in msgspec.structs.asdict(wanted or JobFilter()).items():
            if value is None:
                continue
            column = JOBS.c[name]
            same = column == value
            if name in PATHS:
                same = same | column.endswith(f"/{value}", autoescape=True)
            asked = asked.where(same)
        with self._open() as connection:
            return _read(connection, asked)

    def find(self, name: str) -> PastJob:
        """Read one job, by its id or the beginning of it.

        Raises:
            ConfigError: there is none, or several; or as for `check`.
        """
        asked = sql.select(JOBS).where(JOBS.c.job_id.startswith(name, autoescape=True))
        with self._open() as connection:
            jobs = _read(connection, asked.order_by(JOBS.c.ended_s.desc()).limit(6))
        exact = [job for job in jobs if job.job_id == name]
        if len(exact or jobs) == 1:
            return (exact or jobs)[0]
        if not jobs:
            raise ConfigError(
                f"no job matches {name!r} in {self._where}; `paceline history` lists them"
            )
        found = ", ".join(job.job_id for job in jobs[:5])
        raise ConfigError(f"{name!r} is the beginning of several jobs: {found}; write more of it")

    def restarts(self, backend: str, limit: int) -> list[RestartOutcome]:
        """Read what the newest restarts on a backend have achieved, the oldest first.

        Raises:
            ConfigError: as for `check`.
        """
        asked = (
            sql.select(RESTARTS.c.outcome)
            .join(JOBS, JOBS.c.job_id == RESTARTS.c.job_id)
            .where(JOBS.c.backend == backend)
            .order_by(JOBS.c.ended_s.desc(), JOBS.c.job_id, RESTARTS.c.number.desc())
            .limit(limit)
        )
        with self._open() as connection:
            found = connection.scalars(asked).all()
        return [msgspec.convert(one, RestartOutcome) for one in reversed(found)]

    # ------------------------------------------------------------------ connections

    @contextlib.contextmanager
    def _open(self) -> Iterator[sql.Connection]:
        """Begin a transaction on tables of the newest version; it holds if nothing is raised."""
        try:
            if self._is_file:
                _make_private_file(self._file)
            with self._engine.begin() as connection:
                self._bring_up_to_date(connection)
                yield connection
        except OSError as error:
            raise ConfigError(f"{self._where} cannot be opened: {error.strerror}") from error
        except msgspec.ValidationError as error:
            raise ConfigError(f"{self._where} holds what is no job: {error}") from error
        except sql.exc.SQLAlchemyError as error:
            cause = " ".join(str(getattr(error, "orig", None) or error).split())
            remedy = f"mend it, or name another database ({_remedy(self._place)})"
            raise ConfigError(f"{self._where} cannot be used ({cause}); {remedy}") from error

    def _bring_up_to_date(self, connection: sql.Connection) -> None:
        found = _version(connection)
        if found == NEWEST:
            return
        if not self._is_file:
            connection.execute(sql.select(sql.func.pg_advisory_xact_lock(LOCK)))
            found = _version(connection)  # another process may have done it meanwhile
        if found is None and sql.inspect(connection).has_table(JOBS.name):
            raise ConfigError(
                f"{self._where}: got a database with a table jobs that is none of paceline's, "
                f"expected an empty one; name another ({_remedy(self._place)})"
            )
        if found is not None and found > NEWEST:
            raise ConfigError(
                f"{self._where}: got tables of version {found}, expected {NEWEST} at most; a later "
                "paceline has written it: use that one, or name another database "
                f"({_remedy(self._place)})"
            )
        if found != NEWEST:
            _migrate(connection)


def _remedy(place: HistoryPlace) -> str:
    return f"{place.named or 'PACELINE_HISTORY'}; off: no history"


def _patience(*, is_file: bool) -> dict[str, Any]:
    """Return what makes a driver wait no longer than `WAIT_S` for anything."""
    if is_file:
        return {"timeout": WAIT_S}
    wait_ms = WAIT_S * 1000
    options = f"-c lock_timeout={wait_ms} -c statement_timeout={wait_ms}"
    return {"connect_timeout": WAIT_S, "options": options}


def _take_over_transactions(engine: sql.Engine) -> None:
    """Have each transaction of an SQLite file lock it from its beginning, changes of tables too.

    Without that two processes that both read first, and write then, are in each other's way: one
    gets an error at once, however long it would wait.
    """

    def connected(connection: Any, _: Any) -> None:
        connection.isolation_level = None  # else the driver begins transactions of its own

    def begun(connection: sql.Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    sql.event.listen(engine, "connect", connected)
    sql.event.listen(engine, "begin", begun)


def _make_private_file(path: Path) -> None:
    """Make the file for its owner only: scripts and errors of jobs may hold secrets."""
    path.parent.mkdir(parents=True, exist_ok=True)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))


def _version(connection: sql.Connection) -> str | None:
    """Read the version of the tables; None: there are none."""
    if not sql.inspect(connection).has_table(_VERSIONS.name):
        return None
    return connection.scalar(sql.select(_VERSIONS.c.version_num))


def _migrate(connection: sql.Connection) -> None:
    """Make the tables those of the newest version."""
    with extra_for("the history of jobs"):
        # Nearly every process finds them so, and does without alembic.
        from alembic import command
        from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).with_name("migrations")))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


# --------------------------------------------------------------------------- rows


def _row_of(job: PastJob) -> dict[str, Any]:
    whole = msgspec.to_builtins(job)
    row = {name: value for name, value in whole.items() if name in _COLUMNS}
    return row | {name: whole["features"][name] for name in _FEATURES}


def _numbered(change: SizeChange) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(change)
    return found


def _plain(row: sql.RowMapping) -> dict[str, Any]:
    return {str(name): value for name, value in row.items()}  # SQLAlchemy has a kind of its own


def _read(connection: sql.Connection, asked: sql.Select[Any]) -> list[PastJob]:
    """Read the jobs of a query, with what belongs to each."""
    rows = [_plain(row) for row in connection.execute(asked).mappings()]
    found = {row["job_id"]: row | {"sizes": [], "restarts": []} for row in rows}
    for table, key in ((SIZES, "sizes"), (RESTARTS, "restarts")):
        of_jobs = sql.select(table).where(table.c.job_id.in_(list(found)))
        in_order = of_jobs.order_by(table.c.job_id, table.c.number)
        for row in connection.execute(in_order).mappings():
            one = row["outcome"] if table is RESTARTS else _plain(row)
            found[row["job_id"]][key].append(one)
    return [msgspec.convert(row, PastJob) for row in found.values()]

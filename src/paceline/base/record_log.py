"""One log in SQLite: a process's journal, written before anything that depends on it leaves.

One table, one row per record, in the order in which the state machines changed. WAL with
``synchronous=NORMAL``: what `append` has returned from survives the death of the process however it
dies. A loss of power may take the newest transactions with it, never leave half of one.
"""

import contextlib
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from paceline.base.disk import room_bytes
from paceline.base.errors import PermanentError, TransientError

WAL_PAGES = 8192
"""Pages (4 KiB) between checkpoints: they sync, which would otherwise show in grants' latency."""
SCHEMA = 1
"""Version of the file's layout; a file of a newer paceline has a higher one."""
BUSY_S = 1.0
"""Seconds to wait for a process that holds the file's lock; none of ours does."""
_REFUSALS = frozenset(
    {
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
    }
)
"""Errors that may be over later, with the file as it is."""

encode = msgspec.msgpack.Encoder().encode
R = TypeVar("R")


class JournalRefused(TransientError):
    """The journal cannot be read or written now; the disk is full, say, or another has locked it.

    Nothing of the call has been done, or all of it: to repeat it is right in both cases.
    """


class RecordLog(Generic[R]):
    """The log file, with one writer.

    Args:
        path: of the file, which is made if it is not there.
        decode: from bytes to a record.
        what: whose journal it is.
        remedy: what to do with a file that is damaged.

    Raises:
        PermanentError: the file is no journal of ours.
        JournalRefused: it cannot be opened now.
    """

    def __init__(self, path: Path, decode: Callable[[bytes], R], what: str, remedy: str) -> None:
        self._path, self._decode = path, decode
        self._what, self._remedy = what, remedy
        self._db: sqlite3.Connection | None = None
        self.num_records = 0
        #: The number of the newest record.
        self._newest = 0
        with self._at_work() as db:
            (self.num_records, newest) = db.execute("SELECT count(*), max(seq) FROM log").fetchone()
            self._newest = newest or 0

    def append(self, records: Iterable[R]) -> None:
        """Write all of them, or none, as one transaction.

        Raises:
            JournalRefused: none is written, as far as can be known: append the same ones again,
                with more behind them if there are.
        """
        self.adopt(map(encode, records))

    def adopt(self, encoded: Iterable[bytes]) -> None:
        """The same of records that are encoded already."""
        # Numbered by us: where a transaction that has failed is on the disk after all, it is
        # written again over itself.
        rows = list(enumerate(encoded, self._newest + 1))
        if not rows:
            return
        with self._at_work() as db:
            db.execute("BEGIN IMMEDIATE")
            db.executemany("INSERT OR REPLACE INTO log (seq, record) VALUES (?, ?)", rows)
            db.execute("COMMIT")
        self._newest += len(rows)
        self.num_records += len(rows)

    def replay(self) -> Iterator[R]:
        """All records, oldest first.

        Raises:
            PermanentError: a record is damaged or of another version.
            JournalRefused: it cannot be read now.
        """
        with self._at_work() as db:
            for seq, data in db.execute("SELECT seq, record FROM log ORDER BY seq"):
                try:
                    yield self._decode(data)
                except (msgspec.MsgspecError, TypeError) as error:  # a torn page may hold nothing
                    why = f"record {seq} is damaged or of another version of paceline ({error})"
                    raise self._unusable(why) from error

    def encoded(self) -> list[bytes]:
        """All records, as they are written.

        Raises:
            JournalRefused: it cannot be read now.
        """
        with self._at_work() as db:
            return [data for (data,) in db.execute("SELECT record FROM log ORDER BY seq")]

    def compact(self, records: Iterable[R]) -> None:
        """Put these in the place of all records so far, which they stand for.

        Raises:
            JournalRefused: as `append`.
        """
        rows = [(seq, encode(record)) for seq, record in enumerate(records, 1)]
        with self._at_work() as db:
            db.execute("BEGIN IMMEDIATE")
            db.execute("DELETE FROM log")
            db.executemany("INSERT INTO log (seq, record) VALUES (?, ?)", rows)
            db.execute("COMMIT")
        self._newest = self.num_records = len(rows)

    def close(self) -> None:
        """Close the file."""
        if self._db is not None:
            self._db.close()
            self._db = None

    @contextlib.contextmanager
    def _at_work(self) -> Iterator[sqlite3.Connection]:
        """The open file; an error of SQLite becomes one of ours, and closes it."""
        try:
            yield self._open()
        except sqlite3.Error as error:
            # After an error of the disk a connection may go on refusing when the disk does not.
            with contextlib.suppress(sqlite3.Error):
                self.close()
            self._db = None
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            if code in _REFUSALS:
                raise JournalRefused(_refusal(self._path, code, error)) from error
            raise self._unusable(
                f"not a journal of {self._what}, or a damaged one ({error})"
            ) from error

    def _open(self) -> sqlite3.Connection:
        if self._db is not None:
            return self._db
        self._db = db = sqlite3.connect(self._path, timeout=BUSY_S, isolation_level=None)
        (schema,) = db.execute("PRAGMA user_version").fetchone()
        if schema > SCHEMA:
            raise PermanentError(
                f"{self._path}: got a journal of schema {schema}, expected {SCHEMA} or older; "
                "it was written by a newer paceline: go on with that one"
            )
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=NORMAL")
        db.execute(f"PRAGMA wal_autocheckpoint={WAL_PAGES}")
        db.execute("CREATE TABLE IF NOT EXISTS log (seq INTEGER PRIMARY KEY, record BLOB NOT NULL)")
        if schema != SCHEMA:
            db.execute(f"PRAGMA user_version={SCHEMA}")
        return db

    def _unusable(self, why: str) -> PermanentError:
        return PermanentError(f"{self._path}: {why}; {self._remedy}")


def _refusal(path: Path, code: int, error: sqlite3.Error) -> str:
    if code == sqlite3.SQLITE_FULL:
        return f"no space left on {path}"
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return f"{path} is locked by another process; end it (`fuser {path}` names it)"
    if code == sqlite3.SQLITE_IOERR and room_bytes(path.parent) == 0:
        # So says SQLite of a file that it shares with other processes.
        return f"no space left on {path}"
    return f"{path} cannot be written ({error})"

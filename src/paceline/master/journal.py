"""The master's journal: one log in SQLite, written before anything that depends on it leaves.

One table, one row per record, in the order in which the state machines changed. WAL with
``synchronous=NORMAL``: what `append` has returned from survives the death of the master however it
dies. A loss of power may take the newest transactions with it, never leave half of one; everything
on that machine is then gone as well and goes on from a cut. Only where workers on other machines
outlive such a loss could samples be granted a second time, and the leader stops the job rather than
let them into the model twice.
"""

import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from paceline.base.errors import PermanentError
from paceline.master.checks import NodeChecked
from paceline.master.members import MemberRecords
from paceline.master.records import Record, Records
from paceline.master.restarts import StartMeasured
from paceline.master.snapshot import Snapshot


class MasterStarted(Record, frozen=True):
    """A master has begun its work on this journal."""

    started_s: float
    """Unix time."""


JournalRecord = Records | MemberRecords | StartMeasured | NodeChecked | Snapshot | MasterStarted

WAL_PAGES = 8192
"""Pages (4 KiB) between checkpoints: they sync, which would otherwise show in grants' latency."""

encode = msgspec.msgpack.Encoder().encode
_decoder: msgspec.msgpack.Decoder[JournalRecord] = msgspec.msgpack.Decoder(JournalRecord)


class Journal:
    """The log file; one writer, held by the master's lock on the job."""

    def __init__(self, path: Path) -> None:
        """Open or create.

        Raises:
            PermanentError: the file is no journal of ours.
        """
        self._path = path
        self._db = sqlite3.connect(path, isolation_level=None)
        try:
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=NORMAL")
            self._db.execute(f"PRAGMA wal_autocheckpoint={WAL_PAGES}")
            self._db.execute(
                "CREATE TABLE IF NOT EXISTS log (seq INTEGER PRIMARY KEY, record BLOB NOT NULL)"
            )
            (self.num_records,) = self._db.execute("SELECT count(*) FROM log").fetchone()
        except sqlite3.DatabaseError as error:
            raise PermanentError(f"{path}: not a journal of a job ({error})") from error

    def append(self, records: Iterable[JournalRecord]) -> None:
        """Write all of them, or none, as one transaction."""
        self.adopt(map(encode, records))

    def adopt(self, encoded: Iterable[bytes]) -> None:
        """The same of records that are encoded already."""
        rows = [(one,) for one in encoded]
        if not rows:
            return
        self._db.execute("BEGIN")
        self._db.executemany("INSERT INTO log (record) VALUES (?)", rows)
        self._db.execute("COMMIT")
        self.num_records += len(rows)

    def replay(self) -> Iterator[JournalRecord]:
        """All records, oldest first.

        Raises:
            PermanentError: a record is damaged or of another version.
        """
        for seq, data in self._db.execute("SELECT seq, record FROM log ORDER BY seq"):
            try:
                yield _decoder.decode(data)
            except msgspec.MsgspecError as error:
                raise PermanentError(
                    f"{self._path}: record {seq} is damaged or of another version of paceline "
                    f"({error}); start the job again"
                ) from error

    def compact(self, records: Iterable[JournalRecord]) -> None:
        """Put these in the place of all records so far, which they stand for."""
        rows = [(encode(record),) for record in records]
        self._db.execute("BEGIN")
        self._db.execute("DELETE FROM log")
        self._db.executemany("INSERT INTO log (record) VALUES (?)", rows)
        self._db.execute("COMMIT")
        self.num_records = len(rows)

    def close(self) -> None:
        """Close the file."""
        self._db.close()

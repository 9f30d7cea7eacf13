"""What depends on a record leaves the master when enough keepers hold it."""

from pathlib import Path
from types import SimpleNamespace
from typing import cast

from paceline.base.jobdir import JobDir
from paceline.master.journal import Journal, JournalRecord
from paceline.master.kept_records import JournalTerm, SeatsSet, end_of
from paceline.master.outbox import Outbox
from paceline.master.ports import Backend
from paceline.protocol.nodes.membership import Membership
from paceline.protocol.nodes.node import NodeFinished, WorkersWanted
from paceline.wire.messages.keeping import JournalPlace, Seat, Seats


class Kept:
    """Keepers that hold what they are told to."""

    def __init__(self) -> None:
        self.written = self.safe = 0
        self.sent: list[bytes] = []

    def added(self, records: list[JournalRecord], encoded: list[bytes]) -> None:
        self.written += len(records)
        self.sent += encoded

    def compacted(self, encoded: list[bytes]) -> None:
        self.sent = encoded


def outbox_in(path: Path) -> tuple[Outbox, Kept, list[str]]:
    nobody = cast(Membership, SimpleNamespace()), cast(Backend, SimpleNamespace())
    outbox, kept = Outbox(JobDir(path), *nobody), Kept()
    outbox.kept = kept
    return outbox, kept, []


def test_what_follows_from_a_record_waits_until_it_is_safe(tmp_path: Path) -> None:
    outbox, kept, done = outbox_in(tmp_path)
    for number in range(2):
        outbox.record(NodeFinished(node=f"worker-{number}"))
        outbox.later(lambda number=number: done.append(str(number)))  # type: ignore[misc]
        outbox.flush()
    outbox.later(lambda: done.append("after both"))
    outbox.flush()
    assert (kept.written, len(kept.sent), done) == (2, 2, [])
    kept.safe = 1
    outbox.flush()
    assert done == ["0"]
    kept.safe = 2
    outbox.flush()
    assert done == ["0", "1", "after both"]


def test_a_job_that_is_given_up_waits_for_no_keeper(tmp_path: Path) -> None:
    outbox, _, done = outbox_in(tmp_path)
    outbox.record(NodeFinished(node="worker-0"))
    outbox.later(lambda: done.append("lost"))
    outbox.flush()
    outbox.give_up()
    outbox.later(lambda: done.append("leaves"))
    outbox.flush()
    assert done == ["leaves"]


def test_a_journal_says_how_far_it_has_come_also_after_a_snapshot(tmp_path: Path) -> None:
    seats = Seats(now=(Seat("a"), Seat("b", "host-b", "10.0.0.2:1")))
    journal = Journal(tmp_path / "journal.sqlite")
    journal.append([WorkersWanted(count=1), JournalTerm(term=3), SeatsSet(seats=seats)])
    end = end_of(journal.replay())
    assert (end.place, end.seats) == (JournalPlace(3, 1), seats)
    snapshot = [WorkersWanted(count=1), SeatsSet(seats=seats), JournalTerm(term=3, index=1)]
    journal.compact(snapshot)
    journal.append([NodeFinished(node="worker-0")])
    end = end_of(journal.replay())
    assert (end.place, end.seats) == (JournalPlace(3, 2), seats)
    assert len(journal.encoded()) == 4
    journal.close()

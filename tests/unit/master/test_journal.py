"""The journal, and the snapshot that a long one is begun anew from."""

import random
import sqlite3
from pathlib import Path

import msgspec
import pytest

from paceline.base.errors import PermanentError
from paceline.base.record_log import JournalRefused
from paceline.base.samples import Span
from paceline.master.feature_record import FeatureKept
from paceline.master.job_clock import MasterStarted
from paceline.master.journal import Journal, JournalRecord
from paceline.protocol.acts import Instruction, Seal, WriteAhead
from paceline.protocol.holding.servers.master import ServerHolder
from paceline.protocol.nodes.node import JobEnded, NodeFinished, NodeStarted, WorkersWanted
from paceline.protocol.records import (
    CutGone,
    CutStored,
    CutValid,
    EpochStarted,
    Extended,
    FeedAdded,
    Granted,
    Returned,
    SchemaFixed,
)
from paceline.protocol.samples.grant_size import Sizing
from paceline.protocol.snapshot import Snapshot, restore, take
from paceline.protocol.training import MasterState
from paceline.wire.messages.base import CutRef, Server, ServerMap
from paceline.wire.messages.feeds import Feed, SourceLine
from paceline.wire.messages.node import (
    Committed,
    Copied,
    FenceAnswer,
    Grant,
    InitialWritten,
    LeaseRequest,
    OpenFeed,
    Prepared,
    Restored,
)
from paceline.wire.schema import ModelSchema

FEED = Feed(
    feed=0,
    purpose="train",
    num_samples=1_000,
    epochs=2,
    batch_size=10,
    shard_size=50,
    shuffle=True,
    seed=1,
)
STREAM = Feed(
    feed=1,
    purpose="train",
    num_samples=None,
    epochs=2,
    batch_size=10,
    shard_size=50,
    shuffle=False,
    seed=1,
)
CUT = CutRef(cut_no=3, epoch_no=1)
MAP = ServerMap(version=1, servers=(Server(7, "server-0", "ipc://a"),), owners=(0,) * 64)
SPANS = (Span(0, 0, 10), Span(0, 20, 30))
ONE_OF_EACH: list[JournalRecord] = [
    MasterStarted(started_s=1.5),
    SchemaFixed(model=ModelSchema()),
    FeedAdded(feed=FEED),
    EpochStarted(epoch_no=2, cut=CUT, step=4, committed=SPANS, map=MAP),
    Extended(feed=1, ends=(("a", 9),), finished=True),
    Granted(
        grant=Grant(epoch_no=2, inc=3, n=1, feed=0, spans=SPANS, lines=(SourceLine(0, "a", None),))
    ),
    Returned(inc=3, committed=SPANS),
    CutValid(cut=CUT, step=4, committed=SPANS, epoch_no=2),
    CutStored(cut=CUT),
    CutGone(cut_no=3),
    FeatureKept(feature="mine", body=msgspec.Raw(b"\xc0")),
    NodeStarted(node="worker-0", inc=9, restarts=1, previous=("ValueError", 3)),
    NodeFinished(node="worker-0"),
    WorkersWanted(count=3),
    JobEnded(),
    take(MasterState(ServerHolder(), mode="asp", samples="exactly-once")),
]


def test_records_come_back_in_order_and_equal(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j")
    journal.append(ONE_OF_EACH[:4])
    journal.append([])
    journal.append(ONE_OF_EACH[4:])
    journal.close()
    again = Journal(tmp_path / "j")
    assert list(again.replay()) == ONE_OF_EACH
    assert again.num_records == len(ONE_OF_EACH)
    again.close()


def test_what_was_appended_is_there_without_a_close(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j")
    journal.append(ONE_OF_EACH)
    other = Journal(tmp_path / "j")
    assert list(other.replay()) == ONE_OF_EACH
    other.close()
    journal.close()


def test_a_compacted_journal_goes_on(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j")
    journal.append(ONE_OF_EACH)
    journal.compact(ONE_OF_EACH[:2])
    journal.append(ONE_OF_EACH[-1:])
    assert list(journal.replay()) == [*ONE_OF_EACH[:2], ONE_OF_EACH[-1]]
    assert journal.num_records == 3
    journal.close()


def test_a_file_that_is_no_journal_is_refused(tmp_path: Path) -> None:
    (tmp_path / "j").write_bytes(b"x" * 5000)
    with pytest.raises(PermanentError, match="not a journal"):
        Journal(tmp_path / "j")


@pytest.mark.parametrize(("tag", "feature"), [("SizeAtStart", "history"), ("SizingKept", "sizes")])
def test_a_record_that_was_the_cores_is_the_features(
    tag: str, feature: str, tmp_path: Path
) -> None:
    body = msgspec.msgpack.encode({"type": tag, "workers": {"count": 2}, "servers": {}})
    journal = Journal(tmp_path / "j")
    journal.adopt([body])
    assert list(journal.replay()) == [FeatureKept(feature=feature, body=msgspec.Raw(body))]
    journal.adopt([msgspec.msgpack.encode({"type": "Strange"})])
    with pytest.raises(PermanentError, match="record 2 is damaged or of another version"):
        list(journal.replay())
    journal.close()


@pytest.mark.parametrize("torn", ["x'00'", "NULL"])
def test_a_damaged_record_is_named(torn: str, tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j")
    journal.append(ONE_OF_EACH)
    journal.close()
    with sqlite3.connect(tmp_path / "j") as db:
        db.execute("CREATE TABLE torn (seq INTEGER PRIMARY KEY, record BLOB)")
        db.execute("INSERT INTO torn SELECT seq, record FROM log")
        db.execute(f"UPDATE torn SET record = {torn} WHERE seq = 2")
        db.execute("DROP TABLE log")
        db.execute("ALTER TABLE torn RENAME TO log")
    db.close()
    journal = Journal(tmp_path / "j")
    with pytest.raises(PermanentError, match="record 2 is damaged"):
        list(journal.replay())
    journal.close()


def test_a_truncated_journal_is_named_with_its_remedy(tmp_path: Path) -> None:
    path = tmp_path / "job-1" / "journal.sqlite"
    path.parent.mkdir()
    journal = Journal(path)
    journal.append(ONE_OF_EACH * 200)
    journal.close()
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(PermanentError, match="damaged") as refused:
        list(Journal(path).replay())
    assert str(path) in str(refused.value)
    assert "move it away" in str(refused.value)
    assert "paceline run --resume job-1" in str(refused.value)


def test_a_journal_of_a_newer_paceline_is_refused(tmp_path: Path) -> None:
    Journal(tmp_path / "j").close()
    with sqlite3.connect(tmp_path / "j") as db:
        db.execute("PRAGMA user_version=2")
    db.close()
    with pytest.raises(PermanentError, match="schema 2, expected 1 or older"):
        Journal(tmp_path / "j")


def test_another_table_of_this_name_is_refused(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "j") as db:
        db.execute("CREATE TABLE log (text TEXT)")
    db.close()
    with pytest.raises(PermanentError, match="not a journal"):
        Journal(tmp_path / "j")


def test_a_locked_journal_is_written_when_the_other_process_lets_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.base.record_log.BUSY_S", 0.01)
    journal = Journal(tmp_path / "j")
    journal.append(ONE_OF_EACH[:2])
    other = sqlite3.connect(tmp_path / "j", isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(JournalRefused, match="locked by another process"):
        journal.append(ONE_OF_EACH[2:3])
    other.execute("ROLLBACK")
    other.close()
    journal.append(ONE_OF_EACH[2:4])
    assert list(journal.replay()) == ONE_OF_EACH[:4]
    journal.close()


def test_a_transaction_that_failed_and_was_written_all_the_same_counts_once(
    tmp_path: Path,
) -> None:
    journal, twin = Journal(tmp_path / "j"), Journal(tmp_path / "j")
    twin.append(ONE_OF_EACH[:2])
    twin.close()
    journal.append(ONE_OF_EACH[:3])
    assert list(journal.replay()) == ONE_OF_EACH[:3]
    journal.close()


class Run:
    """A state under random events; its records are all that a successor gets."""

    def __init__(self, seed: int, samples: str, mode: str) -> None:
        self.rng = random.Random(seed)
        self.samples, self.mode = samples, mode
        self.state = MasterState(ServerHolder(), mode=mode, samples=samples)
        self.records: list[JournalRecord] = []
        self.next_n: dict[int, int] = {}
        self.next_inc = 10
        self.served: set[int] = set()
        self.stored: Copied | None = None
        self.do(self.state.holder.prepare(Prepared(inc=1, schema=ModelSchema())))
        self.do(
            self.state.holder.initial_written(
                InitialWritten(inc=1, file="initial", checksum="", num_bytes=0)
            )
        )
        self.do(self.state.open_feed(OpenFeed(inc=1, feed=FEED)))
        if mode != "bsp":
            self.do(self.state.open_feed(OpenFeed(inc=1, feed=STREAM)))
        self.new_epoch()

    def do(self, instructions: list[Instruction]) -> None:
        self.records += [i.record for i in instructions if isinstance(i, WriteAhead)]
        for seal in [i for i in instructions if isinstance(i, Seal)]:
            self.do(self.state.cut_sealed(seal.valid))

    def new_epoch(self) -> None:
        self.next_inc += 1
        server = Server(self.next_inc, "server-0", "a")
        self.do(self.state.holder.start_epoch((server,)))
        epoch_no = self.state.epoch_no
        self.do(self.state.holder.restored(Restored(epoch_no=epoch_no, inc=server.inc)))
        self.next_n.clear()

    @property
    def leader(self) -> int:
        assert self.state.holder.map is not None
        return self.state.holder.map.servers[0].inc

    def step(self) -> None:
        choice = self.rng.choice(["up", "up", "want", "want", "want", "want", "commit", "lose"])
        choice = self.rng.choice([choice] * 20 + ["cut", "cut", "store", "store", "epoch"])
        getattr(self, choice)()

    def up(self) -> None:
        self.next_inc += 1
        self.do(self.state.worker_up(self.next_inc))

    def want(self) -> None:
        if not self.state.workers:
            return
        inc = self.rng.choice(sorted(self.state.workers))
        grant = self.state.grants.get(inc)
        feed = 0 if self.mode == "bsp" else self.rng.choice([0, 1])
        request = LeaseRequest(
            epoch_no=self.state.epoch_no,
            inc=inc,
            n=grant.n + 1 if grant else 1,
            feed=feed,
            step=self.state.step + 1 if self.mode == "bsp" else 0,
            starving=True,
            ends=((self.rng.choice("abc"), self.rng.randrange(500)),) if feed else (),
            finished=feed == 1 and self.rng.random() < 0.02,
        )
        sizing = Sizing(samples=self.rng.randrange(1, 90), steps=self.rng.randrange(1, 5))
        self.do(self.state.request(request, sizing))

    def _some_committed(self) -> tuple[Span, ...]:
        done = self.state.ledger.done.copy()
        for lease in self.state.ledger.leases.values():
            for span in lease:
                if self.rng.random() < 0.5:
                    done.add(Span(span.line, span.start, (span.start + span.stop + 1) // 2))
        return done.spans()

    def commit(self) -> None:
        committed = self._some_committed()
        message = Committed(
            epoch_no=self.state.epoch_no, inc=self.leader, step=0, committed=committed
        )
        self.do(self.state.holder.committed(message))

    def lose(self) -> None:
        if not self.state.workers:
            return
        inc = self.rng.choice(sorted(self.state.workers))
        self.do(self.state.worker_lost(inc))
        answer = FenceAnswer(
            epoch_no=self.state.epoch_no,
            inc=self.leader,
            fenced=inc,
            committed=self._some_committed(),
        )
        self.do(self.state.holder.fence_answer(answer))

    def cut(self) -> None:
        self.commit()
        self.do(self.state.take_cut())
        if self.state.cuts.copying is not None:
            copied = Copied(
                epoch_no=self.state.epoch_no,
                inc=self.leader,
                cut_no=self.state.cuts.copying,
                position=1,
                step=self.state.cuts.copying,
                committed=self.state.ledger.done.spans(),
                sharers=(self.leader,),
            )
            self.do(self.state.copy_said(copied))
            self.stored = msgspec.structs.replace(copied, stored=True)

    def store(self) -> None:
        if self.stored is not None:
            self.do(self.state.copy_said(self.stored))

    def epoch(self) -> None:
        self.new_epoch()


@pytest.mark.parametrize("samples", ["exactly-once", "at-least-once", "at-most-once"])
@pytest.mark.parametrize("mode", ["asp", "bsp"])
@pytest.mark.parametrize("seed", range(5))
def test_a_snapshot_stands_for_all_records(samples: str, mode: str, seed: int) -> None:
    if mode == "bsp" and samples != "exactly-once":
        return
    run = Run(seed, samples, mode)
    for _ in range(300):
        run.step()
    replayed = MasterState(ServerHolder(), mode=mode, samples=samples)
    for record in run.records:
        replayed.apply(record)  # type: ignore[arg-type]
    kept = take(replayed)
    assert kept.leases or kept.done
    restored = MasterState(ServerHolder(), mode=mode, samples=samples)
    restore(restored, kept)
    assert take(restored) == kept
    assert restored.holder.kept() == replayed.holder.kept()
    assert (restored.epoch_no, restored.step) == (replayed.epoch_no, replayed.step)
    # What was decided since the last commit is memory, but a lease never disappears.
    run_leases = {span for lease in run.state.ledger.leases.values() for span in lease}
    kept_leases = restored.ledger.leases
    assert all(any(not l.missing(s) for l in kept_leases.values()) for s in run_leases)
    assert isinstance(kept, Snapshot)


def test_a_restored_state_goes_on_as_the_original_would() -> None:
    one, other = Run(3, "exactly-once", "asp"), Run(3, "exactly-once", "asp")
    for _ in range(200):
        one.step()
        other.step()
    one.state = MasterState(ServerHolder(), mode="asp", samples="exactly-once")
    for record in one.records:
        one.state.apply(record)  # type: ignore[arg-type]
    two = MasterState(ServerHolder(), mode="asp", samples="exactly-once")
    restore(two, take(one.state))
    other.state = two
    one.rng.seed(5)
    other.rng.seed(5)
    before = len(one.records)
    for run in (one, other):
        run.do(run.state.resume())
        run.do(run.state.holder.restored(Restored(epoch_no=run.state.epoch_no, inc=run.leader)))
        for _ in range(200):
            run.step()
    assert one.records[before:] == other.records[before:]
    assert len(one.records) > before + 20

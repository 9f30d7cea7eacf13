"""A master that starts again asks those that keep its journal, at real sockets."""

import asyncio
from pathlib import Path

import pytest

from paceline.base.errors import PermanentError
from paceline.base.jobdir import JobDir
from paceline.jobs.handed_on import MasterTerm, check_not_gone_on, read_term, write_term
from paceline.master import term as terms
from paceline.master.journal import Journal
from paceline.master.kept_records import JournalTerm, SeatsSet, end_of
from paceline.protocol.nodes.journal_keeper import JournalKeeper
from paceline.wire import keepers
from paceline.wire.control import CallServer
from paceline.wire.keepers import decode_call
from paceline.wire.messages.base import Message
from paceline.wire.messages.keeping import (
    AskMaster,
    AskVote,
    JournalCopy,
    JournalPlace,
    KeeperCall,
    MasterIs,
    Seat,
    Seats,
)

PLACE = JournalPlace(3, 1)


class OneKeeper:
    """A keeper of what the job's journal has, at a port."""

    def __init__(self, job: JobDir, place: JournalPlace = PLACE) -> None:
        self.keeper = JournalKeeper("b", 60.0)
        self.place = place
        self.found = MasterIs(term=3)
        self.takes_s = 0.0
        self._server = CallServer(job.secret(), self._called, decode_call)

    async def listen(self) -> Seats:
        port = await self._server.start(host="127.0.0.1")
        others = Seat("b", "host-b", f"127.0.0.1:{port}"), Seat("c", "host-c", "127.0.0.1:1")
        seats = Seats(now=(Seat("a", "host-a"), *others))
        copy = JournalCopy(place=self.place, seats=seats, leader="a", records=())
        assert self.keeper.copy(copy, asyncio.get_running_loop().time())
        return seats

    async def _called(self, call: KeeperCall) -> Message:
        match call:
            case AskVote():
                await asyncio.sleep(self.takes_s)
                return self.keeper.asked(call, asyncio.get_running_loop().time())
            case AskMaster():
                return self.found

    async def stop(self) -> None:
        await self._server.stop()


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobDir:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))
    made = JobDir.fresh("kept")
    made.fill_on_disk()
    write_term(made, MasterTerm(seat="a", term=3))
    return made


def begin(job: JobDir, one: OneKeeper) -> MasterTerm:
    """Start a master again; its term."""

    async def run() -> None:
        journal = Journal(job.journal)
        journal.append([JournalTerm(term=3), SeatsSet(seats=await one.listen())])
        try:
            await terms.begin_term(job, journal)
            assert end_of(journal.replay()).place.index == 0
        finally:
            journal.close()
            await one.stop()

    asyncio.run(run())
    found = read_term(job)
    assert found is not None
    return found


def test_it_is_elected_at_once_in_a_term_of_its_own(job: JobDir) -> None:
    assert begin(job, OneKeeper(job)) == MasterTerm(seat="a", term=4)


def test_it_ends_if_the_job_goes_on_elsewhere(job: JobDir) -> None:
    one = OneKeeper(job, JournalPlace(5, 0))
    one.found = MasterIs(term=5, address="10.0.0.2:7", host="host-b")
    with pytest.raises(PermanentError, match=r"goes on with a master on host-b \(10.0.0.2:7\)"):
        begin(job, one)
    with pytest.raises(Exception, match="is not resumed here: the job goes on"):
        check_not_gone_on(job)


def test_it_ends_if_too_few_answer_for_long(job: JobDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terms, "AWAIT_S", 0.3)
    monkeypatch.setattr(terms, "RETRY_S", 0.1)
    with pytest.raises(PermanentError, match="host-b and host-c, which keep the job's journal"):
        begin(job, OneKeeper(job, JournalPlace(3, 9)))  # its own lacks records: a power cut


def test_a_keeper_on_a_busy_machine_is_given_more_time_each_time(
    job: JobDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keepers, "ANSWER_S", 0.2)
    monkeypatch.setattr(terms, "RETRY_S", 0.1)
    one = OneKeeper(job)
    one.takes_s = 0.5
    assert begin(job, one) == MasterTerm(seat="a", term=4)


def test_a_job_whose_journal_is_here_alone_asks_nobody(tmp_path: Path) -> None:
    alone, journal = JobDir(tmp_path), Journal(tmp_path / "journal.sqlite")
    asyncio.run(terms.begin_term(alone, journal))
    assert journal.num_records == 0
    journal.close()


def test_a_master_that_ended_before_the_seats_were_written_begins_again(job: JobDir) -> None:
    journal = Journal(job.journal)
    journal.append([JournalTerm(term=3)])
    asyncio.run(terms.begin_term(job, journal))
    assert end_of(journal.replay()).place.term == 4
    journal.close()

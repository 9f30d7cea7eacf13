"""Whose turn it is: a master whose journal others keep, too, is elected before it does anything.

So one that comes back after a later one was started finds that out, and ends. A majority of the
seats must answer; a master that has started again on its machine is elected at once.
"""

import asyncio
import logging
import socket
import time
from collections.abc import Sequence

import msgspec

from paceline.base.disk import append_if_possible
from paceline.base.errors import PermanentError
from paceline.base.files import write_file
from paceline.base.jobdir import JobDir
from paceline.jobs.handed_on import MasterTerm, read_term, write_term
from paceline.master.journal import Journal
from paceline.master.kept_records import JournalEnd, JournalTerm, end_of
from paceline.protocol.nodes.journal_keeper import JournalKeeper
from paceline.wire.events.job import KeepersAwaitedEvent
from paceline.wire.keepers import Keepers
from paceline.wire.messages.keeping import AskVote, MasterIs, Seat, VoteIs

RETRY_S = 0.5
"""Seconds between two attempts to be elected."""
TELL_S = 3.0
"""Seconds after which a master that is not elected says for whom it waits."""

AWAIT_S = 90.0
"""Seconds for which it waits. Agents without a master leave after 60 s, so nobody can come then."""

_log = logging.getLogger(__name__)


async def begin_term(job: JobDir, journal: Journal) -> None:
    """Return when this machine's master may begin, with its term in the journal.

    Raises:
        PermanentError: the job goes on with a master on another machine; or too few of those that
            keep the journal have answered for long.
    """
    known = read_term(job)
    if known is None:
        return
    end = end_of(journal.replay())
    if not (known.is_elected and end.place.term < known.term):
        known = await _elected(job, known, end)
    write_term(job, msgspec.structs.replace(known, is_elected=False))
    journal.append([JournalTerm(term=known.term)])


async def _elected(job: JobDir, known: MasterTerm, end: JournalEnd) -> MasterTerm:
    keepers = Keepers(job.secret(), job.authority_pem())
    keeper = JournalKeeper(known.seat, 0.0)
    keeper.term, keeper.place = max(known.term, end.place.term), end.place
    keeper.seats = end.seats
    if not end.seats.now:  # it ended before anybody else had a seat
        return MasterTerm(seat=known.seat, term=keeper.term + 1)
    others = end.seats.others(known.seat)
    since_s, told = time.monotonic(), False
    while True:
        if await _wins(keepers, keeper, others, keeper.trial()):
            asked = keeper.campaign()
            write_term(job, MasterTerm(seat=known.seat, term=keeper.term))
            if await _wins(keepers, keeper, others, asked):
                return MasterTerm(seat=known.seat, term=keeper.term)
        keepers.hurried()
        if (found := await keepers.master(others)) is not None and found.term > end.place.term:
            raise PermanentError(goes_on(job, found))
        waited_s, hosts = time.monotonic() - since_s, tuple(seat.host for seat in others)
        if waited_s > AWAIT_S:
            raise PermanentError(
                f"{' and '.join(hosts)}, which keep the job's journal, have not answered for "
                f"{AWAIT_S:.0f} s; look whether the job goes on there. If it does not, go on from "
                f"what is here with `paceline run --resume {job.job_id}`"
            )
        if not told and waited_s > TELL_S:
            told = True
            _log.warning("not_elected hosts=%s", hosts)
            event = KeepersAwaitedEvent(t=time.time(), hosts=hosts)
            append_if_possible(job.events, event.text())
        await asyncio.sleep(RETRY_S)


async def _wins(
    keepers: Keepers, keeper: JournalKeeper, others: Sequence[Seat], asked: AskVote
) -> bool:
    def has_won(answers: list[VoteIs]) -> bool:
        return keeper.has_won(asked, answers, time.monotonic())

    return has_won(await keepers.votes(others, asked, has_won))


def goes_on(job: JobDir, found: MasterIs) -> str:
    """Write down that the job goes on elsewhere, and say so in one line."""
    text = (
        f"the job goes on with a master on {found.host} ({found.address}), since "
        f"{socket.gethostname()} could not be reached; its part in the job has ended. To take "
        f"part again: `paceline agent --join` with the file `ticket` of {found.host}"
    )
    write_file(job.gone_on, f"{text}\n".encode())
    return text

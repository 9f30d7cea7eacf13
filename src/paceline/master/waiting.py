"""The master while its disk refuses to be written to.

It stands still, as one that was paused: facts stay in the inbox, nobody's silence is judged. Only
people are answered.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from paceline.base.disk import append_if_possible, describe, is_refusal
from paceline.base.errors import PermanentError
from paceline.base.record_log import JournalRefused
from paceline.master.facts import Asked, Fact, FromAgent, StopAsked, Tick
from paceline.master.journal import Journal
from paceline.master.outbox import Outbox
from paceline.wire.client import (
    Done,
    GetObservation,
    GetSpec,
    GetStatus,
    JobStatus,
    Reply,
    RoomCall,
    StopJob,
)
from paceline.wire.events.job import DiskRefusesEvent
from paceline.wire.messages.agent import Heartbeat

RETRY_S = 0.5
PROBE_BYTES = 4096

_log = logging.getLogger(__name__)


async def until_written(
    outbox: Outbox, inbox: list[Fact], reply: Callable[[RoomCall], Reply], patience_s: float
) -> str:
    """Wait until the journal takes what it has refused.

    Args:
        outbox: holds what is refused.
        inbox: facts that come meanwhile; those that say nothing any more are removed.
        reply: answers questions of people.
        patience_s: seconds to wait.

    Returns:
        Why the job fails; empty: it goes on, or somebody has told it to stop at once. In these two
        cases the outbox has given up.
    """
    deadline_s = time.monotonic() + patience_s
    while outbox.refused:
        await asyncio.sleep(RETRY_S)
        outbox.beat()
        _thin_out(inbox)
        if _is_stopped_at_once(inbox):
            outbox.give_up()
            return ""
        _answer(inbox, outbox.refused, reply)
        reason = outbox.refused
        outbox.flush()
        if outbox.refused and time.monotonic() > deadline_s:
            outbox.give_up()
            return f"{reason}, for {patience_s:.0f} s; make room there and resume the job"
    return ""


def _thin_out(inbox: list[Fact]) -> None:
    """Remove what repeats itself: an hour of it would fill the memory."""
    inbox[:] = [
        fact
        for fact in inbox
        if not isinstance(fact, Tick)
        and not (isinstance(fact, FromAgent) and isinstance(fact.message, Heartbeat))
    ]


def _is_stopped_at_once(inbox: list[Fact]) -> bool:
    now = any(isinstance(f, Asked) and isinstance(f.call, StopJob) and f.call.now for f in inbox)
    return now or sum(isinstance(fact, StopAsked) for fact in inbox) > 1


def _answer(inbox: list[Fact], why: str, reply: Callable[[RoomCall], Reply]) -> None:
    """Answer questions; an order to stop in order stays, to be obeyed when it can be."""
    for fact in [fact for fact in inbox if isinstance(fact, Asked)]:
        if isinstance(fact.call, StopJob):
            fact.reply(Done(error=f"the job stops as soon as it can write: {why}"))
            continue
        inbox.remove(fact)
        if isinstance(fact.call, GetStatus | GetObservation | GetSpec):
            fact.reply(_as_waiting(reply(fact.call), why))
        else:
            fact.reply(Done(error=f"not now: {why}"))


def _as_waiting(reply: Reply, why: str) -> Reply:
    """Say of the job that it stands still: what was measured is of before."""
    if not isinstance(reply, JobStatus):
        return reply
    return msgspec.structs.replace(reply, samples_per_s=0.0, eta_s=None, waits_for=why)


async def open_journal(path: Path, patience_s: float) -> Journal:
    """Open the journal of a job, when its folder takes writes.

    Raises:
        PermanentError: it is no journal of ours, or ``patience_s`` is over.
    """
    deadline_s, told = time.monotonic() + patience_s, ""
    while True:
        try:
            _probe(path.parent)
            return Journal(path)
        except (JournalRefused, OSError) as error:
            if isinstance(error, OSError) and not is_refusal(error):
                raise
            why = describe(error, path.parent) if isinstance(error, OSError) else str(error)
            if time.monotonic() > deadline_s:
                text = f"{why}, for {patience_s:.0f} s; make room there and resume the job"
                raise PermanentError(text) from error
            if why != told:
                told = why
                _log.warning("disk_refuses reason=%s: waiting", why)
                refuses = DiskRefusesEvent(t=time.time(), error=why, waits="master")
                append_if_possible(path.parent / "events.jsonl", refuses.text())
        await asyncio.sleep(RETRY_S)


def _probe(folder: Path) -> None:
    """Write a block to a folder, and take it back."""
    probe = folder / ".probe"
    try:
        probe.write_bytes(bytes(PROBE_BYTES))
    finally:
        probe.unlink(missing_ok=True)

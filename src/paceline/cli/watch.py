"""Following a job: looks at it at intervals, shows each to views, turns Ctrl-C into calls.

Everything comes from the job directory and the master; watching changes nothing, and any number
of people may watch.
"""

import os
import select
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import FrameType
from typing import Protocol

import msgspec

from paceline.base.errors import PacelineError, TransientError
from paceline.base.jobdir import JobDir
from paceline.base.node_files import CHIEF, NodeFiles
from paceline.jobs.history import Tail
from paceline.jobs.launch import ask, is_kept_up, is_supervised
from paceline.jobs.outcome import Outcome, read_outcome
from paceline.jobs.relaunches import count_relaunches, with_relaunches
from paceline.wire.client import Done, GetStatus, JobStatus, StopJob
from paceline.wire.events.base import Event
from paceline.wire.events.lines import decode_events
from paceline.wire.events.nodes import ProcessExitedEvent
from paceline.wire.spec import load

POLL_S = 0.5
ASK_S = 2.0
"""Seconds after which a busy master is taken to be away; the next look asks again."""
ORDER_S = 10.0
"""Seconds for the answer to an order to stop. On a busy machine it takes longer than a look may
wait, and an order that is withdrawn and given again begins anew."""
GONE_S = 5.0
"""Seconds without anybody who could bring the job back, after which all of it is dead."""
LEAVE_S = 10.0
"""Seconds for which the supervisor clears the machine after the outcome is written."""
TRACEBACK = "Traceback (most recent call last):"
CHAINED = {
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
}
"""Lines between two tracebacks of one error, with an empty line before and after each."""


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """Facts that one look at the job has shown."""

    now_s: float
    """Unix time."""
    status: JobStatus | None
    """None: the master does not answer, or the job has ended."""
    events: tuple[Event, ...] = ()
    """Events since the look before."""
    said: tuple[str, ...] = ()
    """Lines that the chief's script has printed since then."""
    tracebacks: tuple[str, ...] = ()
    """Tracebacks of the script's errors since then, each once, however many workers have had it."""
    outcome: Outcome | None = None
    gone: bool = False
    """Whether every process of the job is dead, and none wrote how it ended."""


class View(Protocol):
    """Shows looks to a person."""

    def show(self, look: Look) -> None:
        """Show one look."""

    def say(self, text: str) -> None:
        """Show a line of ours."""

    def close(self) -> None:
        """The last look was shown."""


class ChiefLog:
    """Output of the script in its first worker, without the tracebacks that end a life.

    Those are shown for themselves (`Look.tracebacks`), or come again with the outcome; one that the
    script itself printed and lived on is passed on.
    """

    def __init__(self) -> None:
        self._held: list[str] = []
        self._whole = False
        #: The errors of tracebacks that are shown for themselves, and whose text may still come.
        self._told: Counter[str] = Counter()
        #: The error of the traceback before, which was not shown; empty: the script went on.
        self._hidden = ""

    def tell(self, traceback: str) -> None:
        """A traceback is shown for itself: the same in the log, once, need not be.

        Lives may follow each other faster than looks.
        """
        self._told[_error_of(traceback.splitlines())] += 1

    def feed(self, lines: list[bytes]) -> list[str]:
        """New lines of the log; returns those to be shown."""
        shown: list[str] = []
        for line in lines:
            # A progress bar rewrites its line: the last state of it counts.
            text = line.decode(errors="replace").rstrip("\r").rpartition("\r")[2]
            if text.startswith(TRACEBACK):
                if CHAINED.isdisjoint(self._held[-2:]):
                    shown += self.release()
                self._held.append(text)
                self._whole = False
            elif self._held and not self._whole:
                self._held.append(text)
                self._whole = not text.startswith(" ")
            elif self._held and (not text or text in CHAINED):
                self._held.append(text)
            else:
                shown += [*self.release(), text]
                self._hidden = ""
        return shown

    def release(self) -> list[str]:
        """The traceback that was held back, to be shown after all."""
        held, self._held = self._held, []
        error = _error_of(held)
        if not held or (self._told[error] <= 0 and error != self._hidden):
            return held
        self._told[error] -= 1
        self._hidden = error
        return []

    def drop(self) -> None:
        """The life has ended: what was held back is why."""
        if self._held:
            self._told[_error_of(self._held)] -= 1
        self._held = []


def _error_of(traceback: Sequence[str]) -> str:
    """The last line of a traceback that says anything."""
    return next((line.strip() for line in reversed(traceback) if line.strip()), "")


class JobWatcher:
    """Looks at one job."""

    def __init__(self, job: JobDir, *, from_now: bool, shown: set[str]) -> None:
        """Arguments as for `follow`."""
        self._job = job
        self._events = Tail(job.events)
        #: Also before now: the views show how often a node was started again in all.
        self._relaunches = count_relaunches(decode_events(self._events.lines()) if from_now else ())
        self._log = Tail(NodeFiles(job, CHIEF).log, from_end=from_now)
        self._chief = ChiefLog()
        self._shown = shown
        self._gone_since_s: float | None = None

    def look(self) -> Look:
        """Look now."""
        # First: what is said and told before the outcome is then in the same look.
        outcome = read_outcome(self._job.outcome)
        status = None if outcome else self._status()
        events = decode_events(self._events.lines())
        self._relaunches += count_relaunches(events)
        for event in events:
            if isinstance(event, ProcessExitedEvent) and event.node == CHIEF and event.traceback:
                self._chief.tell(event.traceback)
        said = self._chief.feed(self._log.lines())
        if any(isinstance(e, ProcessExitedEvent) and e.node == CHIEF for e in events):
            self._chief.drop()
        if outcome:
            said += self._chief.feed(self._log.rest())
        if outcome and not outcome.traceback:
            said += self._chief.release()
        return Look(
            now_s=time.time(),
            status=status and with_relaunches(status, self._relaunches),
            events=tuple(events),
            said=tuple(said),
            tracebacks=tuple(self._new_tracebacks(events)),
            outcome=outcome,
            gone=outcome is None and status is None and self._is_gone(),
        )

    def _new_tracebacks(self, events: Iterable[Event]) -> Iterator[str]:
        for event in events:
            text = event.traceback if isinstance(event, ProcessExitedEvent) else ""
            if text and text not in self._shown:
                self._shown.add(text)
                yield text

    def _status(self) -> JobStatus | None:
        try:
            reply = ask(self._job, GetStatus(), ASK_S)
        except (TransientError, FileNotFoundError):
            return None
        return reply if isinstance(reply, JobStatus) else None

    def _is_gone(self) -> bool:
        """Tell whether nothing of the job is left that could go on; agents may be slow to act."""
        now_s = time.monotonic()
        if is_kept_up(self._job):
            self._gone_since_s = None
            return False
        self._gone_since_s = self._gone_since_s or now_s
        return now_s - self._gone_since_s > GONE_S


class Interrupts:
    """Counts SIGINT, SIGTERM and SIGUSR1 while it is entered, instead of dying of them.

    Queueing systems warn by SIGUSR1 that the time is nearly over. It asks for an orderly stop only,
    however often it comes.
    """

    def __init__(self) -> None:
        self.count = 0
        self.first = 0
        """The number of the signal that came first."""
        self._reader, self._writer = os.pipe()
        self._before: dict[int, Callable[[int, FrameType | None], object] | int | None] = {}

    def __enter__(self) -> "Interrupts":
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.close(self._reader)
        os.close(self._writer)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if number != signal.SIGUSR1 or not self.count:
            self.count += 1
        self.first = self.first or number
        os.write(self._writer, b"!")

    def wait(self, timeout_s: float) -> None:
        """Wait, at most until the next signal."""
        if select.select([self._reader], [], [], timeout_s)[0]:
            os.read(self._reader, 1)


class SignalOrders:
    """Turns the first signal into an orderly stop and the second into one at once.

    A master that is just being restarted is asked again at the next look.
    """

    def __init__(self, job: JobDir, view: View) -> None:
        self._job, self._view = job, view
        self._obeyed = 0

    def follow(self, signals: Interrupts) -> None:
        """Carry out what so many signals ask for."""
        wanted = min(signals.count, 2)
        if wanted == self._obeyed:
            return
        now = wanted == 2
        try:
            reply = ask(self._job, StopJob(now=now, signal=signals.first), ORDER_S)
        except (PacelineError, FileNotFoundError) as error:
            away = isinstance(error, TransientError | FileNotFoundError)
            why = "its master does not answer" if away else str(error)
            self._view.say(f"cannot stop the job yet, trying again: {why}")
            return
        self._obeyed = wanted
        if isinstance(reply, Done) and reply.error:
            self._view.say(reply.error)
        elif now:
            self._view.say("stopping at once")
        elif not load(self._job.spec).traits.trains:
            self._view.say("stopping: the scripts get SIGTERM, and time (Ctrl-C again: at once)")
        else:
            self._view.say(
                "stopping gracefully: the workers finish their step, then one more cut "
                "(Ctrl-C again: at once)"
            )


def follow(
    job: JobDir,
    views: list[View],
    interrupts: Interrupts,
    *,
    from_now: bool = False,
    stops: bool = True,
    shown: set[str] | None = None,
) -> Outcome | None:
    """Show the job until it has ended.

    Args:
        job: the job.
        views: the first shows what signals lead to.
        interrupts: counts signals; entered here.
        from_now: leave out what happened before.
        stops: a signal stops the job; otherwise it ends the watching only.
        shown: gets the tracebacks that the views have shown.

    Returns:
        How it ended; None: it was left running, or all its processes died.
    """
    watcher = JobWatcher(job, from_now=from_now, shown=set() if shown is None else shown)
    orders = SignalOrders(job, views[0])
    with interrupts:
        while True:
            look = watcher.look()
            for view in views:
                view.show(look)
            if look.outcome or look.gone:
                break
            if interrupts.count and not stops:
                views[0].say(f"job {job.job_id} goes on; see it again with `paceline attach`")
                break
            if interrupts.count > 2:
                views[0].say(f"no longer waiting for job {job.job_id}; see `paceline status`")
                break
            orders.follow(interrupts)
            interrupts.wait(POLL_S)
            if stops:
                orders.follow(interrupts)  # before the next look, which a busy master holds up
        if look.outcome:
            _wait_until_clear(job, interrupts)
    for view in views:
        view.close()
    return look.outcome


def _wait_until_clear(job: JobDir, interrupts: Interrupts) -> None:
    """Wait until the supervisor has left: nothing of the job is on the machine then."""
    deadline_s, before = time.monotonic() + LEAVE_S, interrupts.count
    while is_supervised(job) and time.monotonic() < deadline_s and interrupts.count == before:
        interrupts.wait(0.05)

"""Points of what workers log, put together and kept: one for each step of each name."""

from collections import deque
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import msgspec

from paceline.base.numbering import Inc
from paceline.features.curves.feeding import BeginFeed, SinkFeed
from paceline.features.curves.wire import (
    MAX_NAMES,
    Logged,
    LoggedStep,
    LogKept,
    NotLoggedEvent,
    SinkFailedEvent,
)
from paceline.jobs.curves import CurveFile, CurveLine, as_json, last_of
from paceline.master.holding.edge import ModelPlace
from paceline.wire.client import LastLogged
from paceline.wire.events.base import Event
from paceline.wire.messages.base import UNPLACED, Attempt

SETTLE_S = 5.0
"""Seconds from a point's first value until it is written: other workers log it meanwhile."""
MAX_HEARD = 256
"""Messages of a worker that are remembered; the worker repeats fewer."""
MAX_OPEN = 4096
"""Points that wait for that; beyond it the oldest are written sooner."""


class _Open(msgspec.Struct):
    """One step, while values for it come."""

    since_s: float
    t: float
    samples: int
    between: bool
    totals: dict[str, tuple[float, int]] = {}

    def line(self, attempt: Attempt, step: int) -> CurveLine:
        return CurveLine(
            t=self.t,
            epoch_no=attempt.epoch_no,
            group=attempt.group,
            step=step,
            samples=self.samples,
            between=self.between,
            values={name: as_json(total / count) for name, (total, count) in self.totals.items()},
        )


class CurveKeeping:
    """The curves of one job.

    Args:
        path: of the file.
        tell: adds an event to the job's events.
        send: sends a message to the process of a life.
        wall: Unix time.
        sinks: begins to write the curves elsewhere; None: nowhere.
    """

    def __init__(
        self,
        path: Path,
        tell: Callable[[Event], None],
        send: Callable[[Inc, LogKept], None],
        wall: Callable[[], float],
        sinks: BeginFeed | None = None,
    ) -> None:
        self._path, self._wall = path, wall
        self._tell_event, self._send = tell, send
        self._begin_feed = sinks
        self._feed: SinkFeed | None = None
        self._file: CurveFile | None = None
        self._open: dict[tuple[Attempt, int], _Open] = {}
        #: By worker, the numbers of its newest messages. A master that has just begun hears what
        #: its predecessor did not answer after what is new.
        self._heard: dict[Inc, deque[int]] = {}
        #: Messages that must be answered, and when they came.
        self._unanswered: deque[tuple[float, Inc, int]] = deque()
        self._newest: dict[str, tuple[Attempt, LastLogged]] = {}
        self._has_told = False

    @property
    def file(self) -> CurveFile:
        """File of what is written so far; read when a script first logs, or is asked about."""
        if self._file is None:
            self._file = CurveFile(self._path)
        return self._file

    def heard(
        self, inc: Inc, message: Logged, now_s: float, place: Callable[[], ModelPlace]
    ) -> None:
        """Take in what a worker has logged; again: nothing, but the answer.

        Args:
            inc: life of the worker.
            message: of the worker.
            now_s: of the master's clock.
            place: where the model is now.
        """
        heard = self._heard.setdefault(inc, deque(maxlen=MAX_HEARD))
        if message.n not in heard:
            heard.append(message.n)
            for step in message.steps:
                self._add(self._placed(step, place), now_s)
            if message.left_out:
                self._tell(message.left_out)
        self._unanswered.append((now_s, inc, message.n))

    def _add(self, logged: LoggedStep, now_s: float) -> None:
        known = {name: one for name, one in logged.values.items() if self._is_known(name)}
        if not known:
            return
        key = logged.attempt, logged.step
        found = self._open.get(key)
        if found is None:
            found = _Open(now_s, self._wall(), logged.samples, logged.between)
            self._open[key] = found
        found.samples = max(found.samples, logged.samples)
        found.between &= logged.between
        for name, one in known.items():
            total, count = found.totals.get(name, (0.0, 0))
            found.totals[name] = total + one.total, count + one.count
            self._note(name, logged, found.totals[name])

    def _is_known(self, name: str) -> bool:
        if name in self.file.names:
            return True
        if len(self.file.names) >= MAX_NAMES:
            self._tell(name)
            return False
        self.file.names.add(name)
        return True

    def _tell(self, name: str) -> None:
        if not self._has_told:
            self._has_told = True
            self._tell_event(NotLoggedEvent(first=name, most=MAX_NAMES))

    def _note(self, name: str, logged: LoggedStep, held: tuple[float, int]) -> None:
        """Keep the newest value of a name for those who watch."""
        before = self._newest.get(name)
        if before is None or (before[0], before[1].step) <= (logged.attempt, logged.step):
            value = as_json(held[0] / held[1])
            self._newest[name] = logged.attempt, LastLogged(name, value, logged.step)

    def tick(self, now_s: float) -> None:
        """Write what is settled, and tell the workers."""
        due = [key for key, one in self._open.items() if now_s - one.since_s >= SETTLE_S]
        if len(self._open) > MAX_OPEN:
            due.append(sorted(self._open)[-MAX_OPEN])
        if due:
            self._write(max(due))
        if self._file is not None:
            self._file.flush()
        self._tell_failed()
        while self._unanswered and now_s - self._unanswered[0][0] >= SETTLE_S:
            _, inc, n = self._unanswered.popleft()
            self._send(inc, LogKept(n=n))

    def _write(self, upto: tuple[Attempt, int]) -> None:
        if self._feed is None and self._begin_feed is not None:
            self._feed = self._begin_feed(self.file.newest)
        keys = sorted(key for key in self._open if key <= upto)
        for before, after in pairwise(reversed(keys)):
            # What came a second time, since its master had died, came after later steps.
            self._open[after].t = min(self._open[after].t, self._open[before].t)
        for key in keys:
            taken = self.file.add(self._open.pop(key).line(*key))
            if taken is not None and self._feed is not None:
                self._feed.add(taken)

    def close(self) -> None:
        """Write what there is: the job has ended."""
        if self._open:
            self._write(max(self._open))
        if self._file is not None:
            self._file.close()
        if self._feed is not None:
            self._feed.close()
            self._tell_failed()

    def _tell_failed(self) -> None:
        for name, error in self._feed.take_failed() if self._feed is not None else ():
            self._tell_event(SinkFailedEvent(sink=name, error=error))

    def last(self) -> tuple[LastLogged, ...]:
        """The newest value of each name."""
        written = {name: last_of(name, point) for name, point in self.file.last.items()}
        newest = {
            name: one
            for name, (attempt, one) in self._newest.items()
            if not self.file.order.is_void(attempt, one.step)
        }
        return tuple((written | newest).values())

    def _placed(self, logged: LoggedStep, place: Callable[[], ModelPlace]) -> LoggedStep:
        """Return the same, where the model is if the worker does not know.

        It begins no attempt: the group before may still finish steps.
        """
        if logged.step > UNPLACED:
            return logged
        now = place()
        known = max(self.file.order.attempt, *(attempt for attempt, _ in self._open), Attempt())
        attempt = min(now.attempt, known)
        return LoggedStep(attempt, now.step, now.samples, logged.values, between=True)

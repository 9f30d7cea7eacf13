"""The thread of a worker that talks to servers and agent, so that the training thread need not.

What arrives is handed to the `Owner` under one lock, ``changed``; every thread that touches the
owner's state holds it. What must be sent is left as an *errand*, a call that this thread makes
without the lock: sockets, shared memory and the cutting of tensors to servers cost the training
thread nothing.

    exchange = Exchange(process, owner)
    exchange.start()                            # from here on messages come and go
    with exchange.changed:
        exchange.leave(partial(exchange.data.send, server, message))
        exchange.wait()                         # until something has changed, at most WAIT_S
    exchange.halt()                             # before the process says its last words
"""

import os
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol, assert_never

from paceline.base.errors import ConfigError, InternalError, PacelineError
from paceline.base.numbering import Inc
from paceline.runtime.process.process import Process
from paceline.runtime.process.reaching import Unheard
from paceline.wire.data_plane import DataClient
from paceline.wire.messages.data import Data
from paceline.wire.messages.features import FeatureTold
from paceline.wire.messages.node import NodeDown, WorkersNow
from paceline.wire.shm import DEFAULT_ARENA_BYTES

TICK_S = 0.5
"""The owner's timer."""
WAIT_S = 0.2
"""Longest sleep of either thread before flags, timers and the link are looked at."""
HALT_S = 5.0

Errand = Callable[[], object]

ExchangeTakes = FeatureTold | WorkersNow
"""Messages of the master to every worker, whoever holds the model."""


class Owner(Protocol):
    """The receiver of an exchange's messages; called in its thread, under ``changed``."""

    def from_server(self, server: Inc, message: Data, frames: Sequence[memoryview]) -> None:
        """Take in a message of a server or a peer, with its tensors in ``frames``."""

    def from_master(self, message: NodeDown) -> None:
        """Take in a message of the master."""

    def tick(self) -> None:
        """Follow up what is unanswered; called every `TICK_S`."""


class Exchange:
    """A worker's exchange. ``data`` is for errands and the owner's handlers only."""

    def __init__(
        self, process: Process, owner: Owner, *, arena_bytes: int = DEFAULT_ARENA_BYTES
    ) -> None:
        """``arena_bytes``: see `DataClient`."""
        ident = f"{process.node}-{process.inc}"
        self.data = DataClient({}, process.job.secret(), ident=ident, arena_bytes=arena_bytes)
        self.changed = threading.Condition()
        self.unheard = Unheard()
        """The servers that have not said a word; the owner says which there are."""
        self._process, self._owner = process, owner
        self._errands: list[Errand] = []
        self._asleep = True
        self._halting = False
        self._failure: BaseException | None = None
        self._tick_at_s = 0.0
        self._alarm = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.data.watch(self._alarm)
        self._thread = threading.Thread(target=self._run, name="paceline-exchange", daemon=True)
        process.at_fork = self._leave_to_fork

    def start(self) -> None:
        """Start the thread."""
        self._tick_at_s = time.monotonic() + TICK_S
        self._thread.start()

    def leave(self, errand: Errand) -> None:
        """Leave an errand to be done soon, in order; with ``changed`` held."""
        self._errands.append(errand)
        if self._asleep:
            self._asleep = False
            os.eventfd_write(self._alarm, 1)

    def wait(self, at_most_s: float = WAIT_S) -> None:
        """Let go of ``changed`` until there is news, or for so long."""
        self.changed.wait(at_most_s)

    def check(self) -> None:
        """Raise in the calling thread what ended this one."""
        if self._failure is not None:
            raise self._failure

    def halt(self) -> None:
        """Do what was left, close the sockets, end the thread; again: nothing."""
        with self.changed:
            self._halting = True
            os.eventfd_write(self._alarm, 1)
        if self._thread.is_alive():
            self._thread.join(HALT_S)

    def _leave_to_fork(self) -> None:
        """Fail in a copy without the thread: `check` raises for all who would wait for it."""
        # The thread may have held it while the script forked.
        self.changed._at_fork_reinit()  # type: ignore[attr-defined]
        self._failure = ConfigError(
            "a process that the script forked asked the job for something; use the job in the "
            "worker's own process only, and hand over what the other one needs"
        )

    # ------------------------------------------------------------------ the thread

    def _run(self) -> None:
        try:
            while not self._halting:
                self._turn()
            for errand in self._errands:
                errand()
        except (PacelineError, SystemExit) as error:
            self._fail(error)
        except Exception as error:  # noqa: BLE001 - `check` raises it where it is noticed
            failure = InternalError(
                f"the exchange with the servers ended ({type(error).__name__}: {error})"
            )
            failure.__cause__ = error
            self._fail(failure)
        finally:
            self.data.close()

    def _take(self, order: NodeDown) -> None:
        if not isinstance(order, ExchangeTakes):
            self._owner.from_master(order)
            return
        match order:
            case FeatureTold():
                if self._process.features is not None:
                    self._process.features.told(order)
            case WorkersNow():
                self._process.num_workers = order.count
            case _:
                assert_never(order)

    def _tell_due(self, now_s: float) -> None:
        """Leave what features have to say to be sent."""
        features = self._process.features
        for message in features.due(now_s) if features is not None else ():
            self.leave(partial(self._process.link.send, message))

    def _fail(self, error: BaseException) -> None:
        with self.changed:
            self._failure = error
            self.changed.notify_all()

    def _turn(self) -> None:
        self._process.keep_link()
        link = self._process.link
        arrived = self.data.poll(WAIT_S, extra=link.fileno(), writing=link.num_queued_bytes > 0)
        now_s = time.monotonic()
        due = now_s >= self._tick_at_s
        orders = link.receive() if self.data.extra_ready or due else ()
        with self.changed:
            self._asleep = False
            for server, message, frames in arrived:
                self.unheard.heard(Inc(server))
                self._owner.from_server(Inc(server), message, frames)
            for order in orders:
                self._take(order)
            if due:
                self._tell_due(now_s)
                self._owner.tick()
                self._tick_at_s = now_s + TICK_S
            if arrived or orders:
                self.changed.notify_all()
            errands, self._errands = self._errands, []
            self._asleep = True
        for errand in errands:
            errand()

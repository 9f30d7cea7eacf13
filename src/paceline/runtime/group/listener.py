"""Door at which the peers of a member reach it: a thread that answers them.

It takes what they set in the store of a group, and hands out the state that this member holds.
"""

import logging
import threading
from collections.abc import Sequence
from typing import Protocol, assert_never

from paceline.runtime.process.process import Process
from paceline.wire.data_plane import DataServer, bind_address
from paceline.wire.messages.data import Data
from paceline.wire.messages.group import AskState, Computed, Meet, StatePart

POLL_S = 0.2

_log = logging.getLogger(__name__)

DoorTakes = Meet | Computed | AskState
"""Messages that members of a group send each other."""


class Host(Protocol):
    """Owner of a door; all of it is called in the door's thread."""

    def met(self, message: Meet, value: bytes) -> None:
        """A peer has set something in the store of a group."""

    def peer_computed(self, message: Computed) -> None:
        """A peer has computed its share of a step."""

    def hand_out(self, message: AskState) -> tuple[StatePart, bytes] | None:
        """The part that a peer asks for; None: we do not hold that step at rest."""


class Door:
    """Thread that answers the peers of a member; it runs once the door is made."""

    def __init__(self, process: Process, host: Host) -> None:
        self._host = host
        name = f"{process.node}-{process.inc}"
        plane, run_dir = process.spec.data_plane, process.job.run_dir
        bind = bind_address(plane, process.spec.listen, run_dir, name)
        self._data = DataServer(bind, process.job.secret(), arena_bytes=0)
        self.address = self._data.address
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="paceline-door", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Let nobody in any more."""
        self._closing = True
        self._thread.join()

    def _run(self) -> None:
        while not self._closing:
            for peer, message, frames in self._data.poll(POLL_S):
                try:
                    self._answer(peer, message, frames)
                except Exception:  # noqa: BLE001 - a peer that gets no answer asks again
                    _log.exception("peer_not_answered message=%s", type(message).__name__)
        self._data.close()

    def _answer(self, peer: bytes, message: Data, frames: Sequence[memoryview]) -> None:
        if not isinstance(message, DoorTakes):
            return  # a message between workers and servers: no member sends it
        match message:
            case Meet():
                if len(frames) == 1:
                    self._host.met(message, bytes(frames[0]))
            case Computed():
                self._host.peer_computed(message)
            case AskState():
                answer = self._host.hand_out(message)
                if answer is not None:
                    self._data.send(peer, answer[0], [answer[1]])
            case _:
                assert_never(message)

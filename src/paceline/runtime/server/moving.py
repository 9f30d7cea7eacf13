"""How a server's share of the model travels to another server while training goes on.

The old owner forks: the child *is* the share set aside as of the copy entry, for the price of a
page table, and sends it piece by piece; the parent serves on, and pays for a page when an update
first touches it. The new owner puts the pieces together and builds its store in a thread beside
the one that keeps parts.

Reference: docs/protocols/integrity.md, section 3 ("moving buckets").
"""

import logging
import os
import signal
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Sequence

import msgspec
import numpy as np

from paceline.base.processes import die_with_parent
from paceline.runtime.checkpoint import cutfile
from paceline.runtime.process import Process
from paceline.runtime.server.store import Store
from paceline.wire.data_plane import DataClient
from paceline.wire.messages.base import Server
from paceline.wire.messages.data import Piece, PieceHeld
from paceline.wire.schema import ModelSchema

PIECE_BYTES = 4 << 20
WINDOW = 8
"""Pieces that may be unanswered."""
RESEND_S = 1.0

_log = logging.getLogger(__name__)


class Sender:
    """A child process that sends a store as it was when this was made."""

    def __init__(self, process: Process, store: Store, to: Server, piece: Piece) -> None:
        self.pid = _fork()
        if self.pid:
            return
        status = 1
        try:
            _become_child()
            _send_all(process, store, to, piece)
            status = 0
        except Exception:  # noqa: BLE001 - the master gives a move up when nothing arrives
            _log.exception("buckets_not_sent to=%s", to.node)
        finally:
            sys.stderr.flush()
            os._exit(status)

    def stop(self) -> None:
        """End the child if it is still there, and reap it."""
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self.pid = 0


def _fork() -> int:
    with warnings.catch_warnings():
        # Of threads in the parent: the child uses nothing that they may hold.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _become_child() -> None:
    die_with_parent()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)


def _send_all(process: Process, store: Store, to: Server, piece: Piece) -> None:
    ident = f"{process.node}-copy-{process.inc}"
    image = cutfile.Chunks(store.save(), PIECE_BYTES)
    piece = msgspec.structs.replace(piece, num_bytes=image.num_bytes)
    client = DataClient({to.inc: to.address}, process.job.secret(), ident, arena_bytes=0)
    waiting = deque(range(0, image.num_bytes, PIECE_BYTES))
    unanswered: dict[int, float] = {}
    while waiting or unanswered:
        now_s = time.monotonic()
        due = [at for at, sent_s in unanswered.items() if now_s - sent_s > RESEND_S]
        while waiting and len(unanswered) + len(due) < WINDOW:
            due.append(waiting.popleft())
        for offset in due:
            message = msgspec.structs.replace(piece, offset=offset)
            client.send(to.inc, message, [image.at(offset)])
            unanswered[offset] = now_s
        for _, answer, _frames in client.poll(RESEND_S):
            if isinstance(answer, PieceHeld):
                unanswered.pop(answer.offset, None)
    client.close()


def held(piece: Piece) -> PieceHeld:
    """The answer to a piece that is in memory."""
    return PieceHeld(epoch_no=piece.epoch_no, server=piece.inc, offset=piece.offset)


class ArrivingShare:
    """The share that is on its way here."""

    def __init__(self, schema: ModelSchema, buckets_to: Sequence[int], me: int) -> None:
        """``buckets_to``: by bucket, who it is being copied to; ``me``: that is us."""
        self._schema, self._buckets_to, self._me = schema, buckets_to, me
        self._image: np.ndarray[tuple[int], np.dtype[np.uint8]] | None = None
        self._missing: set[int] = set()
        self._piece: Piece | None = None
        self._built: Store | Exception | None = None
        self.num_bytes = 0
        """Received so far."""

    def take(self, piece: Piece, frame: memoryview) -> None:
        """Keep a piece (`Admission` has seen it)."""
        if self._image is None:
            self._image = np.empty(piece.num_bytes, np.uint8)
            self._missing = set(range(0, piece.num_bytes, PIECE_BYTES))
        if piece.offset in self._missing:
            at = slice(piece.offset, piece.offset + frame.nbytes)
            self._image[at] = np.frombuffer(frame, np.uint8)
            self._missing.discard(piece.offset)
            self.num_bytes += frame.nbytes
            if not self._missing:
                self._piece = piece
                threading.Thread(target=self._build, name="buckets", daemon=True).start()

    def _build(self) -> None:
        try:
            store = Store(self._schema, self._buckets_to, self._me)
            store.load([cutfile.unpack(self._image)])
            self._built = store
        except Exception as error:  # noqa: BLE001 - `finished` raises it in the server's thread
            self._built = error

    def finished(self) -> tuple[Store, Piece] | None:
        """The share, once: whole and usable, and what comes with it."""
        built = self._built
        if built is None or self._piece is None:
            return None
        if isinstance(built, Exception):
            raise built
        self._built = self._image = None
        return built, self._piece

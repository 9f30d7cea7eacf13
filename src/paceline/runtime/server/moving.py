"""Travel of buckets between servers while training goes on.

An owner forks: the child *is* the share set aside as of the copy entry, for the price of a page
table, and sends it piece by piece from where it lies. The parent serves on, and pays for a page
when an update first touches it. A receiver makes the store that it will have after the switch. A
thread beside the one that serves puts each piece where it belongs there. A server that keeps some
of its buckets is a receiver of these, too. So no store is taken apart or put together at the
switch, and the pause there does not depend on its size.

Memory that a process touches first is what a move costs most: 0.1 to 2.5 s of a core for 1 GB,
which depends on the machine. So a move touches only the new stores, and no serving thread does.
On some machines the kernel takes 6 ms to make a huge page, of 2 MB, and who trains may have to wait
for that. Where it is seen the rest of a store is made of small pages, and may have huge ones later.

Reference: docs/protocols/integrity.md, section 3 ("moving buckets").
"""

import ctypes
import dataclasses
import logging
import mmap
import os
import signal
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from queue import SimpleQueue
from typing import NamedTuple

import msgspec

from paceline.base.cgroups import come_last
from paceline.base.errors import InternalError
from paceline.base.numbering import Inc
from paceline.base.processes import die_with_parent
from paceline.runtime.checkpoint import cutfile
from paceline.runtime.process.process import Process
from paceline.runtime.server.scripts import Scripts, saved_in
from paceline.runtime.server.store import Gradients, Store
from paceline.runtime.state.arrays import Array
from paceline.wire.data_plane import DataClient
from paceline.wire.messages.base import Server, ServerMap
from paceline.wire.messages.data import Piece, PieceHeld
from paceline.wire.schema import ModelSchema

PIECE_BYTES = 1 << 20
"""Bytes of a piece, which a server takes between two messages of workers: half a millisecond."""
WINDOW = 4
"""Pieces that may be unanswered; a receiver has so many of each owner before it."""
ARENA_BYTES = 2 * WINDOW * PIECE_BYTES
"""Bytes of shared memory, on one host: out of a socket a receiver would have to copy what comes."""
BYTES_PER_S = 100e6
"""Most bytes per second that an owner sends: training has the rest of the machine."""
RESEND_S = 1.0
LEAST_BYTES_PER_S, RANK_AFTER_S = 10e6, 2.0
"""Bytes per second that a sender which comes after all who train has to send, and seconds until
that is judged. Where they use all processors it would send nothing."""
NICE = 10
"""Increase of a sender's niceness, if it does not come after all who train."""
BURST_BYTES = 1 << 17
"""Bytes put where they belong at a time, before a rest. A thread that trains waits for a processor
for no longer than that takes: 0.3 ms where memory is slow."""
REST, LONGEST_REST_S = 15, 0.01
"""Length of a rest as a multiple of the work before it, and its most seconds: a receiver takes a
sixteenth of a processor."""
LONG_BURST_S = 0.001
"""Seconds of a burst that has made a huge page, where that is slow."""
CATCH_UP_S = 0.01
"""Seconds of a turn that are spent on catching up, as long as there is much of that."""

RELEASE_BYTES = 16 << 20
"""Bytes of memory given back at a time."""
LARGE_BYTES = 1 << 22
"""Bytes of arrays that have huge pages where the machine allows that: numpy asks for them."""

_libc = ctypes.CDLL(None)
_log = logging.getLogger(__name__)

PieceSenderTakes = PieceHeld


class Sender:
    """A child process that sends buckets of a store as it was when this was made."""

    def __init__(self, process: Process, store: Store, to: Sequence[tuple[Server, Piece]]) -> None:
        self.pid = _fork()
        if self.pid:
            return
        status = 1
        try:
            _become_child()
            rank = _Rank(process.job.job_id)
            for server, piece in to:
                _send_all(process, store.part(moving_buckets(piece)), server, piece, rank)
            status = 0
        except Exception:  # noqa: BLE001 - the master gives a move up when nothing arrives
            _log.exception("buckets_not_sent to=%s", ",".join(server.node for server, _ in to))
        finally:
            sys.stderr.flush()
            os._exit(status)

    def stop(self) -> None:
        """End the child if it is still there; a thread waits until its memory is gone."""
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            reap = threading.Thread(target=os.waitpid, args=(self.pid, 0), daemon=True)
            reap.start()
            self.pid = 0


def _fork() -> int:
    with warnings.catch_warnings():
        # The warning is of threads in the parent: the child uses nothing that they may hold.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _become_child() -> None:
    die_with_parent()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)


class _Rank:
    """A sender comes after all who train, unless it would have nothing then."""

    def __init__(self, job_id: str) -> None:
        self._home = come_last(job_id)
        if self._home is None:
            os.nice(NICE)

    def sends(self, bytes_per_s: float) -> None:
        """Say how fast it sends."""
        if self._home is not None and bytes_per_s < LEAST_BYTES_PER_S:
            os.nice(NICE)
            self._home.write_text("0")
            self._home = None


def moving_buckets(piece: Piece) -> tuple[int, ...]:
    """Return the buckets that one owner sends one receiver."""
    now = piece.map
    pair = now.index(piece.server), now.index(piece.inc)
    pairs = zip(now.owners, now.copies, strict=True)
    return tuple(bucket for bucket, found in enumerate(pairs) if found == pair)


def _send_all(
    process: Process,
    saved: Mapping[str, Array | cutfile.Scattered],
    to: Server,
    piece: Piece,
    rank: _Rank,
) -> None:
    ident = f"{process.node}-copy-{process.inc}"
    image = cutfile.Chunks(saved, PIECE_BYTES)
    piece = msgspec.structs.replace(piece, num_bytes=image.num_bytes)
    arena_bytes = min(ARENA_BYTES, image.num_bytes)
    client = DataClient({to.inc: to.address}, process.job.secret(), ident, arena_bytes=arena_bytes)
    waiting = deque(range(0, image.num_bytes, PIECE_BYTES))
    unanswered: dict[int, float] = {}
    begun_s, num_sent = time.monotonic(), 0
    while waiting or unanswered:
        now_s = time.monotonic()
        due = [at for at, sent_s in unanswered.items() if now_s - sent_s > RESEND_S]
        may_send = BYTES_PER_S * (now_s - begun_s) >= num_sent
        while may_send and waiting and len(unanswered) + len(due) < WINDOW:
            due.append(waiting.popleft())
        for offset in due:
            message = msgspec.structs.replace(piece, offset=offset)
            client.send(to.inc, message, [image.at(offset)])
            unanswered[offset] = now_s
            num_sent += PIECE_BYTES
        early_s = begun_s + num_sent / BYTES_PER_S - now_s
        for _, answer, _frames in client.poll(early_s if waiting and early_s > 0 else RESEND_S):
            if isinstance(answer, PieceSenderTakes):
                unanswered.pop(answer.offset, None)
        if now_s - begun_s > RANK_AFTER_S:
            rank.sends(num_sent / (now_s - begun_s))
    client.close()


def held(piece: Piece) -> PieceHeld:
    """The answer to a piece that is in memory."""
    return PieceHeld(epoch_no=piece.epoch_no, server=piece.inc, offset=piece.offset)


class ArrivingShare:
    """Share that a server will hold after the switch, on its way here from the owners.

    A thread puts pieces where they belong. Only `take`, `answers` and `settle` meet it.

    Args:
        schema: of the model.
        now: the map that copies.
        me: this server.
    """

    def __init__(self, schema: ModelSchema, now: ServerMap, me: Inc) -> None:
        self.version = now.version
        self._stopped = threading.Event()
        self._inbox: SimpleQueue[_Arrived | None] = SimpleQueue()
        self._answers: SimpleQueue[_Arrived] = SimpleQueue()
        self._built: Store | Exception | None = None
        #: Updates since the copy entry that are not in the store yet.
        self._backlog: deque[tuple[list[Gradients], float]] = deque()
        self._num_new = 0
        self.store: Store | None = None
        """Store that is whole and usable; None: it is not built yet."""
        self.piece: Piece | None = None
        """Newest piece: it has what comes with the buckets, which is alike for all owners."""
        self.scripts = Scripts()
        """States of scripts that were handed in since the copy entry."""
        self.progress = 0
        """Bytes received, and updates caught up with."""
        run = partial(self._build, schema, now, me)
        self.thread = threading.Thread(target=run, name="buckets", daemon=True)
        self.thread.start()

    def take(self, peer: bytes, piece: Piece, frame: memoryview) -> None:
        """Have a piece put where it belongs (`Admission` has seen it)."""
        self._inbox.put(_Arrived(peer, piece, frame))

    def answers(self) -> Iterator[tuple[bytes, PieceHeld]]:
        """Yield whom to tell, and what, for each piece put where it belongs since the last call."""
        while not self._answers.empty():
            peer, piece, frame = self._answers.get()
            self.progress += frame.nbytes
            self.piece = piece
            yield peer, held(piece)

    def stop(self) -> None:
        """End the thread, whatever has come."""
        self._stopped.set()
        self._inbox.put(None)

    def _build(self, schema: ModelSchema, now: ServerMap, me: Inc) -> None:
        try:
            store = Store(schema, now.copies, now.index(me))
            if self._fill(_Landings(store, now, me)):
                self._built = store
            else:
                free([store])
        except Exception as error:  # noqa: BLE001 - `settle` raises it in the server's thread
            self._built = error

    def _fill(self, landings: "_Landings") -> bool:
        """Put all pieces where they belong; False: no more are wanted."""
        while not landings.are_whole:
            arrived = self._inbox.get()
            if arrived is None:
                return False
            if self._put(landings, arrived):
                self._answers.put(arrived)
            del arrived  # it keeps the memory of its frame
        landings.load()
        return True

    def _put(self, landings: "_Landings", arrived: "_Arrived") -> bool:
        """Put a piece where it belongs, slowly; False: it has to come again."""
        for burst in _bursts(arrived):
            start_s = time.thread_time()
            if not landings.take(burst):
                return False
            took_s = time.thread_time() - start_s
            self._stopped.wait(min(REST * took_s, LONGEST_REST_S))
            if took_s > LONG_BURST_S:
                landings.use_small_pages()
        return True

    def settle(self) -> bool:
        """Tell whether the buckets are here since now."""
        built = self._built
        if built is None:
            return False
        if isinstance(built, Exception):
            raise built
        built.scripts.load(saved_in(self.scripts.save()))
        self.store, self.scripts, self._built = built, built.scripts, None
        return True

    def apply(self, parts: list[Gradients], factor: float) -> None:
        """Apply one update, now or when all before it are applied."""
        if self.store is None or self._backlog:
            self._backlog.append(([_copied(part) for part in parts], factor))
            self._num_new += 1
        else:
            self.store.apply(parts, factor)

    @property
    def has_caught_up(self) -> bool:
        """Whether the store is as the owners' are."""
        return self.store is not None and not self._backlog

    def whole(self) -> Store:
        """The store, as the owners' are.

        Raises:
            InternalError: it is not: nobody may have been told that it is.
        """
        if self.store is None or self._backlog:
            raise InternalError(f"of map {self.version} not all that is copied has come")
        return self.store

    def catch_up(self) -> None:
        """Apply some of what has come meanwhile: more than comes in the same time, if possible."""
        least, self._num_new = self._num_new + 1, 0
        until_s = time.monotonic() + CATCH_UP_S
        while self.store is not None and self._backlog:
            self.store.apply(*self._backlog.popleft())
            self.progress += 1
            least -= 1
            if least <= 0 and time.monotonic() > until_s:
                return


def _copied(part: Gradients) -> Gradients:
    """Gradients that keep little of the shared memory that a worker sends them in.

    For each frame the worker looks through all that are kept. Large ones are few, and a copy of
    them would hold up the thread that serves.
    """

    def own(array: Array) -> Array:
        return array.copy() if array.nbytes <= PIECE_BYTES else array

    return dataclasses.replace(
        part,
        dense={dtype: own(grads) for dtype, grads in part.dense.items()},
        sparse={table: (own(ids), own(rows)) for table, (ids, rows) in part.sparse.items()},
    )


class _Arrived(NamedTuple):
    peer: bytes
    piece: Piece
    frame: memoryview


def _bursts(arrived: "_Arrived") -> "Iterator[_Arrived]":
    """Yield what has arrived, a little at a time."""
    peer, piece, frame = arrived
    for at in range(0, frame.nbytes, BURST_BYTES):
        burst = msgspec.structs.replace(piece, offset=piece.offset + at)
        yield _Arrived(peer, burst, frame[at : at + BURST_BYTES])


class _Landings:
    """Places in a fresh store where the bytes of each owner belong."""

    def __init__(self, store: Store, now: ServerMap, me: Inc) -> None:
        self._store = store
        self._has_small_pages = False
        pairs = zip(now.ownership, now.copies, strict=True)
        self._of: dict[Inc, cutfile.Landing | None] = {
            owner: None for owner, to in pairs if to == now.index(me)
        }

    @property
    def are_whole(self) -> bool:
        return all(one is not None and one.is_whole for one in self._of.values())

    def take(self, arrived: _Arrived) -> bool:
        """Put a piece where it belongs; False: it has to come again."""
        _, piece, frame = arrived
        if piece.server not in self._of:
            return False
        landing = self._of[piece.server]
        if landing is None:
            places = self._store.places(moving_buckets(piece))
            landing = self._of[piece.server] = cutfile.Landing(piece.num_bytes, places)
        return landing.take(piece.offset, frame)

    def use_small_pages(self) -> None:
        """Have the kernel make no huge pages from here on, until all is whole."""
        if not self._has_small_pages:
            self._has_small_pages = True
            _advise(self._store, mmap.MADV_NOHUGEPAGE, LARGE_BYTES)

    def load(self) -> None:
        """Load what has no place in the store: counts, scripts, tables that grow."""
        self._store.load(one.arrays for one in self._of.values() if one is not None)
        if self._has_small_pages:
            _advise(self._store, mmap.MADV_HUGEPAGE, LARGE_BYTES)


def free(stores: list[Store]) -> None:
    """Free stores that only this list holds, in a thread: that takes as long as they are large."""
    threading.Thread(target=_free, args=(stores,), name="old-share", daemon=True).start()


def _free(stores: list[Store]) -> None:
    """Give memory back whose values nobody reads any more.

    Python would do so with its lock held, while the server waits: 0.1 s for 1 GB. A call through
    ctypes is made without the lock.
    """
    for store in stores:
        _advise(store, mmap.MADV_DONTNEED, 0)
    stores.clear()


def _advise(store: Store, advice: int, least_bytes: int) -> None:
    """Say what should become of the pages of a store's arrays; a kernel may not know all of it."""
    for name, array in store.save().items():
        # What the script handed in is kept on.
        if not name.startswith(("dense.", "table.")) or array.nbytes < least_bytes:
            continue
        start = -(-array.ctypes.data // mmap.PAGESIZE) * mmap.PAGESIZE
        stop = (array.ctypes.data + array.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
        for at in range(start, stop, RELEASE_BYTES):
            size = min(RELEASE_BYTES, stop - at)
            _libc.madvise(ctypes.c_void_p(at), ctypes.c_size_t(size), advice)

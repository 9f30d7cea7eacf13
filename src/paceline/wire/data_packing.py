"""How one message of the data plane becomes parts for the socket, and back.

Part 0 is the `Envelope` in msgpack; then the frames that are not in the sender's arena.
"""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
import zmq

from paceline.wire.codec import Garbage, decoder, encode
from paceline.wire.messages.data import Data
from paceline.wire.shm import Arena, ArenaError, BadPlace, FramePlace, PeerArenas

COPY_BYTES = 1 << 16
"""Smaller frames are copied when sent and when received."""
SHARED_BYTES = 1 << 15
"""Smaller frames go through the socket even on one host."""
NOBLOCK, NOBLOCK_MORE = int(zmq.NOBLOCK), int(zmq.NOBLOCK | zmq.SNDMORE)
"""Flags as plain numbers: arithmetic on pyzmq's enumerations takes longer than a send."""

Buffer = Any
"""Anything that exports a contiguous buffer: bytes, memoryview, numpy array."""
Frame = memoryview
"""A received frame."""

_T = TypeVar("_T")


class Envelope(msgspec.Struct, frozen=True, array_like=True):
    """A message, and where its frames are."""

    message: Data
    arena: str = ""
    """Name of the sender's arena; empty: it has none, and all frames follow."""
    places: tuple[FramePlace | None, ...] = ()
    """Place of each frame in the arena; None: the frame follows."""


_log = logging.getLogger(__name__)
_decode: Callable[[Buffer], Envelope] = decoder(Envelope)


class Packer:
    """Packs and opens messages; knows what goes through shared memory and what does not.

    Args:
        address: only with the scheme shm is there shared memory, in the directory of this socket.
        arena_bytes: how much; 0: everything through the socket, in both directions.
    """

    def __init__(self, address: str, arena_bytes: int) -> None:
        self.num_dropped = 0
        self.num_garbage = 0
        self._arena: Arena | None = None
        self._peers: PeerArenas | None = None
        if not address.startswith("shm://"):
            return
        file = file_of(address)
        self._peers = PeerArenas(file.parent)
        if not arena_bytes:
            return
        try:
            self._arena = Arena(file.parent, file.name, arena_bytes)
        except ArenaError as error:
            _log.warning("no_shared_memory reason=%s; tensors go through the socket", error)

    def allocate(self, num_bytes: int, *, shared: bool) -> memoryview:
        """A block of the arena where it pays and there is room, else ordinary memory."""
        if self._arena is not None and shared and num_bytes >= SHARED_BYTES:
            block = self._room(lambda arena: arena.allocate(num_bytes))
            if block is not None:
                return block
        return np.empty(num_bytes, np.uint8).data

    def send(
        self,
        sock: Any,
        message: Data,
        frames: Sequence[Buffer],
        receiver: object,
        prefix: tuple[bytes, ...] = (),
    ) -> bool:
        """``receiver``: whom blocks of the arena belong to; None: it cannot read the arena."""
        places: list[FramePlace | None] = []
        inline: list[Buffer] = []
        for frame in frames:
            view = _bytes_of(frame)
            place = None if receiver is None else self._place(view, receiver)
            places.append(place)
            if place is None:
                inline.append(view)
        envelope = Envelope(message)
        if self._arena is not None:
            envelope = Envelope(message, self._arena.name, tuple(places))
        try:
            # The first part decides for all. (``send_multipart`` is this loop and much around it.)
            parts = [*prefix, encode(envelope), *inline]
            for part in parts[:-1]:
                sock.send(part, NOBLOCK_MORE, copy=len(part) < COPY_BYTES)
            sock.send(parts[-1], NOBLOCK, copy=len(parts[-1]) < COPY_BYTES)
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EAGAIN, zmq.EHOSTUNREACH):
                raise
            self.num_dropped += 1
            for place in places:
                if place is not None and self._arena is not None:
                    self._arena.withdraw(place)
            return False
        return True

    def open(self, parts: list[Any]) -> tuple[Data, list[Frame], str] | None:
        """Message, frames and the sender's arena; None: not understood, logged the first time."""
        try:
            if not parts:
                raise Garbage("a message without parts")
            head, *inline = parts
            found = _decode(head.buffer)
            if not found.arena:
                return found.message, [_owned(frame) for frame in inline], ""
            return found.message, self._frames(found.arena, found.places, inline), found.arena
        except (Garbage, BadPlace) as error:
            self.num_garbage += 1
            if self.num_garbage == 1:
                _log.warning("garbage_on_data_plane error=%s (further ones not logged)", error)
            return None

    def reclaim(self, receiver: object) -> None:
        """Free what a receiver holds."""
        if self._arena is not None:
            self._arena.reclaim(receiver)

    def close(self) -> None:
        """Remove the arena."""
        if self._arena is not None:
            self._arena.close()

    def _frames(
        self, arena: str, places: tuple[FramePlace | None, ...], inline: list[Any]
    ) -> list[Frame]:
        if places.count(None) != len(inline):
            raise BadPlace(f"{places.count(None)} frames announced, {len(inline)} received")
        rest = iter(inline)
        return [
            _owned(next(rest)) if place is None else self._peer_arenas().view(arena, place)
            for place in places
        ]

    def _peer_arenas(self) -> PeerArenas:
        if self._peers is None:
            raise BadPlace("a frame in shared memory, but the address is not of the shm kind")
        return self._peers

    def _place(self, view: memoryview, receiver: object) -> FramePlace | None:
        if self._arena is None or view.nbytes < SHARED_BYTES:
            return None
        return self._room(lambda arena: arena.place(view, receiver))

    def _room(self, attempt: Callable[[Arena], _T | None]) -> _T | None:
        """Try; when the arena is full, take back what dead peers hold and try again."""
        if self._arena is None:
            return None
        found = attempt(self._arena)
        if found is None and self._reclaim_dead(self._arena):
            found = attempt(self._arena)
        return found

    def _reclaim_dead(self, arena: Arena) -> bool:
        names = [name for name in arena.receivers() if isinstance(name, str)]
        dead = [name for name in names if not self._peer_arenas().alive(name)]
        for name in dead:
            arena.reclaim(name)
        return bool(dead)


def file_of(address: str) -> Path:
    """The socket of a shm or ipc address."""
    return Path(address.partition("://")[2])


def _bytes_of(frame: Buffer) -> memoryview:
    view = memoryview(frame)
    return view.cast("B") if view.nbytes else memoryview(b"")


def _owned(frame: Any) -> memoryview:
    """Small frames lie anywhere in libzmq's read buffer: copied, they are aligned."""
    if len(frame) < COPY_BYTES:
        return memoryview(bytearray(frame.buffer))
    return memoryview(frame.buffer)

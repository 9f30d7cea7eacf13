"""A store of cuts on another machine, which serves it (`cuts.serving`).

Each operation has a connection of its own, for the thread that calls it. A few pieces are on their
way at a time; what is not answered is asked again, and who answers nothing for long is given up.
"""

import itertools
import secrets
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from paceline.base.errors import PermanentError, TransientError
from paceline.base.numbering import NO_EPOCH, EpochNo
from paceline.cuts.manifest import Checksum
from paceline.cuts.store import PIECE_BYTES
from paceline.wire.data_plane import DataClient
from paceline.wire.messages.data import Data
from paceline.wire.messages.files import (
    AskFile,
    AskFiles,
    DropFiles,
    FilePiece,
    FilesAre,
    FileTaken,
    GiveFile,
)

AHEAD = 4
"""Pieces on their way at a time."""
AGAIN_S = 2.0
"""A request that is not answered is repeated after this."""
PATIENCE_S = 30.0
"""Seconds of silence after which a peer is given up; its disk may be slow to make a file
durable."""

T = TypeVar("T", FilesAre, FileTaken)

_THERE = 1
_tickets = itertools.count(1)

FileClientTakes = FilePiece | FilesAre | FileTaken
"""Answers of servers of files."""


class DistantStore:
    """The files that one machine of the job serves. See `CutStore`.

    Args:
        address: says where it listens; empty: not known now.
        secret: the job's.
        epoch_no: of results of `job.evaluate`; 0: the files are those of cuts.
        patience_s: who answers nothing for so long is given up.
        memory_of: node whose second copies are put into memory there; empty: files are for its
            disk.
    """

    def __init__(
        self,
        address: Callable[[], str],
        secret: bytes,
        epoch_no: EpochNo = NO_EPOCH,
        patience_s: float = PATIENCE_S,
        *,
        memory_of: str = "",
    ) -> None:
        self._address, self._secret, self._epoch_no = address, secret, epoch_no
        self._patience_s, self._memory_of = patience_s, memory_of

    def where(self, number: int) -> str:
        return f"cut {number} at {self._address() or 'the master'}"

    def get(self, number: int, name: str) -> Iterator[memoryview]:
        link = _Link(self._address(), self._secret, self._patience_s)
        try:
            reading = _Reading(link, self._epoch_no, number, name)
            while not reading.is_over:
                reading.hear(self.where(number))
                yield from reading.arrived()
                reading.ask_on()
        finally:
            link.close()

    def files(self, number: int) -> dict[str, int]:
        ticket = next(_tickets)
        asked = AskFiles(ticket=ticket, epoch_no=self._epoch_no, number=number)
        answer = self._asked(asked, FilesAre, lambda one: one.ticket == ticket)
        return dict(answer.files)

    def delete(self, number: int) -> None:
        """Delete files; only the master removes what counts as a cut."""
        ticket = next(_tickets)
        asked = DropFiles(ticket=ticket, number=number)
        self._check(self._asked(asked, FileTaken, lambda one: one.ticket == ticket))

    def put(
        self, number: int, name: str, image: memoryview, digest: Checksum | None = None
    ) -> None:
        link = _Link(self._address(), self._secret, self._patience_s)
        try:
            self._give(link, number, name, image, digest)
        finally:
            link.close()

    def _give(
        self, link: "_Link", number: int, name: str, image: memoryview, digest: Checksum | None
    ) -> None:
        ticket, size, hashed, sent, taken = next(_tickets), len(image), 0, 0, 0
        own = Checksum()

        def send(offset: int) -> int:
            nonlocal hashed
            piece = image[offset : offset + PIECE_BYTES]
            if offset == hashed:  # not of what is sent again
                own.add(piece)
                if digest is not None:
                    digest.add(piece)
                hashed += len(piece)
            stop = offset + len(piece)
            message = GiveFile(
                ticket=ticket,
                number=number,
                name=name,
                offset=offset,
                num_bytes=size,
                checksum=str(own) if stop == size else "",
                memory_of=self._memory_of,
            )
            link.send(message, [piece])
            return stop

        def send_again() -> None:
            nonlocal sent
            sent = send(taken)

        while True:
            while sent < size and sent < taken + AHEAD * PIECE_BYTES:
                sent = send(sent)
            for message, _ in link.heard(send_again):
                if not isinstance(message, FileTaken) or message.ticket != ticket:
                    continue
                self._check(message)
                if message.done:
                    return
                taken = max(taken, message.offset)
                sent = max(sent, taken)

    def _check(self, taken: FileTaken) -> None:
        if taken.errno:
            raise OSError(taken.errno, taken.error)
        if taken.again:
            raise TransientError(f"{self._address()}: {taken.error}")
        if taken.error:
            raise PermanentError(f"{self._address()}: {taken.error}")

    def _asked(self, asked: Data, kind: type[T], is_mine: Callable[[T], bool]) -> T:
        link = _Link(self._address(), self._secret, self._patience_s)
        try:
            link.send(asked)
            while True:
                for message, _ in link.heard(lambda: link.send(asked)):
                    if isinstance(message, kind) and is_mine(message):
                        return message
        finally:
            link.close()


class _Reading:
    """A file on its way to us, piece by piece."""

    def __init__(self, link: "_Link", epoch_no: EpochNo, number: int, name: str) -> None:
        self._link, self._ticket = link, next(_tickets)
        self._epoch_no, self._number, self._name = epoch_no, number, name
        #: How far it was handed on, and was asked for; its size, once that is known.
        self._at, self._asked, self._size = 0, 0, 1
        #: Pieces that came before those in front of them.
        self._here: dict[int, memoryview] = {}
        self.is_over = False
        self.ask_on()

    def ask_on(self) -> None:
        """Ask for the pieces that come next."""
        stop = min(self._size, self._at + AHEAD * PIECE_BYTES)
        for offset in range(self._asked, stop, PIECE_BYTES):
            self._ask(offset)
            self._asked = offset + PIECE_BYTES

    def _ask(self, offset: int) -> None:
        self._link.send(
            AskFile(
                ticket=self._ticket,
                epoch_no=self._epoch_no,
                number=self._number,
                name=self._name,
                offset=offset,
            )
        )

    def _ask_again(self) -> None:
        for offset in range(self._at, self._asked, PIECE_BYTES):
            if offset not in self._here:
                self._ask(offset)

    def hear(self, where: str) -> None:
        """Take in what has come.

        Raises:
            PermanentError: there is no such file.
        """
        for message, frames in self._link.heard(self._ask_again):
            if not isinstance(message, FilePiece) or message.ticket != self._ticket:
                continue
            if message.error:
                raise PermanentError(f"{where}: {self._name} {message.error}")
            if frames and message.offset >= self._at:
                self._size, self._here[message.offset] = message.num_bytes, frames[0]

    def arrived(self) -> Iterator[memoryview]:
        """Yield the pieces that are here, in order."""
        while (piece := self._here.pop(self._at, None)) is not None:
            self._at += len(piece)
            yield piece
            # An empty piece: the file has become shorter, which its checksum will show.
            self.is_over = self._at >= self._size or not len(piece)
            if self.is_over:
                return


class _Link:
    """One connection, for one operation."""

    def __init__(self, address: str, secret: bytes, patience_s: float) -> None:
        if not address:
            raise TransientError("the master has not said yet where files of cuts are")
        self._address, self._patience_s = address, patience_s
        ident = f"files-{secrets.token_hex(8)}"
        self._client = DataClient(
            {_THERE: address}, secret, ident, arena_bytes=2 * AHEAD * PIECE_BYTES
        )
        self._heard_s = self._asked_s = time.monotonic()

    def send(self, message: Data, frames: list[memoryview] | None = None) -> None:
        self._asked_s = time.monotonic()
        self._client.send(_THERE, message, frames or ())

    def heard(self, again: Callable[[], None]) -> list[tuple[FileClientTakes, list[memoryview]]]:
        """What has been answered; ``again`` asks once more where nothing is.

        Raises:
            TransientError: nothing was, for long.
        """
        found = self._client.poll(AGAIN_S / 4)
        now_s = time.monotonic()
        if found:
            self._heard_s = now_s
        elif now_s > self._heard_s + self._patience_s:
            raise TransientError(f"{self._address}: no answer for {self._patience_s:.0f} s")
        elif now_s > max(self._asked_s, self._heard_s) + AGAIN_S:
            self._asked_s = now_s
            again()
        return [(one, frames) for _, one, frames in found if isinstance(one, FileClientTakes)]

    def close(self) -> None:
        self._client.close()

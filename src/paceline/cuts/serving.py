"""The files of a machine's cuts, served to the job's other machines over the data plane.

Who asks has proven with the job's secret that it belongs to the job (`wire.data_auth`), and between
hosts all is encrypted unless the spec says otherwise. Nothing that comes in is evaluated; names are
checked, pieces bounded, and what is given becomes a file only when its checksum is right. Manifests
are the master's: of a cut that counts nothing can be changed or removed from elsewhere.
"""

import logging
import os
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, assert_never

from paceline.base.jobdir import JobDir
from paceline.base.numbering import EpochNo
from paceline.cuts.manifest import MANIFEST, Checksum, copies
from paceline.cuts.memory import check_room
from paceline.cuts.store import PIECE_BYTES, FolderStore, LocalCuts, results_of, sizes_of
from paceline.wire.data_packing import Buffer
from paceline.wire.data_plane import DataServer
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

POLL_S = 0.2
MAX_OPEN = 32
"""Files that may be on their way at a time; the oldest is given up for one more."""
_Key = tuple[bytes, int, str]
"""Peer, number and name."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")

_log = logging.getLogger(__name__)

FileServerTakes = AskFile | AskFiles | GiveFile | DropFiles


class _Arriving:
    """A file that is being given: its bytes so far, under another name."""

    def __init__(self, folder: Path, name: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._target = folder / name
        self._partial = folder / f".{name}.given"
        self._file: BinaryIO = self._partial.open("wb", buffering=0)
        self._digest = Checksum()
        self.offset = 0

    def take(self, piece: memoryview) -> None:
        done = 0
        while done < len(piece):
            done += self._file.write(piece[done:])
        self._digest.add(piece)
        self.offset += len(piece)

    def finish(self, checksum: str) -> str:
        """Make it a file; why not, if its checksum is another."""
        if str(self._digest) != checksum:
            return "its checksum differs"
        os.fsync(self._file.fileno())
        self._file.close()
        self._partial.replace(self._target)
        folder = os.open(self._target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        return ""

    def close(self) -> None:
        self._file.close()
        self._partial.unlink(missing_ok=True)


class FileServer:
    """Answers for one machine, in a thread of its own.

    Args:
        bind: where to listen (`wire.data_plane.bind_address`).
        secret: the job's.
        job: of this machine.
        cuts: of this machine.
        takes: files may be given to it, too.

    Raises:
        PermanentError: the address cannot be bound.
    """

    def __init__(
        self, bind: str, secret: bytes, job: JobDir, cuts: LocalCuts, *, takes: bool
    ) -> None:
        self._job, self._cuts, self._takes = job, cuts, takes
        self._arriving: dict[_Key, _Arriving] = {}
        #: The checksums of those that came last, since the answer to their end may be lost.
        self._taken: dict[_Key, str] = {}
        self._closing = threading.Event()
        started = threading.Event()
        self._failed: Exception | None = None
        self.address = ""
        """Address to which `cuts.distant` connects."""
        # The sockets belong to the thread, which therefore makes them.
        make = lambda: DataServer(bind, secret, arena_bytes=8 * PIECE_BYTES)  # noqa: E731
        self._thread = threading.Thread(
            target=self._run, args=(make, started), name="file-server", daemon=True
        )
        self._thread.start()
        started.wait()
        if self._failed is not None:
            raise self._failed

    def close(self) -> None:
        """Answer nobody any more."""
        self._closing.set()
        self._thread.join()

    def _run(self, make: Callable[[], DataServer], started: threading.Event) -> None:
        try:
            server = make()
        except Exception as error:  # noqa: BLE001 - raised by the thread that waits
            self._failed = error
            started.set()
            return
        self.address = server.address
        started.set()
        try:
            while not self._closing.is_set():
                for peer, message, frames in server.poll(POLL_S):
                    answer = self._answer(peer, message, frames)
                    if answer is not None:
                        server.send(peer, *answer)
        finally:
            server.close()
            for arriving in self._arriving.values():
                arriving.close()

    def _answer(
        self, peer: bytes, message: Data, frames: list[memoryview]
    ) -> tuple[Data, list[Buffer]] | None:
        is_copy = isinstance(message, GiveFile) and bool(message.memory_of)
        writes = isinstance(message, GiveFile | DropFiles) and not is_copy
        if not isinstance(message, FileServerTakes) or (writes and not self._takes):
            _log.warning("file_request_refused type=%s", type(message).__name__)
            return None
        match message:
            case AskFile():
                return self._piece(message)
            case AskFiles():
                return self._list(message), []
            case GiveFile():
                return self._take(peer, message, frames), []
            case DropFiles():
                return self._drop(message), []
            case _:
                assert_never(message)

    # ------------------------------------------------------------------ reading

    def _piece(self, ask: AskFile) -> tuple[FilePiece, list[Buffer]]:
        path = self._find(ask.epoch_no, ask.number, ask.name)
        try:
            if path is None or ask.offset < 0:
                raise FileNotFoundError
            with path.open("rb", buffering=0) as file:
                num_bytes = os.fstat(file.fileno()).st_size
                piece = os.pread(file.fileno(), PIECE_BYTES, ask.offset)
        except OSError:
            return FilePiece(ticket=ask.ticket, error="is not there"), []
        return FilePiece(ticket=ask.ticket, offset=ask.offset, num_bytes=num_bytes), [piece]

    def _find(self, epoch_no: EpochNo, number: int, name: str) -> Path | None:
        if number < 0 or not _NAME.fullmatch(name):
            return None
        found = copies(name, *(store.folder(number) for store in self._shelf(epoch_no)))
        return found[0] if found else None

    def _shelf(self, epoch_no: EpochNo) -> tuple[FolderStore, ...]:
        if epoch_no:
            return (results_of(self._job, epoch_no),)
        return self._cuts.memory, self._cuts.disk

    def _list(self, ask: AskFiles) -> FilesAre:
        found: dict[str, int] = {}
        for store in self._shelf(ask.epoch_no) if ask.number >= 0 else ():
            folder = store.folder(ask.number)
            for one in (*folder.glob("*/"), folder):
                found |= sizes_of(one)
        return FilesAre(ticket=ask.ticket, files=tuple(sorted(found.items())))

    # ------------------------------------------------------------------ writing

    def _take(self, peer: bytes, give: GiveFile, frames: list[memoryview]) -> FileTaken:  # noqa: C901
        name = f"{give.memory_of}/{give.name}" if give.memory_of else give.name
        key = peer, give.number, name
        why = self._refusal(give, frames)
        if why:
            return FileTaken(ticket=give.ticket, error=why)
        arriving = self._arriving.get(key)
        if arriving is None and give.checksum and self._taken.get(key) == give.checksum:
            return FileTaken(ticket=give.ticket, offset=give.num_bytes, done=True)
        try:
            if give.offset == 0 and (arriving is None or arriving.offset):
                arriving = self._begin(key, give)
            if arriving is None:
                # A master before this one, say, was given it.
                return FileTaken(ticket=give.ticket, error="its beginning is missing", again=True)
            if give.offset == arriving.offset:
                for frame in frames:
                    arriving.take(frame)
            taken = FileTaken(ticket=give.ticket, offset=arriving.offset)
            if arriving.offset < give.num_bytes or not give.checksum:
                return taken
            why = arriving.finish(give.checksum)
        except OSError as error:
            self._give_up(key)
            return FileTaken(ticket=give.ticket, error=str(error.strerror), errno=error.errno or 0)
        self._give_up(key)
        if not why:
            self._taken[key] = give.checksum
            if len(self._taken) > MAX_OPEN:
                del self._taken[next(iter(self._taken))]
        return FileTaken(
            ticket=give.ticket, offset=give.num_bytes, done=not why, error=why, again=bool(why)
        )

    def _begin(self, key: _Key, give: GiveFile) -> _Arriving:
        self._give_up(key)
        if len(self._arriving) >= MAX_OPEN:
            self._give_up(next(iter(self._arriving)))
        folder = self._cuts.disk.folder(give.number)
        if give.memory_of:
            folder = self._cuts.memory.folder(give.number) / give.memory_of
            folder.mkdir(parents=True, exist_ok=True)
            check_room(folder, give.num_bytes)
        arriving = _Arriving(folder, give.name)
        self._arriving[key] = arriving
        return arriving

    def _give_up(self, key: _Key) -> None:
        arriving = self._arriving.pop(key, None)
        if arriving is not None:
            arriving.close()

    def _refusal(self, give: GiveFile, frames: list[memoryview]) -> str:
        """Why this cannot be taken; empty: it can."""
        if give.number < 0 or not _NAME.fullmatch(give.name):
            return f"{give.name!r} is no name of a file of a cut"
        if sum(map(len, frames)) > PIECE_BYTES:
            return f"a piece has {PIECE_BYTES} bytes at most"
        if give.memory_of and not _NAME.fullmatch(give.memory_of):
            return f"{give.memory_of!r} is no name of a node"
        if give.memory_of and not self._job.has_memory:
            return "this machine has no memory file system"
        if self._is_cut(give.number) or give.name == MANIFEST:
            return f"what cut {give.number} consists of is the master's to say"
        return ""

    def _is_cut(self, number: int) -> bool:
        return (self._cuts.disk.folder(number) / MANIFEST).exists()

    def _drop(self, drop: DropFiles) -> FileTaken:
        if drop.number < 0 or self._is_cut(drop.number):
            return FileTaken(ticket=drop.ticket, error=f"cut {drop.number} is the master's")
        self._cuts.disk.delete(drop.number)
        return FileTaken(ticket=drop.ticket, done=True)

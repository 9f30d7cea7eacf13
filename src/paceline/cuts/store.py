"""Stores of cuts: files by key, wherever they lie.

A key is the number of a cut and the name of a file in it; no message carries a path. Behind one
port lie folders of this machine (`FolderStore`), the memory of its nodes (`MemoryStore`) and a URL
(`cuts.remote`). A store knows nothing of what is in the files: the manifest says with which
checksums they make a cut (`cuts.manifest`).
"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol, Self

from paceline.base.errors import PermanentError
from paceline.base.jobdir import JobDir
from paceline.base.numbering import EpochNo
from paceline.cuts.manifest import MANIFEST, Checksum, check, write_file
from paceline.cuts.memory import MemoryFile, place
from paceline.wire.messages.base import CutRef
from paceline.wire.spec import JobSpec

PIECE_BYTES = 2 << 20
"""Bytes of a file read at a time: a hashed piece is still in the cache when it is copied."""
_DIGITS = 6


class CutStore(Protocol):
    """Files by number and name."""

    def where(self, number: int) -> str:
        """Say, for people, where the files of a cut are."""

    def put(
        self, number: int, name: str, image: memoryview, digest: Checksum | None = None
    ) -> None:
        """Store a file: whole when this returns; until then the store has what it had.

        Args:
            number: of the cut.
            name: of the file in it.
            image: all its bytes, which must not change meanwhile.
            digest: takes in the bytes on the way.

        Raises:
            OSError: there is no room, or the store refuses.
            TransientError: it does not answer.
        """

    def get(self, number: int, name: str) -> Iterator[memoryview]:
        """Yield a file's bytes in pieces of `PIECE_BYTES` at most; they are not verified.

        Raises:
            PermanentError: there is no such file.
            TransientError: the store does not answer.
        """

    def files(self, number: int) -> dict[str, int]:
        """Return the names and sizes, in bytes, of a cut's files; none: the store has none.

        Raises:
            TransientError: the store does not answer.
        """

    def delete(self, number: int) -> None:
        """Remove all files of a cut, if there are any.

        Raises:
            OSError: the store refuses.
            TransientError: it does not answer.
        """


def fetch(store: CutStore, number: int, name: str, expected: str, folder: Path) -> None:
    """Copy a file of a cut into a folder, where it has its name once it is there undamaged.

    Raises:
        PermanentError: there is no such file, or it is damaged.
        TransientError: the store does not answer.
        OSError: the folder refuses it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    partial, digest, num_bytes = folder / f".{name}.partial", Checksum(), 0
    try:
        with partial.open("wb") as file:
            for piece in store.get(number, name):
                digest.add(piece)
                num_bytes += file.write(piece)
        check(folder / name, str(digest), expected, num_bytes)
        partial.replace(folder / name)
    finally:
        partial.unlink(missing_ok=True)


class FolderStore:
    """A folder for each cut, on the disk of this machine.

    Args:
        root: holds the folders.
        digits: in their names, at least.
    """

    def __init__(self, root: Path, digits: int = _DIGITS) -> None:
        self.root, self._digits = root, digits

    def folder(self, number: int) -> Path:
        """Return where the files of a cut are."""
        return self.root / f"{number:0{self._digits}d}"

    def where(self, number: int) -> str:
        return str(self.folder(number))

    def put(
        self, number: int, name: str, image: memoryview, digest: Checksum | None = None
    ) -> None:
        """Put a file; it is durable when this returns."""
        if digest is not None:
            digest.add(image)
        write_file(self.folder(number), name, image)

    def get(self, number: int, name: str) -> Iterator[memoryview]:
        return pieces_of(self.folder(number) / name)

    def files(self, number: int) -> dict[str, int]:
        return sizes_of(self.folder(number))

    def delete(self, number: int) -> None:
        # First what makes it a cut: it must not seem whole when half of it is gone.
        (self.folder(number) / MANIFEST).unlink(missing_ok=True)
        shutil.rmtree(self.folder(number), ignore_errors=True)

    def numbers(self) -> list[int]:
        """Return the numbers of all folders there are."""
        found = self.root.iterdir() if self.root.exists() else ()
        return sorted(int(path.name) for path in found if path.name.isdigit())


class MemoryStore:
    """The memory of one node, shared by all nodes of its machine.

    There is room for one file of a name: the next one takes its pages, since fresh ones cost as
    much time as the copying.

    Args:
        root: holds a folder for each cut, and in it one for each node (``JobDir.memory``).
        node: in whose memory files are put.
    """

    def __init__(self, root: Path, node: str) -> None:
        self.root, self.node = root, node
        self._last: tuple[str, MemoryFile] | None = None

    def _folder(self, number: int) -> Path:
        return self.root / f"{number:0{_DIGITS}d}" / self.node

    def where(self, number: int) -> str:
        return str(self._folder(number))

    def put(
        self, number: int, name: str, image: memoryview, digest: Checksum | None = None
    ) -> None:
        """Put a file in memory; raises OSError where memory is short."""
        last, self._last = self._last, None
        # What a former life has copied may be what the job has gone back to.
        file = last[1] if last is not None and last[0] == name else None
        path = self._folder(number) / name
        self._last = name, place(file, path, len(image))
        _fill(path, image, digest)

    def get(self, number: int, name: str) -> Iterator[memoryview]:
        return pieces_of(self._folder(number) / name)

    def files(self, number: int) -> dict[str, int]:
        return sizes_of(self._folder(number))

    def delete(self, number: int) -> None:
        shutil.rmtree(self._folder(number), ignore_errors=True)

    def let_go(self) -> None:
        """Use no pages again: they are free once nobody has them mapped."""
        self._last = None


class LocalCuts:
    """The cuts of a job as this machine has them: on disk, the newest one also in memory.

    Args:
        root: the folder of those on disk.
        memory: the folder of copies in the memory of nodes.
    """

    def __init__(self, root: Path, memory: Path) -> None:
        self.disk, self.memory = FolderStore(root), FolderStore(memory)

    @classmethod
    def of(cls, job: JobDir, spec: JobSpec) -> Self:
        """Return those of a job of this machine."""
        return cls(Path(spec.checkpoint.folder or job.cuts), job.memory)

    @property
    def durable(self) -> CutStore:
        """Return the store in which a file of a cut outlives this node."""
        return self.disk

    def places(self, ref: CutRef) -> tuple[Path, ...]:
        """Return where its manifest and files may be: in memory first, where they may be gone."""
        disk = self.disk.folder(ref.cut_no)
        return (self.memory.folder(ref.cut_no), disk) if ref.memory else (disk,)

    def sealed_at(self, ref: CutRef) -> Path:
        """Return where a manifest makes it a cut."""
        return (self.memory if ref.in_memory else self.disk).folder(ref.cut_no)


def results_of(job: JobDir, epoch_no: EpochNo) -> FolderStore:
    """Return what `job.evaluate` computed in an epoch: by feed, one file for each span."""
    return FolderStore(job.evaluations / str(epoch_no), digits=1)


def pieces_of(path: Path) -> Iterator[memoryview]:
    """Yield a file's bytes in pieces.

    Raises:
        PermanentError: there is no such file, or it cannot be read.
    """
    try:
        with path.open("rb", buffering=0) as file:
            while piece := file.read(PIECE_BYTES):
                yield memoryview(piece)
    except OSError as error:
        raise PermanentError(f"{path}: {error.strerror}; use an older cut") from error


def sizes_of(folder: Path) -> dict[str, int]:
    """Return the names and sizes, in bytes, of the files in a folder; no folder: none."""
    if not folder.is_dir():
        return {}
    found = (entry for entry in os.scandir(folder) if entry.is_file())
    return {one.name: one.stat().st_size for one in found if not one.name.startswith(".")}


def _fill(path: Path, image: memoryview, digest: Checksum | None) -> None:
    """Fill a file that is there. Other threads run meanwhile."""
    descriptor = os.open(path, os.O_WRONLY)
    try:
        for at in range(0, len(image), PIECE_BYTES):
            piece = image[at : at + PIECE_BYTES]
            if digest is not None:
                digest.add(piece)
            done = 0
            while done < len(piece):
                done += os.pwrite(descriptor, piece[done:], at + done)
    finally:
        os.close(descriptor)

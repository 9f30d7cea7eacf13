"""A cut, on disk or in memory: files with checksums, made valid by a manifest.

Servers, agents and the master write, verify and find cuts through this; what is inside the servers'
files is their own affair (`runtime.checkpoint`). Files are written beside their final name, synced
and renamed; the manifest comes last: a directory without a readable one holds no cut.

A cut that is not wholly on disk is in two *places*: a directory in memory, with the manifest and a
folder for each node that holds copies of files; and its directory on disk, where files of servers
may be that are ready there.
"""

import errno
import fcntl
import mmap
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import xxhash

from paceline.base.errors import PermanentError
from paceline.base.numbering import CutNo, EntryNo, EpochNo, StepNo
from paceline.base.samples import Span
from paceline.wire.schema import ModelSchema

T = TypeVar("T")

FORMAT_VERSION = 2
MANIFEST = "manifest.json"
PIECE_BYTES = 4 << 20
"""Bytes written at a time."""
LAST_CUT_S, SLOW_BYTES_PER_S = 20.0, 20e6
"""Seconds that a last cut may take in any case, and bytes per second of a slow disk, which may take
longer."""


class CutManifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a cut is: the state of the model and of the ledger after the same update."""

    format_version: int = FORMAT_VERSION
    cut_no: CutNo
    epoch_no: EpochNo
    position: EntryNo
    """Place in the order of updates."""
    step: StepNo
    committed: tuple[Span, ...]
    """The samples that are in the model."""
    schema: ModelSchema
    files: dict[str, str]
    """File name -> checksum."""
    num_bytes: int
    """Sum over the files."""


class _Sealed(msgspec.Struct, frozen=True):
    manifest: msgspec.Raw
    checksum: str


def patience_s(num_bytes: int) -> float:
    """How long a cut of so many bytes may take to be copied and written; then it is given up."""
    return LAST_CUT_S + num_bytes / SLOW_BYTES_PER_S


class Checksum:
    """XXH3 of 128 bits of bytes that come one after the other; faster than copying memory.

    It finds damage, not malice: who may write to a job's directory needs no collision.
    """

    def __init__(self) -> None:
        self._hash = xxhash.xxh3_128()

    def add(self, image: Any) -> None:
        """The next bytes; other threads run meanwhile."""
        self._hash.update(image)

    def __str__(self) -> str:
        return "xxh3:" + self._hash.hexdigest()


def checksum(image: Any) -> str:
    """The `Checksum` of all bytes at once, as hexadecimal digits after ``xxh3:``."""
    found = Checksum()
    found.add(image)
    return str(found)


def write_file(directory: Path, name: str, image: Any) -> None:
    """Write bytes as ``directory/name``.

    Durable when it returns; until then the name does not exist or holds what it held.
    """
    directory.mkdir(parents=True, exist_ok=True)
    partial = directory / f".{name}.partial"
    descriptor = _open_direct(partial)
    try:
        _write(descriptor, memoryview(image).cast("B"))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    partial.replace(directory / name)
    _sync(directory)


def _sync(directory: Path) -> None:
    """Make the names in a directory durable."""
    folder = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _open_direct(path: Path) -> int:
    """A new file that is written past the page cache, where its file system can do that.

    The disk then takes whole pages from where they lie: no processor copies them, no memory is
    filled with what nobody reads, and who syncs does not wait for what others have written.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    try:
        return os.open(path, flags | os.O_DIRECT, 0o666)
    except OSError:
        # Each says in a way of its own that it cannot; of what else is wrong this says it again.
        return os.open(path, flags, 0o666)


def _write(descriptor: int, image: memoryview) -> None:
    """All of an image; through the page cache what is no whole page, and what is refused."""
    at, stop = 0, len(image) - len(image) % mmap.PAGESIZE
    try:
        while at < stop:
            at += os.pwrite(descriptor, image[at : min(at + PIECE_BYTES, stop)], at)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
    fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) & ~os.O_DIRECT)
    while at < len(image):
        at += os.pwrite(descriptor, image[at : at + PIECE_BYTES], at)


def write_manifest(directory: Path, manifest: CutManifest) -> None:
    """Make the cut valid: to be called when all its files are written."""
    text = msgspec.json.encode(manifest)
    sealed = msgspec.json.encode(_Sealed(msgspec.Raw(text), checksum(text)))
    write_file(directory, MANIFEST, msgspec.json.format(sealed, indent=1))
    _sync(directory.parent)  # else a power cut may take the new directory with all that is in it


def read_manifest(*places: Path) -> CutManifest:
    """The verified manifest of a cut, from the first of its places that has one.

    Raises:
        PermanentError: there is none, it is damaged, or of another format.
    """
    paths = [place / MANIFEST for place in places]
    return _read_manifest(next((path for path in paths if path.exists()), paths[-1]))


def _read_manifest(path: Path) -> CutManifest:
    try:
        sealed = msgspec.json.decode(path.read_bytes(), type=_Sealed)
        text = msgspec.json.format(bytes(sealed.manifest), indent=-1)
        manifest = msgspec.json.decode(text, type=CutManifest)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise PermanentError(f"{path}: no readable manifest ({error}); use an older cut") from error
    if checksum(text) != sealed.checksum:
        raise PermanentError(f"{path}: checksum differs, the manifest is damaged; use an older cut")
    if manifest.format_version != FORMAT_VERSION:
        raise PermanentError(
            f"{path}: format version {manifest.format_version}, this release reads {FORMAT_VERSION}"
        )
    return manifest


def copies(name: str, *places: Path) -> list[Path]:
    """All copies of one file of a cut."""
    found = [path for place in places for path in (*sorted(place.glob(f"*/{name}")), place / name)]
    return [path for path in found if path.exists()]


def first_whole(name: str, read: Callable[[Path], T], *places: Path) -> T:
    """What ``read`` makes of one file of a cut, or of an undamaged copy of it.

    Raises:
        PermanentError: ``read`` raised it of each of them; all that it said.
    """
    errors = []
    for path in copies(name, *places) or [places[-1] / name]:
        try:
            return read(path)
        except PermanentError as error:
            errors.append(str(error))
    raise PermanentError("; ".join(errors))


def map_file(name: str, expected: str, *places: Path) -> mmap.mmap:
    """One file of a cut, or an undamaged copy of it, mapped read-only and verified.

    Raises:
        PermanentError: the file is missing, truncated or damaged; names it.
    """
    return first_whole(name, lambda path: _map_verified(path, expected), *places)


def look_at(name: str, look: Callable[[mmap.mmap], T], *places: Path) -> T:
    """What ``look`` makes of one file of a cut, or of a copy, that is not read and not verified.

    Raises:
        PermanentError: ``look`` raised it of each copy, or they are missing or empty.
    """
    return first_whole(name, lambda path: look(_map(path)), *places)


def _map(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise PermanentError(f"{path}: cannot be read ({error}); use an older cut") from error


def _map_verified(path: Path, expected: str) -> mmap.mmap:
    image = _map(path)
    check(path, checksum(image), expected, len(image))
    return image


def check(path: Path, found: str, expected: str, num_bytes: int) -> None:
    """Raises PermanentError: this is not the checksum of the file that the manifest names."""
    if found != expected:
        raise PermanentError(
            f"{path}: checksum differs from the manifest's ({num_bytes} bytes), the file is "
            f"truncated or damaged; use an older cut"
        )


def verify(*places: Path, contents: bool = True) -> CutManifest:
    """The manifest of a cut whose files were all found, and read and found undamaged.

    Args:
        places: of the cut.
        contents: False: do not read the files.

    Raises:
        PermanentError: anything is missing, truncated or damaged; names the file.
    """
    manifest = read_manifest(*places)
    for name, expected in manifest.files.items():
        if contents:
            map_file(name, expected, *places).close()
        elif not copies(name, *places):
            raise PermanentError(f"{places[-1] / name}: is not there; use an older cut")
    return manifest

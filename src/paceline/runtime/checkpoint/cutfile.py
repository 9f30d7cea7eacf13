"""Contents of a cut's files: the arrays of one server's save, in safetensors format.

A save packed by `pack` *is* a safetensors file, so a server copies its arrays once, into memory
that someone else may write out later (`wire.cut.write_file`). Arrays read back are views of the
mapped, verified file (`read_cut`), or were there before and are filled with it (`read_file`), so
that its bytes cross memory about once and none of its pages is mapped.

Format: 8 bytes header length, little-endian; JSON header, padded with spaces so that the data
start at a multiple of 64 bytes; the arrays' bytes, large items first so that each is aligned.
"""

import math
import os
from bisect import bisect_right
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import msgspec
import numpy as np

from paceline.base.copying import copy
from paceline.base.errors import PermanentError
from paceline.cuts.manifest import (
    Checksum,
    CutManifest,
    check,
    checksum,
    copies,
    first_whole,
    map_file,
    read_manifest,
    write_file,
)
from paceline.runtime.state.arrays import Array

CHUNK_BYTES = 2 << 20
"""Bytes that `read_file` reads at a time: they are still in the cache when it hashes them."""
THREADS = 2
"""Threads that read a file: the kernel takes twice as long to read as memory takes to copy."""
_MAX_PIECES = os.sysconf("SC_IOV_MAX")
_ALIGN_BYTES = 64
_DTYPES = {
    "float16": "F16",
    "float32": "F32",
    "float64": "F64",
    "int8": "I8",
    "int16": "I16",
    "int32": "I32",
    "int64": "I64",
    "uint8": "U8",
    "uint16": "U16",
    "uint32": "U32",
    "uint64": "U64",
    "bool": "BOOL",
    "complex64": "C64",
    "complex128": "C128",  # which the format does not name
}
_NUMPY_NAMES = {code: name for name, code in _DTYPES.items()}


class _Entry(msgspec.Struct, frozen=True):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


@dataclass(frozen=True)
class Scattered:
    """An array that lies in several places: their rows, one place after another.

    Args:
        places: alike but for the number of rows; one at least.
    """

    places: tuple[Array, ...]

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of all places."""
        return self.places[0].dtype

    @property
    def itemsize(self) -> int:
        """Bytes of an item."""
        return self.dtype.itemsize

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the whole array."""
        return (sum(map(len, self.places)), *self.places[0].shape[1:])

    @property
    def nbytes(self) -> int:
        """Bytes of all places."""
        return sum(place.nbytes for place in self.places)


Kind = TypeVar("Kind", bound="Array | Scattered")


def _header(saved: Mapping[str, Kind]) -> tuple[bytes, dict[str, Kind]]:
    """The bytes before the data, and the arrays in the order of their data."""
    arrays = sorted(saved.items(), key=lambda item: (-item[1].itemsize, item[0]))
    entries, at = {}, 0
    for name, array in arrays:
        stop = at + array.nbytes
        entries[name] = _Entry(_DTYPES[array.dtype.name], array.shape, (at, stop))
        at = stop
    text = msgspec.json.encode(entries)
    text += b" " * (-(len(text) + 8) % _ALIGN_BYTES)
    return len(text).to_bytes(8, "little") + text, dict(arrays)


def packed_bytes(saved: Mapping[str, Array]) -> int:
    """Bytes that `pack` needs for these arrays."""
    header, arrays = _header(saved)
    return len(header) + sum(array.nbytes for array in arrays.values())


def pack(saved: Mapping[str, Array], buffer: Any, only: Container[str] | None = None) -> int:
    """Copy arrays into a writable buffer, as a safetensors file; returns the bytes used.

    Costs the memory copies and microseconds; the rest of the buffer is left as it is.

    Args:
        saved: all that the file must hold.
        buffer: of `packed_bytes` or more.
        only: names of those to copy now; None: all.
    """
    header, arrays = _header(saved)
    target = np.frombuffer(buffer, np.uint8)
    target[: len(header)] = np.frombuffer(header, np.uint8)
    at = len(header)
    for name, array in arrays.items():
        place, at = target[at : at + array.nbytes], at + array.nbytes
        if only is not None and name not in only:
            continue
        if array.flags.c_contiguous:
            copy(place, array.reshape(-1).view(np.uint8))
        else:
            np.copyto(place.view(array.dtype).reshape(array.shape), array)
    return at


class Chunks:
    """A packed save that is nowhere in one piece: its bytes, ``size`` at a time."""

    def __init__(self, saved: Mapping[str, Array | Scattered], size: int) -> None:
        header, arrays = _header(saved)
        parts = [np.frombuffer(header, np.uint8)]
        for array in arrays.values():
            places = array.places if isinstance(array, Scattered) else (array,)
            parts += [_bytes_of(np.ascontiguousarray(place)) for place in places]
        self._parts, self._size = [part for part in parts if part.size], size
        self._starts = np.cumsum([0, *(part.size for part in self._parts)])
        self.num_bytes = int(self._starts[-1])

    def at(self, offset: int) -> Array:
        """A copy of the bytes from ``offset`` on: ``size`` of them, or the rest."""
        stop = min(offset + self._size, self.num_bytes)
        found = np.empty(stop - offset, np.uint8)
        first, end = np.searchsorted(self._starts, (offset, stop), side="right")
        for start, part in zip(self._starts[first - 1 : end], self._parts[first - 1 : end]):
            low, high = max(offset, int(start)), min(stop, int(start) + part.size)
            if low < high:
                found[low - offset : high - offset] = part[low - start : high - start]
        return found


class Landing:
    """The chunks of a packed save, each put where its bytes belong.

    Args:
        num_bytes: of the save.
        places: by array, where its bytes belong: each place with the byte of the array at which it
            begins, ascending and without gaps. An array without places is kept in ``arrays``.
    """

    def __init__(self, num_bytes: int, places: Mapping[str, Sequence[tuple[int, Array]]]) -> None:
        self._num_bytes, self._places = num_bytes, places
        self._head = b""
        #: Where places begin in the save, and these places; None: the header is not whole.
        self._starts: list[int] | None = None
        self._targets: list[Array] = []
        self._taken: set[int] = set()
        self._num_taken = 0
        self.arrays: dict[str, Array] = {}
        """Arrays without places; they are whole once the save is."""

    @property
    def is_whole(self) -> bool:
        """Whether all bytes are where they belong."""
        return self._num_taken == self._num_bytes

    def take(self, offset: int, chunk: memoryview) -> bool:
        """Put bytes where they belong; False: not yet, the header has to come first.

        Raises:
            PermanentError: the header is none, or names other arrays than there are places for.
        """
        if offset in self._taken:
            return True
        if self._starts is None:
            if offset != len(self._head):
                return False
            self._head += bytes(chunk)
            self._read_head()
        self._taken.add(offset)
        self._num_taken += chunk.nbytes
        if self._starts is not None:
            self._put(offset, np.frombuffer(chunk, np.uint8))
        return True

    def _read_head(self) -> None:
        head = self._head
        if len(head) < 8 or len(head) < 8 + int.from_bytes(head[:8], "little"):
            return
        try:
            start, entries = _entries(memoryview(head))
        except msgspec.DecodeError as error:
            raise PermanentError(f"not the header of a safetensors image: {error}") from error
        self._starts = []
        for name, entry in entries.items():
            low, high = entry.data_offsets
            places = self._places.get(name)
            if places is None:
                array = self.arrays[name] = np.empty(entry.shape, _NUMPY_NAMES[entry.dtype])
                places = [(0, _bytes_of(array))]
            if sum(place.size for _, place in places) != high - low:
                raise PermanentError(f"{name} has {high - low:,} bytes, for which there is no room")
            self._starts += [start + low + at for at, _ in places]
            self._targets += [place for _, place in places]

    def _put(self, offset: int, given: Array) -> None:
        assert self._starts is not None
        stop = offset + given.size
        for number in range(max(0, bisect_right(self._starts, offset) - 1), len(self._starts)):
            start, target = self._starts[number], self._targets[number]
            if start >= stop:
                return
            low, high = max(offset, start), min(stop, start + target.size)
            if low < high:
                target[low - start : high - start] = given[low - offset : high - offset]


def _bytes_of(array: Array) -> Array:
    return array.reshape(-1).view(np.uint8)


def _entries(view: memoryview) -> tuple[int, dict[str, _Entry]]:
    """Return where the arrays' bytes begin, and the entry of each array by its name."""
    start = 8 + int.from_bytes(view[:8], "little")
    return start, msgspec.json.decode(view[8:start], type=dict[str, _Entry])


def unpack(buffer: Any) -> dict[str, Array]:
    """The arrays of a packed save, as views of ``buffer``.

    Raises:
        PermanentError: the buffer is no such save, or is truncated.
    """
    view = memoryview(buffer).cast("B")
    try:
        start, entries = _entries(view)
        return {name: _array(view[start:], entry) for name, entry in entries.items()}
    except (msgspec.DecodeError, ValueError, KeyError) as error:
        raise PermanentError(
            f"not a whole safetensors image ({len(view)} bytes): {error}"
        ) from error


def _array(data: memoryview, entry: _Entry) -> Array:
    low, high = entry.data_offsets
    return np.frombuffer(data[low:high], _NUMPY_NAMES[entry.dtype]).reshape(entry.shape)


def image_of(saved: Mapping[str, Array]) -> bytearray:
    """Pack arrays into the bytes of a file."""
    image = bytearray(packed_bytes(saved))
    pack(saved, image)
    return image


def write_save(directory: Path, name: str, saved: Mapping[str, Array]) -> tuple[str, int]:
    """Pack arrays and write them as ``directory/name``; returns checksum and bytes."""
    image = image_of(saved)
    write_file(directory, name, image)
    return checksum(image), len(image)


def read_cut(*places: Path) -> tuple[CutManifest, dict[str, dict[str, Array]]]:
    """A cut, wholly verified: its manifest, and the arrays of each file by their names.

    ``places``: its directory, or all that `cut.places` names.

    Raises:
        PermanentError: anything is missing, truncated or damaged; names the file.
    """
    manifest = read_manifest(*places)
    files = manifest.files.items()
    return manifest, {name: unpack(map_file(name, expected, *places)) for name, expected in files}


def read_file(
    name: str, expected: str, *places: Path, into: Mapping[str, Array]
) -> dict[str, Array]:
    """The arrays of one file of a cut, or of an undamaged copy of it, verified.

    Those of ``into`` are filled where the file holds an array of their name, dtype and shape; the
    others are new. Bytes are there before they are known to be undamaged: after an error ``into``
    holds neither what it held nor what the file does, and is of no use.

    Raises:
        PermanentError: all copies are missing, truncated or damaged; names them.
    """
    return first_whole(name, lambda path: _read_verified(path, expected, into), *places)


def _read_verified(path: Path, expected: str, into: Mapping[str, Array]) -> dict[str, Array]:
    digest = Checksum()
    try:
        with path.open("rb", buffering=0) as file:
            num_bytes = os.fstat(file.fileno()).st_size
            head, entries = _read_head(file, num_bytes)
            arrays = {name: _room(entry, into.get(name)) for name, entry in entries.items()}
            digest.add(head)
            views = (array.reshape(-1).view(np.uint8).data for array in arrays.values())
            _fill(file.fileno(), len(head), views, digest)
    except (OSError, ValueError, KeyError, msgspec.DecodeError) as error:
        raise PermanentError(f"{path}: cannot be read ({error}); use an older cut") from error
    check(path, str(digest), expected, num_bytes)
    return arrays


def _read_head(file: BinaryIO, num_bytes: int) -> tuple[bytes, dict[str, _Entry]]:
    """The bytes before the data, and what follows them, in the order of the data.

    Raises ValueError, DecodeError, KeyError: that is not what a file of so many bytes holds.
    """
    head = _head(file, num_bytes)
    start, entries = _entries(memoryview(head))
    at = 0
    for entry in entries.values():
        size = math.prod(entry.shape) * np.dtype(_NUMPY_NAMES[entry.dtype]).itemsize
        if entry.data_offsets != (at, at + size):
            raise ValueError("arrays that do not lie one behind the other")
        at += size
    if start + at != num_bytes:
        raise ValueError(f"{num_bytes:,} of {start + at:,} bytes")
    return head, entries


def _head(file: BinaryIO, num_bytes: int) -> bytes:
    head = file.read(8)
    return head + file.read(min(num_bytes, int.from_bytes(head, "little")))


def _room(entry: _Entry, ours: Array | None) -> Array:
    """Return the array to read an entry into: ours where it fits, else a new one."""
    dtype = np.dtype(_NUMPY_NAMES[entry.dtype])
    if ours is not None and (ours.dtype, ours.shape) == (dtype, entry.shape):
        flags = ours.flags
        if flags.c_contiguous and flags.writeable:
            return ours
    return np.empty(entry.shape, dtype)


def _fill(descriptor: int, offset: int, views: Iterable[memoryview], digest: Checksum) -> None:
    """Fill ``views``, one after the other, from ``offset`` on, and add what they then hold."""
    last: Future[None] | None = None
    with ThreadPoolExecutor(THREADS, "paceline-read") as pool:
        for chunk in _chunks(views):
            last = pool.submit(_fill_chunk, descriptor, offset, chunk, digest, last)
            offset += sum(map(len, chunk))
    if last is not None:
        last.result()


def _chunks(views: Iterable[memoryview]) -> Iterator[list[memoryview]]:
    """Pieces of ``views`` in their order, ``CHUNK_BYTES`` together."""
    chunk: list[memoryview] = []
    room = CHUNK_BYTES
    for view in views:
        rest = view
        while rest:
            piece, rest = rest[:room], rest[room:]
            chunk.append(piece)
            room -= len(piece)
            if not room or len(chunk) == _MAX_PIECES:
                yield chunk
                chunk, room = [], CHUNK_BYTES
    if chunk:
        yield chunk


def _fill_chunk(
    descriptor: int,
    offset: int,
    chunk: Sequence[memoryview],
    digest: Checksum,
    before: Future[None] | None,
) -> None:
    """Read beside the chunk ``before`` this one, add to the digest after it.

    Raises:
        ValueError: the file has become shorter.
    """
    missing = list(chunk)
    while missing:
        count = os.preadv(descriptor, missing, offset)
        if not count:
            raise ValueError(f"it ends at {offset:,} bytes")
        offset += count
        while missing and count >= len(missing[0]):
            count -= len(missing.pop(0))
        if count:
            missing[0] = missing[0][count:]
    if before is not None:
        before.result()
    for piece in chunk:
        digest.add(piece)


def fault(name: str, expected: str, *places: Path) -> str | None:
    """Say what is wrong with a file of a cut, in a few words; None: nothing. Reads all of it."""
    try:
        map_file(name, expected, *places).close()
    except PermanentError:
        found = copies(name, *places)
    else:
        return None
    return _fault(found[0]) if found else "missing"


def _fault(path: Path) -> str:
    """Say what is wrong with a file whose checksum differs, or that cannot be read."""
    try:
        num_bytes = path.stat().st_size
        with path.open("rb") as file:
            head = _head(file, num_bytes)
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    try:
        start, entries = _entries(memoryview(head))
    except (msgspec.DecodeError, ValueError):
        # A header that is not whole, or not what was written: which of them, nothing says.
        return f"truncated or damaged in its header ({num_bytes:,} bytes)"
    whole = start + max((entry.data_offsets[1] for entry in entries.values()), default=0)
    if num_bytes < whole:
        return f"truncated ({num_bytes:,} of {whole:,} bytes)"
    return "checksum differs from the manifest's"

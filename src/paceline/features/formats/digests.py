"""Digests of exported files; tensors of safetensors have one each. Never imports torch."""

import hashlib
import json
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from paceline.base.errors import ConfigError
from paceline.features.formats.receipts import FileDigests

PIECE_BYTES = 4 << 20
_MAX_HEAD = 100_000_000
"""Bytes of a header, at most; safetensors has the same bound."""


class StoredTensor(msgspec.Struct, frozen=True):
    """A tensor as the header of a safetensors file names it."""

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


def digests_of(path: Path) -> FileDigests:
    """Read a file, and return its digests.

    Raises:
        ConfigError: it is not there, or cannot be read.
    """
    try:
        with path.open("rb") as file:
            whole = hashlib.file_digest(file, "sha256").hexdigest()
            num_bytes = file.tell()
            return FileDigests(sha256=whole, num_bytes=num_bytes, tensors=_tensors(file, num_bytes))
    except OSError as error:
        raise ConfigError(f"{path}: the file cannot be read ({error.strerror})") from error


def _tensors(file: BinaryIO, num_bytes: int) -> dict[str, str]:
    """Digest each tensor; none: this is no whole file of safetensors, each byte of one tensor."""
    file.seek(0)
    size = int.from_bytes(file.read(8), "little")
    if size > min(_MAX_HEAD, num_bytes - 8):
        return {}
    try:
        head = json.loads(file.read(size), object_pairs_hook=_once)
        head.pop("__metadata__", None)
        stored = msgspec.convert(head, dict[str, StoredTensor])
    except (ValueError, AttributeError, RecursionError):
        return {}
    start, at = 8 + size, 0
    for begin, end in sorted(one.data_offsets for one in stored.values()):
        if begin != at or end < begin:
            return {}
        at = end
    if start + at != num_bytes:
        return {}
    return {name: _digest(file, start, one) for name, one in sorted(stored.items())}


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make an object of names and values. Other readers may take the first of two alike names."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name twice")
    return found


def _digest(file: BinaryIO, start: int, tensor: StoredTensor) -> str:
    found = hashlib.sha256(f"{tensor.dtype} {list(tensor.shape)}\n".encode())
    begin, end = tensor.data_offsets
    file.seek(start + begin)
    left = end - begin
    while left:
        piece = file.read(min(left, PIECE_BYTES))
        if not piece:
            raise OSError(0, "it has become shorter")
        found.update(piece)
        left -= len(piece)
    return found.hexdigest()

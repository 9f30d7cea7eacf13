"""Disks that refuse to be written to: full, over a quota, read-only, broken."""

import contextlib
import ctypes
import errno
import os
from pathlib import Path

_KEEP_SIZE = 1
"""FALLOC_FL_KEEP_SIZE of linux/falloc.h."""

_REASONS = {
    errno.ENOSPC: "no space left on {}",
    errno.EDQUOT: "the quota is used up on {}",
    errno.EROFS: "the file system is read-only at {}",
    errno.EIO: "the disk fails (input/output error) at {}",
}


def is_refusal(error: OSError) -> bool:
    """Tell whether a disk has refused a write that it may accept later: after somebody's help."""
    return error.errno in _REASONS


def describe(error: OSError, path: Path | str) -> str:
    """Say why a path cannot be written to."""
    reason = _REASONS.get(error.errno or 0)
    return reason.format(path) if reason else f"{path} cannot be written ({error.strerror})"


def room_bytes(folder: Path) -> int:
    """Bytes that this user may still write to the file system of a folder (quotas aside)."""
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


def reserve_behind(descriptor: int, num_bytes: int) -> None:
    """Have room for appending so many bytes to an open file, also when its disk is full by then.

    Where the file system cannot do that, or has no room left, nothing is changed.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    with contextlib.suppress(AttributeError):
        end, length = ctypes.c_int64(os.fstat(descriptor).st_size), ctypes.c_int64(num_bytes)
        libc.fallocate64(descriptor, _KEEP_SIZE, end, length)


def append_if_possible(path: Path, text: str) -> None:
    """Append to a file for people; a disk that refuses is no reason to stop."""
    try:
        with path.open("a") as file:
            file.write(text)
    except OSError as error:
        if not is_refusal(error):
            raise

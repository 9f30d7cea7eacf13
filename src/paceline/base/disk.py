"""Disks that refuse to be written to: full, over a quota, read-only, broken."""

import errno
import os
from pathlib import Path

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

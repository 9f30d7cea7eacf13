"""File or folder of which an error says that this machine cannot read it."""

import errno
import os
import re

_CODES = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ESTALE, errno.ENOTCONN})
"""ENOTCONN: the file system behind a mount point is gone."""
_KINDS = (FileNotFoundError, NotADirectoryError, PermissionError)
_QUOTED, _BARE = re.compile(r"'([^'\n]*/[^'\n]*)'"), re.compile(r"(/[^\s'\":]+)")


def unreadable_path(error: BaseException) -> str:
    """Return the path that this error, or its cause, could not open; empty: it is another error."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and (path := _path_of(seen)):
            return os.path.abspath(path)
        seen = seen.__cause__
    return ""


def _path_of(error: OSError) -> str:
    if error.errno in _CODES and isinstance(error.filename, str | bytes):
        return os.fsdecode(error.filename)
    # What a DataLoader's process raised arrives as a message alone; pyarrow gives no more either.
    said = str(error) if isinstance(error, _KINDS) else ""
    found: list[str] = _QUOTED.findall(said) or _BARE.findall(said)
    return found[-1] if found else ""

"""Files that are written whole, or not at all; and the kernel's, which are read all the time."""

import os
from pathlib import Path

SMALL_BYTES = 1 << 16


def read_at_once(path: Path | str) -> bytes:
    """Return what a small file of the kernel says: by three calls, a third of `Path.read_bytes`.

    Raises:
        OSError: it cannot be read.
    """
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(file, SMALL_BYTES)
    finally:
        os.close(file)


def write_file(path: Path, data: bytes) -> None:
    """Write a file so that a process that is killed meanwhile leaves the old content or the new.

    A link stays a link. In place, and so not at once, are written: what is no regular file, as a
    pipe or a terminal, and a file in a folder that nothing can be added to.

    Args:
        path: of the file; the new content is first at the same path with ``.new`` added.
        data: its whole content.

    Raises:
        OSError: it cannot be written.
    """
    place = path.resolve()
    # Of a pipe that /dev/stdout leads to, or a file that is deleted, there is no place.
    special = path.exists() and not place.is_file()
    if special or not os.access(place.parent, os.W_OK):
        path.write_bytes(data)
        return
    path = place
    fresh = path.with_name(f"{path.name}.new")
    try:
        fresh.write_bytes(data)
        if path.exists():
            fresh.chmod(path.stat().st_mode & 0o777)
        fresh.replace(path)
    except OSError as error:
        error.filename = error.filename or str(path)  # a write that a full disk refuses has none
        raise
    finally:
        fresh.unlink(missing_ok=True)

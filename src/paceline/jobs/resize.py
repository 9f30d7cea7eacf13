"""Sizes of a job that is resumed: left in its directory for the master to find."""

from pathlib import Path

import msgspec

from paceline.base.errors import PermanentError
from paceline.base.files import write_file


class Resize(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of nodes from now on; None: as many as there were."""

    workers: int | None = None
    servers: int | None = None


def write_resize(path: Path, resize: Resize) -> None:
    """A reader sees all of it."""
    write_file(path, msgspec.json.encode(resize))


def read_resize(path: Path) -> Resize | None:
    """Return what was written; None: nothing will change.

    Raises:
        PermanentError: it cannot be read.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=Resize)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise PermanentError(
            f"{path}: no sizes ({error}); remove it, and resume the job again"
        ) from error

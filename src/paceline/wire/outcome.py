"""``outcome.json``: how a job ended, for everyone who asks later. Written once, read by anybody."""

import os
from pathlib import Path

import msgspec


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a job."""

    state: str
    """``finished``, ``failed`` or ``stopped``."""
    exit_code: int
    error: str = ""
    traceback: str = ""
    jct_s: float = 0.0
    """Job completion time: from the job's first start, interruptions included."""
    committed: int = 0
    total: int = 0
    short_steps: int = 0
    """Steps that were decided while something of their slice was missing."""
    left_out: int = 0
    """Samples that were missing in them; they came later in the epoch."""


def write_outcome(outcome: Outcome, path: Path) -> bool:
    """Write the job's end; the first one stays, and False says that there was one."""
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    with fresh.open("wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(outcome), indent=2) + b"\n")
        file.flush()
        os.fsync(file.fileno())
    try:
        # Unlike a rename this never replaces, and like it, is there completely or not at all.
        os.link(fresh, path)
    except FileExistsError:
        return False
    finally:
        fresh.unlink()
    return True


def read_outcome(path: Path) -> Outcome | None:
    """The job's end; None: it has not ended."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Outcome)
    except FileNotFoundError:
        return None

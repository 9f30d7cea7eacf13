"""``outcome.json``: how a job ended, for everyone who asks later. Written once, read by anybody.

Also the one table of ends and exit codes: `ENDS`. Words and codes follow from an `End`, never the
other way round.
"""

import os
import signal
from enum import StrEnum
from pathlib import Path

import msgspec

from paceline.base.disk import is_refusal
from paceline.base.errors import PermanentError


class End(StrEnum):
    """End of a job, or of the command that follows one."""

    FINISHED = "finished"
    NOT_TRAINED = "not trained"
    STOPPED_EARLY = "stopped early"
    STOPPED = "stopped"
    INTERRUPTED = "interrupted"
    TERMINATED = "terminated"
    WARNED = "warned"
    SCRIPT_FAILED = "script failed"
    FAILED = "failed"
    ALREADY_FINISHED = "already finished"
    LEFT_RUNNING = "left running"
    LOST = "lost"
    REFUSED = "refused"


class EndRow(msgspec.Struct, frozen=True):
    """One row of the table.

    Args:
        state: of the job: ``finished``, ``failed`` or ``stopped``; empty: the job has no such end.
        code: exit code; None: the script's own, and 1 where it has none.
        meaning: for people.
    """

    state: str
    code: int | None
    meaning: str


ENDS: dict[End, EndRow] = {
    End.FINISHED: EndRow(
        "finished", 0, "the script returned, and its loops are through all of their samples"
    ),
    End.NOT_TRAINED: EndRow(
        "finished", 0, "the script returned without a loop over job.batches: nothing was trained"
    ),
    End.ALREADY_FINISHED: EndRow("", 0, "--resume of a job that has finished: nothing was started"),
    End.LEFT_RUNNING: EndRow("", 0, "the job goes on: --detach, or Ctrl-C in paceline attach"),
    End.FAILED: EndRow("failed", 1, "the job failed, and not by an error of the script"),
    End.LOST: EndRow("", 1, "all processes of the job died, and none could say why"),
    End.REFUSED: EndRow(
        "", 2, "a mistake in flags, spec or paths, or a job that cannot go on: nothing was started"
    ),
    End.STOPPED_EARLY: EndRow(
        "finished", 3, "the script returned before its loops were through all of their samples"
    ),
    End.STOPPED: EndRow("stopped", 4, "stopped by paceline stop"),
    End.INTERRUPTED: EndRow("stopped", 130, "stopped by Ctrl-C (SIGINT)"),
    End.WARNED: EndRow("stopped", 138, "stopped by SIGUSR1"),
    End.TERMINATED: EndRow("stopped", 143, "stopped by SIGTERM"),
    End.SCRIPT_FAILED: EndRow(
        "failed", None, "an error of the script: its own exit code, 1 after an exception"
    ),
}
"""A row for each end, in the order of their codes."""

END_OF_SIGNAL: dict[int, End] = {
    signal.SIGINT: End.INTERRUPTED,
    signal.SIGTERM: End.TERMINATED,
    signal.SIGUSR1: End.WARNED,
}
"""End of a job that was stopped by a signal of this number."""


def code_of(end: End, own: int = 0) -> int:
    """The exit code of an end; ``own``: the script's, where it had one."""
    code = ENDS[end].code
    return (own or 1) if code is None else code


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a job."""

    state: str
    """``finished``, ``failed`` or ``stopped``."""
    exit_code: int
    end: End | None = None
    """End of the job; None, in files of before: as `state` and `exit_code` say, see `how`."""
    error: str = ""
    traceback: str = ""
    jct_s: float = 0.0
    """Job completion time: from the job's launch, interruptions included."""
    training_s: float | None = None
    """Seconds of ``jct_s`` in which the model was there and processes lived; None: not known."""
    committed: int = 0
    total: int = 0
    kept: int | None = None
    """Samples to train on that are in the newest cut on disk; None: not known."""
    joined: bool = True
    """Whether the script called ``pl.init``."""
    short_steps: int = 0
    """Steps that were decided while something of their slice was missing."""
    left_out: int = 0
    """Samples that were missing in them; they came later in the epoch."""

    @property
    def samples_per_s(self) -> float | None:
        """Mean over the training; None: there was none, or it is not known how long it took."""
        return self.committed / self.training_s if self.training_s and self.committed else None

    @property
    def how(self) -> End:
        """End of the job, also of files of before."""
        if self.end is not None:
            return self.end
        of_state = [end for end, row in ENDS.items() if row.state == self.state]
        return next((one for one in of_state if ENDS[one].code == self.exit_code), of_state[-1])


ROOM_BYTES = 64 << 10


def make_room(path: Path) -> None:
    """Take room on the disk for the outcome that will be ``path``: a full one must not hide it.

    Raises:
        OSError: there is none now.
    """
    descriptor = os.open(_room_for(path), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, ROOM_BYTES)
    finally:
        os.close(descriptor)


def _room_for(path: Path) -> Path:
    return path.with_name(f"{path.name}.room")


def write_outcome(outcome: Outcome, path: Path) -> bool:
    """Write the job's end; the first one stays, and False says that there was one.

    Raises:
        OSError: the disk refuses it, and no room was made for it.
    """
    data = msgspec.json.format(msgspec.json.encode(outcome), indent=2) + b"\n"
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        _write(fresh, data, os.O_CREAT | os.O_TRUNC)
    except OSError as error:
        fresh.unlink(missing_ok=True)
        room = _room_for(path)
        if not is_refusal(error) or not room.exists():
            raise
        room.rename(fresh)
        _write(fresh, data[:ROOM_BYTES], 0)
    try:
        # Unlike a rename this never replaces, and like it, is there completely or not at all.
        os.link(fresh, path)
    except FileExistsError:
        return False
    finally:
        fresh.unlink()
    return True


def _write(path: Path, data: bytes, flags: int) -> None:
    """Write from the start of a file on, in place, and cut off what lies behind."""
    descriptor = os.open(path, os.O_WRONLY | flags, 0o600)
    with open(descriptor, "wb") as file:
        file.write(data)
        file.truncate()
        file.flush()
        os.fsync(file.fileno())


def read_outcome(path: Path) -> Outcome | None:
    """The job's end; None: it has not ended.

    Raises:
        PermanentError: the file is damaged or of another version.
        OSError: it cannot be read.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=Outcome)
    except FileNotFoundError:
        return None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise PermanentError(
            f"{path}: got a file that is no end of a job of this version of paceline ({error}), "
            "expected what the job's processes wrote; move it away: the job then counts as one "
            "that was interrupted, which `paceline run --resume` goes on with"
        ) from error

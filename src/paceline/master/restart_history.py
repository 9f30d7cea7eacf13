"""What restarts have done on a backend, as the folders of earlier jobs tell."""

import contextlib
import itertools
from pathlib import Path

import msgspec

from paceline.base.jobdir import JobDir
from paceline.jobs.jsonl import LineFile
from paceline.master.controller import MAX_OUTCOMES
from paceline.policy.straggler.observation import RestartOutcome

HELPED = "restarts.jsonl"
"""In a job's folder: what its restarts have done, for its next master and for later jobs."""
REMEMBERED_JOBS = 20
_outcome = msgspec.json.Decoder(RestartOutcome)


class _Placed(msgspec.Struct, frozen=True):
    """The part of a job's spec, of any version, that says where its nodes are."""

    backend: str = "local"


def helped_file(log: Path) -> LineFile:
    """Open the file for outcomes of a job's restarts, in the folder of its decision log."""
    return LineFile(log.with_name(HELPED))


def read_outcomes(jobs: Path, backend: str) -> list[RestartOutcome]:
    """Read what restarts have done on a backend, in the newest jobs of a folder, the oldest first.

    Files and lines that cannot be read are passed over.

    Args:
        jobs: the folder of all jobs.
        backend: as in a spec; what a restart is worth on another one says nothing here.
    """
    files: list[tuple[float, Path]] = []
    for path in jobs.glob(f"*/{HELPED}"):
        with contextlib.suppress(OSError):  # `paceline rm` may remove a job meanwhile
            files.append((path.stat().st_mtime, path))
    newest_first = (path for _, path in sorted(files, reverse=True))
    placed = (path for path in newest_first if _backend_of(path.parent) == backend)
    outcomes: list[RestartOutcome] = []
    for path in reversed(list(itertools.islice(placed, REMEMBERED_JOBS))):
        with contextlib.suppress(OSError):
            outcomes += _outcomes_in(path.read_bytes())
    return outcomes[-MAX_OUTCOMES:]


def _backend_of(job: Path) -> str | None:
    """The backend of a job; None: its spec cannot be read."""
    try:
        return msgspec.json.decode(JobDir(job).spec.read_bytes(), type=_Placed).backend
    except (OSError, msgspec.MsgspecError):
        return None


def _outcomes_in(data: bytes) -> list[RestartOutcome]:
    outcomes: list[RestartOutcome] = []
    for line in data.splitlines():
        with contextlib.suppress(msgspec.MsgspecError):  # torn, or of another version
            outcomes.append(_outcome.decode(line))
    return outcomes

"""``sharing.jsonl`` of a job: what was decided about the devices that it shares."""

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from paceline.base.jobdir import JobDir
from paceline.features.sharing.wire import SharingDecision
from paceline.jobs.history import Tail
from paceline.jobs.wording import clock, counted


class SharingLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line of ``sharing.jsonl``."""

    t: float
    """Unix time."""
    node: str
    decision: SharingDecision


def log_of(job: JobDir) -> Path:
    """Return the path of a job's log."""
    return job.path / "sharing.jsonl"


def read_sharing(path: Path) -> list[SharingLine]:
    """Read what was decided about a job's device, in order; lines that are torn are left out."""
    found = []
    for line in Tail(path).lines():
        with contextlib.suppress(msgspec.MsgspecError):
            found.append(msgspec.json.decode(line, type=SharingLine))
    return found


def explain(job: JobDir, tell: Callable[[Sequence[str]], object]) -> None:
    """Tell what was decided about the device that a job shares, if it shares one."""
    log = log_of(job)
    if not log.exists():
        return
    lines, launched_s = read_sharing(log), job.launched_s()
    told = [f"{job.job_id}: shares a device, {counted(len(lines), 'decision')}"]
    for line in lines:
        text = f"{line.node}  {line.decision.allowed}: {line.decision.why}"
        told.append(f"{clock(line.t - launched_s):>7}  {text}")
    tell(told)

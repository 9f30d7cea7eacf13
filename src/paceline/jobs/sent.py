"""The folder that ``paceline submit`` sends along: the job keeps a copy, from which it is resumed.

A platform removes what was sent when its own job, or its cluster, ends.
"""

import os
import shutil
from pathlib import Path

from msgspec.structs import replace

from paceline.base.jobdir import JobDir
from paceline.wire.spec import JobSpec

FOLDER_WAS_SENT = "PACELINE_FOLDER_WAS_SENT"
"""Set in the environment of a command whose folder was sent along with it."""


def keep_sent(job: JobDir) -> None:
    """Copy this command's folder into the job's directory, if it was sent along.

    Raises:
        OSError: the copy cannot be written.
    """
    if FOLDER_WAS_SENT in os.environ:
        caches = shutil.ignore_patterns("__pycache__")
        shutil.copytree(Path.cwd(), job.sent, symlinks=True, ignore=caches)
        job.sent_from.write_text(str(Path.cwd()))


def from_kept(job: JobDir, spec: JobSpec) -> JobSpec:
    """The spec of a job that is resumed: what it has kept is used in place of what was sent."""
    if not job.sent_from.exists():
        return spec
    was = Path(job.sent_from.read_text())
    paths = {"script": spec.script, "cwd": spec.cwd}
    inside = {
        key: str(job.sent / Path(path).relative_to(was))
        for key, path in paths.items()
        if path and Path(path).is_relative_to(was)
    }
    return replace(spec, **inside)

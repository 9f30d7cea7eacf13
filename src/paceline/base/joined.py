"""Nodes of jobs whose master is elsewhere: each has a job directory of its own on this machine."""

import contextlib
import os
import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from paceline.base.cgroups import remove_job
from paceline.base.jobdir import JobDir, home
from paceline.base.processes import find_job_processes

EMPTY_S = 2.0
"""The killed leave their control groups a little after they are gone for everybody else."""
_STARTS_S = 60.0
"""A directory that is younger may be of a node whose agent is about to start."""
LEFT_ALONE = os.EX_UNAVAILABLE
"""Exit code of an agent whose master has gone for good, and of the command that runs it."""
LEFT_OUT = os.EX_CONFIG
"""Exit code of both where the job goes on without the node, which cannot take part."""
LOGS_KEPT_S = 7 * 86400.0
"""Seconds for which the logs of a node that has left stay; most of it is in the job's own logs."""


def _of_this_machine() -> Path:
    """Apart from those of machines that share this home, whose processes nobody here sees."""
    return home() / "joined" / socket.gethostname()


def joined_directory(job_id: str, node: str) -> Path:
    """Where a node of a job keeps its files here."""
    return _of_this_machine() / f"{job_id}.{node}"


def remove_joined(job: JobDir) -> None:
    """Do what the supervisor does for a job of this machine; the logs stay."""
    shutil.rmtree(job.run_dir, ignore_errors=True)
    shutil.rmtree(job.cuts, ignore_errors=True)
    deadline_s = time.monotonic() + EMPTY_S
    while not remove_job(job.job_id) and time.monotonic() < deadline_s:
        time.sleep(0.01)  # noqa: TID251 - nothing says when a group is empty
    shutil.rmtree(job.tls, ignore_errors=True)
    job.secret_file.unlink(missing_ok=True)


def lost_nodes(but: str = "") -> Iterator[JobDir]:
    """Nodes of this machine whose agent was killed before it could remove what it had made.

    Args:
        but: id of a job whose nodes are left out; empty: none.
    """
    for path in _of_this_machine().glob("*.*"):
        if path.stem == but:
            continue
        job = JobDir(path)
        try:
            made_s = job.secret_file.stat().st_mtime
        except FileNotFoundError:  # removed in order
            continue
        if time.time() - made_s > _STARTS_S and not find_job_processes(path):
            yield job


def clear_joined(but: str = "") -> None:
    """Remove what nodes that are gone have left on this machine: all but the logs, and old logs.

    Args:
        but: id of a job whose nodes are left out, since they are about to start; empty: none.
    """
    for node in lost_nodes(but):
        remove_joined(node)
    for path in _of_this_machine().glob("*.*"):
        job = JobDir(path)
        with contextlib.suppress(FileNotFoundError):  # another command removes it, too
            newest_s = max(one.stat().st_mtime for one in (path, job.logs, *job.logs.iterdir()))
            has_left = not job.secret_file.exists() and not find_job_processes(path)
            if has_left and time.time() - newest_s > LOGS_KEPT_S:
                shutil.rmtree(path, ignore_errors=True)

"""Every agent sees to it that its job has a supervisor."""

import logging
import subprocess

from paceline.base.jobdir import JobDir
from paceline.base.processes import is_locked, start_detached

_log = logging.getLogger(__name__)


class SupervisorWatch:
    """Watch of one agent over the supervisor of its job."""

    def __init__(self, job: JobDir, node: str) -> None:
        self._job, self._node = job, node
        self._started: subprocess.Popen[bytes] | None = None

    def look(self) -> None:
        """Start a supervisor if there is none.

        Also after the job's end: then it only removes what is left, this agent included.
        """
        starts = self._started is not None and self._started.poll() is None
        if starts or is_locked(self._job.supervisor_lock):
            return
        _log.warning("supervisor_died node=%s: starting another", self._node)
        log = self._job.logs / "supervisor.log"
        arguments = [str(self._job.path)]
        self._started = start_detached("paceline.supervisor", arguments, self._job.path, log)

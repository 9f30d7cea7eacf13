"""The supervisor of a job: keeps a master alive, and leaves nothing behind when the job has ended.

It holds the job's supervisor lock, adopts orphans, starts and restarts the master, passes on the
wish to stop, and at the end ends every process of the job and removes what it had in memory. It
keeps no state: a successor (started by any agent) reads everything from the job directory and
from the kernel. Synchronous, one thread, no event loop: it waits for signals.
"""

import logging
import os
import shutil
import signal
import subprocess
import time

from paceline.base.cgroups import remove_job
from paceline.base.disk import append_if_possible
from paceline.base.jobdir import JobDir
from paceline.base.processes import (
    adopt_orphans,
    find_job_processes,
    is_locked,
    kill_quietly,
    start_detached,
)
from paceline.jobs.outcome import END_OF_SIGNAL, ENDS, End, Outcome, code_of, write_outcome
from paceline.supervisor.life_port import LifePort
from paceline.supervisor.restarts import Backoff
from paceline.supervisor.signals import Signals
from paceline.supervisor.templates import start_templates
from paceline.wire import last_words
from paceline.wire.events.base import Event
from paceline.wire.events.job import MasterDiedEvent, StopAskedEvent, SupervisorStartedEvent
from paceline.wire.last_words import LastWords

SIGNALS = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT)

POLL_S = 0.2
"""Seconds between looks at the lock of a master that is not our child, and at the job directory."""
END_GRACE_S = 10.0
"""Seconds that the master has to exit once it has written the outcome (it writes the report)."""
LEAVE_GRACE_S = 3.0
"""Seconds that agents and their processes then have to leave on their own."""
SWEEP_S = 5.0
"""Seconds that killed processes have to vanish."""
SWEEP_POLL_S = 0.05
LOG_TAIL_BYTES = 4096

_log = logging.getLogger(__name__)


class Supervisor:
    """Runs one job to its end; the caller holds the supervisor lock."""

    def __init__(self, job: JobDir, master: str = "paceline.master") -> None:
        """``master``: the module that is run as the master."""
        self._job = job
        self._module = master
        self._restarts = Backoff()
        self._master: subprocess.Popen[bytes] | None = None
        #: The end of the pipe by which it says what it dies of.
        self._words = -1
        #: None: not started so far.
        self._templates: list[subprocess.Popen[bytes]] | None = None
        self._life: LifePort
        self._started_s = 0.0
        self._num_stops = 0
        #: The number of the signal that came first.
        self._stopped_by = 0
        self._signals = Signals(SIGNALS)

    def run(self) -> None:
        """Return when the job has ended and nothing is left of it."""
        adopt_orphans()
        self._life = LifePort(self._job)
        self._tell(SupervisorStartedEvent(pid=os.getpid()))
        while not self._is_over():
            if self._master is None and not is_locked(self._job.master_lock):
                self._start_master()
            self._wait(POLL_S)
            self._life.look()
            self._collect()
            self._stop_without_master()
        self._end()

    def _is_over(self) -> bool:
        return self._num_stops > 1 or self._job.outcome.exists() or not self._job.path.is_dir()

    # ------------------------------------------------------------------ the master

    def _start_master(self) -> None:
        log = self._job.logs / "master.log"
        self._started_s = time.monotonic()
        self._words, theirs = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        arguments = [str(self._job.path), last_words.OPTION, str(theirs)]
        self._master = start_detached(
            self._module, arguments, self._job.path, log, descriptors=[theirs]
        )
        os.close(theirs)
        if self._templates is None:
            self._templates = start_templates(self._job)

    def _collect(self) -> None:
        """Reap dead children; wait before a master is started again."""
        self._reap()
        if self._master is None or self._master.returncode is None:
            return
        code = self._master.returncode
        self._master = None
        words = last_words.read(self._words) or LastWords("")
        os.close(self._words)
        if self._job.outcome.exists():
            return
        if self._num_stops:
            return
        if words.final:
            self._write(End.FAILED, words.reason)
            return
        delay_s = self._restarts.died(time.monotonic() - self._started_s, words.reason)
        reason = words.reason or _how_ended(code)
        self._tell(MasterDiedEvent(reason=reason, deaths=self._restarts.num_deaths))
        if delay_s is None:
            self._give_up(reason, words.traceback)
            return
        until_s = time.monotonic() + delay_s
        while not self._is_over() and (left_s := until_s - time.monotonic()) > 0:
            self._wait(left_s)

    def _stop_without_master(self) -> None:
        """A stop was asked for and nobody is there to carry it out in order."""
        if self._num_stops and self._master is None and not is_locked(self._job.master_lock):
            self._write_stopped("the master died while the job was stopping")

    def _give_up(self, reason: str, traceback: str) -> None:
        log = self._job.logs / "master.log"
        error = (
            f"the master died {self._restarts.num_deaths} times in a row, the last time of: "
            f"{reason}; see {log}, then go on with `paceline run --resume {self._job.job_id}`"
        )
        traceback = traceback or log.read_text(errors="replace")[-LOG_TAIL_BYTES:]
        self._write(End.FAILED, error, traceback)

    def _write_stopped(self, error: str) -> None:
        self._write(END_OF_SIGNAL[self._stopped_by], error)

    def _write(self, end: End, error: str, traceback: str = "") -> None:
        if self._job.path.is_dir():
            outcome = Outcome(
                state=ENDS[end].state,
                exit_code=code_of(end),
                end=end,
                error=error,
                traceback=traceback,
                jct_s=max(0.0, time.time() - self._job.launched_s()),
            )
            write_outcome(outcome, self._job.outcome)

    def _wait(self, timeout_s: float) -> None:
        """Wait until a signal comes, at most so long, and count requests to stop."""
        for number in self._signals.wait(timeout_s):
            if number == signal.SIGCHLD:
                continue
            self._num_stops += 1
            if self._num_stops == 1:
                self._stopped_by = number
                self._tell(StopAskedEvent(signal=number))
                for process in self._masters():
                    kill_quietly(process, number)

    def _masters(self) -> list[int]:
        """The master's process number, also of one that another supervisor started."""
        found = find_job_processes(self._job.path)
        return [process.pid for process in found if process.runs(self._module)]

    def _reap(self) -> None:
        """Collect dead children: the master and orphans that were adopted."""
        if self._master is not None:
            self._master.poll()
        while True:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if self._master is not None and pid == self._master.pid:
                # It died between the two calls: the exit code is lost, that it died is not.
                self._master.returncode = -1

    # ------------------------------------------------------------------ the end

    def _end(self) -> None:
        self._life.close()
        for template in self._templates or ():
            template.kill()
        if self._num_stops <= 1 and self._job.path.is_dir():
            self._wait_until_gone(self._module, END_GRACE_S)
            self._wait_until_gone("", LEAVE_GRACE_S)
        if self._num_stops > 1:
            self._write_stopped("stopped at once, on the second request")
        left = self._sweep()
        if left:
            _log.error("processes_left pids=%s", left)
        shutil.rmtree(self._job.run_dir, ignore_errors=True)
        deadline_s = time.monotonic() + SWEEP_S
        # The killed leave their groups a little after they are gone for everybody else.
        while not remove_job(self._job.job_id):
            if time.monotonic() > deadline_s:
                _log.warning("control_groups_left job=%s", self._job.job_id)
                return
            self._reap()
            self._wait(SWEEP_POLL_S)

    def _wait_until_gone(self, module: str, timeout_s: float) -> None:
        """Wait for the job's processes (of this module) to exit; a stop request ends it."""
        deadline_s = time.monotonic() + timeout_s
        stops = self._num_stops
        while time.monotonic() < deadline_s and stops == self._num_stops:
            self._reap()
            found = find_job_processes(self._job.path)
            if not any(not module or process.runs(module) for process in found):
                return
            self._wait(SWEEP_POLL_S)

    def _sweep(self) -> list[int]:
        """Kill everything of the job; the processes that would not go."""
        deadline_s = time.monotonic() + SWEEP_S
        while True:
            left = [process.pid for process in find_job_processes(self._job.path)]
            for pid in left:
                kill_quietly(pid)
            self._reap()
            if not left or time.monotonic() > deadline_s:
                return left
            self._wait(SWEEP_POLL_S)

    def _tell(self, event: Event) -> None:
        """Append to the job's events; one write of one line does not mix with the master's."""
        if self._job.path.is_dir():
            append_if_possible(self._job.events, event.at(time.time()).text())


def _how_ended(code: int) -> str:
    """Say how a process ended, by its return code as `subprocess` has it."""
    if code < 0 and -code in set(signal.Signals):
        return f"signal {signal.Signals(-code).name}"
    return f"exit code {code}"

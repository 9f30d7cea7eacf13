"""Acts: runs of the script, each a real job that something is done to, or the script alone.

An act has a stage, a `PACELINE_HOME` and a folder of notes of its own. `Theatre` runs one act after
the other, and leaves no process and no folder behind, however it ends.
"""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import inf
from pathlib import Path
from tempfile import mkdtemp
from threading import Event
from time import monotonic

import msgspec
from msgspec import Struct

from paceline.base.errors import PacelineError
from paceline.base.jobdir import JobDir
from paceline.base.processes import SAFE_PATH, find_job_processes, kill_quietly
from paceline.features.rehearse.plan import (
    NotesOfLife,
    RehearsalPlan,
    Strike,
    environment,
    read_notes,
)
from paceline.features.rehearse.stage import ActStage, set_stage
from paceline.jobs.launch import ask
from paceline.jobs.outcome import End, code_of
from paceline.wire.client import GetStatus, JobStatus, StopJob

POLL_S = 0.05
END_S = 8.0
"""Seconds that a job which is broken off may take to end on its own."""
STOP_S = 0.5
TAIL = 12
"""Lines of output that are kept of an act that failed."""


class Acting(Struct, frozen=True, kw_only=True):
    """One act, as it will be run."""

    name: str
    strike: Strike = Strike()
    does: str = ""
    """Order that the command carries out at the moment: ``kill-master``, ``stop``; empty: none."""
    flags: tuple[str, ...] = ()
    """Flags of ``paceline run``; without any the script runs alone."""
    on_servers: bool = False
    checks: bool = False


class PlayedAct(Struct, frozen=True, kw_only=True):
    """One act that was run."""

    name: str
    code: int | None
    """Exit code; None: it took too long, and was broken off."""
    seconds: float
    reached: bool
    """Whether the fault has struck."""
    tail: tuple[str, ...]
    """Last lines of output."""
    lives: tuple[NotesOfLife, ...]
    stage: ActStage
    home: Path

    @property
    def job(self) -> JobDir | None:
        """The job of the act; None: there was none."""
        found = sorted((self.home / "jobs").glob("*/job.json"))
        return JobDir(found[-1].parent) if found else None


class Theatre:
    """Runs acts.

    Args:
        script: as the user named it.
        args: of the script.
        batches: of each epoch.
        epochs: at most.
        until_s: when everything must be over, by the monotonic clock.
        tick: called again and again while an act runs.
    """

    def __init__(
        self,
        script: Path,
        args: Sequence[str],
        *,
        batches: int,
        epochs: int,
        until_s: float,
        tick: Callable[[], None],
    ) -> None:
        self._script, self._args = script, tuple(args)
        self._batches, self._epochs, self._until_s = batches, epochs, until_s
        self._tick = tick
        self.place = Path(mkdtemp(prefix="paceline-rehearsal-")).resolve()
        self._pause = Event()

    def close(self) -> None:
        """Remove all that the acts left."""
        shutil.rmtree(self.place, ignore_errors=True)

    @property
    def left_s(self) -> float:
        """Seconds until everything must be over."""
        return self._until_s - monotonic()

    def run(self, acting: Acting, folder: str = "", within_s: float = inf) -> PlayedAct:
        """Run one act to its end.

        Args:
            acting: the act.
            folder: sets acts of the same name apart.
            within_s: breaks an act off that takes longer.

        Raises:
            ConfigError: its stage cannot be set.
        """
        run, until_s = self.start(acting, folder), monotonic() + within_s
        try:
            while not run.is_over():
                self._tick()
                self._pause.wait(POLL_S)
                if self.left_s < 0 or monotonic() > until_s:
                    break
            return run.result()
        finally:
            run.close()

    def start(self, acting: Acting, folder: str = "") -> "ActRun":
        """Set the stage, and start the act."""
        place = self.place / folder / acting.name.replace(" ", "-").replace("'", "")
        notes = place / "notes"
        notes.mkdir(parents=True)
        stage = set_stage(self._script, place / "stage")
        plan = RehearsalPlan(
            root=str(stage.root),
            notes=str(notes),
            batches=self._batches,
            epochs=self._epochs,
            strike=acting.strike,
            on_servers=acting.on_servers,
            checks=acting.checks,
        )
        (place / "plan.json").write_bytes(msgspec.json.encode(plan))
        return ActRun(acting, plan, stage, place, self._args)


class ActRun:
    """One act while it runs."""

    def __init__(
        self, acting: Acting, plan: RehearsalPlan, stage: ActStage, place: Path, args: Sequence[str]
    ) -> None:
        self._acting, self._plan, self._stage, self._place = acting, plan, stage, place
        self._args, self._start_s = args, monotonic()
        self._home = place / "home"
        self._home.mkdir()
        self._has_acted = self._is_resumed = False
        self._code: int | None = None
        self._pause = Event()
        self._output = (place / "output").open("ab")
        self._process = self._start(self._command())

    def _command(self) -> list[str]:
        script = str(self._stage.script)
        if not self._acting.flags:
            module = "paceline.features.rehearse.process.alone"
            return [module, script, *self._args]
        given = ("--", *self._args) if self._args else ()
        return ["paceline", "run", script, *self._acting.flags, *given]

    def _start(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        own = {"PACELINE_HOME": str(self._home), "PACELINE_HISTORY": "off"}
        own["PACELINE_REPORT"] = "off"  # nobody reads it
        inherited = {name: value for name, value in os.environ.items() if name not in _NOT_PASSED}
        return subprocess.Popen(
            [sys.executable, *SAFE_PATH, "-m", *command],
            cwd=self._stage.root,
            env={**inherited, **own, **environment(self._place / "plan.json")},
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=self._output,
            start_new_session=True,
        )

    def is_over(self) -> bool:
        """Tell whether the act has come to its end; act on the job where it is time to."""
        if self._acting.does and not self._has_acted and self._plan.reached.exists():
            self._has_acted = True
            with suppress(PacelineError, OSError):
                self._act()
            self._plan.go_on.touch()
        if self._process.poll() is None:
            return False
        job = self.job
        is_stopped = self._process.returncode == code_of(End.STOPPED)
        if self._acting.does == "stop" and is_stopped and not self._is_resumed:
            assert job is not None
            self._is_resumed = True
            self._process = self._start(["paceline", "run", "--resume", job.job_id])
            return False
        self._code = self._process.returncode
        return True

    def _act(self) -> None:
        """Do to the job what the act is about; a worker waits meanwhile."""
        job = self.job
        assert job is not None
        if self._acting.does == "stop":
            ask(job, StopJob())
            self._pause.wait(STOP_S)  # so that the order reaches workers within a batch
            return
        status = ask(job, GetStatus())
        if isinstance(status, JobStatus) and status.master_pid:
            kill_quietly(status.master_pid)

    @property
    def job(self) -> JobDir | None:
        """The job of the act, as soon as there is one."""
        found = sorted((self._home / "jobs").glob("*/job.json"))
        return JobDir(found[-1].parent) if found else None

    def result(self) -> PlayedAct:
        """Outcome of the act."""
        self._output.flush()
        text = (self._place / "output").read_text(errors="replace")
        lines = [line for line in text.splitlines() if line.strip()]
        return PlayedAct(
            name=self._acting.name,
            code=self._code,
            seconds=monotonic() - self._start_s,
            reached=self._plan.reached.exists()
            and (self._acting.does != "stop" or self._is_resumed),
            tail=tuple(lines[-TAIL:]),
            lives=tuple(read_notes(Path(self._plan.notes))),
            stage=self._stage,
            home=self._home,
        )

    def close(self) -> None:
        """End all processes of the act that still run."""
        if self._process.poll() is None:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(END_S)
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._output.close()
        if (job := self.job) is not None:
            _clear(job)


_NOT_PASSED = ("PACELINE_NODE", "PACELINE_JOB_DIR", "PACELINE_CLUSTER")


def _clear(job: JobDir) -> None:
    """Kill what is left of a job, and remove its run directory."""
    until_s, pause = monotonic() + END_S, Event()
    # A job that has ended is cleared by its own supervisor.
    while job.outcome.exists() and find_job_processes(job.path) and monotonic() < until_s:
        pause.wait(POLL_S)
    while found := find_job_processes(job.path):
        for process in found:  # first stopped, so that none starts another meanwhile
            kill_quietly(process.pid, signal.SIGSTOP)
        for process in found:
            kill_quietly(process.pid)
        pause.wait(POLL_S)
    shutil.rmtree(job.run_dir, ignore_errors=True)

"""Starting a job: a job directory, the spec in it, a supervisor of its own session."""

import contextlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TypeVar

from msgspec import Raw, Struct

from paceline.base.disk import append_if_possible, describe
from paceline.base.errors import ConfigError, PacelineError, PermanentError, TransientError
from paceline.base.files import write_file
from paceline.base.jobdir import JobDir
from paceline.base.processes import (
    FoundProcess,
    find_job_processes,
    is_locked,
    start_detached,
    try_lock,
)
from paceline.jobs.ground import check_ground
from paceline.jobs.handed_on import check_not_gone_on
from paceline.jobs.history import read_events
from paceline.jobs.joining import script_digest
from paceline.jobs.outcome import make_room, read_outcome
from paceline.jobs.resize import Resize, write_resize
from paceline.jobs.resuming import alone, running_since
from paceline.jobs.sent import keep_sent
from paceline.jobs.surroundings import fixed
from paceline.wire import spec as specs
from paceline.wire.client import (
    Call,
    Done,
    FeatureCall,
    FeatureReply,
    GetObservation,
    GetStatus,
    Reply,
)
from paceline.wire.codec import decoder, encode
from paceline.wire.control import ControlClient
from paceline.wire.events.job import DiskHealsEvent, DiskRefusesEvent, ResumedEvent
from paceline.wire.spec import JobSpec

A = TypeVar("A")

SAY_S = 5.0
"""A supervisor and a master start in a second; on a loaded machine the starter says every so often
for what it waits."""
CLEAN_UP_S = 10.0
"""Seconds that the supervisor of a job that has ended has to leave."""
AS_BEFORE = Resize()
ANSWER_S = 5.0
"""Seconds for one answer of the master; the question is repeated as long as there is a
supervisor."""

RESTART_S = 20.0
"""Seconds that a master which is being restarted has to answer an order."""

_supervisors: list[subprocess.Popen[bytes]] = []
"""Supervisors that this process started, to be reaped; a Popen that is forgotten warns that its
process lives."""


def launch(spec: JobSpec, job: JobDir | None = None) -> JobDir:
    """Start a new job and return when its master answers.

    Args:
        spec: what it is.
        job: its directory, which is not there yet; None: one with a fresh name.

    Raises:
        ConfigError: this machine lacks what the job needs.
        PermanentError: it did not start.
    """
    check_ground(spec)
    job = job or JobDir.fresh(spec.name)
    _fill(job, fixed(spec))
    start_supervisor(job)
    return job


def _fill(job: JobDir, spec: JobSpec) -> None:
    try:
        job.fill()
        make_room(job.outcome)
        keep_sent(job)
        specs.save(spec, job.spec)
    except (ConfigError, OSError) as error:
        # Half a job would be listed, and found as the newest.
        shutil.rmtree(job.path, ignore_errors=True)
        if isinstance(error, ConfigError):
            raise
        shutil.rmtree(job.run_dir, ignore_errors=True)
        raise ConfigError(
            f"{describe(error, Path(error.filename or job.path))}; make room there, or set "
            "PACELINE_HOME to another folder"
        ) from error


def resume(job: JobDir, sizes: Resize = AS_BEFORE) -> None:
    """Go on with an ended or killed job from its newest verified cut.

    Args:
        job: the job.
        sizes: with how many nodes.

    Raises:
        ConfigError: the job is running, or being resumed by another command, or this machine lacks
            what it needs.
    """
    with alone(job):
        _resume_alone(job, sizes)


def _resume_alone(job: JobDir, sizes: Resize) -> None:
    check_not_gone_on(job)
    deadline_s = time.monotonic() + CLEAN_UP_S
    while is_supervised(job) and job.outcome.exists() and time.monotonic() < deadline_s:
        time.sleep(0.05)
    if is_supervised(job):
        raise _runs(job)
    spec = specs.load(job.spec)
    check_ground(spec)
    _reopen(job, sizes)
    if spec != (kept := fixed(spec)):  # started by an older paceline
        specs.save(kept, job.spec)
    start_supervisor(job)


def _reopen(job: JobDir, sizes: Resize) -> None:
    """Make an ended job one that can be started; its outcome stays if something is refused."""
    # Held meanwhile: another command that sees a run directory of a job that is over would start a
    # cleaner, which would remove that directory.
    lock = try_lock(job.supervisor_lock)
    if lock is None:
        raise _runs(job)
    try:
        make_room(job.outcome)
        job.make_run_dir()
        if not find_job_processes(job.path):
            # Else what lives, here or on other machines, would be cut off from what comes.
            if job.outcome.exists() or not specs.load(job.spec).spans_machines:
                job.renew_secret()
            job.resumed.touch()
        job.resize.unlink(missing_ok=True)
        if sizes != AS_BEFORE:
            write_resize(job.resize, sizes)
        job.outcome.unlink(missing_ok=True)
        append_if_possible(job.events, ResumedEvent(t=time.time()).text())
    finally:
        os.close(lock)


def _runs(job: JobDir) -> ConfigError:
    since = running_since(job)
    return ConfigError(f"job {job.job_id} is running{since}; follow it with `paceline attach`")


def start_supervisor(job: JobDir) -> None:
    """Start the supervisor and return when the master answers, or the job has ended already.

    As long as there is a supervisor the job may start: it is waited for, and so never told to have
    failed while it trains on. A signal to this process meanwhile ends the job.

    Raises:
        PermanentError: it died; names the log to read.
    """
    write_file(job.script_digest, script_digest(specs.load(job.spec)).encode())
    log = job.logs / "supervisor.log"
    supervisor = start_detached("paceline.supervisor", [str(job.path)], job.path, log)
    _supervisors[:] = [supervisor, *(one for one in _supervisors if one.poll() is None)]
    start_s, begun_s = time.monotonic(), time.time()
    said_s = start_s
    try:
        while not _answers(job):
            # Asked before the lock: a supervisor that is on its way holds none yet.
            died = supervisor.poll() is not None
            if job.outcome.exists():
                return
            if died and not is_supervised(job):
                master_log = job.logs / "master.log"
                raise PermanentError(f"the job did not start; see {log} and {master_log}")
            now_s = time.monotonic()
            if now_s - said_s >= SAY_S:
                said_s = now_s
                print(_waits_for(job, now_s - start_s, begun_s), file=sys.stderr, flush=True)
            time.sleep(0.02)
    except KeyboardInterrupt:
        supervisor.terminate()
        raise


def _waits_for(job: JobDir, since_s: float, begun_s: float) -> str:
    """Say for what the start that began at that Unix time has waited so long."""
    what = "its supervisor to start"
    if is_supervised(job):
        up = is_locked(job.master_lock)
        what = "its master to answer" if up else "its master to start"
    disks = (DiskRefusesEvent, DiskHealsEvent)
    events = [event for event in read_events(job.events) if event.t >= begun_s]
    told = [event for event in events if isinstance(event, disks)][-1:]
    why = "".join(f" ({event.clause})" for event in told if isinstance(event, DiskRefusesEvent))
    return f"job {job.job_id}: waiting for {what}{why}, {since_s:.0f} s so far; logs: {job.logs}"


def _answers(job: JobDir) -> bool:
    """Tell whether there is a master; the socket of one that is gone stays."""
    try:
        ask(job, GetStatus(), ANSWER_S)
    except (PacelineError, FileNotFoundError):
        return False
    return True


def is_supervised(job: JobDir) -> bool:
    """Tell whether the job's supervisor lives."""
    return is_locked(job.supervisor_lock)


def is_kept_up(job: JobDir) -> bool:
    """Tell whether there is a supervisor, or somebody who starts another when the job has none."""
    if is_supervised(job):
        return True
    return any(map(_keeps_up, find_job_processes(job.path)))


def _keeps_up(process: FoundProcess) -> bool:
    # A master that finds no supervisor at its end starts one; an agent does so within seconds.
    return any(process.runs(f"paceline.{name}") for name in ("supervisor", "master", "agent"))


def ask_running(job: JobDir, call: Call) -> Reply:
    """Ask the master of a job that must be running; one that is being restarted is waited for.

    An order is sent once, to a master that answers: what a lost answer leaves open is not repeated.

    Raises:
        ConfigError: it has ended, or is interrupted.
        TransientError: nobody answers, or the answer to an order was lost.
    """
    _await_answer(job)
    try:
        return ask(job, call)
    except TransientError as error:
        with contextlib.suppress(TransientError):
            _await_answer(job, meanwhile=True)  # it ends, or has another master soon
        if isinstance(call, GetStatus | GetObservation):
            return ask(job, call)
        raise TransientError(
            f"job {job.job_id}: its master did not answer ({error}), so it is not known whether it "
            "has the order; look at `paceline status` before you repeat it"
        ) from error


def _await_answer(job: JobDir, *, meanwhile: bool = False) -> None:
    """Wait until the master of a job answers; arguments and errors as for `check_runs`."""
    start_s = time.monotonic()
    while True:
        check_runs(job, meanwhile=meanwhile)
        if _answers(job):
            return
        waited_s = time.monotonic() - start_s
        if waited_s > RESTART_S:
            raise TransientError(
                f"job {job.job_id}: its master has not answered for {waited_s:.0f} s; it is being "
                f"restarted, or too busy: see {job.logs / 'master.log'}, and try again"
            )
        time.sleep(0.2)


def check_runs(job: JobDir, *, meanwhile: bool = False) -> None:
    """Check that a job has not ended, and that its processes live, or will come again.

    Args:
        job: the job.
        meanwhile: it ran when the command began.

    Raises:
        ConfigError: it has ended, or is interrupted.
    """
    outcome = read_outcome(job.outcome)
    if outcome is None and is_kept_up(job):
        return
    has = {"finished": "has finished", "failed": "has failed", "stopped": "was stopped"}
    word = has[outcome.state] if outcome else "was interrupted"
    what = "has ended meanwhile" if meanwhile else "does not run"
    remedy = f"`paceline status {job.job_id}` shows its end"
    if outcome is None or outcome.state != "finished":
        remedy = f"`paceline run --resume {job.job_id}` goes on with it"
    raise ConfigError(f"job {job.job_id} {what}: it {word}; {remedy}")


def ask(job: JobDir, call: Call, timeout_s: float = 5.0) -> Reply:
    """Ask the job's master.

    Raises:
        TransientError: nobody answers: it is being restarted, or the job has ended.
        PermanentError: another user or program is where the master was.
    """
    return ControlClient.to(job).call_sync(call, timeout_s)


def ask_feature(job: JobDir, feature: str, call: Struct, answer: type[A]) -> A:
    """Ask a feature's part in the job's master.

    Args:
        job: its directory.
        feature: name of the feature.
        call: for the part, which decodes it.
        answer: type of the answer, as msgspec takes it.

    Raises:
        ConfigError: the part refuses the call, or the feature has no part in the job.
        TransientError: nobody answers: the master is being restarted, or the job has ended.
    """
    reply = ask(job, FeatureCall(feature=feature, body=Raw(encode(call))))
    if not isinstance(reply, FeatureReply):
        raise ConfigError(reply.error if isinstance(reply, Done) else f"got {reply}")
    return decoder(answer)(reply.body)  # type: ignore[no-any-return]

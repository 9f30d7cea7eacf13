"""Jobs of a cluster as processes: started on the devices that were granted, watched, stopped."""

import shutil
from typing import NamedTuple

from msgspec.structs import replace

from paceline.base.errors import PacelineError, TransientError
from paceline.base.jobdir import JobDir
from paceline.features.cluster.policy.facts import ClusterJob, ShareKind
from paceline.jobs.launch import ask, is_kept_up, is_supervised, launch, resume
from paceline.jobs.outcome import ENDS, End, read_outcome
from paceline.wire.client import Call, Done
from paceline.wire.spec import JobSpec

DEVICES, KIND = "PACELINE_DEVICES", "PACELINE_SHARE"
"""Variables in the environment of a job's scripts: its devices, and how it was started."""


class JobLook(NamedTuple):
    """A job that was launched, as its folder shows it."""

    lives: bool
    """Whether its supervisor lives."""
    how: str = ""
    """End of the job, in words; empty: it has not ended."""
    finished: bool = False


def kind_of(spec: JobSpec, job: ClusterJob) -> ShareKind:
    """Return how a job runs that has its devices; a program has no gates, so nothing holds it."""
    is_held = job.kind == "opportunistic" and spec.run_as != "program"
    return "opportunistic" if is_held else "guaranteed"


def on_devices(spec: JobSpec, job: ClusterJob) -> JobSpec:
    """The spec of a job that has its devices: each worker shares one of them."""
    granted = {DEVICES: ",".join(job.devices), KIND: str(job.kind)}
    share = replace(spec.share, kind=kind_of(spec, job), devices=job.devices)
    return replace(spec, share=share, env={**spec.env, **granted})


def start_granted(folder: JobDir, spec: JobSpec, *, launched: bool) -> None:
    """Start a job that has devices, or go on with it: whatever a killed scheduler has left of it.

    A job that runs, or is over, stays as it is. The job's supervisor holds a lock. So a second one,
    started while the first is on its way, only leaves.

    Args:
        folder: of the job.
        spec: what it is.
        launched: whether it was started before; if its folder is gone, it is over.

    Raises:
        PacelineError: it did not start.
    """
    if not folder.spec.exists():
        if not launched:
            # Half a folder: the spec is written last, and nothing is started before.
            shutil.rmtree(folder.path, ignore_errors=True)
            launch(spec, folder)
    elif not folder.outcome.exists() and not is_kept_up(folder):
        try:
            resume(folder)
        except PacelineError:
            if not is_kept_up(folder):
                raise


def look(folder: JobDir) -> JobLook:
    """Look whether a job that was launched lives, and how it has ended.

    A job is over when its supervisor is gone, and with it all of its processes.
    """
    if not folder.path.is_dir():
        return JobLook(lives=False, how="its folder was removed")
    lives = is_supervised(folder)
    if lives or not folder.outcome.exists():
        return JobLook(lives=lives)
    try:
        outcome = read_outcome(folder.outcome)
    except PacelineError as error:
        return JobLook(lives=False, how=str(error))
    if outcome is None:  # resumed at this moment
        return JobLook(lives=True)
    how = f"{outcome.how}: {outcome.error}" if outcome.error else str(outcome.how)
    return JobLook(lives=False, how=how, finished=outcome.state == ENDS[End.FINISHED].state)


def tell_job(folder: JobDir, call: Call) -> None:
    """Have a job's master do something.

    Raises:
        PacelineError: nobody answers, or it cannot be done now.
        OSError: the master has no address yet.
    """
    reply = ask(folder, call)
    if isinstance(reply, Done) and reply.error:
        raise TransientError(reply.error)

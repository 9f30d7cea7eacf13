"""Jobs of a cluster as processes: started on the devices that were granted, watched, stopped."""

import shutil

from msgspec.structs import replace

from paceline.base.errors import PacelineError
from paceline.base.jobdir import JobDir
from paceline.jobs.launch import ask, is_kept_up, is_supervised, launch, resume
from paceline.jobs.outcome import ENDS, End, read_outcome
from paceline.policy.scheduling.facts import ClusterJob
from paceline.wire.client import StopJob
from paceline.wire.spec import JobSpec

DEVICES, KIND = "PACELINE_DEVICES", "PACELINE_SHARE"
"""What the scripts of a job find in their environment: its devices, and how it was started."""


def on_devices(spec: JobSpec, job: ClusterJob) -> JobSpec:
    """The spec of a job that has its devices."""
    granted = {DEVICES: ",".join(job.devices), KIND: str(job.kind)}
    return replace(spec, env={**spec.env, **granted})


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


def how_over(folder: JobDir) -> tuple[str, bool] | None:
    """How a job that was launched has ended, and whether it has finished; None: it has not.

    A job is over when its supervisor is gone, and with it all of its processes.
    """
    if not folder.path.is_dir():
        return "its folder was removed", False
    if not folder.outcome.exists() or is_supervised(folder):
        return None
    try:
        outcome = read_outcome(folder.outcome)
    except PacelineError as error:
        return str(error), False
    if outcome is None:  # resumed at this moment
        return None
    how = f"{outcome.how}: {outcome.error}" if outcome.error else str(outcome.how)
    return how, outcome.state == ENDS[End.FINISHED].state


def stop_running(folder: JobDir) -> None:
    """Ask a job's master to end the job.

    Raises:
        PacelineError: nobody answers now.
        OSError: it has no address yet.
    """
    ask(folder, StopJob())

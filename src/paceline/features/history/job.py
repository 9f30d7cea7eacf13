"""One finished job, as the history keeps it."""

import msgspec

from paceline.features.history.policy.features import JobFeatures
from paceline.jobs.outcome import End
from paceline.policy.job_size import JobSize
from paceline.policy.observation import RestartOutcome


class SizeChange(msgspec.Struct, frozen=True, kw_only=True):
    """The job had another size from a moment on."""

    since_launch_s: float
    size: JobSize
    reason: str
    """Why the size changed, in words; empty: not known."""


class PastJob(msgspec.Struct, frozen=True, kw_only=True):
    """What is worth knowing of a job that has ended."""

    job_id: str
    name: str
    backend: str
    end: End
    exit_code: int
    error: str = ""
    started_s: float
    """Unix time of its launch."""
    ended_s: float
    features: JobFeatures
    first: JobSize
    """Size with which the job was launched."""
    final: JobSize
    """Size of the job at its end."""
    sizes: tuple[SizeChange, ...] = ()
    """Changes of the size, from the first on."""
    samples: int = 0
    """Samples in the model at the job's end."""
    samples_per_s: float = 0.0
    """Mean over the training."""
    training_s: float = 0.0
    jct_s: float = 0.0
    relaunches: int = 0
    """Training processes that were started again."""
    restores: int = 0
    """Times that the model went back to a cut."""
    out_of_memory: int = 0
    """Lives that ended since their memory did."""
    restarts: tuple[RestartOutcome, ...] = ()
    """Outcome of each KILL_RESTART."""

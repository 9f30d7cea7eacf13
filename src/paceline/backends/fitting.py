"""The spec of a job with what its platform finds out where the job starts."""

import importlib

from paceline.jobs.surroundings import fixed
from paceline.wire.spec import JobSpec


def fitted(spec: JobSpec) -> JobSpec:
    """The spec with what its backend finds out on this machine, and what the run keeps of it.

    Raises:
        ConfigError: the platform is not there.
    """
    backend = importlib.import_module(f"paceline.backends.{spec.backend}.backend")
    found: JobSpec = backend.prepare(spec)
    return fixed(found)

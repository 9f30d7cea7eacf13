"""The spec of a job with what its platform finds out where the job starts."""

from paceline.base.backends import part_of
from paceline.jobs.surroundings import fixed
from paceline.wire.spec import JobSpec


def fitted(spec: JobSpec) -> JobSpec:
    """The spec with what its backend finds out on this machine, and what the run keeps of it.

    Raises:
        ConfigError: the platform is not there.
    """
    prepare = part_of(spec.backend, "prepared")
    found: JobSpec = spec if prepare is None else prepare(spec)
    return fixed(found)

"""The spec of a job with what is only known where it starts: of the platform, and of features."""

from paceline.backends.fitting import fitted
from paceline.base.features import parts_of, say_failed
from paceline.cli.resume_from_url import check_unused
from paceline.jobs.ground import note_on_memory
from paceline.wire.spec import JobSpec


def prepared(spec: JobSpec) -> tuple[JobSpec, list[str]]:
    """The spec of a job that is about to start.

    Returns:
        The spec, and what to say of it and of the machine.

    Raises:
        ConfigError: the platform is not there, the URL for cuts is in use, or a feature refuses.
    """
    if spec.checkpoint.url:
        check_unused(spec.checkpoint.url)
    spec = fitted(spec)
    notes = list(filter(None, [note_on_memory(spec)]))
    for _, prepare in parts_of("prepared", say_failed, spec):
        spec, more = prepare(spec)
        notes += more
    return spec, notes

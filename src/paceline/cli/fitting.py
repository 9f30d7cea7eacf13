"""The spec of a job with what is only known where it starts: the platform, and earlier jobs."""

from paceline.backends.fitting import fitted
from paceline.cli.resume_from_url import check_unused
from paceline.jobs.ground import note_on_memory
from paceline.jobs.past.place import note_on_history
from paceline.wire.spec import JobSpec


def prepared(spec: JobSpec) -> tuple[JobSpec, list[str]]:
    """The spec of a job that is about to start; one that finds its size begins with a known one.

    Returns:
        The spec, and what to say of its size and of the machine.

    Raises:
        ConfigError: the platform is not there, the URL for cuts is in use, or the history that the
            job names cannot be used.
    """
    if spec.checkpoint.url:
        check_unused(spec.checkpoint.url)
    spec = fitted(spec)
    notes = [note for note in (note_on_memory(spec), note_on_history(spec)) if note]
    if spec.resources.policy == "none":
        return spec, notes
    from paceline.jobs.past.beginning import warm_started

    spec, found = warm_started(spec)
    if found is None:
        return spec, notes
    like = ", ".join(one.job_id for one in found.similar[:3])
    return spec, [*notes, f"it begins with the size that jobs like it had: {like}"]

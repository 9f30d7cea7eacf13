"""What the history does for a job that is about to start: it may begin with a known size."""

from paceline.base.features import is_installed
from paceline.features.history.place import note_on_history
from paceline.wire.spec import JobSpec


def prepared(spec: JobSpec) -> tuple[JobSpec, list[str]]:
    """Give a job that finds its size that of jobs like it, and say where it comes from.

    Raises:
        ConfigError: the history that the job names cannot be used.
    """
    notes = list(filter(None, [note_on_history(spec)]))
    if spec.resources.policy == "none" or not is_installed("sizes"):
        return spec, notes  # without that feature the job is refused, with the remedy
    # Few jobs find their size, and what compares it imports slowly.
    from paceline.features.history.beginning import warm_started

    spec, found = warm_started(spec)
    if found is None:
        return spec, notes
    like = ", ".join(one.job_id for one in found.similar[:3])
    return spec, [*notes, f"it begins with the size that jobs like it had: {like}"]

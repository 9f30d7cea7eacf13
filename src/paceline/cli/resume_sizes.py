"""Sizes with which a job is resumed; what it cannot train with is refused before it starts."""

from collections.abc import Mapping

from paceline.base.errors import ConfigError, PacelineError
from paceline.base.jobdir import JobDir
from paceline.jobs.resize import Resize
from paceline.wire.messages.feeds import Feed
from paceline.wire.spec import MAX_NODES, JobSpec


def read_sizes(spec: JobSpec, flags: Mapping[str, str], job: JobDir | None = None) -> Resize:
    """Read with how many nodes a job should be resumed.

    Args:
        spec: of the job.
        flags: ``workers`` and ``servers``, as typed; what is missing stays as it was.
        job: its directory; None: it is not here so far.

    Raises:
        ConfigError: no numbers, or not of this job's strategy, or not of its batch.
    """
    if flags and not spec.traits.trains:
        raise ConfigError(
            f"--resume: workers of strategy {spec.strategy} stay as many as they were"
        )
    if "workers" in flags and spec.machines > 1:
        raise ConfigError(
            f"--resume: a job of {spec.machines} machines keeps its {spec.workers.count} workers; "
            "leave --workers out"
        )
    if "servers" in flags and not spec.traits.has_servers:
        raise ConfigError(f"--servers: a job of strategy {spec.strategy} has no servers")
    ranges = {"workers": (spec.min_workers, spec.most_workers), "servers": (1, MAX_NODES)}
    sizes = {}
    for name, text in flags.items():
        least, most = ranges[name]
        if not text.isdecimal() or not least <= int(text) <= most:
            expected = f"a number from {least} to {most}"
            raise ConfigError(f"--{name}: got {text!r}, expected {expected}")
        sizes[name] = int(text)
    if job is not None and "workers" in sizes and spec.traits.scales == "evenly":
        _check_batch(job, spec, sizes["workers"])
    return Resize(**sizes)


def _check_batch(job: JobDir, spec: JobSpec, workers: int) -> None:
    """Raise ConfigError if the workers cannot share the job's batch evenly."""
    feed = _trained_on(job)
    if feed is not None and feed.global_batch(workers) % workers:
        fitting = [n for n in range(1, feed.batch_size + 1) if feed.batch_size % n == 0]
        shown = ", ".join(map(str, fitting[:8])) + (", ..." if len(fitting) > 8 else "")
        raise ConfigError(
            f"--workers: got {workers}, expected a number that divides the batch of "
            f"{feed.batch_size} samples, as strategy {spec.strategy} needs it: {shown}"
        )


def _trained_on(job: JobDir) -> Feed | None:
    """Return what the job trained on last, as its journal says; None: it does not say."""
    from paceline.master.journal import Journal  # for few jobs, and it imports slowly
    from paceline.protocol.records import FeedAdded
    from paceline.protocol.snapshot import Snapshot

    found = None
    if not job.journal.exists():
        return None
    try:
        journal = Journal(job.journal)
        for record in journal.replay():
            if isinstance(record, Snapshot):
                feeds = record.feeds
            else:
                feeds = (record.feed,) if isinstance(record, FeedAdded) else ()
            found = next((one for one in reversed(feeds) if one.purpose == "train"), found)
        journal.close()
    except PacelineError:
        return None  # the master says it better
    return found

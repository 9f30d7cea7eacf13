"""What of a job that has ended goes into the history: pure, from its spec, end and events."""

import getpass
from collections.abc import Iterator, Sequence
from typing import assert_never

from msgspec.structs import replace

from paceline.base.jobdir import role_of
from paceline.features.history.job import PastJob, SizeChange
from paceline.features.history.policy.features import JobFeatures
from paceline.jobs.facts import trained_s
from paceline.jobs.history import MetricsPoint
from paceline.jobs.outcome import Outcome
from paceline.policy.job_size import JobSize, size_of
from paceline.policy.observation import RestartOutcome
from paceline.wire.events.base import Event
from paceline.wire.events.job import ScaledEvent
from paceline.wire.events.nodes import (
    NodeResizedEvent,
    ProcessExitedEvent,
    RelaunchEvent,
    RestartAllEvent,
    ServersChangedEvent,
    ServersNotChangedEvent,
    Verdict,
)
from paceline.wire.events.state import EpochEvent
from paceline.wire.spec import JobSpec


def past_job(
    job_id: str,
    spec: JobSpec,
    outcome: Outcome,
    *,
    launched_s: float,
    features: JobFeatures,
    events: Sequence[Event],
    points: Sequence[MetricsPoint],
    restarts: Sequence[RestartOutcome] = (),
) -> PastJob:
    """Put together what is kept of a job; ``restarts``: what each of them has achieved.

    ``spec``: as the job began with it, before its nodes got other limits.
    """
    first, training_s = size_of(spec), trained_s(events, points)
    sizes = tuple(size_changes(first, events, launched_s))
    return PastJob(
        job_id=job_id,
        name=spec.name,
        backend=spec.backend,
        end=outcome.how,
        exit_code=outcome.exit_code,
        error=outcome.error,
        started_s=launched_s,
        ended_s=launched_s + outcome.jct_s,
        features=features,
        first=first,
        final=sizes[-1].size if sizes else first,
        sizes=sizes,
        samples=outcome.committed,
        samples_per_s=outcome.committed / training_s if training_s > 0 else 0.0,
        training_s=training_s,
        jct_s=outcome.jct_s,
        relaunches=sum(isinstance(one, RelaunchEvent | RestartAllEvent) for one in events),
        restores=sum(isinstance(one, EpochEvent) and one.is_restore for one in events),
        out_of_memory=sum(
            isinstance(one, ProcessExitedEvent) and one.verdict is Verdict.OOM for one in events
        ),
        restarts=tuple(restarts),
    )


def submitted_features(spec: JobSpec) -> JobFeatures:
    """Return what is known of a job before it begins."""
    return JobFeatures(
        user=_user(),
        script=spec.script,
        arguments=" ".join(spec.args),
        strategy=spec.strategy,
        mode=spec.mode,
        batch_size=spec.batch_size,
    )


def _user() -> str | None:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # in a container users often have no names
        return None


SizeTakes = ScaledEvent | ServersChangedEvent | ServersNotChangedEvent | NodeResizedEvent


def size_changes(
    first: JobSize, events: Sequence[Event], launched_s: float
) -> Iterator[SizeChange]:
    """Yield each change of a job's size, from its events."""
    size = first
    for event in events:
        changed = _changed(size, event)
        if changed != size:
            size = changed
            since_s = max(0.0, event.t - launched_s)
            yield SizeChange(since_launch_s=since_s, size=size, reason=event.sentence())


def _changed(size: JobSize, event: Event) -> JobSize:
    """Return a size after an event; of nodes that differ the one that was changed last counts."""
    if not isinstance(event, SizeTakes):
        return size
    role = role_of(event.node)
    match event:
        case ScaledEvent(count=count):
            fields: dict[str, float] = {f"{event.role}s": count}
        case ServersChangedEvent(count=count) | ServersNotChangedEvent(count=count):
            fields = {"servers": count}
        case NodeResizedEvent():
            fields = {
                f"{role}_cpu": event.cores or 0.0,
                f"{role}_memory": event.memory_bytes or 0,
            }
        case _:
            assert_never(event)
    return replace(size, **fields)

"""The report for programs: ``paceline report --json``."""

from collections.abc import Mapping
from typing import Any

from msgspec import UNSET, Struct, UnsetType

from paceline.jobs.curves import last_of
from paceline.jobs.facts import Facts, Worker
from paceline.jobs.incidents import Incident
from paceline.jobs.listing import RUNNING, end_of
from paceline.jobs.sections import sections_of
from paceline.wire.client import LastLogged
from paceline.wire.events.state import CutValidEvent


class JobNumbers(Struct, frozen=True, kw_only=True):
    """One job in numbers. Its names are those of ``--json``: they stay."""

    job_id: str
    state: str
    """State as in ``paceline ps``, but ``running`` for a job that has not ended."""
    exit_code: int | None
    """None: the job has not ended."""
    error: str
    started_s: float
    """Unix time of its launch."""
    jct_s: float
    """Seconds from the job's launch to its end, or until now, interruptions included."""
    training_s: float
    """Seconds of ``jct_s`` in which the model was there and processes lived."""
    committed: int
    """Samples in the model."""
    total: int | None
    """Samples of all epochs; None: not known."""
    samples_per_s: float
    """Mean over the training."""
    relaunches: int
    restores: int
    """Times that the job went back to a cut."""
    valid_cuts: int
    stalled_s: float
    """Seconds, at most, in which faults kept new samples out of the model."""
    undone: int
    """Samples that left the model again, to be trained again."""
    incidents: tuple[Incident, ...]
    """What went wrong, and what was done; their times are Unix times."""
    workers: tuple[Worker, ...]
    logged: tuple[LastLogged, ...]
    """The newest value of each name that the script has logged."""
    sections: dict[str, Mapping[str, Any]] | UnsetType = UNSET
    """Numbers of the report's sections, by their names; left out if no section has any."""


def numbers(facts: Facts) -> JobNumbers:
    """The report of a job without its drawings."""
    outcome = facts.outcome
    told = {one.name: one.numbers for one in sections_of(facts) if one.numbers is not None}
    without_end = RUNNING if facts.runs else "interrupted"
    return JobNumbers(
        job_id=facts.job_id,
        state=end_of(outcome) if outcome else without_end,
        exit_code=outcome.exit_code if outcome else None,
        error=outcome.error if outcome else "",
        started_s=facts.started_s,
        jct_s=outcome.jct_s if outcome else facts.ended_s - facts.started_s,
        training_s=facts.training_s,
        committed=facts.committed,
        total=(outcome.total or None) if outcome else None,
        samples_per_s=facts.samples_per_s,
        relaunches=facts.num_relaunches,
        restores=facts.num_restores,
        valid_cuts=sum(isinstance(event, CutValidEvent) for event in facts.events),
        stalled_s=facts.stalled_s,
        undone=facts.undone,
        incidents=facts.incidents,
        workers=facts.workers,
        logged=tuple(last_of(name, found[-1]) for name, found in facts.curves.items() if found),
        sections=told or UNSET,
    )

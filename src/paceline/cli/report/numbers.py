"""The report for programs: ``paceline report --json``."""

from typing import NamedTuple

from msgspec import Struct

from paceline.cli.listing import RUNNING
from paceline.jobs.curves import last_of
from paceline.jobs.facts import Facts, Incident, Worker
from paceline.wire.client import LastLogged
from paceline.wire.events.state import CutValidEvent


class JobNumbers(Struct, frozen=True, kw_only=True):
    """One job in numbers. Its names are those of ``--json``: they stay."""

    job_id: str
    state: str
    """As in ``paceline ps``, but ``running`` for a job that has not ended."""
    exit_code: int | None
    """None: it has not ended."""
    error: str
    started_s: float
    """Unix time of its launch."""
    jct_s: float
    """From its launch to its end, or until now, interruptions included."""
    training_s: float
    """Of that, while the model was there and processes lived."""
    committed: int
    """Samples in the model."""
    total: int | None
    """Of all epochs; None: not known."""
    samples_per_s: float
    """Mean over the training."""
    relaunches: int
    restores: int
    """Times that the job went back to a cut."""
    valid_cuts: int
    incidents: tuple[Incident, ...]
    """What went wrong, and what was done; their times are Unix times."""
    workers: tuple[Worker, ...]
    logged: tuple[LastLogged, ...]
    """The newest value of each name that the script has logged."""


class _End(NamedTuple):
    state: str
    exit_code: int | None = None
    error: str = ""
    total: int | None = None
    jct_s: float | None = None


def numbers(facts: Facts) -> JobNumbers:
    """The report of a job without its drawings."""
    end = _end_of(facts)
    return JobNumbers(
        job_id=facts.job_id,
        state=end.state,
        exit_code=end.exit_code,
        error=end.error,
        started_s=facts.started_s,
        jct_s=end.jct_s or facts.ended_s - facts.started_s,
        training_s=facts.training_s,
        committed=facts.committed,
        total=end.total,
        samples_per_s=facts.samples_per_s,
        relaunches=facts.num_relaunches,
        restores=facts.num_restores,
        valid_cuts=sum(isinstance(event, CutValidEvent) for event in facts.events),
        incidents=facts.incidents,
        workers=facts.workers,
        logged=tuple(last_of(name, found[-1]) for name, found in facts.curves.items() if found),
    )


def _end_of(facts: Facts) -> _End:
    outcome = facts.outcome
    if outcome is None:
        return _End(RUNNING if facts.runs else "interrupted")
    state = str(outcome.how) if outcome.state == "finished" else outcome.state
    return _End(state, outcome.exit_code, outcome.error, outcome.total or None, outcome.jct_s)

"""``paceline why``: why a job is slow, waits, has its size, and ended, in three sentences."""

from msgspec import Struct
from rich.console import Console

from paceline.base.errors import ConfigError
from paceline.base.jobdir import JobDir
from paceline.jobs.facts import read_facts
from paceline.jobs.listing import current_status
from paceline.jobs.why import MOST, AskedWhy, Reason, reasons_of
from paceline.terminal.options import print_json


class ReasonRow(Struct, frozen=True, kw_only=True):
    """A sentence as JSON. Its names stay."""

    question: str
    """``ended``, ``waits``, ``slow``, ``wrong`` or ``size``."""
    sentence: str
    more: str
    """Command that tells the whole account; empty: there is no more."""
    is_found: bool
    """False: the sentence says that there is nothing to tell, or that nothing is known."""


class WhyAnswer(Struct, frozen=True, kw_only=True):
    """The answer as JSON. Its names stay."""

    job_id: str
    reasons: tuple[ReasonRow, ...]


def show_why(name: str | None, console: Console, *, as_json: bool = False) -> None:
    """Print the answer.

    Raises:
        ConfigError: there is no such job, started or queued.
    """
    job_id, found = _answers(name)
    if as_json:
        rows = (
            ReasonRow(
                question=one.question.name.lower(),
                sentence=one.sentence,
                more=one.more,
                is_found=one.is_found,
            )
            for one in found
        )
        print_json(WhyAnswer(job_id=job_id, reasons=tuple(rows)))
        return
    for reason in found[:MOST]:
        console.print(reason.sentence, highlight=False, markup=False, soft_wrap=True)
    commands = list(dict.fromkeys(f"`{one.more}`" for one in found[:MOST] if one.more))
    if commands:
        told = f"more: {', '.join(commands)}"
        console.print(told, style="dim", highlight=False, markup=False, soft_wrap=True)


def _answers(name: str | None) -> tuple[str, list[Reason]]:
    """Ask the job's folder and its master; of a job that is only queued, the features."""
    try:
        job = JobDir.find(name)
    except ConfigError:
        found = reasons_of(AskedWhy(name or "", None, None))
        if not found:
            raise
        return name or "", found
    facts = read_facts(job)
    status = current_status(job) if facts.runs else None
    return job.job_id, reasons_of(AskedWhy(job.job_id, facts, status))

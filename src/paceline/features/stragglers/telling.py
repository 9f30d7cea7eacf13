"""A job's decisions in words: for `paceline explain`, for its report, and for its replay."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path

from paceline.base.errors import ConfigError
from paceline.base.jobdir import JobDir
from paceline.features.stragglers.policy.decision_log import AnyLine, Begun, Decided, asked, log_of
from paceline.features.stragglers.policy.registry import SOLUTIONS
from paceline.features.stragglers.stories import (
    Story,
    name_of,
    none_written,
    num_decisions,
    read_log,
    stories,
)
from paceline.jobs.facts import Facts
from paceline.jobs.replayed import ReplayedLog, ToldLog
from paceline.jobs.sections import Section
from paceline.jobs.wording import clock, counted
from paceline.policy.decisions.past import Decider
from paceline.wire import spec as specs
from paceline.wire.strategies import those

PARTS = ("seen", "rule", "expected", "became", "outcome")
"""Parts of a story that have a line of their own."""
COLUMNS = ("at", "decided against stragglers", "why", "what came of it")

# --------------------------------------------------------------------------- explain


def explain(job: JobDir, tell: Callable[[Sequence[str | tuple[str, str]]], object]) -> None:
    """Tell what was decided about stragglers, action by action.

    Raises:
        ConfigError: the log of decisions is of another version.
    """
    log = log_of(job)
    if not log.exists():
        return
    lines, launched_s = read_log(log), job.launched_s()
    if not lines and not specs.load(job.spec).traits.trains:
        return  # a log of cures, of a release that wrote both to one file
    tell(_head(job, lines))
    for story in stories(lines):
        told = [(part, text) for part in PARTS if (text := getattr(story, part))]
        at = clock(story.t - launched_s)
        tell((f"{at:>7}  decision {story.no}: {story.what}", *told))


def _head(job: JobDir, lines: Sequence[AnyLine]) -> tuple[str, str]:
    """Say which solutions have decided, and how often."""
    names = list(dict.fromkeys(line.solution for line in lines if isinstance(line, Begun)))
    decided, acted = num_decisions(lines)
    name = ", then ".join(names) or "no solution"
    written = f"  {counted(decided, 'decision')} written"
    written += f", {acted or 'none'} with actions (of the others, one in a while is written)"
    return f"{job.job_id}: {name}", written


# --------------------------------------------------------------------------- report


def tell(facts: Facts, add: Callable[[Section], None]) -> None:
    """Add a section about decisions to a job's report."""
    told = stories_of(JobDir(Path(facts.path)))
    if told:
        rows = decision_rows(told, facts.started_s)
        add(Section("decisions", "Decisions", columns=COLUMNS, rows=rows))


def stories_of(job: JobDir) -> Sequence[Story]:
    """Return what was decided in a job, action by action; empty: it has no log, or no action.

    Raises:
        ConfigError: the log is of another version.
    """
    log = log_of(job)
    return _stories(log, log.stat().st_size) if log.exists() else ()


@lru_cache(maxsize=1)  # a page, and the paragraph on it, ask for the sections of one job
def _stories(log: Path, _num_bytes: int) -> list[Story]:
    return stories(read_log(log))


def decision_rows(told: Sequence[Story], started_s: float) -> list[tuple[str, ...]]:
    """Make a row for each action: when, what, why, what came of it."""
    return [
        (
            clock(story.t - started_s),
            story.what,
            "; ".join(filter(None, (story.seen, story.rule))),
            "; ".join(filter(None, (story.became, story.outcome))) or "-",
        )
        for story in told
    ]


# --------------------------------------------------------------------------- replay


def _read(file: Path) -> ToldLog[Decided] | None:
    lines = read_log(file)
    if not lines and file.stat().st_size:
        return None  # a log of cures, of a release that wrote both to one file
    return ToldLog(
        policies=SOLUTIONS,
        what="solution",
        unit="decision",
        name="the log",
        by=tuple(Decider(line.solution, line.args) for line in lines if isinstance(line, Begun)),
        log=tuple(asked(lines)),
        columns=("decision", "step"),
        cells=lambda line: (str(line.no), f"{line.observation.step:,}"),
        head=lambda line: f"decision {line.no}",
        words=lambda acts: "\n".join(f"{name_of(act)} ({act.reason})" for act in acts) or "-",
        does="acts",
    )


def _absent(job: JobDir) -> ConfigError:
    """Say why nothing was decided about a job."""
    spec = specs.load(job.spec)
    if spec.traits.uneven_shares:
        return ConfigError(
            f"job {job.job_id}: got strategy {spec.strategy}, {spec.traits.uneven_shares}, so that "
            f"nothing is decided; expected strategy {those(lambda row: not row.uneven_shares)}; "
            "start a job of such a strategy with a solution, e.g. --solution nd"
        )
    return none_written(log_of(job))


DECISIONS = ReplayedLog(
    file="decisions.jsonl", place=log_of, read=_read, policies=SOLUTIONS, absent=_absent
)

"""``cures.jsonl`` of a job: what the planner did about a slow script, told and made again.

Earlier releases wrote its lines to ``decisions.jsonl``; there they are still found.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from paceline.base.errors import ConfigError
from paceline.base.jobdir import JobDir
from paceline.features.failslow.policy.planned import CurePlanned
from paceline.jobs.history import Tail
from paceline.jobs.replayed import ReplayedLog, ToldLog
from paceline.jobs.wording import clock, milliseconds
from paceline.policy.cures import (
    AdviseCure,
    AnyCureAct,
    ApplyCure,
    Cure,
    PassCure,
    RevertCure,
)
from paceline.policy.decisions.past import Again
from paceline.policy.plugins import Plugins

CURES = {
    Cure.MICRO_BATCHES: "MICRO_BATCHES",
    Cure.TOPOLOGY: "TOPOLOGY",
    Cure.RESTART: "RESTART",
}
"""Names in the style of AntDT's actions; FALCON calls them S2, S3 and S4."""
BECOMES: dict[type[AnyCureAct], str] = {
    ApplyCure: "",
    AdviseCure: " is advised",
    PassCure: " would pay, but cannot be had",
    RevertCure: " is taken back",
}
"""Words for what the planner does with a cure."""

_decode = msgspec.json.Decoder(CurePlanned).decode


def log_of(job: JobDir) -> Path:
    """Return the path of a job's log."""
    return job.path / "cures.jsonl"


def _log_of_before(job: JobDir) -> Path:
    """Return the path of the log in which earlier releases wrote the planner's lines, too."""
    return job.path / "decisions.jsonl"


def read_cures(path: Path) -> list[CurePlanned]:
    """Read the lines of the planner in a log; those of others, and torn ones, are passed over.

    Raises:
        ConfigError: a line of the planner is of another version.
    """
    found = []
    for number, line in enumerate(Tail(path).lines(), 1):
        try:
            found.append(_decode(line))
        except msgspec.ValidationError as error:
            if b'"type":"CurePlanned"' in line:
                raise ConfigError(
                    f"{path}: not a log of cures of this version: line {number}: {error}"
                ) from error
        except msgspec.DecodeError:
            continue
    return found


def cures_of(job: JobDir) -> list[CurePlanned]:
    """Read what the planner did in a job, in earlier releases, too."""
    return [*read_cures(_log_of_before(job)), *read_cures(log_of(job))]


def name_of(act: AnyCureAct) -> str:
    """Name a cure, and what becomes of it."""
    return CURES[act.cure] + BECOMES[type(act)]


def seen_of(line: CurePlanned) -> str:
    """Say by how much a step was slower when the planner did something."""
    facts = line.facts
    return (
        f"a step took {milliseconds(facts.step_s)}, "
        f"{facts.step_s / facts.healthy_s:.2f} times the {milliseconds(facts.healthy_s)} before"
    )


def stories(
    lines: Sequence[CurePlanned], launched_s: float
) -> Iterator[tuple[str | tuple[str, str], ...]]:
    """Yield for each act what there is to tell: a heading, and parts with their names."""
    for line in lines:
        for act in line.acts:
            yield (
                f"{clock(line.t - launched_s):>7}  decision {line.no}: {name_of(act)}",
                ("seen", seen_of(line)),
                ("rule", f"planner: {act.reason}"),
            )


def _place(job: JobDir) -> Path:
    path = log_of(job)
    return path if path.exists() else _log_of_before(job)


def _read(path: Path) -> ToldLog[CurePlanned] | None:
    lines = read_cures(path)
    if not lines:
        return None
    return ToldLog(
        policies=Plugins[CurePlanned]("planner", "", CurePlanned, {}),
        what="planner",
        unit="decision",
        name="the log",
        by=(),
        log=(),
        own=tuple(Again(line, line.acts_now()) for line in lines),
        columns=(),
        cells=lambda _line: (),
        head=lambda line: f"decision {line.no}",
        words=lambda acts: "\n".join(f"{name_of(act)} ({act.reason})" for act in acts) or "-",
        does="acts",
    )


LOG = ReplayedLog(file="cures.jsonl", place=_place, read=_read, policies=None)

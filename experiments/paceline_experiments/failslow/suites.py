"""The suites: which jobs are drawn, from which seeds, and what is to be reached.

Reference: FALCON (arXiv:2410.12588), section 3 (how many jobs are slow), tables 4 and 5.
Differs: its probes are 10,000 steps long; these have 1,000.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from paceline_experiments.failslow.detectors import DETECTORS
from paceline_experiments.failslow.scores import SuiteRow, total
from paceline_experiments.failslow.steps import JobKind, draw_job
from paceline_experiments.outputs import goal_table

DEVELOPMENT, HELD_OUT = 0, 1000
"""First seeds: those that the detector was made with, and those that it is judged with."""
_DAY = 24 * 3600

_COMPUTE = JobKind("compute", noise=(0.005, 0.02), lasts=(100, 400), steps=1000)
_NETWORK = JobKind("communication", noise=(0.02, 0.05), lasts=(100, 400), steps=1000)
_EVEN = JobKind("even steps")
_KNOWN = JobKind("variable, amounts known", variation=(0.05, 0.4), amounts_known=True)
_UNKNOWN = JobKind("variable, amounts not known", variation=(0.05, 0.4))


class SuitePart(NamedTuple):
    """Part of a suite: so many jobs of one kind, some of them slow."""

    suite: str
    kind: JobKind
    jobs: int
    slow: int


SUITES: dict[str, tuple[SuitePart, ...]] = {
    "prevalence": (
        SuitePart("prevalence", _COMPUTE, 392, 6),
        SuitePart("prevalence", _NETWORK, 107, 43),
    ),
    "harder": tuple(SuitePart("harder", kind, 120, 40) for kind in (_EVEN, _KNOWN, _UNKNOWN)),
    "quiet": tuple(
        SuitePart("quiet", kind._replace(steps=_DAY), 1, 0) for kind in (_EVEN, _KNOWN, _UNKNOWN)
    ),
}
"""A quiet job has a step a second for 24 hours."""


def run_suite(name: str, seeds: range, *, quick: bool = False) -> Iterator[SuiteRow]:
    """Run one suite with all detectors; yield a row per kind and detector, then sums.

    Args:
        name: one of `SUITES`.
        seeds: each draws all jobs again.
        quick: a tenth of the jobs, or of the quiet jobs' steps.
    """
    rows: list[SuiteRow] = []
    for part in SUITES[name]:
        of_kind = _run_part(_tenth(part) if quick else part, seeds)
        rows += of_kind
        yield from of_kind
    for detector in DETECTORS:
        yield total([row for row in rows if row.detector == detector], "all")


def _run_part(part: SuitePart, seeds: range) -> list[SuiteRow]:
    rows = [SuiteRow(suite=part.suite, kind=part.kind.name, detector=one) for one in DETECTORS]
    for seed in seeds:
        for number in range(part.jobs):
            rng = np.random.default_rng([seed, number, len(part.kind.name), part.kind.steps])
            job = draw_job(part.kind, rng, slow=number < part.slow)
            for row in rows:
                row.add(job, DETECTORS[row.detector](job))
    return rows


def _tenth(part: SuitePart) -> SuitePart:
    if part.jobs == 1:
        return part._replace(kind=part.kind._replace(steps=part.kind.steps // 10))
    return part._replace(jobs=part.jobs // 10, slow=max(1, part.slow // 10))


def markdown_goals(rows: list[SuiteRow]) -> str:
    """Return what the detector is to reach, and whether it does."""
    ours = {(row.suite, row.kind): row for row in rows if row.detector == "paceline"}
    lines = list[tuple[str, str, bool]]()

    def line(goal: str, measured: str, reached: bool) -> None:
        lines.append((goal, measured, reached))

    if row := ours.get(("prevalence", "all")):
        line(
            "99 % of jobs right, at the paper's prevalence",
            f"{row.accuracy:.2%}",
            row.accuracy >= 0.99,
        )
    if row := ours.get(("harder", "all")):
        line("99.5 % of jobs right, harder suite", f"{row.accuracy:.2%}", row.accuracy >= 0.995)
        line("FPR at most 3 %", f"{row.fpr():.2%}", row.fpr() <= 0.03)
        line("FNR at most 8 % of events", f"{row.fnr():.2%}", row.fnr() <= 0.08)
        even = ours["harder", _EVEN.name]
        line(
            "delay at most 5 steps, even steps",
            f"{even.delay(0.5):g} (median)",
            even.delay(0.5) <= 5,
        )
    for (suite, kind), row in ours.items():
        if suite == "quiet" and kind != "all":
            line(
                f"at most 1 false alarm in 24 h, {kind}",
                str(row.false_alarms),
                row.false_alarms <= row.jobs,
            )
    return goal_table(lines)

"""Goals of the results, each with its bound, and whether they are met.

Pure functions of results; of a goal that a preset's rows say nothing about there is no line.
"""

import statistics
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from paceline_experiments.outputs import table
from paceline_experiments.stragglers import families, paper
from paceline_experiments.stragglers.best_other import best_others
from paceline_experiments.stragglers.pairs import pair
from paceline_experiments.stragglers.results import Results, mean_s
from paceline_experiments.stragglers.tables import published

STEADY, OVER_BSP, OVER_CLAIRVOYANT = 1.12, 2.0, 1.10
OFF_PAPER, OFF_DEDICATED = 0.15, 0.05
OVER_BEST, OVER_NONE = 1.02, 1.005
"""Bounds for `auto` on families of patterns: over the best other method, and over none where nobody
is slow."""
MILDEST, WORST = "0.1", "0.8"
"""Intensities."""
ROLES = ("worker", "server")


class Goal(NamedTuple):
    """Goal with one bound."""

    what: str
    measured: float
    bound: str
    met: bool


def at_most(what: str, measured: float, bound: float) -> Goal:
    """A goal of a ratio that is to be small."""
    return Goal(what, measured, f"at most {bound:.4g}", measured <= bound)


def at_least(what: str, measured: float, bound: float) -> Goal:
    """A goal of a ratio that is to be large."""
    return Goal(what, measured, f"at least {bound:.4g}", measured >= bound)


def within(what: str, measured: float, off: float) -> Goal:
    """A goal of a ratio that is to be 1."""
    low, high = 1.0 - off, 1.0 + off
    return Goal(what, measured, f"{low:.4g} to {high:.4g}", low <= measured <= high)


def markdown_goals(goals: Sequence[Goal]) -> str:
    """Format the goals as a table; empty: there are none."""
    if not goals:
        return ""
    rows = (
        (goal.what, f"{goal.measured:.3f}", goal.bound, "met" if goal.met else "**missed**")
        for goal in goals
    )
    missed = sum(not goal.met for goal in goals)
    text = f"{len(goals) - missed} of {len(goals)} met."
    head = ("goal", "measured", "bound", "")
    return f"## Goals\n\n{text}\n\n{table(head, rows)}\n"


def goals_of(results: Results) -> list[Goal]:
    """Return all goals that the rows allow."""
    return [
        *_as_published(results),
        *_by_intensity(results),
        *_by_row(results),
        *_margins(results),
        *_pairs(results),
        *_families(results),
    ]


def _table_3(results: Results) -> list[str]:
    """Scenarios of Table III, in BSP."""
    scenarios = dict.fromkeys(name for name, mode, _ in results.rows() if mode == "bsp")
    return [name for name in scenarios if name.partition(" ")[0] in ROLES]


def _jct_s(results: Results, scenario: str, mode: str, method: str) -> float | None:
    runs = results.of(scenario, mode, method)
    return mean_s(runs) if runs else None


def _as_published(results: Results) -> Iterable[Goal]:
    for scenario in _table_3(results):
        jct_s = _jct_s(results, scenario, "bsp", "BSP")
        theirs_s = published(results, scenario, "bsp", "BSP")
        if jct_s is not None and theirs_s is not None:
            yield within(f"{scenario}: BSP / the paper's BSP", jct_s / theirs_s, OFF_PAPER)


def _by_intensity(results: Results) -> Iterable[Goal]:
    for role in ROLES:
        mild_s = _jct_s(results, f"{role} {MILDEST}", "bsp", "auto")
        auto_s = _jct_s(results, f"{role} {WORST}", "bsp", "auto")
        bsp_s = _jct_s(results, f"{role} {WORST}", "bsp", "BSP")
        if auto_s is not None and mild_s is not None:
            yield at_most(f"auto: {role} {WORST} / {role} {MILDEST}", auto_s / mild_s, STEADY)
        if auto_s is not None and bsp_s is not None:
            yield at_least(f"{role} {WORST}: BSP / auto", bsp_s / auto_s, OVER_BSP)


def _by_row(results: Results) -> Iterable[Goal]:
    """Yield goals for the paper's jobs with stragglers, in every mode."""
    jobs = dict.fromkeys((name, mode) for name, mode, _ in results.rows())
    for scenario, mode in jobs:
        runs = results.of(scenario, mode, "auto")
        if not runs or scenario.partition(" ")[0] not in ROLES:
            continue
        job = scenario if mode == "bsp" else f"{scenario}, {mode}"
        if mode != "ssp":  # there the clairvoyant schedule takes no notice of the staleness
            over = statistics.mean(run.outcome.jct_s / run.clairvoyant_s for run in runs)
            yield at_most(f"{job}: auto / clairvoyant", over, OVER_CLAIRVOYANT)
        for method in ("ND", "ND, own windows"):
            nd_s = _jct_s(results, scenario, mode, method)
            if nd_s is not None:
                yield at_most(f"{job}: auto / {method}", mean_s(runs) / nd_s, 1.0)


def _margins(results: Results) -> Iterable[Goal]:
    """The paper's margins of ND, reached by `auto`; and of DD, by DD."""
    for scenario, mode, other in results.rows():
        other_s = _jct_s(results, scenario, mode, other) or 0.0
        auto_s = _jct_s(results, scenario, mode, "auto")
        times = paper.TIMES_ND.get((scenario, mode, other))
        if times is not None and auto_s is not None:
            yield at_least(
                f"{scenario}, {mode}: {other} / auto, as far as ND in the paper",
                other_s / auto_s,
                times,
            )
        dd_s = _jct_s(results, scenario, mode, "DD")
        times = paper.TIMES_DD.get((scenario, other))
        if times is not None and dd_s is not None:
            bound = times * (1.0 - OFF_DEDICATED)
            yield at_least(f"{scenario}: {other} / DD", other_s / dd_s, bound)


def _pairs(results: Results) -> Iterable[Goal]:
    """Yield a goal for each job, with the method that comes closest to `auto`."""
    rows = results.rows()
    for scenario, mode in dict.fromkeys(row[:2] for row in rows):
        highs = [
            (found.high, other)
            for at, of, other in rows
            if (at, of) == (scenario, mode) and other != "auto"
            if (found := pair(results, scenario, mode, other)) and found.below_1 is not None
        ]
        if highs:
            high, other = max(highs)
            what = f"{scenario}, {mode}: upper end of auto / other over all others ({other})"
            yield Goal(what, high, "below 1", high < 1.0)


def _families(results: Results) -> Iterable[Goal]:
    """Yield the goals of each family: `auto` is as good as the best there, or as nothing."""
    for one in best_others(results):
        family, job = families.family_of(one.scenario), f"{one.scenario}, {one.mode}"
        if family is None:
            continue
        yield at_most(f"{job}: auto / best other ({one.method})", one.over_best, OVER_BEST)
        if family in families.NOBODY_SLOW and one.over_none is not None:
            yield at_most(f"{job}: auto / none, nobody is slow", one.over_none, OVER_NONE)

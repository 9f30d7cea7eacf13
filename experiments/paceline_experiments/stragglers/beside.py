"""Real runs beside simulated ones, as Markdown."""

import statistics

from paceline.features.stragglers.policy.decision_log import describe_cost
from paceline_experiments.outputs import table
from paceline_experiments.stragglers.emulations import MOST_SHARE, Beside, Emulations
from paceline_experiments.stragglers.goals import Goal, at_least, within

OFF_REAL = 0.10
"""Largest relative difference of a real JCT from the simulated one."""

Row = tuple[str, str, str]
"""Scenario, mode and method."""


def markdown_beside(results: Emulations) -> str:
    """Write what the simulator makes of the same scenarios with measured messages and restarts."""
    if not results.beside:
        return ""
    rows = _rows(results)
    head = ("job", "method", "real (s)", "simulated (s)", "real / simulated", "rank", "refused")
    ranks = _ranks(rows)
    body = [
        (
            f"{scenario}, {mode}",
            method,
            f"{_mean(found, real=True):,.1f}",
            f"{_mean(found, real=False):,.1f}",
            f"{statistics.mean(each.ratio for each in found):.3f}",
            "{} / {}".format(*ranks[scenario, mode, method]),
            f"{sum(each.refused for each in found)}",
        )
        for (scenario, mode, method), found in rows.items()
    ]
    return "\n\n".join(["## Beside the simulator", *_costs(results), table(head, body)]) + "\n"


def goals_beside(results: Emulations) -> list[Goal]:
    """The simulator is to foresee the order of the methods, and how long each takes."""
    rows = _rows(results)
    ranks = _ranks(rows)
    goals = []
    for job in dict.fromkeys(row[:2] for row in rows):
        same = [real == simulated for row, (real, simulated) in ranks.items() if row[:2] == job]
        if len(same) > 1:
            what = f"{', '.join(job)}: methods in the same rank as simulated, share"
            goals.append(at_least(what, statistics.mean(same), 1.0))
    for (scenario, mode, method), found in rows.items():
        ratio = statistics.mean(each.ratio for each in found)
        goals.append(within(f"{scenario}, {mode}, {method}: real / simulated", ratio, OFF_REAL))
    return goals


def _rows(results: Emulations) -> dict[Row, list[Beside]]:
    rows: dict[Row, list[Beside]] = {}
    for each in results.beside:
        rows.setdefault((each.real.scenario, each.real.mode, each.real.method), []).append(each)
    return rows


def _mean(found: list[Beside], *, real: bool) -> float:
    runs = [each.real if real else each.simulated for each in found]
    return statistics.mean(run.outcome.jct_s for run in runs)


def _ranks(rows: dict[Row, list[Beside]]) -> dict[Row, tuple[int, int]]:
    """Real and simulated place of each method in its job."""
    found = {}
    for scenario, mode, method in rows:
        rivals = [row for row in rows if row[:2] == (scenario, mode)]
        real, simulated = (
            1 + sum(_mean(rows[other], real=real) < mine for other in rivals)
            for real in (True, False)
            for mine in (_mean(rows[scenario, mode, method], real=real),)
        )
        found[scenario, mode, method] = (real, simulated)
    return found


def _costs(results: Emulations) -> list[str]:
    """Write what was measured of this machine."""
    told = []
    for mode, found in results.calibrations.items():
        told.append(
            f"Messages take {1000 * found.message_s:.0f} ms, {found.share:.0%}, of an undisturbed "
            f"{mode} step of {1000 * found.step_s:.0f} ms"
            + ("." if found.share <= MOST_SHARE else ": too much, raise --time-scale.")
        )
    for role, cost in results.restarts.items():
        told.append(f"The restart of a {role}: {describe_cost(cost)}.")
    return told

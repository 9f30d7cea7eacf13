"""Real runs beside simulated ones, as Markdown."""

import statistics

from paceline.cli.stragglers.emulations import MOST_SHARE, Beside, Emulations
from paceline.cli.stragglers.tables import _table
from paceline.policy.straggler.decision_log import describe_cost


def markdown_beside(results: Emulations) -> str:
    """What the simulator makes of the same scenarios with measured messages and restarts."""
    if not results.beside:
        return ""
    rows: dict[tuple[str, str, str], list[Beside]] = {}
    for each in results.beside:
        rows.setdefault((each.real.scenario, each.real.mode, each.real.method), []).append(each)
    head = ("job", "method", "real (s)", "simulated (s)", "real / simulated", "rank", "refused")
    ranks = _ranks(rows)
    body = [
        (
            f"{scenario}, {mode}",
            method,
            f"{_mean(found, real=True):,.1f}",
            f"{_mean(found, real=False):,.1f}",
            f"{statistics.mean(each.ratio for each in found):.3f}",
            ranks[scenario, mode, method],
            f"{sum(each.refused for each in found)}",
        )
        for (scenario, mode, method), found in rows.items()
    ]
    return "\n\n".join(["## Beside the simulator", *_costs(results), _table(head, body)]) + "\n"


def _mean(found: list[Beside], *, real: bool) -> float:
    runs = [each.real if real else each.simulated for each in found]
    return statistics.mean(run.outcome.jct_s for run in runs)


def _ranks(rows: dict[tuple[str, str, str], list[Beside]]) -> dict[tuple[str, str, str], str]:
    """Real and simulated place of each method in its job."""
    told = {}
    for scenario, mode, method in rows:
        rivals = [row for row in rows if row[:2] == (scenario, mode)]
        places = [
            1 + sum(_mean(rows[other], real=real) < mine for other in rivals)
            for real in (True, False)
            for mine in (_mean(rows[scenario, mode, method], real=real),)
        ]
        told[scenario, mode, method] = f"{places[0]} / {places[1]}"
    return told


def _costs(results: Emulations) -> list[str]:
    """What was measured of this machine."""
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

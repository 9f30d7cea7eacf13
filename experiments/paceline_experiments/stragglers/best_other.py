"""`auto` beside the best of the other methods, and beside none, job by job."""

import statistics
from typing import NamedTuple

from paceline_experiments.outputs import table
from paceline_experiments.stragglers.pairs import ratios
from paceline_experiments.stragglers.results import Results
from paceline_experiments.stragglers.tables import PLAIN


class BestOther(NamedTuple):
    """Best other method for one job. Ratios are of JCTs, paired by seed, and means over seeds."""

    scenario: str
    mode: str
    method: str
    """The other method that `auto` compares worst with."""
    over_best: float
    worst: float
    """Largest ratio among the seeds, over the same method."""
    over_none: float | None
    """Ratio over the method that does nothing; None: it was not run."""


def best_others(results: Results) -> list[BestOther]:
    """Return the best other method of each job; the job where `auto` is worst comes first."""
    found = []
    for scenario, mode in dict.fromkeys(row[:2] for row in results.rows()):
        methods = [row[2] for row in results.rows() if row[:2] == (scenario, mode)]
        by_method = {
            method: list(pairs.values())
            for method in methods
            if method != "auto" and (pairs := ratios(results, scenario, mode, method))
        }
        if not by_method:
            continue
        best = max(by_method, key=lambda method: statistics.mean(by_method[method]))
        plain = by_method.get(PLAIN[mode])
        found.append(
            BestOther(
                scenario=scenario,
                mode=mode,
                method=best,
                over_best=statistics.mean(by_method[best]),
                worst=max(by_method[best]),
                over_none=statistics.mean(plain) if plain else None,
            )
        )
    return sorted(found, key=lambda one: one.over_best, reverse=True)


def markdown_best(results: Results) -> str:
    """Format a table; empty: there is nothing to compare."""
    rows = [
        (
            f"{one.scenario}, {one.mode}",
            one.method,
            f"{one.over_best:.3f}",
            f"{one.worst:.3f}",
            "" if one.over_none is None else f"{one.over_none:.3f}",
        )
        for one in best_others(results)
    ]
    if not rows:
        return ""
    head = ("job", "best other", "auto / best other", "worst seed", "auto / none")
    text = "Mean JCT ratios, paired by seed; the job where `auto` is worst comes first."
    return f"## auto and the best other method\n\n{text}\n\n{table(head, rows)}\n"

"""Results of experiments as Markdown, beside the numbers of the paper."""

import math
import statistics
from collections.abc import Callable, Sequence

from paceline_experiments.outputs import table
from paceline_experiments.stragglers import paper
from paceline_experiments.stragglers.experiments import FIRST_EVALUATION_SEED
from paceline_experiments.stragglers.pairs import ENOUGH_SEEDS, pair
from paceline_experiments.stragglers.results import CLOCKS, Results, Run, mean_s

OURS = ("auto", "ND", "ND, own windows", "DD")
"""Methods that the others are held against."""


def markdown(results: Results) -> str:
    """Write everything there is to say about some results."""
    parts = [
        f"# Stragglers: {results.preset}",
        f"**{CLOCKS[results.clock]}** paceline {results.version} ({results.commit}), "
        f"{results.started}; `{results.command}`.",
        _seeds(results),
        *results.notes,
        _jcts(results),
        _margins(results),
        _paired(results),
        _restarts(results),
        _management(results),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _seeds(results: Results) -> str:
    """Name the seeds that were run, and say whether anything was chosen on them."""
    seeds = {run.seed for run in results.runs}
    if not seeds:
        return ""
    first, last = min(seeds), max(seeds)
    which = f"Seed {first}" if first == last else f"Seeds {first} to {last}"
    if first >= FIRST_EVALUATION_SEED:
        return f"{which}: held out, nothing was chosen on them."
    part = "" if last < FIRST_EVALUATION_SEED else "in part "
    return (
        f"{which}: {part}development seeds (below {FIRST_EVALUATION_SEED}); for held-out ones give "
        f"`--seed {FIRST_EVALUATION_SEED}`."
    )


# ------------------------------------------------------------------------------ times


def _jcts(results: Results) -> str:
    head = (
        "job",
        "method",
        "JCT (s)",
        "±",
        "paper (s)",
        "off",
        "plain / this",
        "clairvoyant (s)",
        "JCT / clairvoyant",
        "worst",
        "restarts",
        "short steps",
    )
    return "## Job completion times\n\n" + table(head, (_row(results, *r) for r in results.rows()))


def _row(results: Results, scenario: str, mode: str, method: str) -> list[str]:
    runs = results.of(scenario, mode, method)
    jct_s = mean_s(runs)
    published_s = published(results, scenario, mode, method)
    plain_s = _plain_s(results, scenario, mode)
    over = [run.outcome.jct_s / run.clairvoyant_s for run in runs]
    return [
        f"{scenario}, {mode}",
        method,
        f"{jct_s:,.0f}",
        f"{statistics.stdev(run.outcome.jct_s for run in runs):,.0f}" if len(runs) > 1 else "",
        "" if published_s is None else f"{published_s:,.0f}",
        "" if published_s is None else f"{jct_s / published_s - 1:+.0%}",
        "" if plain_s is None else f"{plain_s / jct_s:.2f}",
        f"{statistics.mean(run.clairvoyant_s for run in runs):,.0f}",
        f"{statistics.mean(over):.3f}",
        f"{max(over):.3f}",
        f"{statistics.mean(run.outcome.restarts for run in runs):.3g}",
        f"{statistics.mean(run.outcome.short_steps for run in runs):,.0f}",
    ]


PLAIN = {"bsp": "BSP", "asp": "ASP-DDS", "ssp": "SSP", "allreduce": "DDP"}
"""Label of the method that does nothing about stragglers, by mode."""


def published(results: Results, scenario: str, mode: str, method: str) -> float | None:
    """The paper's JCT on the time scale of the results, s; None: there is none."""
    known_s = paper.JCT_S.get((scenario, method)) if mode in {"bsp", "allreduce"} else None
    if known_s is None or scenario not in results.scenarios:
        return None
    return known_s * results.scenarios[scenario].time_scale


def _plain_s(results: Results, scenario: str, mode: str) -> float | None:
    runs = results.of(scenario, mode, PLAIN[mode])
    return mean_s(runs) if runs else None


# ------------------------------------------------------------------------------ margins


def _margins(results: Results) -> str:
    """Write how much longer the others take than ours, and than the paper's did."""
    rows = []
    ours = [name for name in OURS if name in results.methods]
    for scenario, mode, other in results.rows():
        times = paper.TIMES_ND.get((scenario, mode, other)) or paper.TIMES_DD.get((scenario, other))
        if times is None:
            continue
        other_s = mean_s(results.of(scenario, mode, other))
        found = [results.of(scenario, mode, name) for name in ours]
        rows.append(
            [
                f"{scenario}, {mode}: {other}",
                *(f"{other_s / mean_s(runs):.2f}" if runs else "" for runs in found),
                f"{times:.2f}",
            ]
        )
    if not rows:
        return ""
    head = ("the other takes so many times as long as", *ours, "paper's")
    return "## Margins\n\n" + table(head, rows)


# ------------------------------------------------------------------------------ paired


def _paired(results: Results) -> str:
    """`auto` against each other method, over the same seeds."""
    rows = []
    for scenario, mode, other in results.rows():
        found = pair(results, scenario, mode, other)
        if other == "auto" or found is None:
            continue
        rows.append(
            [
                f"{scenario}, {mode}: {other}",
                f"{found.seeds}",
                f"{found.mean:.3f}",
                f"{found.low:.3f} to {found.high:.3f}",
                {True: "yes", False: "no", None: ""}[found.below_1],
            ]
        )
    if not rows:
        return ""
    head = ("auto against", "seeds", "mean JCT ratio", "95 % interval", "below 1")
    text = f"Intervals of the mean by Student's t; fewer than {ENOUGH_SEEDS} seeds decide nothing."
    return f"## auto, paired by seed\n\n{text}\n\n" + table(head, rows)


# ------------------------------------------------------------------------------ restarts


def _restarts(results: Results) -> str:
    """Write what the loss of a worker costs, beside the start of its node."""
    plain = {run.seed: run.outcome.jct_s for run in results.of("undisturbed", "bsp", "BSP")}
    rows = []
    for scenario, mode, method in results.rows():
        if not scenario.startswith("restart, ") or not plain:
            continue
        runs = results.of(scenario, mode, method)
        published_s = paper.RESTART_S.get(scenario)
        rows.append(
            [
                scenario.removeprefix("restart, "),
                _mean(runs, lambda run: run.outcome.jct_s - plain.get(run.seed, math.nan)),
                _mean(runs, lambda run: run.outcome.redone),
                "" if published_s is None else f"{published_s:,.0f}",
            ]
        )
    head = ("recovery by", "JCT over undisturbed (s)", "samples redone", "paper (s)")
    text = table(head, rows)
    return f"## Restart of a worker (Fig. 17)\n\n{text}" if text else ""


def _mean(runs: Sequence[Run], value: Callable[[Run], float]) -> str:
    return f"{statistics.mean(map(value, runs)):,.0f}"


# ------------------------------------------------------------------------------ management


def _management(results: Results) -> str:
    """Write what was asked of ledger, controller and workers, and with measured costs its time."""
    rows = []
    for scenario, mode, method in results.rows():
        if " + " not in scenario:
            continue
        runs = results.of(scenario, mode, method)
        row = [
            f"{scenario}, {mode}",
            method,
            f"{statistics.mean(r.outcome.ledger_calls / r.outcome.steps for r in runs):.1f}",
            _mean(runs, lambda run: run.outcome.decisions),
            _mean(runs, lambda run: len(run.outcome.acted)),
        ]
        if results.call_costs is not None:
            row += [f"{part:.3%}" for part in results.call_costs.mean_share(runs)]
        rows.append(row)
    head = ["workers + servers", "method", "ledger calls per step", "decisions", "actions"]
    note = ""
    if results.call_costs is not None:
        head += ["ledger, estimate", "actions, estimate"]
        note = (
            "Estimates are counts times the costs given, of the JCT, if nothing overlapped; the "
            "paper's total is 0.44 to 0.46 %.\n\n"
        )
    text = table(head, rows)
    return f"## Management (Fig. 18)\n\n{note}{text}" if text else ""

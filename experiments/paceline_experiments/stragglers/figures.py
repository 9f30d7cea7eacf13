"""Results of experiments as the paper's figures; each says on which clock they were measured."""

import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib.figure import Figure

from paceline_experiments.sim.outcome import Sight
from paceline_experiments.sim.scenarios import Scenario
from paceline_experiments.stragglers.pairs import Pair, pair
from paceline_experiments.stragglers.results import CLOCKS, Results, Run, mean_s
from paceline_experiments.stragglers.tables import published

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WORKERS_COLOUR, SERVERS_COLOUR, PAPER_COLOUR = "#333333", "#c0504d", "#9bb7d4"
COLOURS = ("#3b82c4", "#d9822b", "#3a9d5d", "#b565b0", "#c0504d", "#2aa5a0", "#98904a", "#5b5b5b")
STYLE: Any = {  # its key type is a list of 200 literals
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.3,
    "legend.frameon": False,
}
SHOWN_WORKERS = 6
"""Lines that can still be told apart."""


def draw(results: Results, directory: Path) -> list[Path]:
    """Draw what the results have the data for; returns the files."""
    directory.mkdir(parents=True, exist_ok=True)
    drawn = []
    with mpl.rc_context(STYLE):
        for name, figure in _figures(results):
            path = directory / f"{name}.png"
            caption = CLOCKS[results.clock]
            figure.supxlabel(caption, x=0.01, ha="left", fontsize=7, color="#777777")
            figure.savefig(path, dpi=130)
            drawn.append(path)
    return drawn


def _figures(results: Results) -> list[tuple[str, Figure]]:
    found = [
        ("fig07_bpt_by_batch_size", _batch_cost(results)),
        ("fig10_jct_bsp", _jct_bars(results, "bsp")),
        ("fig11_jct_asp", _jct_bars(results, "asp")),
        ("fig12_batch_sizes", _over_time(results, "worker 0.8", "batch_size", "batch size")),
        ("fig13_bpt_of_workers", _over_time(results, "worker 0.8", "compute_s", "T^w (s)")),
        ("fig14_slow_server", _slow_server(results)),
        ("fig15_dedicated", _dedicated(results)),
        ("fig16_shares_by_speed", _shares(results)),
        ("fig17_restart", _restarts(results)),
        ("fig18_management", _management(results)),
        ("table3", _intensities(results)),
        ("auto_and_others", _pairs(results)),
    ]
    return [(name, figure) for name, figure in found if figure is not None]


def _figure(title: str, x: str, y: str) -> "tuple[Figure, Axes]":
    figure = Figure(figsize=(7.5, 4.0), layout="constrained")
    axes = figure.subplots()
    axes.set_title(title, fontsize=10)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    return figure, axes


# ------------------------------------------------------------------------------ bars


def _jct_bars(results: Results, mode: str) -> Figure | None:
    """Figures 10 and 11: methods, with worker and with server stragglers."""
    methods = _methods(results, ("worker 0.8", "server 0.8"), mode)
    if not methods:
        return None
    number = {"bsp": 10, "asp": 11}[mode]
    shown: list[list[Run]] = []
    figure, axes = _figure(f"Fig. {number}: JCT in {mode.upper()}, intensity 0.8", "", "JCT (s)")
    for offset, scenario, colour in (
        (-0.2, "worker 0.8", WORKERS_COLOUR),
        (0.2, "server 0.8", SERVERS_COLOUR),
    ):
        runs = [results.of(scenario, mode, method) for method in methods]
        _bars(axes, offset, runs, colour, scenario.split()[0])
        shown += runs
        for x, method in enumerate(methods):
            published_s = published(results, scenario, mode, method)
            if published_s is not None:
                _mark(axes, x + offset, published_s)
    if mode == "asp":
        axes.set_yscale("log")
        lowest_s = min(mean_s(runs) for runs in shown if runs)
        axes.set_ylim(bottom=10.0 ** math.floor(math.log10(lowest_s)))
    axes.set_xticks(range(len(methods)), methods, rotation=20)
    _legend(axes, marked=mode == "bsp")
    return figure


def _pairs(results: Results) -> Figure | None:
    """JCT of `auto` over that of each other method on the same seeds, with its interval."""
    found: dict[str, dict[str, Pair]] = {}
    for scenario, mode, method in results.rows():
        one = pair(results, scenario, mode, method) if method != "auto" else None
        if one is not None:
            found.setdefault(f"{scenario}, {mode}", {})[method] = one
    if not found:
        return None
    methods = list(dict.fromkeys(method for pairs in found.values() for method in pairs))
    figure, axes = _figure("auto and others: JCT on the same seeds, 95 %", "auto / other", "")
    axes.axvline(1.0, color=WORKERS_COLOUR, linewidth=1)
    for number, method in enumerate(methods):
        place = 0.7 * ((number + 0.5) / len(methods) - 0.5)
        rows = [(y, pairs[method]) for y, pairs in enumerate(found.values()) if method in pairs]
        axes.errorbar(
            [one.mean for _, one in rows],
            [y + place for y, _ in rows],
            xerr=[one.mean - one.low for _, one in rows],
            fmt="o",
            markersize=4,
            color=COLOURS[number % len(COLOURS)],
            label=method,
        )
    axes.set_yticks(range(len(found)), list(found))
    axes.invert_yaxis()
    figure.legend(loc="outside right center", fontsize=8)
    return figure


def _bars(axes: "Axes", offset: float, rows: Sequence[list[Run]], colour: str, label: str) -> None:
    heights = [mean_s(runs) if runs else 0.0 for runs in rows]
    spread = [
        statistics.stdev(run.outcome.jct_s for run in runs) if len(runs) > 1 else 0.0
        for runs in rows
    ]
    places = [x + offset for x in range(len(rows))]
    axes.bar(places, heights, 0.38, color=colour, label=f"{label} stragglers", yerr=spread)


def _mark(axes: "Axes", x: float, value: float) -> None:
    axes.plot([x - 0.19, x + 0.19], [value, value], color=PAPER_COLOUR, linewidth=3)


def _legend(axes: "Axes", *, marked: bool) -> None:
    if marked:
        axes.plot([], [], color=PAPER_COLOUR, linewidth=3, label="paper")
    axes.legend(fontsize=8)


def _methods(results: Results, scenarios: Sequence[str], mode: str) -> list[str]:
    rows = results.rows()
    return list(dict.fromkeys(m for s, at, m in rows if at == mode and s in scenarios))


def _dedicated(results: Results) -> Figure | None:
    methods = _methods(results, ("ResNet-101",), "allreduce")
    if not methods:
        return None
    title = "Fig. 15: ResNet-101 on four V100 and four P100"
    figure, axes = _figure(title, "", "JCT (s)")
    rows = [results.of("ResNet-101", "allreduce", method) for method in methods]
    axes.bar(range(len(methods)), [mean_s(runs) for runs in rows], 0.6, color=COLOURS[0])
    for x, method in enumerate(methods):
        published_s = published(results, "ResNet-101", "allreduce", method)
        if published_s is not None:
            _mark(axes, x, published_s)
    axes.set_xticks(range(len(methods)), methods)
    _legend(axes, marked=True)
    return figure


def _restarts(results: Results) -> Figure | None:
    plain = {run.seed: run.outcome.jct_s for run in results.of("undisturbed", "bsp", "BSP")}
    scenarios = [s for s, _, _ in results.rows() if s.startswith("restart, ")]
    if not plain or not scenarios:
        return None
    title = "Fig. 17: what the loss of a worker costs"
    figure, axes = _figure(title, "recovery by the ledger, or by checkpoints every …", "s")
    costs_s = [
        statistics.mean(run.outcome.jct_s - plain[run.seed] for run in results.of(s, "bsp", "BSP"))
        for s in scenarios
    ]
    names = [scenario.removeprefix("restart, ") for scenario in scenarios]
    axes.bar(names, costs_s, 0.6, color=COLOURS[0])
    return figure


# ------------------------------------------------------------------------------ lines


def _intensities(results: Results) -> Figure | None:
    """Table III as lines."""
    points = {
        (role, method): [
            (float(scenario.split()[1]), mean_s(results.of(scenario, mode, method)))
            for scenario, mode, name in results.rows()
            if name == method and mode == "bsp" and scenario.startswith(f"{role} ")
        ]
        for role in ("worker", "server")
        for method in ("BSP", "ND", "auto")
    }
    if max((len(line) for line in points.values()), default=0) < 2:
        return None
    figure, axes = _figure("Table III: JCT by straggler intensity", "intensity", "JCT (s)")
    for number, ((role, method), line) in enumerate(points.items()):
        if not line:
            continue
        axes.plot(*zip(*line, strict=True), "o-", color=COLOURS[number], label=f"{role}, {method}")
        theirs = [
            (si, published_s)
            for si, _ in line
            if (published_s := published(results, f"{role} {si:g}", "bsp", method)) is not None
        ]
        if theirs:
            axes.plot(*zip(*theirs, strict=True), ":", color=COLOURS[number], alpha=0.7)
    axes.plot([], [], ":", color="#777777", label="paper")
    axes.legend(fontsize=8)
    return figure


def _batch_cost(results: Results) -> Figure | None:
    """Figure 7: what the scenarios take a batch to cost; given, not measured."""
    scenario = results.scenarios.get("worker 0.8")
    if scenario is None:
        return None
    figure, axes = _figure("Fig. 7: BPT by batch size, as assumed", "batch size", "T^w (s)")
    sizes = list(range(0, 2 * scenario.local_batch, 256))
    axes.plot(sizes, [float(scenario.compute.batch_s(size)) for size in sizes], color=COLOURS[0])
    return figure


def _trail(results: Results, scenario: str, mode: str, method: str) -> tuple[Sight, ...]:
    trails = [run.outcome.trail for run in results.of(scenario, mode, method)]
    return next((trail for trail in trails if trail), ())


def _over_time(results: Results, scenario: str, field: str, label: str) -> Figure | None:
    """Figures 12 and 13: what the workers reported under the paper's solution."""
    trail = _trail(results, scenario, "bsp", "ND")
    if not trail:
        return None
    figure, axes = _figure(f"{label} under ND, {scenario}", "s since the start", label)
    names = sorted({sight.node for sight in trail if sight.node.startswith("worker")}, key=_row)
    for name, colour in zip(names[:SHOWN_WORKERS], COLOURS, strict=False):
        mine = [sight for sight in trail if sight.node == name]
        values = [getattr(sight, field) for sight in mine]
        axes.plot([sight.at_s for sight in mine], values, color=colour, label=name, linewidth=1)
    axes.legend(fontsize=8)
    return figure


def _row(name: str) -> int:
    return int(name.rpartition("-")[2])


def _slow_server(results: Results) -> Figure | None:
    """Figure 14: the slow server's time, and the job's throughput, under the paper's solution."""
    trail = _trail(results, "server 0.8", "bsp", "ND")
    scenario = results.scenarios.get("server 0.8")
    if not trail or scenario is None:
        return None
    figure, axes = _figure("Fig. 14: ND, server 0.8", "s since the start", "T^s per step (s)")
    slow = _slow_node(scenario)
    mine = [sight for sight in trail if sight.node == slow]
    axes.plot([s.at_s for s in mine], [s.server_s for s in mine], color=COLOURS[0], label=slow)
    right = axes.twinx()
    right.set_ylabel("samples/s")
    first = [sight for sight in trail if sight.node == "worker-0"]
    right.plot(
        [sight.at_s for sight in first],
        # All have the same share; the last step of an epoch is a smaller one.
        [scenario.workers * sight.batch_size / sight.bpt_s for sight in first],
        color=COLOURS[1],
        label="throughput",
        linewidth=1,
    )
    for side in (axes, right):
        side.set_ylim(bottom=0.0)
    figure.legend(loc="outside upper right", fontsize=8)
    return figure


def _slow_node(scenario: Scenario) -> str:
    nodes = [getattr(pattern, "nodes", ()) for pattern in scenario.patterns]
    return next((f"server-{each[0]}" for each in nodes if each), "server-0")


def _shares(results: Results) -> Figure | None:
    """Figure 16: samples of each worker against its speed, when leases are drawn on demand."""
    trail = _trail(results, "worker 0.8", "asp", "ASP-DDS")
    runs = results.of("worker 0.8", "asp", "ASP-DDS")
    if not trail:
        return None
    title = "Fig. 16: samples by throughput, ASP-DDS"
    figure, axes = _figure(title, "mean throughput (samples/s)", "samples")
    for name, samples in runs[0].outcome.shares.items():
        mine = [sight for sight in trail if sight.node == name]
        busy_s = sum(sight.steps * sight.compute_s for sight in mine)
        done = sum(sight.steps * sight.batch_size for sight in mine)
        axes.plot(done / busy_s, samples, "o", color=COLOURS[0])
    return figure


def _management(results: Results) -> Figure | None:
    """Figure 18: what managing a job takes of its time, from costs measured on real jobs."""
    costs = results.call_costs
    rows = [row for row in results.rows() if " + " in row[0]]
    if costs is None or not rows:
        return None
    title = "Fig. 18: management, an estimate from measured costs"
    figure, axes = _figure(title, "workers + servers", "% of the JCT")
    labels = [f"{scenario}\n{method}" for scenario, _, method in rows]
    shares = [costs.mean_share(results.of(*row)) for row in rows]
    ledger, actions = ([100.0 * share for share in part] for part in zip(*shares, strict=True))
    axes.bar(labels, ledger, color=COLOURS[0], label="ledger")
    axes.bar(labels, actions, bottom=ledger, color=COLOURS[1], label="actions")
    axes.axhline(0.45, color=PAPER_COLOUR, linestyle="--", label="paper: 0.44 to 0.46")
    axes.legend(fontsize=8)
    axes.tick_params(axis="x", labelsize=7)
    return figure

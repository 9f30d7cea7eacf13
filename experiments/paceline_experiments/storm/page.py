"""The page of a storm: a table of what each kind of fault cost, and a picture."""

import io
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure

from paceline_experiments.outputs import circumstances, table
from paceline_experiments.storm.account import Account, Done
from paceline_experiments.storm.faults import KINDS

SMOOTH_S = 6.0
"""Seconds over which the picture's curve of throughput is averaged."""
DRAWN_S = 2.0
"""Seconds between two points of the picture: all of half an hour would be a file of megabytes."""


def write_page(
    found: Account,
    diary: Sequence[Done],
    figures: Mapping[str, Any],
    sizes: Mapping[str, Any],
    folder: Path | None,
) -> str:
    """Return the page as Markdown; with a folder, write it and its picture there, too."""
    said = circumstances()
    lines = [
        "# A storm",
        "",
        f"{sizes['per_machine'] * sizes['num_machines']} members train with all-reduce on "
        f"{sizes['num_machines']} machines, and every {sizes['every_s']:g} s something happens to "
        f"them, for {sizes['minutes']:g} minutes. Machines are namespaces of one Linux kernel, "
        "each with a network, a host name and a home of its own. Steps wait as for an "
        "accelerator: a sample costs a sleep, and a step of all members "
        f"{sizes['step_s']:g} s. They share the processors, so what starts on a "
        "machine yields to what trains on the others. Clocks are set by a library that processes "
        "load; all other faults are real.",
        "",
        f"**{100 * figures['share']:.1f} %** of the samples that the capacity present would have "
        f"trained are in the model; the floor is 98.5 %. {figures['steps']} steps, "
        f"{figures['faults']} faults, {figures['present']:.1f} members present in the mean. "
        f"{figures['wrong_counts']} samples have a wrong count. The model differs from that of one "
        f"undisturbed worker by {figures['furthest']:.1g} at most"
        + (", and not in a single bit." if figures["equal_bits"] else "."),
        "",
        "![Members present, members' worth of samples trained, and faults](figures/storm.svg)",
        "",
        table(HEAD, _rows(found, diary)),
        "",
        "*Lost* are seconds of all members present, from a fault to the next one. What they would "
        "train follows from the waits of a step, which they divide, and the processors' work for "
        "its sums, by the calm before the storm. *Pause*: the longest time between two "
        "steps, which includes a step. A worker is present from when its script is ready until it "
        "dies; while it is frozen, cut off or slow it counts as much less.",
        "",
        f"Commit {said['commit']}: `python -m paceline_experiments.storm --seed {sizes['seed']} "
        f"--minutes {sizes['minutes']:g}`, on {os.cpu_count()} cores. `make storm`: 30 minutes.",
        "",
    ]
    text = "\n".join(lines)
    if folder is not None:
        (folder / "figures").mkdir(parents=True, exist_ok=True)
        (folder / "storm.md").write_text(text)
        drawn = io.StringIO()
        with rc_context({"svg.fonttype": "none"}):  # letters as such, not as paths
            draw(found, diary).savefig(drawn, format="svg")
        picture = re.sub(r"(\d+\.\d)\d{2,}", r"\1", drawn.getvalue())  # to a tenth of a point
        (folder / "figures/storm.svg").write_text(picture)
    return text


HEAD = ("kind", "what happens", "times", "lost, median s", "lost, mean s", "pause, median s")


def _rows(found: Account, diary: Sequence[Done]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for kind, about in KINDS.items():
        places = [place for place, one in enumerate(diary) if one.kind == kind]
        if not places:
            continue
        costs = [found.costs[place] for place in places]
        pauses = [found.pauses[place] for place in places]
        said = (f"{median(costs):.2f}", f"{mean(costs):.2f}", f"{median(pauses):.2f}")
        rows.append((kind, about, str(len(places)), *said))
    return rows


def draw(found: Account, diary: Sequence[Done]) -> Figure:
    """Draw the capacity present, and what of it was trained, with a mark for each fault."""
    figure = Figure(figsize=(11, 3.8), layout="constrained")
    axes = figure.subplots()
    per_tick = found.times[1] - found.times[0]
    window = np.ones(max(1, int(SMOOTH_S / per_tick)))
    smooth = np.convolve(found.trained, window / len(window), mode="same")
    drawn = slice(None, None, max(1, int(DRAWN_S / per_tick)))
    minutes, capacity = found.times[drawn] / 60, found.capacity[drawn]
    axes.fill_between(minutes, capacity, step="mid", color="#d8dee9", label="present")
    axes.plot(minutes, smooth[drawn], color="#2563eb", linewidth=1.2, label="trained")
    start_s = diary[0].at_s
    top = float(found.capacity.max())
    for place, one in enumerate(diary):
        at_min = (one.at_s - start_s) / 60
        axes.axvline(at_min, color="#b91c1c", linewidth=0.5, alpha=0.5)
        row = top * (1.04 + 0.06 * (place % 4))
        axes.text(at_min, row, one.kind, fontsize=6, color="#7f1d1d", ha="center")
    axes.set(xlabel="minutes", ylabel="members")
    axes.set(ylim=(0, top * 1.3), xlim=(minutes[0], minutes[-1]))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="lower left", frameon=False)
    return figure

"""How the constants of the simulated experiments on stragglers were fitted (docs/simulator.md).

Against the BSP column of AntDT's Table III alone: what an undisturbed batch takes, and what the
persistent worker is delayed by per unit of intensity.

    python benchmarks/straggler_constants.py [--quick]
"""

import itertools
import math
from collections.abc import Callable, Sequence

import msgspec
import numpy as np
from paceline_experiments import harness
from paceline_experiments.sim.patterns import Persistent
from paceline_experiments.sim.scenarios import Scenario
from paceline_experiments.stragglers import paper
from paceline_experiments.stragglers.experiments import simulate
from paceline_experiments.stragglers.methods import BSP
from paceline_experiments.stragglers.presets import (
    INTENSITIES,
    LOCAL_BATCH,
    server_straggler,
    worker_stragglers,
)

BATCH_S = (1.95, 1.97, 2.0, 2.03, 2.17)
PERSISTENT_S = (2.8, 3.0, 3.2, 3.4, 4.0)
NUM_SEEDS = 3

Kind = Callable[[float, str], Scenario]
"""Intensity and mode -> a scenario."""


def changed(scenario: Scenario, batch_s: float, persistent_s: float, intensity: float) -> Scenario:
    compute = msgspec.structs.replace(scenario.compute, per_sample_s=batch_s / LOCAL_BATCH)
    patterns = tuple(
        msgspec.structs.replace(pattern, delay_s=persistent_s * intensity)
        if isinstance(pattern, Persistent) and pattern.role == "worker"
        else pattern
        for pattern in scenario.patterns
    )
    return msgspec.structs.replace(
        scenario, compute=compute, patterns=patterns, report_every=1_000_000
    )


def logs(
    kind: Kind, batch_s: float, persistent_s: float, intensities: Sequence[float], num_seeds: int
) -> list[float]:
    found = []
    for intensity in intensities:
        scenario = changed(kind(intensity, "bsp"), batch_s, persistent_s, intensity)
        jct_s = np.mean([simulate(scenario, BSP, seed).outcome.jct_s for seed in range(num_seeds)])
        found.append(math.log(jct_s / paper.JCT_S[scenario.name, "BSP"]))
    return found


def main() -> None:
    options = harness.parser(__doc__, "one seed, one intensity, one pair").parse_args()
    batches_s, persistents_s, runs = BATCH_S, PERSISTENT_S, (INTENSITIES, NUM_SEEDS)
    if options.quick:
        batches_s, persistents_s, runs = BATCH_S[:1], PERSISTENT_S[:1], (INTENSITIES[:1], 1)
    servers = {batch_s: logs(server_straggler, batch_s, 0.0, *runs) for batch_s in batches_s}
    rows, figures = [], {}
    for batch_s, persistent_s in itertools.product(batches_s, persistents_s):
        ratios = [*logs(worker_stragglers, batch_s, persistent_s, *runs), *servers[batch_s]]
        percents = [round(100 * math.expm1(ratio), 1) for ratio in ratios]
        squares = round(sum(ratio * ratio for ratio in ratios), 4)
        rows.append((batch_s, persistent_s, " ".join(f"{one:+6.1f}" for one in percents), squares))
        figures[f"{batch_s} s, {persistent_s} s/SI"] = {"off_percent": percents, "squares": squares}
    head = ("batch s", "persistent s/SI", "off by %, workers then servers", "squared log ratios")
    harness.table(head, rows)
    harness.report("straggler_constants", figures, file=options.json)


if __name__ == "__main__":
    harness.run(main)

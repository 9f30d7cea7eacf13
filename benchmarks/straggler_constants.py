"""How the constants of the simulated experiments on stragglers were fitted (docs/simulator.md).

Against the BSP column of AntDT's Table III alone: what an undisturbed batch takes, and what the
persistent worker is delayed by per unit of intensity.

    python benchmarks/straggler_constants.py
"""

import itertools
import math

import msgspec
import numpy as np

from paceline.sim import paper
from paceline.sim.experiments import simulate
from paceline.sim.methods import BSP
from paceline.sim.patterns import Persistent
from paceline.sim.presets import INTENSITIES, LOCAL_BATCH, server_straggler, worker_stragglers
from paceline.sim.scenarios import Scenario

BATCH_S = (1.95, 1.97, 2.0, 2.03, 2.17)
PERSISTENT_S = (2.8, 3.0, 3.2, 3.4, 4.0)
SEEDS = range(3)


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


def logs(kind, batch_s: float, persistent_s: float) -> list[float]:
    found = []
    for intensity in INTENSITIES:
        scenario = changed(kind(intensity, "bsp"), batch_s, persistent_s, intensity)
        jct_s = np.mean([simulate(scenario, BSP, seed).outcome.jct_s for seed in SEEDS])
        found.append(math.log(jct_s / paper.JCT_S[scenario.name, "BSP"]))
    return found


def main() -> None:
    print("batch s, persistent s/SI: off by %, workers then servers; sum of squared log ratios")
    servers = {batch_s: logs(server_straggler, batch_s, 0.0) for batch_s in BATCH_S}
    for batch_s, persistent_s in itertools.product(BATCH_S, PERSISTENT_S):
        ratios = [*logs(worker_stragglers, batch_s, persistent_s), *servers[batch_s]]
        off = " ".join(f"{100 * math.expm1(ratio):+6.1f}" for ratio in ratios)
        print(f"{batch_s:.2f} {persistent_s:.1f}: {off}   {sum(r * r for r in ratios):.4f}")


if __name__ == "__main__":
    main()

"""What a contribution more per step costs, in real jobs and as the simulator has it.

    python benchmarks/chunk_cost.py [--quick] [--rounds 3] [--chunks 4 8 16]

Jobs without stragglers, of 6 workers and 2 servers with emulated computation, whose workers hand in
their share of a step at once or in several chunks, in turn; nothing is left out. Beside them the
same jobs simulated, with the round trip that the run with one chunk showed. Prints JCT over that of
one chunk, and JSON.
"""

import os
import statistics
from pathlib import Path

import msgspec
import numpy as np
from paceline_experiments import harness
from paceline_experiments.sim.scenarios import Scenario
from paceline_experiments.stragglers.experiments import simulate
from paceline_experiments.stragglers.left_behind import Ran
from paceline_experiments.stragglers.presets import ScaleFactors, paper_job
from paceline_experiments.stragglers.real import run_real
from paceline_experiments.stragglers.results import Method
from paceline_experiments.stragglers.scaled import Size, shrunk

from paceline.base.errors import PacelineError

SIZE = Size(workers=6, servers=2, scale=ScaleFactors(time=0.1, steps=0.06))
QUICK = Size(workers=2, servers=1, scale=ScaleFactors(time=0.1, steps=0.006))
NOTHING = 1e-6
"""Part of a step that may be missing: not one sample."""


def method(chunks: int) -> Method:
    parameters = {"left_out": NOTHING, "chunks": chunks}
    return Method(label=str(chunks), solution="partial", parameters=parameters)


def ran_with(scenario: Scenario, chunks: int) -> Ran:
    """Run one job.

    Raises:
        ArmError: it failed.
    """
    try:
        return run_real(scenario, method(chunks), 0)
    except PacelineError as error:
        logs = Path(os.environ["PACELINE_HOME"]).glob("jobs/*/logs/*")
        raise harness.failure(f"{chunks} chunks", str(error), logs) from error


def round_trip_s(ran: Ran) -> float:
    """Return what a step takes beside the slowest worker's computation."""
    busy_s = sum(
        max(float(batches[step, 1] - batches[step, 0]) for batches in ran.batches.values())
        for step in range(ran.outcome.steps)
    )
    return (ran.outcome.jct_s - busy_s) / ran.outcome.steps


def simulated(scenario: Scenario, chunks: int, message_s: float) -> float:
    traffic = msgspec.structs.replace(scenario.traffic, message_s=message_s, update_s=0.0)
    scenario = msgspec.structs.replace(scenario, traffic=traffic)
    return simulate(scenario, method(chunks), 0).outcome.jct_s


def main() -> None:
    parser = harness.parser(__doc__, "1 round, 4 chunks, a tenth of the steps")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--chunks", type=int, nargs="+", default=[4, 8, 16])
    options = parser.parse_args()
    rounds, more = (1, [4]) if options.quick else (options.rounds, options.chunks)
    size = QUICK if options.quick else SIZE
    scenario = shrunk(paper_job("calm", "bsp", (), size.scale), size)
    real: dict[int, list[float]] = {chunks: [] for chunks in (1, *more)}
    messages_s = []
    with harness.scratch():
        for _ in range(rounds):
            for chunks, seconds in real.items():
                ran = ran_with(scenario, chunks)
                seconds.append(ran.outcome.jct_s)
                if chunks == 1:
                    messages_s.append(round_trip_s(ran))
    message_s = float(np.median(messages_s))
    figures: dict[str, object] = {"round trip, s": message_s}
    for chunks in more:
        ratios = [much / one for much, one in zip(real[chunks], real[1], strict=True)]
        figures[f"{chunks} chunks, real / one"] = harness.summary(ratios)
        figures[f"{chunks} chunks, simulated / one"] = simulated(
            scenario, chunks, message_s
        ) / simulated(scenario, 1, message_s)
    figures["seconds"] = {chunks: statistics.median(each) for chunks, each in real.items()}
    harness.report("chunk_cost", figures, file=options.json)


if __name__ == "__main__":
    harness.run(main)

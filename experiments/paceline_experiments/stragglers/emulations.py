"""Experiments on real jobs: calibrated first, simulated afterwards with what was measured."""

import statistics
import time
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from paceline.base.errors import PermanentError
from paceline.policy.observation import RestartCost
from paceline_experiments.sim.costs import Traffic
from paceline_experiments.sim.scenarios import Recovery, Scenario
from paceline_experiments.stragglers.clairvoyant import clairvoyant_s
from paceline_experiments.stragglers.experiments import PlannedRun, simulate
from paceline_experiments.stragglers.left_behind import Ran
from paceline_experiments.stragglers.real import run_real
from paceline_experiments.stragglers.results import Method, Results, Run

CALIBRATION_STEPS = 20
PLAIN = Method(label="calibration", solution="none")
MOST_SHARE = 0.1
"""Largest part of a step for messages: above it, a run shows messages and not its stragglers."""


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """An undisturbed step of this machine; medians."""

    step_s: float
    message_s: float
    """Seconds of it that are not computation."""
    update_s: float = 0.0
    """Seconds of these that a server takes to apply an update."""

    @property
    def share(self) -> float:
        """The share of messages in a step."""
        return self.message_s / self.step_s


class Beside(msgspec.Struct, frozen=True, kw_only=True):
    """A real run, and the simulated one of the same scenario, method and seed."""

    real: Run
    simulated: Run
    refused: int
    """Actions that the master did not carry out in the real one."""

    @property
    def ratio(self) -> float:
        """JCT, real over simulated."""
        return self.real.outcome.jct_s / self.simulated.outcome.jct_s


class Emulations(Results, kw_only=True):
    """Results of real jobs, with what they are compared to."""

    calibrations: dict[str, Calibration] = {}
    """Calibration of this machine, by mode."""
    restarts: dict[str, RestartCost] = {}
    """Cost of a restart, by role: the mean of those that took effect, or what the master expected.
    Simulated runs cost that much."""
    beside: list[Beside] = []


def emulate(results: Emulations, planned: Sequence[PlannedRun], ran: Callable[[Run], None]) -> None:
    """Run one real job after the other into the results; then simulate each.

    A job that fails has no row; the notes say so.

    Args:
        results: to be filled.
        planned: what to run; trails are kept of each method's first run.
        ran: told of each run; its clairvoyant schedule knows the restarts measured so far.

    Raises:
        InternalError: a job lost a sample, or counted one twice.
        PermanentError: not even the calibration came to its end.
    """
    costs: dict[str, list[RestartCost]] = {"worker": [], "server": []}
    done: list[tuple[PlannedRun, Ran]] = []
    for one in planned:
        scenario = one.experiment.draw(one.seed)
        if scenario.mode not in results.calibrations:
            results.calibrations[scenario.mode] = calibrate(scenario, one.seed)
        begun_s = time.monotonic()
        is_first = not results.of(scenario.name, scenario.mode, one.method.label)
        keep_trail = is_first and one.method.label in one.experiment.trails
        try:
            found = run_real(scenario, one.method, one.seed, keep_trail=keep_trail)
        except PermanentError as error:
            row = f"{scenario.name}, {scenario.mode}, {one.method.label}, seed {one.seed}"
            results.notes += (f"**No result** of {row}: {error}.",)
            continue
        done.append((one, found))
        results.restarts |= found.expected
        for role, measured in found.costs.items():
            costs[role] += measured
        results.restarts |= {role: _mean(each) for role, each in costs.items() if each}
        results.methods[one.method.label] = one.method
        results.scenarios.setdefault(scenario.name, scenario)
        run = Run(
            scenario=scenario.name,
            mode=scenario.mode,
            method=one.method.label,
            seed=one.seed,
            outcome=found.outcome,
            clairvoyant_s=float(clairvoyant_s(_as_measured(scenario, results), one.seed)),
            took_s=time.monotonic() - begun_s,
        )
        results.runs.append(run)
        ran(run)
    _compare(results, done)


def calibrate(scenario: Scenario, seed: int) -> Calibration:
    """Measure the step of a job without stragglers."""
    plain = msgspec.structs.replace(
        scenario,
        name="undisturbed",
        patterns=(),
        num_samples=CALIBRATION_STEPS * scenario.batch_size,
        epochs=1,
    )
    ran = run_real(plain, PLAIN, seed)
    batches = list(ran.batches.values())
    step_s = np.median(np.concatenate([np.diff(each[:, 0]) for each in batches]))
    busy_s = [each[:, 1] - each[:, 0] for each in batches]
    if scenario.mode == "bsp":  # a step takes as long as its slowest worker
        count = min(
            CALIBRATION_STEPS, *map(len, busy_s)
        )  # who is late may leave its part to others
        busy_s = [np.max([each[:count] for each in busy_s], axis=0)]
    message_s = max(0.0, step_s - np.median(np.concatenate(busy_s)))
    updates = np.concatenate(list(ran.updates.values()))
    return Calibration(
        step_s=float(step_s),
        message_s=float(message_s),
        update_s=float(np.median(updates[:, 1] - updates[:, 0])),
    )


def _mean(costs: Sequence[RestartCost]) -> RestartCost:
    names = [field.name for field in msgspec.structs.fields(RestartCost)]
    return RestartCost(
        **{name: statistics.mean(getattr(cost, name) or 0.0 for cost in costs) for name in names}
    )


def _as_measured(scenario: Scenario, results: Emulations) -> Scenario:
    """The scenario with this machine's messages and restarts."""
    assumed, step = scenario.recovery, results.calibrations[scenario.mode]
    server = results.restarts.get("server", assumed.server)
    return msgspec.structs.replace(
        scenario,
        traffic=Traffic(message_s=max(0.0, step.message_s - step.update_s), update_s=step.update_s),
        recovery=Recovery(
            worker=results.restarts.get("worker", assumed.worker),
            server=server,
            switch_s=server.stall_s or 0.0,
        ),
    )


def _compare(results: Emulations, done: Sequence[tuple[PlannedRun, Ran]]) -> None:
    """Simulate each run, and ask the clairvoyant schedule again, with all that was measured."""
    for number, (one, found) in enumerate(done):
        scenario = _as_measured(one.experiment.draw(one.seed), results)
        best_s = float(clairvoyant_s(scenario, one.seed))
        run = msgspec.structs.replace(results.runs[number], clairvoyant_s=best_s)
        results.runs[number] = run
        simulated = msgspec.structs.replace(
            simulate(scenario, one.method, one.seed), clairvoyant_s=best_s
        )
        results.beside.append(Beside(real=run, simulated=simulated, refused=len(found.refused)))

"""A job of emulated stragglers: real processes, and what was planted is what comes out."""

import msgspec
import numpy as np
import pytest
from paceline_experiments.sim.costs import Compute
from paceline_experiments.sim.patterns import Persistent
from paceline_experiments.sim.scenarios import Recovery, Scenario
from paceline_experiments.stragglers.beside import markdown_beside
from paceline_experiments.stragglers.emulations import Emulations, emulate
from paceline_experiments.stragglers.experiments import Experiment, PlannedRun
from paceline_experiments.stragglers.methods import BSP
from paceline_experiments.stragglers.real import run_real
from paceline_experiments.stragglers.results import Run

from paceline.policy.observation import RestartCost

pytestmark = pytest.mark.soak

WORKER_S, SERVER_S = 0.1, 0.06
STEPS = 20
SMALL = Scenario(
    name="small",
    mode="bsp",
    workers=3,
    servers=2,
    num_samples=STEPS * 3 * 50,
    epochs=1,
    batch_size=3 * 50,
    compute=Compute(per_sample_s=0.002),
    recovery=Recovery(worker=RestartCost(), server=RestartCost()),
    patterns=(
        Persistent(nodes=(1,), delay_s=WORKER_S),
        Persistent(role="server", nodes=(1,), delay_s=SERVER_S),
    ),
)
"""A step takes 0.1 s without stragglers; planted are a worker and a server."""


@pytest.fixture(autouse=True)
def _home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path_factory.mktemp("home")))


def seconds(entries: np.ndarray) -> float:  # type: ignore[type-arg]
    return float(np.median(entries[:, 1] - entries[:, 0]))


def test_a_job_shows_the_stragglers_that_were_planted() -> None:
    ran = run_real(SMALL, BSP, seed=1, keep_trail=True)

    # That each sample is in the model once was read from its last cut.
    assert ran.outcome.samples == sum(ran.outcome.shares.values()) == SMALL.num_samples
    assert ran.outcome.redone == 0
    assert set(ran.outcome.shares.values()) == {STEPS * 50}
    # Sleeps are never shorter; on a busy machine they are longer.
    assert 0.1 <= seconds(ran.batches["worker-0"]) < 0.1 + WORKER_S / 2
    assert 0.1 + WORKER_S <= seconds(ran.batches["worker-1"]) < 0.1 + 1.5 * WORKER_S
    assert seconds(ran.updates["server-0"]) < SERVER_S / 2
    assert SERVER_S <= seconds(ran.updates["server-1"]) < 1.5 * SERVER_S
    assert len(ran.updates["server-1"]) == STEPS
    assert ran.outcome.jct_s > STEPS * (0.1 + WORKER_S + SERVER_S)
    # What the monitor measured, for the plots.
    mean_s = {
        node: np.mean([sight.compute_s for sight in ran.outcome.trail if sight.node == node])
        for node in ("worker-0", "worker-1")
    }
    assert mean_s["worker-1"] > mean_s["worker-0"] + WORKER_S / 2


@pytest.mark.parametrize(("mode", "staleness"), [("asp", 0), ("ssp", 3)])
def test_asynchronous_servers_pay_for_each_contribution(mode: str, staleness: int) -> None:
    scenario = msgspec.structs.replace(SMALL, mode=mode, staleness=staleness)
    ran = run_real(scenario, BSP, seed=1)
    assert ran.outcome.samples == SMALL.num_samples
    assert len(ran.updates["server-1"]) >= 3 * STEPS
    assert ran.outcome.jct_s > 3 * STEPS * SERVER_S


@pytest.mark.parametrize("delay_s", [0.15, 0.3])
def test_with_a_slow_server_asp_is_slower_than_bsp(delay_s: float) -> None:
    # AntDT section VII-C: an update per contribution there, one per step here.
    slow = Persistent(role="server", nodes=(1,), delay_s=delay_s)
    scenario = msgspec.structs.replace(SMALL, patterns=(slow,), num_samples=SMALL.num_samples // 2)
    bsp = run_real(scenario, BSP, seed=1)
    asp = run_real(msgspec.structs.replace(scenario, mode="asp"), BSP, seed=1)

    assert asp.outcome.jct_s > bsp.outcome.jct_s


def test_a_run_stands_beside_the_simulated_one() -> None:
    told: list[Run] = []
    results = Emulations(
        clock="emulated", preset="small", version="", commit="", command="", started=""
    )
    experiment = Experiment(draw=lambda seed: SMALL, methods=(BSP,))
    emulate(results, [PlannedRun(experiment, BSP, 0)], told.append)
    (beside,) = results.beside
    assert told[0].outcome == beside.real.outcome == results.runs[0].outcome
    assert beside.simulated.outcome.steps == STEPS
    assert beside.ratio == pytest.approx(1.0, abs=0.25)
    assert "| small, bsp | BSP |" in markdown_beside(results)

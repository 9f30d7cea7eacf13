"""Launched jobs compute in BSP what one process computes, whoever dies.

A slice of ``experiments/benchmarks/equality.py``, which runs more workers, more steps, and the comparison with
the drift of one process in float32.
"""

from functools import partial
from pathlib import Path

import closeness
import equality
import pytest

NUM_STEPS = 40
proves = partial(pytest.mark.proves, form="batches", strategy="allreduce")


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return equality.run_alone(tmp_path_factory.mktemp("alone") / "out", NUM_STEPS)


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))


@pytest.mark.soak  # CI has test_alone
@pytest.mark.proves(form="batches", strategy="ps bsp")
def test_one_worker_computes_bit_for_bit_what_the_script_computes_alone(
    reference: Path, tmp_path: Path
) -> None:
    run = equality.run_job(tmp_path / "out", NUM_STEPS, equality.Job(1))
    for case, found in equality.deviations(reference, run).items():
        assert found == (0.0, 0.0), case


@pytest.mark.soak  # CI has two members of a group
@pytest.mark.parametrize(
    "switch",
    [False, True],
    ids=["one plan", "plans switch"],
)
@pytest.mark.proves(form="batches", strategy="ps bsp", death="worker")
def test_two_workers_of_which_both_die_in_mid_step_compute_what_one_process_computes(
    reference: Path, tmp_path: Path, switch: bool
) -> None:
    run = equality.run_job(tmp_path / "out", NUM_STEPS, equality.Job(2, die=True, switch=switch))
    assert len(list(run.glob("worker-*.losses"))) == 4  # two lives each
    check_close(reference, run)


def check_close(reference: Path, run: Path) -> None:
    """Assert that a run is within the limits that need no yardstick."""
    for (kind, dtype), found in equality.deviations(reference, run).items():
        if dtype == "float64":
            assert found.loss < closeness.FLOAT64_LIMIT, kind
            assert found.state < closeness.FLOAT64_LIMIT, kind
        elif kind == "sgd":
            assert found.loss < closeness.FLOAT32_LIMIT, kind


@pytest.mark.parametrize(
    ("die", "switch"),
    [
        pytest.param(True, True, marks=proves(death="worker")),
        pytest.param(False, False, marks=[pytest.mark.soak, proves()]),
    ],
    ids=["uneven, and both die", "undisturbed"],
)
def test_two_members_of_a_group_compute_what_one_process_computes(
    tmp_path: Path, die: bool, switch: bool
) -> None:
    alone = equality.run_alone(tmp_path / "alone", NUM_STEPS, dense=True)
    job = equality.Job(2, die=die, switch=switch, dense=True)
    check_close(alone, equality.run_job(tmp_path / "out", NUM_STEPS, job))

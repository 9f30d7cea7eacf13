"""The conformance suite, and in `make soak` jobs, on a Ray cluster in a network of its own."""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.integration.test_machines import can_make_machines
from tests.ray.cluster import APART

TESTS = Path(__file__).parents[1]


SOON_DEAD = {
    "RAY_health_check_period_ms": "2000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "3",
}
"""Ray then calls a machine dead that was cut off for 6 s; else it may need a minute."""
NOT_UP = "The current node timed out during startup"
"""Of Ray's error when its own agent took a loaded machine more than 30 s to start, which is fixed."""


def run(*tests: str, options: Sequence[str] = (), **settings: str) -> None:
    """Run tests apart with a cluster that has these options of `tests.ray.cluster`, and settings."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("needs Ray: pip install 'paceline[ray]'")
    if os.geteuid() != 0 or not can_make_machines() or not can_be_apart():
        pytest.skip("needs root, ip and unshare, to give a cluster a network of its own")
    # In the order of the file: its last test may end the cluster.
    plain = ["-q", "-p", "no:xdist", "-p", "no:randomly", "-p", "no:cacheprovider"]
    pytests = ["-m", "pytest", "--import-mode=importlib", *plain, "-o", "addopts="]
    cluster = [sys.executable, "-m", "tests.ray.cluster", *options, sys.executable]
    for _ in range(2):
        done = subprocess.run(
            [*APART, *cluster, *pytests, *(str(TESTS / one) for one in tests)],
            cwd=TESTS.parent,
            env={**os.environ, **settings},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode == 0 or NOT_UP not in done.stderr:
            break
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout


def can_be_apart() -> bool:
    return not subprocess.run([*APART, "true"], capture_output=True, check=False).returncode


@pytest.mark.timeout(600)
def test_ray_keeps_what_every_backend_promises() -> None:
    run("conformance/test_backends.py", "ray/sizes.py", PACELINE_TEST_RAY_ALL="0")


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_ray_keeps_every_form_of_each_promise() -> None:
    run("conformance/test_backends.py")


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_jobs_compute_the_same_on_ray_and_outlive_its_pieces() -> None:
    run("ray/same_loss.py", "ray/jobs.py")


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_jobs_that_ray_runs_for_the_user_are_listed_stopped_and_resumed() -> None:
    run("ray/submitted.py", options=("--nodes=0", "--head-cores=4", "--dashboard"))


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_jobs_outlive_a_cable_that_is_pulled() -> None:
    run("ray/partition.py", options=("--nodes=1",), **SOON_DEAD)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_workers_that_live_in_rounds_outlive_a_machine() -> None:
    run("ray/rounds.py", options=("--nodes=1",), **SOON_DEAD)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_machines_that_are_drained_are_left_in_order() -> None:
    run("ray/draining.py")

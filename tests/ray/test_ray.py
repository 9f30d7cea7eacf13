"""The conformance suite, and in `make soak` jobs, on a Ray cluster in a network of its own."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.test_machines import can_make_machines

TESTS = Path(__file__).parents[1]


def run(*arguments: str) -> None:
    if importlib.util.find_spec("ray") is None:
        pytest.skip("needs Ray: pip install 'paceline[ray]'")
    if os.geteuid() != 0 or not can_make_machines():
        pytest.skip("needs root, ip and unshare, to give a cluster a network of its own")
    plain = ["-q", "-p", "no:xdist", "-p", "no:cacheprovider", "-o", "addopts="]
    tests = [sys.executable, "-m", "pytest", "--import-mode=importlib", *plain, *arguments]
    done = subprocess.run(
        ["unshare", "--net", sys.executable, "-m", "tests.ray.cluster", *tests],
        cwd=TESTS.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout


@pytest.mark.timeout(300)
def test_ray_keeps_what_every_backend_promises() -> None:
    run(str(TESTS / "conformance/test_backends.py"))


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_jobs_outlive_the_pieces_of_ray() -> None:
    run(str(TESTS / "ray/jobs.py"))

"""A worker that is slow between init and prepare: the others train, and nobody is the worse for it."""

import os
import signal
from pathlib import Path

import numpy as np
import pytest

from paceline.wire.spec import NodeSpec
from tests.integration.jobs.slow_start import SETUP_S
from tests.integration.running import RunningJob, running, until

SCRIPT = Path(__file__).with_name("jobs") / "slow_start.py"
N = 2048
AHEAD_S = SETUP_S / 2
"""How much earlier than the slow one the other trains."""


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))


def lives_of(job: RunningJob, node: str) -> list[np.ndarray]:
    """The times of the batches of each life of a node, first life first."""
    times = {int(life.partition(".")[2]): t for life, t in job.times().items() if node in life}
    return [times[inc] for inc in sorted(times)]


# The flags have the first worker wait in one of its batches until so many lives got a batch: it
# alone, to which whole steps go meanwhile, could be done before.


@pytest.mark.soak
def test_a_worker_that_prepares_late_joins_in(tmp_path: Path) -> None:
    flags = ("--together", "2", "--together-at", "20", "--num-samples", str(N))
    with running(tmp_path, *flags, script=str(SCRIPT), mode="bsp", servers=NodeSpec()) as job:
        job.check_finished()
        (first,), (late,) = lives_of(job, "worker-0"), lives_of(job, "worker-1")
        assert first[0] < late[0] - AHEAD_S, "the first worker waited for the second"
        assert not job.deaths()
        assert not job.events("relaunch")
        everything = np.sort(np.concatenate(list(job.samples().values())))
        assert np.array_equal(everything, np.arange(N)), "a sample was computed twice"


@pytest.mark.soak
def test_a_killed_worker_that_prepares_late_again_joins_in_again(tmp_path: Path) -> None:
    flags = ("--together", "3", "--together-at", "50", "--num-samples", str(N))
    with running(tmp_path, *flags, script=str(SCRIPT), mode="asp", servers=NodeSpec()) as job:
        until(lambda: any(map(len, lives_of(job, "worker-1"))), "a batch of the slow worker")
        os.kill(job.pid_of("worker-1"), signal.SIGKILL)
        job.check_finished()
        assert [event["node"] for event in job.deaths()] == ["worker-1"]
        assert len(job.events("relaunch")) == 1
        assert len(job.events("epoch")) == 1
        lives = lives_of(job, "worker-1")
        assert len(lives) == 2
        assert all(len(life) for life in lives)

"""Machines of a Ray cluster are drained under jobs, which leave them in order.

`tests.ray.cluster` runs this file.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from paceline.wire.spec import NodeSpec
from tests.integration.running import RunningJob, running, until
from tests.integration.test_allreduce import N, trains
from tests.ray.jobs import _home, add_machine, all_train, check, grouped, hurry, raylets
from tests.ray.platform import PATIENCE_S, ended, on_ray, raylet_of

__all__ = ["_home"]

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def machines() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Raylets that were added for one test."""
    with raylets() as added:
        yield added


def drain(raylet: psutil.Process, notice_s: int) -> None:
    """Tell the cluster that this machine goes away."""
    machine = next(word for word in raylet.cmdline() if word.startswith("--node_id="))
    command = [str(Path(sys.executable).with_name("ray")), "drain-node", "--node-id"]
    command += [machine.partition("=")[2], "--reason", "DRAIN_NODE_REASON_PREEMPTION"]
    command += ["--reason-message", "spot", "--deadline-remaining-seconds", str(notice_s)]
    command += ["--address", os.environ["RAY_ADDRESS"]]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def drained(job: RunningJob) -> set[str]:
    """Nodes whose place is going away, once the platform has said so."""
    until(lambda: job.events("place_draining"), "a word of the platform", PATIENCE_S)
    return {event["node"] for event in job.events("place_draining")}


def test_a_worker_leaves_a_machine_that_drains_when_another_one_trains_in_its_place(
    tmp_path: Path, machines: list[subprocess.Popen[bytes]]
) -> None:
    with grouped(tmp_path, "--epochs", "4", workers=2) as job:
        all_train(job, 2)
        before = raylet_of(job.job, "worker-1")
        add_machine(machines)
        drain(before, 120)
        gone = drained(job)
        until(lambda: len(job.events("kill_restart")) == len(gone), "its leave", 2 * PATIENCE_S)
        all_train(job, 2)
        until(
            lambda: {one.node for one in job.status().nodes} == {"worker-0", "worker-1"},
            "the end of those that stood in",
            PATIENCE_S,
        )
        assert all(raylet_of(job.job, one) != before for one in gone)
        assert {event["node"] for event in job.events("stand_in")} == gone
        assert job.events("stand_in")[0]["t"] < job.events("kill_restart")[0]["t"]
        sizes = [line.split(" train")[0].count("worker-") for line in trains(job)]
        assert min(sizes) == 2, "at no time fewer train"
        assert len(job.events("epoch")) == 1 and not job.deaths()
        check(job, epochs=4, lives=2)
        assert sum(map(len, job.samples().values())) == 4 * N, "none was computed twice"


def test_two_servers_leave_a_machine_that_drains_before_it_is_gone(
    tmp_path: Path, machines: list[subprocess.Popen[bytes]]
) -> None:
    (tmp_path / "out").mkdir()
    add_machine(machines, cores=8)
    few = {"servers": NodeSpec(count=2, cpu=(3.0,)), "workers": NodeSpec(count=1)}
    with running(tmp_path / "out", "--slow-until-told", **few, **on_ray()) as job, ended(job.job):
        job.until_committed(100, cuts=1)
        before = raylet_of(job.job, "server-0")
        assert raylet_of(job.job, "server-1") == before, "it alone has room for them"
        add_machine(machines, cores=8)
        drain(before, 60)
        assert {"server-0", "server-1"} <= drained(job)
        until(lambda: len(job.events("replaced")) == 2, "two successors", PATIENCE_S)
        servers = [one.node for one in job.status().nodes if one.role == "server"]
        assert len(servers) == 2
        assert all(raylet_of(job.job, one) != before for one in servers)
        assert len(job.events("epoch")) == 1 and not job.deaths(), "nothing is undone"
        hurry(job)
        until(job.job.outcome.exists, "the end", 3 * PATIENCE_S)
        job.check_finished()

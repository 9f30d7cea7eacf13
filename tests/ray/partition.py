"""Jobs of planted counts on two machines of a Ray cluster, between which the cable is pulled.

`tests.ray.cluster` runs this file, with one node. The other machine is a network and a mount
namespace, with the far end of the cable; its address stays when the cable is pulled.
"""

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from paceline.base.processes import find_job_processes
from tests.integration.running import RunningJob, until
from tests.integration.test_allreduce import trains
from tests.integration.test_machines import OTHER, other_machine
from tests.ray.cluster import HOST
from tests.ray.jobs import _home, add_machine, all_train, check, grouped, raylets
from tests.ray.platform import PATIENCE_S, folders, launcher_of

__all__ = ["_home"]

pytestmark = pytest.mark.timeout(240)
APART = "apart"
"""The home of what runs on the other machine."""
WAY = f"ip route add {HOST} dev port src {OTHER}"
GIVEN_UP_S = 16.0
"""``lost_after_s`` (3 s), twice 5 s for another agent, since the first was brief, and slack."""
BATCH, EPOCHS = 64, "6"


@pytest.fixture
def machines() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Raylets that were added for one test."""
    with raylets() as added:
        yield added


class Cable:
    """Between the two machines."""

    def __init__(self, enter: list[str]) -> None:
        self._enter = enter
        self._there(
            f"ip addr del {OTHER}/24 dev port; ip link add own type veth peer name other; "
            f"ip addr add {OTHER}/32 dev own; ip link set own up; {WAY}"
        )

    def add_machine(self, machines: list[subprocess.Popen[bytes]]) -> None:
        """Start a raylet of one core there, and another one whenever Ray has called it dead."""
        again = ["sh", "-c", 'while :; do "$@"; sleep 1; done', "sh"]
        add_machine(machines, 1, [*self._enter, *again], OTHER, APART)

    def _there(self, commands: str) -> None:
        subprocess.run([*self._enter, "sh", "-ec", commands], check=True)

    def hide(self, folder: Path) -> None:
        """Have the other machine see an empty folder there, since it shares no storage."""
        folder.mkdir()
        self._there(f"mount -t tmpfs none {folder}")

    def plug_in(self) -> None:
        self._there(f"ip link set port up; {WAY}")

    def pull(self) -> None:
        self._there("ip link set port down")


@pytest.fixture(scope="module")
def cable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cable]:
    """To a machine that has no raylet yet, nor sees what Ray keeps on this one."""
    with other_machine(Path("/tmp/ray")) as enter:
        yield Cable(enter)


def agents_apart(job: RunningJob) -> dict[str, psutil.Process]:
    """Those on the other machine, by their nodes."""
    return {
        process.argv[-1]: psutil.Process(process.pid)
        for path in folders(job.job)
        if path.parents[2].name == APART
        for process in find_job_processes(path)
        if process.runs("paceline.agent")
    }


def cut_off(job: RunningJob, cable: Cable, *, alone: bool = False) -> tuple[str, psutil.Process]:
    """Pull the cable, and wait until the others train on; the node on the other side, its agent.

    Args:
        job: of three workers.
        cable: is pulled.
        alone: the agent there has lost its launcher: Ray cannot end it.
    """
    all_train(job, 3)
    job.until_committed(10 * BATCH)
    ((node, agent),) = agents_apart(job).items()
    if alone:
        launcher_of(job.job, node).kill()
        until(lambda: job.node(node).state == "unbacked", "a word of that")
    cable.pull()
    began_s = time.monotonic()
    rest = ", ".join(f"worker-{k}" for k in range(3) if f"worker-{k}" != node)
    until(lambda: trains(job)[-1].startswith(f"{rest} train"), "the others training")
    assert time.monotonic() - began_s < GIVEN_UP_S
    job.until_committed(job.status().committed + 5 * BATCH)
    return node, agent


def check_loss(job: RunningJob, node: str) -> None:
    """No other node was lost, and nothing that was in the model."""
    assert {event["node"] for event in job.events("fenced")} == {node}
    assert len(job.events("epoch")) == 1, "nothing was taken from a cut"
    check(job, epochs=int(EPOCHS), lives=3)


def test_a_machine_that_is_cut_off_is_given_up_and_comes_back(
    tmp_path: Path, machines: list[subprocess.Popen[bytes]], cable: Cable
) -> None:
    cable.add_machine(machines)
    cable.hide(tmp_path / "jobs")
    with grouped(tmp_path, "--epochs", EPOCHS) as job:
        node, _ = cut_off(job, cable)
        assert [event["node"] for event in job.events("not_shared")] == [node]
        cable.plug_in()
        # Ray ends the raylet there, and with it the agent: then another one comes.
        until(lambda: [*agents_apart(job)] == [node], "its agent", PATIENCE_S)
        check_loss(job, node)


def test_a_machine_that_was_given_up_finds_its_node_elsewhere_and_leaves(
    tmp_path: Path, machines: list[subprocess.Popen[bytes]], cable: Cable
) -> None:
    cable.add_machine(machines)
    with grouped(tmp_path, "--epochs", EPOCHS) as job:
        node, former = cut_off(job, cable, alone=True)
        add_machine(machines, 1)
        all_train(job, 3)
        began = len(trains(job))
        assert former.is_running(), "it waits for the master"
        cable.plug_in()
        until(lambda: not former.is_running(), "the end of the agent that was cut off")
        job.until_committed(job.status().committed + 10 * BATCH)
        assert len(trains(job)) == began, "the others were not disturbed"
        assert not job.deaths()
        check_loss(job, node)

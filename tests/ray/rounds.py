"""Workers that live in rounds on two machines of a Ray cluster, one of which dies.

`tests.ray.cluster` runs this file, with one node. The other machine is a network and a mount
namespace, whose raylet is started anew after its death.
"""

import contextlib
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from paceline.base.processes import find_job_processes, kill_quietly
from paceline.jobs.launch import launch
from paceline.wire.client import StopJob
from paceline.wire.events.nodes import RestartAllEvent
from paceline.wire.spec import JobSpec, NodeSpec, TimeoutSpec
from tests.integration.running import RunningJob, until
from tests.integration.test_fsdp import (
    BATCH,
    alone,
    check_finished,
    check_same,
    sharded,
    trains,
)
from tests.integration.test_machines import OTHER, other_machine
from tests.integration.test_torchrun import SCRIPT
from tests.ray.jobs import _home, add_machine, raylets
from tests.ray.platform import PATIENCE_S, ended, on_ray

__all__ = ["_home"]

pytestmark = pytest.mark.timeout(240)
APART = "apart"
"""The home of what runs on the other machine."""
ALL = range(4)


class OtherMachine:
    """A raylet of two cores on the other machine, and all that it starts."""

    def __init__(self, enter: list[str], added: list[subprocess.Popen[bytes]]) -> None:
        self._enter, self._added = enter, added
        self.home = Path(os.environ["PACELINE_TEST_RAY"], APART)

    def start(self) -> None:
        """Start the raylet."""
        add_machine(self._added, 2, self._enter, OTHER, APART)

    def die(self) -> None:
        """End everything there at once."""
        raylet = self._added.pop()
        for process in (*psutil.Process(raylet.pid).children(recursive=True), raylet):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        raylet.wait()
        for path in self.home.glob("joined/*/*"):
            for one in find_job_processes(path):
                kill_quietly(one.pid)


@pytest.fixture(scope="module")
def other() -> Iterator[OtherMachine]:
    """Another machine of the cluster, which does not see what Ray keeps on this one."""
    with other_machine(Path("/tmp/ray")) as enter, raylets() as added:
        machine = OtherMachine(enter, added)
        machine.start()
        yield machine


def seen(job: RunningJob, rank: int, life: int) -> dict[str, str]:
    """What a life of a rank has written of itself."""
    path = job.out / f"{rank}.{life}.json"
    text = until(lambda: path.exists() and path.read_text(), str(path), PATIENCE_S)
    found: dict[str, str] = json.loads(text)
    return found


def lines(job: RunningJob, said: str) -> Callable[[], int]:
    """Count how often rank 0's script has said something, wherever it runs."""
    return lambda: sum(path.read_text().count(said) for path in job.job.logs.glob("worker-*.log"))


def test_ranks_of_a_script_know_their_machines_and_outlive_one(
    tmp_path: Path, other: OtherMachine
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    spec = JobSpec(
        script=str(SCRIPT),
        args=("--out", str(out), "--steps", "100000"),
        strategy="script",
        workers=NodeSpec(count=4),
        solution="none",
        timeouts=TimeoutSpec(lost_after_s=3.0),
        **on_ray(),
    )
    with contextlib.closing(RunningJob(launch(spec), out)) as job, ended(job.job):
        first = [seen(job, rank, 0) for rank in ALL]
        places = [(one["GROUP_RANK"], one["LOCAL_RANK"]) for one in first]
        assert places == [("0", "0"), ("0", "1"), ("1", "0"), ("1", "1")]
        assert {one["LOCAL_WORLD_SIZE"] for one in first} == {"2"}
        assert len({(one["MASTER_ADDR"], one["MASTER_PORT"]) for one in first}) == 1
        until(lines(job, "begins at step 0"), "the first round", PATIENCE_S)
        os.kill(int(first[3]["pid"]), 9)
        assert {seen(job, rank, 1)["TORCHELASTIC_RESTART_COUNT"] for rank in ALL} == {"1"}
        other.die()
        until(lambda: len(job.told(RestartAllEvent)) == 2, "the end of the round", PATIENCE_S)
        other.start()
        third = [seen(job, rank, 2) for rank in ALL]
        assert {one["GROUP_RANK"] for one in third} == {"0", "1"}
        job.tell(StopJob(now=True))
        job.end()


def test_shards_outlive_a_machine_and_the_model_is_exact(
    tmp_path: Path, other: OtherMachine
) -> None:
    single = alone(tmp_path / "alone")
    fields: dict[str, Any] = {"timeouts": TimeoutSpec(lost_after_s=3.0), **on_ray()}
    with (
        sharded(tmp_path / "two", "--slow-until-told", workers=4, **fields) as job,
        ended(job.job),
    ):
        job.until_committed(3 * BATCH, cuts=1, patience_s=PATIENCE_S)
        other.die()
        until(lambda: job.told(RestartAllEvent), "the end of the round", PATIENCE_S)
        other.start()
        until(lambda: len(trains(job)) == 2, "the next round", PATIENCE_S)
        (job.out / "hurry").touch()
        check_same(check_finished(job, lives=4), single)
        assert trains(job)[1].step > 0, "from a cut"

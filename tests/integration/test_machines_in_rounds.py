"""Workers that live in rounds on two machines, each with a network and file systems of its own."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from paceline.base.jobdir import JobDir
from paceline.base.processes import kill_quietly
from paceline.features.failslow.events import DiagnosedEvent
from paceline.wire.events.nodes import RestartAllEvent
from paceline.wire.events.state import CutDamagedEvent
from paceline.wire.spec import DataPlaneSpec
from tests.integration.running import RunningJob, until
from tests.integration.test_failslow import diagnoses, slow, step_of
from tests.integration.test_fsdp import (
    BATCH,
    alone,
    check_finished,
    check_same,
    sharded,
    trains,
)
from tests.integration.test_join import kill_all
from tests.integration.test_machines import HOST, in_own_network, other_machine
from tests.integration.test_torchrun import PACELINE, SCRIPT, Run

ALL = range(4)


class JoinedMachine:
    """The other machine, whose workers join with one command."""

    def __init__(self, home: Path, enter: list[str]) -> None:
        self._home, self._enter = home, enter
        self.command: subprocess.Popen[bytes] | None = None
        home.mkdir()

    def join(self, job: JobDir) -> None:
        until(job.ticket.exists, "a ticket")
        (self._home / "ticket").write_bytes(job.ticket.read_bytes())
        call = [*self._enter, *PACELINE, "agent", "--join", str(self._home / "ticket")]
        self.command = subprocess.Popen(call, env=os.environ | {"PACELINE_HOME": str(self._home)})

    def copies(self, nodes: str) -> int:
        """Count the folders of these nodes in the memory of this machine's nodes."""
        found = set[str]()
        for path in (self._home / "joined").glob("*/*"):
            look = [*self._enter, "find", str(JobDir(path).memory), "-name", nodes]
            found |= {
                *subprocess.run(look, capture_output=True, text=True, check=False).stdout.split()
            }
        return len({path.rpartition("/")[2] for path in found})

    def die(self) -> None:
        """End all that runs there at once."""
        if self.command is not None:
            self.command.kill()
            self.command.wait()
        for path in (self._home / "joined").glob("*/*"):
            kill_all(JobDir(path))


def test_a_script_for_torchrun_runs_on_two_machines(tmp_path: Path) -> None:
    if not in_own_network(test_a_script_for_torchrun_runs_on_two_machines):
        return
    with on_both(tmp_path, 1, "--steps", "30") as (run, other):
        other.join(run.job())
        code, out, err = run.end()
        assert (code, err) == (0, "")
        assert other.command is not None
        assert other.command.wait(20) == 0
    assert run.step() == 30
    assert out.count("1 of 2 machines are there; the job waits: run `paceline agent --join") == 1
    first, second = run.seen(0, 0), run.seen(1, 0)
    assert (first["LOCAL_RANK"], second["LOCAL_RANK"], second["GROUP_RANK"]) == ("0", "0", "1")
    assert first["MASTER_ADDR"] == second["MASTER_ADDR"] == HOST


@pytest.mark.soak
@pytest.mark.timeout(240)
def test_a_script_on_two_machines_outlives_a_master_a_rank_and_a_machine(tmp_path: Path) -> None:
    if not in_own_network(test_a_script_on_two_machines_outlives_a_master_a_rank_and_a_machine):
        return
    with on_both(tmp_path, 2, "--steps", "100000") as (run, other):
        other.join(run.job())
        until(lambda: run.step() > 10, "ten steps of all")
        check_environment(run)
        RunningJob(run.job(), tmp_path).kill_master()
        kill_quietly(int(run.seen(3, 0)["pid"]))
        pids = [run.seen(rank, 1)["pid"] for rank in ALL]
        before = run.step()
        until(lambda: run.step() > before + 5, "steps of the second round")
        other.die()
        until(lambda: not any(Path("/proc", pid).exists() for pid in pids), "the end of all")
        other.join(run.job())
        assert {run.seen(rank, 2)["TORCHELASTIC_RESTART_COUNT"] for rank in ALL} == {"2"}
        before = run.step()
        until(lambda: run.step() > before + 5, "steps of the third round")
        run.command.send_signal(signal.SIGINT)
        _, out, err = run.end()
        assert other.command is not None
        assert other.command.wait(20) == 0
    assert out.count("1 of 2 machines are there; the job waits: run `paceline agent --join") == 2
    assert "its connection broke for good" in out
    assert "all workers started again" in out, err


@contextlib.contextmanager
def on_both(tmp_path: Path, per_machine: int, *words: str) -> Iterator[tuple[Run, JoinedMachine]]:
    """jobs/torchrun_ddp.py with so many ranks on each machine; the other one is yet to join."""
    (tmp_path / "home").mkdir()
    flags = ("--nnodes", "2", "--nproc-per-node", str(per_machine), "--master-addr", HOST)
    script = (str(SCRIPT), "--", "--out", str(tmp_path), *words)
    with other_machine(tmp_path / "home") as enter:
        run = Run(tmp_path, *flags, *script)
        other = JoinedMachine(tmp_path / "other", enter)
        try:
            yield run, other
        finally:
            other.die()
            RunningJob(run.job(), tmp_path).close()


@pytest.mark.soak  # it goes by the clock
@pytest.mark.timeout(240)
def test_the_rank_that_makes_a_script_on_two_machines_slow_is_named(tmp_path: Path) -> None:
    if not in_own_network(test_the_rank_that_makes_a_script_on_two_machines_slow_is_named):
        return
    found = diagnosed(tmp_path, lambda: slow(tmp_path, "3 0.15"))
    assert (found.culprit, found.nodes) == ("computation", ("worker-3",)), found


@pytest.mark.soak  # it goes by the clock
@pytest.mark.timeout(240)
def test_a_slow_link_between_two_machines_is_named(tmp_path: Path) -> None:
    if not in_own_network(test_a_slow_link_between_two_machines_is_named):
        return

    def slow_down() -> None:
        limit = "tc qdisc add dev host root tbf rate 2mbit burst 8kb latency 4s"
        if subprocess.run(limit.split(), capture_output=True, check=False).returncode:
            pytest.skip("needs tc, and the kernel's sch_tbf")

    found = diagnosed(tmp_path, slow_down)
    assert found.culprit == "link", found
    here, there = found.nodes
    assert here in ("worker-0", "worker-1"), found
    assert there in ("worker-2", "worker-3"), found


def diagnosed(tmp_path: Path, slow_down: Callable[[], None]) -> DiagnosedEvent:
    """What is found to blame when a script on two machines becomes slow."""
    (tmp_path / "home").mkdir()
    flags = ("--nnodes", "2", "--nproc-per-node", "2", "--master-addr", HOST)
    script = (str(SCRIPT.with_name("paced.py")), "--slow", str(tmp_path / "slow"))
    with other_machine(tmp_path / "home") as enter:
        run = Run(tmp_path, *flags, *script)
        job, other = run.job(), JoinedMachine(tmp_path / "other", enter)
        try:
            other.join(job)
            until(lambda: step_of(job) > 60, "a baseline, and a pace")
            slow_down()
            until(lambda: diagnoses(job), "a diagnosis")
            return diagnoses(job)[0]
        finally:
            other.die()
            RunningJob(job, tmp_path).close()
            run.command.communicate()


@pytest.mark.soak
def test_shards_on_two_machines_outlive_a_machine_and_the_model_is_exact(tmp_path: Path) -> None:
    if not in_own_network(test_shards_on_two_machines_outlive_a_machine_and_the_model_is_exact):
        return
    (tmp_path / "home").mkdir()
    os.environ["PACELINE_HOME"] = str(tmp_path / "home")
    single = alone(tmp_path / "alone")
    several: dict[str, Any] = {"workers": 4, "machines": 2, "listen": HOST}
    several["data_plane"] = DataPlaneSpec(transport="tcp")
    with (
        other_machine(tmp_path / "home") as enter,
        sharded(tmp_path / "two", "--slow-until-told", **several) as job,
    ):
        other = JoinedMachine(tmp_path / "other", enter)
        try:
            other.join(job.job)
            job.until_committed(3 * BATCH, cuts=1)
            until(lambda: len({*job.job.memory.glob("*/worker-[23]")}) >= 2, "their copies here")
            until(lambda: other.copies("worker-[01]") == 2, "our copies there")
            other.die()
            until(lambda: job.told(RestartAllEvent), "the end of the round")
            other.join(job.job)
            until(lambda: len(trains(job)) == 2, "the next round")
            (job.out / "hurry").touch()
            check_same(check_finished(job, lives=4), single)
        finally:
            other.die()
    first, second = trains(job)
    assert first.members == ("worker-0", "worker-1", "worker-2", "worker-3")
    assert second.step > 0, "from a cut"
    assert not job.told(CutDamagedEvent)


def check_environment(run: Run) -> None:
    """Each rank finds what torchrun would have told it."""
    seen = [run.seen(rank, 0) for rank in ALL]
    assert [one["LOCAL_RANK"] for one in seen] == ["0", "1", "0", "1"]
    assert [one["GROUP_RANK"] for one in seen] == ["0", "0", "1", "1"]
    assert {one["WORLD_SIZE"] for one in seen} == {"4"}
    assert {one["LOCAL_WORLD_SIZE"] for one in seen} == {"2"}
    assert {one["MASTER_ADDR"] for one in seen} == {HOST}
    assert len({one["MASTER_PORT"] for one in seen}) == 1

"""A job whose master's machine is lost: three machines, each with a network and file systems.

The master's is the test's own. Each two have a cable between them.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from paceline.base.errors import ConfigError
from paceline.base.jobdir import JobDir
from paceline.base.processes import find_job_processes, kill_quietly
from paceline.wire.events.job import JournalKeptEvent, MasterMovedEvent
from paceline.wire.spec import CheckpointSpec, DataPlaneSpec
from tests.integration.running import RunningJob, until
from tests.integration.test_allreduce import BATCH, N, group
from tests.integration.test_join import kill_all
from tests.integration.test_machines import in_own_network

ADDRESS = {"a": "10.98.1.1", "b": "10.98.1.2", "c": "10.98.1.3"}
LIMIT_S = 10.0
"""Seconds in which the next step must come."""
SPEC: dict[str, Any] = {
    "listen": ADDRESS["a"],
    "data_plane": DataPlaneSpec(transport="tcp"),
    "checkpoint": CheckpointSpec(every_s=2.0, share=1.0),
    "workers": 1,
}


class Machine:
    """Another machine than the master's."""

    def __init__(self, name: str, home: Path, hidden: list[Path]) -> None:
        self.name, self.home = name, home
        home.mkdir()
        waits = ["unshare", "--net", "--mount", "--uts", "sh", "-c", "read -r line"]
        self._process = subprocess.Popen(waits, stdin=subprocess.PIPE)
        own, theirs = (Path(f"/proc/{pid}/ns/mnt") for pid in ("self", self._process.pid))
        until(lambda: theirs.readlink() != own.readlink(), "a machine")
        self.enter = ["nsenter", "-t", str(self._process.pid), "-n", "-m", "-u"]
        mounts = "; ".join(f"mount -t tmpfs none {path}" for path in [*hidden, "/dev/shm"])
        self.run(f"ip link set lo up; hostname host-{name}; {mounts}")
        self.agent: subprocess.Popen[bytes] | None = None

    @property
    def net(self) -> str:
        return str(self._process.pid)

    def run(self, commands: str) -> None:
        subprocess.run([*self.enter, "sh", "-ec", commands], check=True)

    def lose_power(self, job: RunningJob) -> None:
        """End all that runs here; none gets to run in between."""
        homes = (*self.home.glob("joined/*/*"), self.home / "jobs" / job.job.job_id)
        pids = [one.pid for path in homes for one in find_job_processes(path)]
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in pids:
                kill_quietly(pid, number)

    def join(self, ticket: Path) -> None:
        """Join as the next worker."""
        (self.home / "ticket").write_bytes(ticket.read_bytes())
        call = [sys.executable, "-c", "from paceline.cli.main import app; app()", "agent"]
        with (self.home / "agent.log").open("wb") as log:
            self.agent = subprocess.Popen(
                [*self.enter, *call, "--join", str(self.home / "ticket")],
                env={**os.environ, "PACELINE_HOME": str(self.home)},
                stdout=log,
                stderr=log,
            )

    def job(self, job: RunningJob) -> RunningJob:
        """The job as the master on this machine has it."""
        return RunningJob(JobDir(self.home / "jobs" / job.job.job_id), job.out)

    def close(self) -> None:
        for path in (*self.home.glob("joined/*/*"), *self.home.glob("jobs/*")):
            for process in find_job_processes(path):
                kill_quietly(process.pid)
            kill_all(JobDir(path))
        if self.agent is not None:
            self.agent.wait()
        self._process.kill()
        self._process.communicate()


def cable(one: str, other: str, ends: dict[str, str]) -> None:
    """Connect two machines; ``ends``: the process of each but the first, whose network it is in."""
    there, back = f"{one}-{other}", f"{other}-{one}"
    subprocess.run(["ip", "link", "add", there, "type", "veth", "peer", "name", back], check=True)
    for device, own, peer in ((there, one, other), (back, other, one)):
        enter: list[str] = []
        if own in ends:
            subprocess.run(["ip", "link", "set", device, "netns", ends[own]], check=True)
            enter = ["nsenter", "-t", ends[own], "-n"]
        commands = (
            f"ip addr add {ADDRESS[own]} peer {ADDRESS[peer]} dev {device}; ip link set {device} up"
        )
        subprocess.run([*enter, "sh", "-ec", commands], check=True)


@contextlib.contextmanager
def on_three_machines(tmp_path: Path, *flags: str) -> Iterator[tuple[RunningJob, Machine, Machine]]:
    """A job of three workers, one on each; its journal is on all."""
    for name in ("home", "out"):
        (tmp_path / name).mkdir()
    os.environ["PACELINE_HOME"] = str(tmp_path / "home")
    with contextlib.ExitStack() as stack:
        others = [Machine(name, tmp_path / name, [tmp_path / "home"]) for name in "bc"]
        for machine in others:
            stack.callback(machine.close)
        ends = {machine.name: machine.net for machine in others}
        for one, other in (("a", "b"), ("a", "c"), ("b", "c")):
            cable(one, other, ends)
        job = stack.enter_context(group(tmp_path / "out", *flags, "--slow-until-told", **SPEC))
        job.until_committed(1)
        for number, machine in enumerate(others, 1):
            machine.join(job.job.ticket)
            life = f"worker-{number}."
            until(lambda life=life: batches(job, life), "batches of another machine")
        until(lambda: len(job.status().kept_on) == 3, "keepers of the journal")
        yield job, others[0], others[1]


def batches(job: RunningJob, whose: str = "") -> list[float]:
    """When the batches of a node, or of all, were given out, in order."""
    found = [times for life, times in job.times().items() if life.startswith(whose)]
    return sorted(np.concatenate(found).tolist()) if found else []


def goes_on(job: RunningJob, lost_s: float, others: tuple[Machine, ...]) -> RunningJob:
    """Wait until the others have done a step without the master's machine; the job there."""
    until(
        lambda: any(machine.job(job).told(MasterMovedEvent) for machine in others),
        "another master",
    )
    (there,) = (machine for machine in others if machine.job(job).told(MasterMovedEvent))
    moved = there.job(job)
    runs = until(lambda: moved.events("group_runs"), "a group without the machine that is gone")
    since_s = runs[0]["t"]
    later = until(lambda: [t for t in batches(moved, "worker-1") if t > since_s], "a batch")
    step_s = later[0] - lost_s
    (told,) = moved.told(MasterMovedEvent)
    print(f"master {told.t - lost_s:.1f} s, next step {step_s:.1f} s after the loss")
    print(f"  {told.clause}")
    is_busy = os.getloadavg()[0] > 2 * (os.cpu_count() or 1)
    assert step_s < (3 * LIMIT_S if is_busy else LIMIT_S)
    return moved


def check_counts(job: RunningJob, moved: RunningJob, epochs: int) -> None:
    """The job ends well, each sample counts once, and survivors have computed none of theirs again."""
    outcome = moved.end()
    assert outcome.state == "finished", outcome
    held = [load_file(path) for path in job.out.glob("*.final")]
    assert len(held) == 2
    (chief,) = job.out.glob("*.chief")
    assert chief.name.startswith("worker-1."), "the first of those that are left"
    assert "from here on this worker is the chief" in (moved.job.logs / "worker-1.log").read_text()
    for one in held:
        assert np.all(np.abs(one["seen"] - epochs) < 1e-9), np.unique(one["seen"])
    assert not moved.events("epoch"), "something was taken from a cut"
    computed = sum(len(ids) for ids in job.samples().values())
    print(f"{computed - epochs * N} samples were computed and do not count, of steps of {BATCH}")
    assert computed - epochs * N <= 3 * BATCH


@pytest.mark.timeout(300)
def test_the_job_goes_on_within_seconds_when_all_is_killed_on_the_masters_machine(
    tmp_path: Path,
) -> None:
    if not in_own_network(
        test_the_job_goes_on_within_seconds_when_all_is_killed_on_the_masters_machine
    ):
        return
    with on_three_machines(tmp_path, "--epochs", "4") as (job, b, c):
        assert job.told(JournalKeptEvent)[-1].hosts[1:] == ("host-b", "host-c")
        lost_s = time.time()
        job.kill_everything()
        moved = goes_on(job, lost_s, (b, c))
        (job.out / "hurry").touch()
        check_counts(job, moved, epochs=4)
        shutil.rmtree(job.job.run_dir)  # what a machine loses that is switched off


def cut(*, down: bool) -> None:
    """Cut the cables of the master's machine, or mend them."""
    for name in "bc":
        state = "down" if down else "up"
        subprocess.run(["ip", "link", "set", f"a-{name}", state], check=True)


@pytest.mark.soak
def test_a_master_whose_cable_is_cut_answers_nobody_and_ends_when_it_is_mended(
    tmp_path: Path,
) -> None:
    if not in_own_network(
        test_a_master_whose_cable_is_cut_answers_nobody_and_ends_when_it_is_mended
    ):
        return
    with on_three_machines(tmp_path, "--epochs", "4") as (job, b, c):
        lost_s = time.time()
        cut(down=True)
        moved = goes_on(job, lost_s, (b, c))
        until(lambda: job.status().waits_for, "a word of the master that stands still")
        assert "which keep the job's journal" in job.status().waits_for
        assert not job.job.outcome.exists()
        before = len(batches(job, "worker-0"))
        cut(down=False)
        outcome = job.end()
        assert outcome.error.startswith("the job goes on with a master on host-"), outcome
        assert len(batches(job, "worker-0")) == before, "it did a step alone"
        with pytest.raises(ConfigError, match="is not resumed here: the job goes on"):
            job.resume()
        (job.out / "hurry").touch()
        check_counts(job, moved, epochs=4)


@pytest.mark.soak
def test_a_machine_that_comes_back_finds_that_the_job_goes_on_elsewhere(tmp_path: Path) -> None:
    if not in_own_network(
        test_a_machine_that_comes_back_finds_that_the_job_goes_on_elsewhere, "ip link set lo up"
    ):
        return
    with on_three_machines(tmp_path, "--epochs", "4") as (job, b, c):
        lost_s = time.time()
        job.kill_everything()
        moved = goes_on(job, lost_s, (b, c))
        job.resume()  # as one does on a machine that was started again
        outcome = job.end()
        assert outcome.error.startswith("the job goes on with a master on host-"), outcome
        (job.out / "hurry").touch()
        check_counts(job, moved, epochs=4)


@pytest.mark.soak
def test_a_master_that_is_killed_alone_starts_again_on_its_machine(tmp_path: Path) -> None:
    if not in_own_network(
        test_a_master_that_is_killed_alone_starts_again_on_its_machine, "ip link set lo up"
    ):
        return
    with on_three_machines(tmp_path, "--epochs", "4") as (job, b, c):
        job.kill_master()
        until(lambda: len(job.events("master_started")) == 2, "the next master")
        before = job.status().committed
        job.until_committed(before + 3 * BATCH)
        (job.out / "hurry").touch()
        outcome = job.end()
        assert outcome.state == "finished", outcome
        for machine in (b, c):
            assert not machine.job(job).told(MasterMovedEvent)


@pytest.mark.soak
def test_when_all_others_leave_in_order_the_master_goes_on_alone(tmp_path: Path) -> None:
    if not in_own_network(
        test_when_all_others_leave_in_order_the_master_goes_on_alone, "ip link set lo up"
    ):
        return
    with on_three_machines(tmp_path, "--epochs", "3") as (job, b, c):
        for machine in (b, c):
            assert machine.agent is not None
            machine.agent.send_signal(signal.SIGINT)
        for machine in (b, c):
            assert machine.agent is not None
            machine.agent.wait(20)
        before = job.status().committed
        job.until_committed(before + 3 * BATCH)
        assert not job.status().waits_for
        until(lambda: not job.status().kept_on, "a word that the journal is here alone")
        (job.out / "hurry").touch()
        outcome = job.end()
        assert outcome.state == "finished", outcome


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_a_machine_that_came_back_takes_part_and_the_next_master_is_lost_as_well(
    tmp_path: Path,
) -> None:
    if not in_own_network(
        test_a_machine_that_came_back_takes_part_and_the_next_master_is_lost_as_well
    ):
        return
    with on_three_machines(tmp_path, "--epochs", "8") as (job, b, c):
        job.kill_everything()
        moved = goes_on(job, time.time(), (b, c))
        (there,) = (machine for machine in (b, c) if machine.job(job).job.path.exists())
        (left,) = (machine for machine in (b, c) if machine is not there)
        job.resume()
        job.end()
        call = [sys.executable, "-c", "from paceline.cli.main import app; app()", "agent"]
        again = subprocess.Popen([*call, "--join", str(moved.job.ticket)])
        until(lambda: len(moved.status().kept_on) == 3, "keepers of the second master's journal")
        lost_s = time.time()
        there.lose_power(job)
        back = RunningJob(job.job, job.out)
        until(
            lambda: left.job(job).told(MasterMovedEvent) or len(back.told(MasterMovedEvent)) > 0,
            "the third master",
        )
        last = left.job(job) if left.job(job).told(MasterMovedEvent) else back
        since_s = until(lambda: last.events("group_runs"), "a group of the two")[0]["t"]
        later = until(lambda: [t for t in batches(last) if t > since_s], "a batch")
        print(f"next step {later[0] - lost_s:.1f} s after the second loss")
        is_busy = os.getloadavg()[0] > 2 * (os.cpu_count() or 1)
        assert later[0] - lost_s < (3 * LIMIT_S if is_busy else LIMIT_S)
        (job.out / "hurry").touch()
        outcome = last.end()
        assert outcome.state == "finished", outcome
        for path in job.out.glob("*.final"):
            seen = load_file(path)["seen"]
            assert np.all(np.abs(seen - 8) < 1e-9), np.unique(seen)
        again.wait(20)

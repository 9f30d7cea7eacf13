"""Workers that hold the model on two machines, each with a network and file systems of its own.

The other machine is a network and a mount namespace; the test itself runs in a network of its own.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from paceline.base.errors import PermanentError
from paceline.base.jobdir import JobDir
from paceline.base.joined import LEFT_OUT
from paceline.cuts.manifest import read_manifest
from paceline.jobs.tickets import read_ticket
from paceline.wire.spec import CheckpointSpec, DataPlaneSpec, TimeoutSpec
from tests.integration.running import RunningJob, running, until
from tests.integration.test_allreduce import check_finished, group, trains
from tests.integration.test_join import kill_all

HOST, OTHER = "10.99.1.1", "10.99.1.2"
INSIDE = "PACELINE_TEST_OWN_NETWORK"
JOINED = "worker-1"
Kind = Callable[..., contextlib.AbstractContextManager[RunningJob]]


def can_make_machines() -> bool:
    """Whether namespaces and pairs of interfaces can be made here."""
    tools = all(map(shutil.which, ("unshare", "nsenter", "ip", "mount")))
    probe = ["unshare", "--net", "--mount", "sh", "-c", "ip link add one type veth peer name two"]
    return tools and not subprocess.run(probe, capture_output=True, check=False).returncode


CABLE = (
    "ip link set lo up; ip link add host type veth peer name port; "
    f"ip addr add {HOST}/24 dev host; ip link set host up"
)


def in_own_network(test: Callable[[Path], None], commands: str = CABLE) -> bool:
    """Whether we are; if not, the test was run in one, by a pytest of its own.

    Args:
        test: the caller.
        commands: of the shell, which make the network.
    """
    if INSIDE in os.environ:
        subprocess.run(["sh", "-ec", commands], check=True)
        return True
    if os.geteuid() != 0 or not can_make_machines():
        pytest.skip("needs root, ip and unshare, to make a machine of namespaces")
    plain = ["-q", "-s", "-p", "no:xdist", "-p", "no:cacheprovider", "-o", "addopts="]
    here = [sys.executable, "-m", "pytest", *plain, f"{test.__code__.co_filename}::{test.__name__}"]
    done = subprocess.run(
        ["unshare", "--net", *here],
        env={**os.environ, INSIDE: "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    return False


@contextlib.contextmanager
def other_machine(hidden: Path) -> Iterator[list[str]]:
    """What comes before a command that is to run there; it does not see what is ``hidden``."""
    waits = ["unshare", "--net", "--mount", "sh", "-c", "read -r line"]
    machine = subprocess.Popen(waits, stdin=subprocess.PIPE)
    try:
        own, theirs = (Path(f"/proc/{pid}/ns/mnt") for pid in ("self", machine.pid))
        until(lambda: theirs.readlink() != own.readlink(), "a machine")
        subprocess.run(["ip", "link", "set", "port", "netns", str(machine.pid)], check=True)
        enter = ["nsenter", "-t", str(machine.pid), "-n", "-m"]
        commands = (
            f"ip link set lo up; ip addr add {OTHER}/24 dev port; ip link set port up; "
            f"mount -t tmpfs none {hidden}; mount -t tmpfs none /dev/shm"
        )
        subprocess.run([*enter, "sh", "-ec", commands], check=True)
        yield enter
    finally:
        machine.kill()
        machine.communicate()


class Other:
    """The other machine: a worker of it joins."""

    def __init__(self, job: RunningJob, home: Path, enter: list[str]) -> None:
        self._job, self._home, self.enter = job, home, enter
        (home / "ticket").write_bytes(job.job.ticket.read_bytes())
        self.agent: subprocess.Popen[bytes] | None = None
        self.errors = home / "errors"

    def join(self) -> None:
        """Join as the next worker."""
        assert read_ticket(self._home / "ticket").address.startswith(HOST)
        call = [sys.executable, "-c", "from paceline.cli.main import app; app()", "agent"]
        ticket = ["--join", str(self._home / "ticket")]
        with self.errors.open("wb") as errors:
            self.agent = subprocess.Popen(
                [*self.enter, *call, *ticket],
                env={**os.environ, "PACELINE_HOME": str(self._home)},
                stderr=errors,
            )

    def cable(self, state: str) -> None:
        """Pull its cable (``down``), or plug it in."""
        subprocess.run([*self.enter, "ip", "link", "set", "port", state], check=True)

    def lose_power(self) -> float:
        """Cut its network and end all that runs there, so that nothing says so; the time."""
        self.cable("down")
        cut_s = time.time()
        self.pull_the_plug()
        return cut_s

    def pull_the_plug(self) -> None:
        """End all that runs there."""
        for path in (self._home / "joined").glob("*/*"):
            kill_all(JobDir(path))


SPEC: dict[str, Any] = {
    "listen": HOST,
    "data_plane": DataPlaneSpec(transport="tcp"),
    "timeouts": TimeoutSpec(lost_after_s=1.5),
    "checkpoint": CheckpointSpec(every_s=0.5, share=1.0),
    "workers": 1,
}

PATIENT: dict[str, Any] = {**SPEC, "timeouts": TimeoutSpec(lost_after_s=60.0)}
"""Silence alone counts after a minute only."""


@contextlib.contextmanager
def on_two_machines(
    tmp_path: Path, *flags: str, kind: Kind = group, spec: dict[str, Any] = SPEC
) -> Iterator[tuple[RunningJob, Other]]:
    """A job on the first; the second is about to join, and does not see what is in ``home``."""
    for name in ("home", "other", "out"):
        (tmp_path / name).mkdir(exist_ok=True)
    os.environ["PACELINE_HOME"] = str(tmp_path / "home")
    with (
        other_machine(tmp_path / "home") as enter,
        kind(tmp_path / "out", *flags, "--slow-until-told", **spec) as job,
    ):
        other = Other(job, tmp_path / "other", enter)
        try:
            yield job, other
        finally:
            other.pull_the_plug()
            if other.agent is not None:
                other.agent.wait()


def together(job: RunningJob, *names: str) -> None:
    """Wait until just these train."""
    said = ", ".join(names) + " train"
    until(lambda: trains(job) and trains(job)[-1].startswith(said), f"{names} training")


def num_batches(job: RunningJob, whose: str) -> int:
    """Of a node, or of one of its lives."""
    return sum(len(times) for life, times in job.times().items() if life.startswith(whose))


def test_a_machine_joins_holds_the_model_while_the_first_dies_and_vanishes(tmp_path: Path) -> None:
    if not in_own_network(test_a_machine_joins_holds_the_model_while_the_first_dies_and_vanishes):
        return
    with on_two_machines(tmp_path, "--epochs", "3") as (job, other):
        job.until_committed(1)
        other.join()
        until(lambda: num_batches(job, JOINED) > 2, "batches of the other machine")
        first = job.living("worker-0")
        os.kill(first.pid, signal.SIGKILL)
        fresh = f"worker-0.{first.inc + 2}"
        until(lambda: num_batches(job, fresh) > 2, "batches of the first machine's next worker")
        # Nobody but the other machine held the model.
        assert len(job.events("epoch")) == 1, "something was taken from a cut"
        other.pull_the_plug()
        together(job, "worker-0")
        (job.out / "hurry").touch()
        check_finished(job, epochs=3, lives=1)


@pytest.mark.soak
def test_a_machine_that_loses_its_power_is_given_up_at_once(tmp_path: Path) -> None:
    """Silence alone would count after a minute here."""
    if not in_own_network(test_a_machine_that_loses_its_power_is_given_up_at_once):
        return
    with on_two_machines(tmp_path, "--epochs", "3", spec=PATIENT) as (job, other):
        job.until_committed(1)
        other.join()
        until(lambda: num_batches(job, JOINED) > 2, "batches of the other machine")
        cut_s = other.lose_power()
        until(lambda: job.events("node_lost"), "a word about the machine")
        (lost,) = job.events("node_lost")
        assert lost["reason"] == "unreachable, its machine answers nobody"
        before = job.status().committed
        job.until_committed(before + 100)
        print(f"given up {lost['t'] - cut_s:.2f} s after the cut")
        (job.out / "hurry").touch()
        check_finished(job, epochs=3, lives=1)


def test_a_machine_that_is_given_up_and_back_at_once_takes_part_again(tmp_path: Path) -> None:
    """Its connection outlives the cut, so nothing but the master's end of it tells its agent."""
    if not in_own_network(test_a_machine_that_is_given_up_and_back_at_once_takes_part_again):
        return
    with on_two_machines(tmp_path, "--epochs", "3", spec=PATIENT) as (job, other):
        job.until_committed(1)
        other.join()
        together(job, "worker-0", JOINED)
        other.cable("down")
        until(lambda: job.events("node_lost"), "a word about the machine")
        other.cable("up")
        together(job, "worker-0", JOINED)
        (job.out / "hurry").touch()
        check_finished(job, epochs=3)


@pytest.mark.soak
def test_a_machine_that_is_given_up_by_a_master_that_dies_takes_part_again(tmp_path: Path) -> None:
    """Its worker greets a master that trains without it: its node has a next life there."""
    if not in_own_network(test_a_machine_that_is_given_up_by_a_master_that_dies_takes_part_again):
        return
    with on_two_machines(tmp_path, "--epochs", "3", spec=PATIENT) as (job, other):
        job.until_committed(1)
        other.join()
        together(job, "worker-0", JOINED)
        given_up = job.living(JOINED).inc
        other.cable("down")
        until(lambda: job.events("node_lost"), "a word about the machine")
        job.until_committed(job.status().committed + 100)
        job.kill_master()
        other.cable("up")
        together(job, "worker-0", JOINED)
        assert job.living(JOINED).inc > given_up
        (job.out / "hurry").touch()
        check_finished(job, epochs=3)


def lines(path: Path, *, order: int = 1) -> None:
    """Write a file with a line for each sample."""
    path.write_text("".join(f"{number}\n" for number in range(4096)[::order]))


def goes_on_without(job: RunningJob, other: Other, name: str) -> str:
    """A machine joins that cannot take part: why; the others train on, and nobody is restarted."""
    before = job.status().committed
    other.join()
    until(lambda: job.events(name), "a word about the other machine")
    (told,) = job.events(name)
    assert told["node"] == JOINED
    job.until_committed(before + 100)
    assert other.agent is not None
    assert other.agent.wait(20) == LEFT_OUT
    assert f"the job goes on without {JOINED}: {told['reason']}" in other.errors.read_text()
    (job.out / "hurry").touch()
    assert job.end().state == "finished"
    assert not job.events("relaunch")
    reason: str = told["reason"]
    return reason


@pytest.mark.soak
def test_a_machine_that_joins_without_the_data_is_named_and_the_others_train_on(
    tmp_path: Path,
) -> None:
    if not in_own_network(
        test_a_machine_that_joins_without_the_data_is_named_and_the_others_train_on
    ):
        return
    data = tmp_path / "home/ids.txt"
    data.parent.mkdir()
    lines(data)
    with on_two_machines(tmp_path, "--data", str(data), "--epochs", "4") as (job, other):
        job.until_committed(1)
        reason = goes_on_without(job, other, "node_lost")
    assert f"({OTHER}) cannot read {data} (grouped.py, line " in reason
    assert "put it at the same path there, or on storage that all machines share" in reason


@pytest.mark.soak
def test_a_machine_that_joins_with_other_data_is_left_out(tmp_path: Path) -> None:
    if not in_own_network(test_a_machine_that_joins_with_other_data_is_left_out):
        return
    data = tmp_path / "home/ids.txt"
    data.parent.mkdir()
    lines(data)
    with on_two_machines(tmp_path, "--data", str(data), "--epochs", "4") as (job, other):
        job.until_committed(1)
        lines(tmp_path / "backwards", order=-1)
        command = [*other.enter, "cp", str(tmp_path / "backwards"), str(data)]
        subprocess.run(command, check=True)
        reason = goes_on_without(job, other, "left_out")
    assert "contents is 1 files of 19370 bytes, digest " in reason
    assert "for worker-0 on " in reason
    assert f"for {JOINED} on " in reason
    assert f"({OTHER}); every worker must read the same data" in reason


@pytest.mark.soak
def test_a_worker_of_servers_without_the_data_is_named_and_the_others_train_on(
    tmp_path: Path,
) -> None:
    if not in_own_network(
        test_a_worker_of_servers_without_the_data_is_named_and_the_others_train_on
    ):
        return
    data = tmp_path / "home/ids.npy"
    data.parent.mkdir()
    np.save(data, np.arange(4096))
    with on_two_machines(tmp_path, "--data", str(data), kind=running) as (job, other):
        job.until_committed(1)
        reason = goes_on_without(job, other, "node_lost")
    assert f"({OTHER}) cannot read {data} (counted.py, line " in reason


@pytest.mark.soak  # it waits for half a minute
def test_a_worker_that_cannot_reach_a_server_is_named_with_the_address(tmp_path: Path) -> None:
    if not in_own_network(test_a_worker_that_cannot_reach_a_server_is_named_with_the_address):
        return
    long = ("--num-samples", "8192")
    with on_two_machines(tmp_path, *long, kind=running) as (job, other):
        job.until_committed(1)
        up = [one for one in job.events("process_up") if one["node"] == "server-1"]
        place = up[-1]["address"].partition("://")[2]
        closed = ["ip", "rule", "add", "ipproto", "tcp", "dport", place.partition(":")[2]]
        subprocess.run([*other.enter, *closed, "unreachable"], check=True)
        reason = goes_on_without(job, other, "node_lost")
    assert (
        f"({OTHER}) cannot connect to server-1 at {place} (Network is unreachable); let" in reason
    )


def files_of(job: RunningJob, cut_no: int) -> list[str]:
    """The names of the files of a cut on disk; none: it is not there (any more)."""
    try:
        return list(read_manifest(job.job.cuts / f"{cut_no:06d}").files)
    except PermanentError:
        return []


def newest_by(job: RunningJob, node: str) -> int:
    """The newest cut on disk that a node has made; 0: there is none."""
    numbers = sorted(int(path.name) for path in job.job.cuts.iterdir())
    made = (no for no in numbers if any(name.startswith(node) for name in files_of(job, no)))
    return max(made, default=0)


@pytest.mark.soak
def test_the_other_machine_alone_writes_cuts_reads_them_and_evaluates(tmp_path: Path) -> None:
    if not in_own_network(test_the_other_machine_alone_writes_cuts_reads_them_and_evaluates):
        return
    flags = ("--epochs", "3", "--evaluate", "--hold", "worker-0")
    with on_two_machines(tmp_path, *flags) as (job, other):
        job.until_committed(1)
        other.join()
        until(lambda: num_batches(job, JOINED) > 2, "batches of the other machine")
        (job.out / "held").touch()
        os.kill(job.pid_of("worker-0"), signal.SIGKILL)
        together(job, JOINED)
        until(lambda: newest_by(job, JOINED), "a cut of the other machine")
        made = newest_by(job, JOINED)
        # Nobody holds the model now, and no process of the first machine can read a cut.
        os.kill(job.pid_of(JOINED), signal.SIGKILL)
        until(lambda: len(job.events("epoch")) == 2, "an epoch from a cut")
        assert job.events("epoch")[1]["cut_no"] >= made > newest_by(job, "worker-0")
        together(job, JOINED)
        (job.out / "held").unlink()
        together(job, "worker-0", JOINED)
        (job.out / "hurry").touch()
        check_finished(job, epochs=3)
        found = [load_file(path) for path in job.out.glob("*.evaluated")]
        assert len(found) == 2
        for one in found:
            assert np.all(np.abs(one["seen"] - 3) < 1e-9), np.unique(one["seen"])

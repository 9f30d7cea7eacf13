"""Commands about a running job from a machine that has nothing of it but its ticket."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from paceline.cli.main import app
from paceline.wire.spec import DataPlaneSpec, NodeSpec
from tests.integration.running import RunningJob, running, until
from tests.integration.test_machines import OTHER, in_own_network, on_two_machines

PACELINE = (sys.executable, "-m", "paceline")


class FarShell:
    """A shell elsewhere, with a home of its own and a copy of the ticket."""

    def __init__(self, job: RunningJob, home: Path, enter: tuple[str, ...] = ()) -> None:
        self._enter, self._home = enter, home
        home.mkdir(exist_ok=True)
        (home / "ticket").write_bytes(job.job.ticket.read_bytes())
        self.ways = ["--job", str(home / "ticket")]

    def start(self, *args: str) -> "subprocess.Popen[str]":
        env = {**os.environ, "PACELINE_HOME": str(self._home), "PYTHONUNBUFFERED": "1"}
        return subprocess.Popen(
            [*self._enter, *PACELINE, *self.ways, *args],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def say(self, *args: str) -> str:
        """What a command says; on this machine in this process, which is quicker."""
        if not self._enter:
            done = CliRunner().invoke(
                app, [*self.ways, *args], env={"PACELINE_HOME": str(self._home)}
            )
            assert done.exit_code == 0, done.output
            return done.stdout
        command = self.start(*args)
        out, err = command.communicate(timeout=60)
        assert command.returncode == 0, out + err
        return out

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.say("status", "--json"))
        return found


def check_from_afar(job: RunningJob, shell: FarShell) -> None:
    """Look at a job of one worker, change it, and stop it."""
    job.until_committed(50, cuts=1)
    with shell.start("logs", "-f", "--node", "master", "--tail", "0") as follower:
        try:
            change_from_afar(job, shell)
            out, err = follower.communicate(timeout=30)
        finally:
            follower.kill()
    assert follower.returncode == 0, err
    assert "INFO" in out
    assert job.end().state == "stopped"


def change_from_afar(job: RunningJob, shell: FarShell) -> None:
    """Kill its worker, and its master; then stop it."""
    row = shell.status()
    assert row["job_id"] == job.job.job_id
    assert (row["workers"], row["path"], row["state"]) == (1, "", "training")
    assert [event["event"] for event in row["events"]]
    assert job.job.job_id in shell.say("status")
    assert "worker-0 is killed" in shell.say("kill", "--worker", "0")
    until(lambda: job.events("killed"), "the kill of worker-0")
    here = [line for line in (job.job.logs / "master.log").read_text().splitlines() if line]
    told = shell.say("logs", "--node", "master").splitlines()
    assert here == told[: len(here)]
    assert all(
        line.startswith("master | ") or " | " in line
        for line in shell.say("logs", "--tail", "1").splitlines()
    )
    job.kill_master()
    row = shell.status()  # it waits for the next master
    assert row["job_id"] == job.job.job_id
    said = shell.say("stop")
    assert f"job {job.job.job_id}: stopped after" in said, said


def test_a_job_is_watched_changed_and_stopped_with_its_ticket_alone(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    spec: dict[str, Any] = {
        "workers": 1,
        "servers": NodeSpec(count=1),
        "data_plane": DataPlaneSpec(transport="tcp"),
    }
    with running(tmp_path / "out", "--step-s", "0.05", "--num-samples", "65536", **spec) as job:
        shell = FarShell(job, tmp_path / "elsewhere")
        check_from_afar(job, shell)
        assert not (tmp_path / "elsewhere" / "jobs").exists()


@pytest.mark.soak
def test_the_same_from_another_machine(tmp_path: Path) -> None:
    if not in_own_network(test_the_same_from_another_machine):
        return
    long = ("--num-samples", "65536", "--step-s", "0.05")
    with on_two_machines(tmp_path, *long, kind=running) as (job, other):
        assert OTHER
        check_from_afar(job, FarShell(job, tmp_path / "other", tuple(other.enter)))

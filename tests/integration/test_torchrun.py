"""Scripts written for torchrun, run unchanged: to the end, through deaths, to a failure, stopped."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from paceline.base.jobdir import JobDir
from paceline.base.processes import find_job_processes, kill_quietly
from paceline.jobs.outcome import read_outcome
from tests.chaos.oracle import leftovers
from tests.integration.running import until, without_waits

PACELINE = (sys.executable, "-c", "from paceline.cli.main import app; app()")
SCRIPT = Path(__file__).with_name("jobs") / "torchrun_ddp.py"
END_S = 60.0
FAILING = """
import os, sys, time
from torch.distributed.elastic.multiprocessing.errors import record

@record
def main():
    if os.environ["RANK"] == "1":
        raise KeyError("no such column: clicks")
    time.sleep(60)

main()
"""
DEAF = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, lambda *_: print("asked to stop", flush=True))
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("ready", flush=True)
while True:
    time.sleep(0.1)
"""


class Run:
    """`paceline run` of a script, in a home and a folder of its own."""

    def __init__(self, folder: Path, *args: str) -> None:
        self.folder = folder
        own = {"PACELINE_HOME": str(folder / "home"), "TMPDIR": str(folder)}
        self.command = subprocess.Popen(
            [*PACELINE, "run", *args],
            env=os.environ | own,
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def job(self) -> JobDir:
        found = until(lambda: [*self.folder.glob("home/jobs/*/job.json")], "a job")
        return JobDir(found[0].parent)

    def seen(self, rank: int, life: int) -> dict[str, str]:
        """What a life of a rank has written of itself."""
        path = self.folder / f"{rank}.{life}.json"
        text: str = until(lambda: path.exists() and path.read_text(), str(path))
        found: dict[str, str] = json.loads(text)
        return found

    def step(self) -> int:
        try:
            return int(torch.load(self.folder / "checkpoint.pt", weights_only=True)["step"])
        except FileNotFoundError:
            return 0

    def end(self) -> tuple[int, str, str]:
        """Wait for it: exit code, output, errors. Nothing is left."""
        out, err = self.command.communicate(timeout=END_S)
        assert leftovers(self.job()) == []
        return self.command.returncode, out, without_waits(err)


def ddp(folder: Path, *flags: str, steps: int = 20) -> Run:
    script = (str(SCRIPT), "--", "--out", str(folder), "--steps", str(steps))
    return Run(folder, "--nproc-per-node", "2", *flags, *script)


@pytest.mark.proves(form="torchrun", strategy="script", ends="runs")
def test_a_script_for_torchrun_runs_to_its_end_as_it_is(tmp_path: Path) -> None:
    run = ddp(tmp_path, "--rdzv_id", "mine", "--log-dir", "kept/here")
    code, out, err = run.end()
    assert (code, err) == (0, "")
    assert len(out.splitlines()) < 20
    assert "worker-0 | rank 0 begins at step 0" in out
    assert "Nothing went wrong." in out
    assert "samples" not in out
    assert run.step() == 20
    assert (tmp_path / "kept/here" / run.job().job_id / "worker-1.log").exists()
    first, second = run.seen(0, 0), run.seen(1, 0)
    assert (first["RANK"], first["LOCAL_RANK"], second["RANK"]) == ("0", "0", "1")
    assert (first["WORLD_SIZE"], first["LOCAL_WORLD_SIZE"], first["GROUP_RANK"]) == ("2", "2", "0")
    assert first["MASTER_PORT"] == second["MASTER_PORT"]
    assert (first["MASTER_ADDR"], first["TORCHELASTIC_RUN_ID"]) == ("127.0.0.1", "mine")
    assert first["cwd"] == str(tmp_path)
    assert first["seed"] != second["seed"]


@pytest.mark.proves(form="torchrun", strategy="script", death="worker", ends="runs")
def test_a_killed_rank_has_all_begin_again_from_their_checkpoint(tmp_path: Path) -> None:
    run = ddp(tmp_path, steps=60)
    until(lambda: run.step() > 10, "ten steps")
    kill_quietly(int(run.seen(1, 0)["pid"]))
    code, out, _ = run.end()
    assert code == 0
    assert "worker-1 ended (signal SIGKILL), all workers start again" in out
    assert out.count("all workers started again") == 1
    assert run.step() == 60
    for rank in (0, 1):
        assert run.seen(rank, 1)["TORCHELASTIC_RESTART_COUNT"] == "1"
        assert run.seen(rank, 1)["MASTER_PORT"] != run.seen(rank, 0)["MASTER_PORT"]
        assert run.seen(rank, 1)["seed"] != run.seen(rank, 0)["seed"]
    logs = (run.job().logs / "worker-1.log").read_text()
    assert "rank 1 begins at step 0" in logs
    assert logs.count("rank 1 begins at step") == 2


@pytest.mark.soak
def test_a_rank_is_replaced_by_order_and_all_go_on_from_their_checkpoint(tmp_path: Path) -> None:
    run = ddp(tmp_path, "--max-restarts", "0", steps=100_000)
    until(lambda: run.step() > 10, "ten steps")
    done = subprocess.run(
        [*PACELINE, "replace", "--worker", "1"],
        env=os.environ | {"PACELINE_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert done.returncode == 0, done.stderr
    for rank in (0, 1):
        assert run.seen(rank, 1)["TORCHELASTIC_RESTART_COUNT"] == "1"
    log = run.job().logs / "worker-1.log"
    until(lambda: log.read_text().count("begins at step") == 2, "the second life")
    assert log.read_text().count("begins at step 0") == 1
    run.command.send_signal(signal.SIGINT)
    _, out, _ = run.end()
    assert "all workers started again" in out


@pytest.mark.soak
@pytest.mark.parametrize("role", ["agent", "master", "supervisor"])
@pytest.mark.proves(form="torchrun", strategy="script", death="{role}", ends="runs")
def test_any_process_of_ours_may_die(tmp_path: Path, role: str) -> None:
    run = ddp(tmp_path, steps=60)
    until(lambda: run.step() > 5, "five steps")
    found = [one for one in find_job_processes(run.job().path) if one.runs(f"paceline.{role}")]
    kill_quietly(found[0].pid)
    assert run.end()[0] == 0
    assert run.step() == 60
    # A rank ends with its agent; whoever else dies disturbs no rank.
    assert (tmp_path / "0.1.json").exists() == (role == "agent")


@pytest.mark.soak
def test_a_rank_that_dies_after_its_script_returned_has_not_failed(tmp_path: Path) -> None:
    script = (str(SCRIPT), "--", "--out", str(tmp_path), "--abort-at-exit")
    code, out, _ = Run(tmp_path, "--nproc-per-node", "2", *script).end()
    assert code == 0
    assert "start again" not in out


@pytest.mark.soak
def test_a_failing_script_ends_with_its_traceback_when_the_budget_is_spent(tmp_path: Path) -> None:
    (tmp_path / "failing.py").write_text(FAILING)
    run = Run(tmp_path, "--nproc-per-node", "2", "--max-restarts", "1", "failing.py")
    code, out, err = run.end()
    assert code == 1
    assert out.count("all workers start again") == 1
    assert err.startswith("Traceback (most recent call last):")
    assert "KeyError: 'no such column: clicks'" in err
    assert (
        "worker-1: KeyError in the script (failing.py, line 8) ('no such column: clicks'); the budget of 1"
        in err
    )
    errors = sorted(run.job().logs.glob("worker-1.*.error.json"))
    assert len(errors) == 2
    assert "no such column: clicks" in errors[0].read_text()


def test_the_exit_code_of_any_program_is_passed_on(tmp_path: Path) -> None:
    command = ("--no-python", "bash", "--", "-c", "exit $((3 + 4 * LOCAL_RANK))")
    run = Run(tmp_path, "--nproc-per-node", "1", "--max-restarts", "0", *command)
    assert run.end()[0] == 3


def test_ctrl_c_asks_every_script_to_stop_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "deaf.py").write_text(DEAF)
    run = Run(tmp_path, "--nproc-per-node", "2", "--shutdown-timeout", "1s", "deaf.py")
    logs = [run.job().logs / f"worker-{rank}.log" for rank in (0, 1)]
    until(lambda: all(log.exists() and "ready" in log.read_text() for log in logs), "both")
    run.command.send_signal(signal.SIGINT)
    _, out, _ = run.end()
    assert "the scripts get SIGTERM" in out
    assert all(log.read_text().count("asked to stop") == 1 for log in logs)
    outcome = read_outcome(run.job().outcome)
    assert outcome is not None
    assert outcome.state == "stopped"

"""The command line against real jobs: what it prints, what it returns, what it leaves."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from paceline.base.jobdir import JobDir
from paceline.base.processes import find_job_processes
from paceline.cli.main import app
from paceline.jobs.history import read_last_metrics
from paceline.jobs.outcome import read_outcome
from paceline.policy.observation import Observation
from tests.integration.running import without_waits

PACELINE = (sys.executable, "-c", "from paceline.cli.main import app; app()")
SCRIPT = Path(__file__).parents[1] / "chaos" / "planted.py"
TALLY = Path(__file__).parents[2] / "examples" / "05_every_sample_once.py"
FAILING = """
import sys
import paceline as pl
job = pl.init()
print("about to fail", flush=True)
raise ValueError("no such column: clicks")
"""


class Shell:
    """A shell with a home for jobs of its own."""

    def __init__(self, home: Path) -> None:
        self.home = home
        # PYTHONUNBUFFERED: what a test waits for has left the process when it was printed.
        own = {"PACELINE_HOME": str(home), "PYTHONUNBUFFERED": "1", "TMPDIR": str(home)}
        self._env = os.environ | own

    def start(self, *args: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*PACELINE, *args],
            env=self._env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *args: str) -> tuple[int, str, str]:
        command = self.start(*args)
        out, err = command.communicate(timeout=90)
        return command.returncode, out, without_waits(err)

    def here(self, *args: str) -> tuple[int, str]:
        """The same in this process, which is quicker: its exit code, and all that it says."""
        done = CliRunner().invoke(app, args, env={"PACELINE_HOME": str(self.home)})
        return done.exit_code, done.output

    def job(self) -> JobDir:
        (path,) = (self.home / "jobs").glob("*/job.json")
        return JobDir(path.parent)


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


def until(true: Callable[[], object], what: str, timeout_s: float = 60.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    pause = 0.05
    while not true():
        assert time.monotonic() < deadline_s, f"never: {what}"
        time.sleep(pause)


def trains(job: JobDir) -> bool:
    assert not job.outcome.exists(), job.outcome.read_text()
    last = read_last_metrics(job.metrics)
    return last is not None and last.committed > 0


def test_help_comes_soon_and_without_torch_grpc_or_matplotlib() -> None:
    probe = (
        "import sys\n"
        "sys.argv = ['paceline', '--help']\n"
        "from paceline.cli.main import app\n"
        "try: app()\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'grpc', 'matplotlib', 'numpy', 'pyarrow', 'numba'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", probe], check=True, stdout=subprocess.PIPE)


def test_a_healthy_job_says_little_and_leaves_a_report_and_nothing_else(shell: Shell) -> None:
    code, out, err = shell.run(
        *("run", str(TALLY), "--workers", "2", "--servers", "2", "--mode", "asp"),
        *("--", "--rows", "5000", "--batch-size", "64"),
    )
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert len(lines) < 20
    what = r"ps \(since --servers is given\), asp, exactly-once, 2 workers, 2 servers"
    assert re.match(rf"job \S+: 05_every_sample_once.py, {what}", out)
    assert "worker-0 | tally: 4,500 rows, the smallest 1, the largest 1" in out
    assert "Finished: 4,500 of 4,500 samples in the model" in out
    assert "Nothing went wrong." in out
    job = shell.job()
    assert lines[-1].startswith(f"report: {job.report}")
    assert "<svg" in job.report.read_text()
    assert find_job_processes(job.path) == []
    assert not job.run_dir.exists()
    assert "finished" in shell.here("status")[1]
    code, said = shell.here("status", "--observation")
    assert code == 2
    assert "does not run: it has finished" in said
    assert "job completion time" in shell.here("report", job.job_id)[1]


def test_a_users_error_shows_the_users_traceback_first(shell: Shell, tmp_path: Path) -> None:
    script = tmp_path / "failing.py"
    script.write_text(FAILING)
    code, out, err = shell.run("run", str(script))
    assert code == 1
    first, *_, last_of_trace, where = err.strip().splitlines()
    assert first == "Traceback (most recent call last):"
    assert last_of_trace == "ValueError: no such column: clicks"
    assert str(shell.job().logs) in where
    assert "worker-0 | about to fail" in out
    assert "Traceback" not in out
    assert "Nothing went wrong" not in out


def test_a_scripts_own_exit_code_is_passed_on(shell: Shell, tmp_path: Path) -> None:
    script = tmp_path / "leaving.py"
    script.write_text(
        "import sys, paceline as pl\npl.init()\n"
        "print(repr(sys.stdin.read()), 'last words', end='')\nsys.exit(7)\n"
    )
    code, out, _ = shell.run("run", str(script))
    assert code == 7
    assert "worker-0 | '' last words\n" in out  # no end of line, and nothing to read
    logs = ("logs", "--node", "worker-0", "--tail", "1", "--since", "1h")
    assert shell.run(*logs)[1] == "'' last words\n"
    assert shell.here("logs", "--node", "worker-0", "--since", "0s")[1] == ""


@pytest.mark.soak
@pytest.mark.parametrize("strategy", ["ps", "allreduce"])
def test_a_script_finds_and_leaves_files_beside_the_command(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    (tmp_path / "scripts").mkdir()
    (tmp_path / "data.txt").write_text("3")
    monkeypatch.chdir(tmp_path)
    script = "import paceline as pl\npl.init()\nopen('out', 'w').write(open('data.txt').read())\n"
    (tmp_path / "scripts" / "copying.py").write_text(script)
    code, out, err = shell.run("run", "scripts/copying.py", "--strategy", strategy)
    assert code == 0, err
    assert "Nothing was trained: the script ran no loop over job.batches" in out
    assert "Nothing went wrong" not in out
    assert (tmp_path / "out").read_text() == "3"


@pytest.mark.parametrize(
    ("number", "code", "name"),
    [
        (signal.SIGINT, 130, "Ctrl-C"),
        pytest.param(signal.SIGUSR1, 138, "SIGUSR1", marks=pytest.mark.soak),
    ],
)
@pytest.mark.proves(form="batches", strategy="ps asp", death="stop", ends="counted")
def test_a_signal_stops_in_order_and_resume_does_the_rest_exactly_once(
    number: int, code: int, name: str, shell: Shell
) -> None:
    command = shell.start(
        *("run", str(SCRIPT), "--mode", "asp", "--", "--num-samples", "4096", "--step-s", "0.05")
    )
    until(lambda: list(shell.home.glob("jobs/*/job.json")), "a job")
    job = shell.job()
    until(lambda: trains(job), "a sample in the model")
    command.send_signal(number)
    out, _ = command.communicate(timeout=60)
    assert command.returncode == code
    assert "stopping gracefully" in out
    assert f"Stopped by {name} after" in out
    assert f"paceline run --resume {job.job_id}" in out
    outcome = read_outcome(job.outcome)
    assert outcome is not None
    assert outcome.state == "stopped"
    assert 0 < outcome.committed < 4096
    code, out, err = shell.run("run", "--resume", job.job_id)
    assert (code, err) == (0, "")
    assert "Finished: 4,096 of 4,096 samples" in out
    (worker,) = workers_of(shell, job)
    # Of both runs; a step is noted when the next one begins, so that a stop may cost one batch.
    assert 4096 - 64 <= worker["samples"] <= 4096 + 64
    report = shell.here("report")[1]
    assert f"{worker['samples']:,}" in report


def workers_of(shell: Shell, job: JobDir) -> list[Any]:
    nodes = msgspec.json.decode(shell.here("status", job.job_id, "--json")[1])["nodes"]
    return [node for node in nodes if node["role"] == "worker"]


def test_a_detached_job_is_seen_and_steered_from_other_shells(shell: Shell) -> None:
    code, out, _ = shell.run(
        *("run", str(SCRIPT), "--detach", "--workers", "2", "--mode", "asp"),
        *("--", "--num-samples", "400000", "--step-s", "0.2"),
    )
    job = shell.job()
    assert code == 0
    assert f"paceline attach {job.job_id}" in out
    until(lambda: trains(job), "a sample in the model")

    assert "training" in shell.run("status", job.job_id)[1]
    assert re.search(r"result +running", shell.here("report")[1])
    assert [worker["state"] for worker in workers_of(shell, job)] == ["running"] * 2
    seen = msgspec.json.decode(shell.here("status", "--observation")[1], type=Observation)
    assert [server.node for server in seen.servers] == ["server-0"]
    assert seen.worker_restart.start_s > 0
    watcher = shell.start("attach")
    assert watcher.stdout is not None
    assert "training: server-0" in watcher.stdout.readline()
    watcher.send_signal(signal.SIGINT)
    assert "goes on" in watcher.communicate(timeout=30)[0]

    assert shell.run("kill", "--worker", "1")[0] == 0
    assert shell.here("scale", job.job_id, "--workers", "3")[0] == 0
    log = job.logs / "worker-2.log"
    until(log.exists, "a third worker")
    assert "expected one of" in shell.here("kill")[1]
    assert "expected one of" in shell.here("kill", "--worker", "0", "--master")[1]
    code, said = shell.here("kill", "--worker", "9")
    assert code == 2
    assert "no live node 'worker-9'" in said
    assert "no log of 'worker-8'" in shell.here("logs", "--node", "worker-8")[1]
    assert shell.here("logs", "--node", "master")[0] == 0

    code, out, _ = shell.run("stop", "--now")
    assert code == 0
    assert "Stopped by `paceline stop` after" in out
    assert "worker-1: killed by order, started again" in out
    assert find_job_processes(job.path) == []
    code, said = shell.here("scale", "--workers", "2")
    assert code == 2
    assert "it was stopped" in said

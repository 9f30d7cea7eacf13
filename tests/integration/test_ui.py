"""The server of `paceline ui`: for those with its token, with orders to jobs; it leaves nothing."""

import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.running import running, until
from tests.unit.cli.test_cli_commands import FAILED, ended_job

WORDS = [sys.executable, "-m", "paceline"]


class Ui:
    """A server, and a browser that knows its token, or another."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdout is not None
        self.process = process
        self.place, _, self.token = process.stdout.readline().strip().partition("/#")

    def ask(
        self, path: str, body: object = None, *, token: str | None = None, **headers: str
    ) -> tuple[int, str]:
        bearer = f"Bearer {self.token if token is None else token}"
        data = None if body is None else json.dumps(body).encode()
        asked = urllib.request.Request(
            self.place + path, data, {"Authorization": bearer, **headers}
        )
        try:
            with urllib.request.urlopen(asked, timeout=30) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def first(self, path: str) -> dict[str, Any]:
        """The first message of a page."""
        asked = urllib.request.Request(
            self.place + path, headers={"Authorization": f"Bearer {self.token}"}
        )
        with urllib.request.urlopen(asked, timeout=30) as reply:
            for line in reply:
                if line.startswith(b"data:"):
                    found: dict[str, Any] = json.loads(line[5:])
                    return found
        raise AssertionError("no message")


@pytest.fixture
def ui(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ui]:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))
    process = subprocess.Popen([*WORDS, "ui", "--port", "0"], stdout=subprocess.PIPE, text=True)
    try:
        yield Ui(process)
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
        assert process.stdout is not None
        process.stdout.close()


def test_pages_are_for_those_with_the_token_and_orders_reach_jobs(ui: Ui, tmp_path: Path) -> None:
    old = ended_job(**FAILED)

    # Nothing of a job without the token; the shell has nothing of one.
    assert ui.ask("/api/jobs", token="")[0] == ui.ask("/api/jobs", token="x" * 32)[0] == 401
    status, shell = ui.ask(f"/jobs/{old.job_id}", token="")
    assert status == 200 and old.job_id not in shell and ui.token not in shell
    assert ui.ask("/api/jobs", Host="evil.example")[0] == 400
    assert ui.ask("/assets/..%2fserver.py")[0] == 404

    everything = ui.first("/api/jobs")
    assert f"/jobs/{old.job_id}" in everything["blocks"]["jobs"]
    page = ui.first(f"/api/jobs/{old.job_id}")
    assert page["state"] == "script failed: it broke"
    assert "loss 0.3" in page["blocks"]["logs"]
    assert ui.ask("/api/jobs/none")[0] == 409

    told = ui.ask(f"/api/jobs/{old.job_id}/stop", {})
    assert told[0] == 409 and "does not run" in told[1]
    assert ui.ask(f"/api/jobs/{old.job_id}/scale", {"workers": 0})[0] == 400
    assert ui.ask(f"/api/jobs/{old.job_id}/kill", {"node": 7})[0] == 400
    assert ui.ask(f"/api/jobs/{old.job_id}/kill", {"node": "x" * 9000})[0] == 413
    assert ui.ask(f"/api/jobs/{old.job_id}/report")[1].startswith("<!doctype html>")

    with running(tmp_path, "--num-samples", "100000", mode="bsp") as job:
        job.until_committed(256)
        name, pid = job.job.job_id, job.pid_of("worker-1")
        assert "has no node" not in ui.ask(f"/api/jobs/{name}/kill", {"node": "worker-1"})[1]
        until(lambda: job.pid_of("worker-1") not in (0, pid), "the next life of worker-1")
        both = ui.first(f"/api/compare?jobs={old.job_id},{name}")
        assert old.job_id in both["title"] and name in both["title"]
        assert ui.ask(f"/api/jobs/{name}/stop", {}) == (200, "The job is being stopped.")
        until(job.job.outcome.exists, "the end of the job")


def test_a_server_beside_a_run_ends_with_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))
    job = ended_job(**FAILED)
    starter = (
        "import sys, os; from pathlib import Path; from paceline.base.jobdir import JobDir\n"
        "from paceline.jobs.web import open_page\n"
        f"page = open_page(JobDir(Path({str(job.path)!r})))\n"
        "print(page.address, page._process.pid, flush=True)\n"
        "sys.stdin.read(); os._exit(9)\n"  # as one that is killed: it closes nothing
    )
    with subprocess.Popen(
        [sys.executable, "-c", starter], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as command:
        assert command.stdout is not None and command.stdin is not None
        address, pid = command.stdout.readline().split()
        assert f"/jobs/{job.job_id}#" in address
        assert Path(f"/proc/{pid}").exists()
        command.stdin.close()
    until(lambda: not _lives(int(pid)), "the end of the server")


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "Z" not in Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


def test_of_a_job_that_is_removed_the_page_says_so(ui: Ui) -> None:
    job = ended_job(**FAILED)
    shutil.rmtree(job.path)
    assert "there is no job" in ui.ask(f"/api/jobs/{job.job_id}")[1]

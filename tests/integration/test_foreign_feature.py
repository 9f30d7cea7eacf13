"""The feature of docs/howto/write-a-feature.md, installed as a package of somebody else."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.wire.events.base import PlainEvent
from tests.integration.running import RunningJob, install, running, until

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "write-a-feature.md"


@pytest.fixture
def _installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = PAGE.read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    ((group, line),) = re.findall(r'entry-points\."(.*)"\]\n(.*)\n', page)
    site = install(tmp_path / "site", "deaths", code, group, line.replace('"', ""))
    paths = [str(site), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))


def told(job: RunningJob) -> list[PlainEvent]:
    """Events of the feature, as the core reads them."""
    return [event for event in job.told(PlainEvent) if event.feature == "deaths"]


def said(*words: str | Path) -> str:
    """What a command prints; empty where it fails."""
    call = [sys.executable, "-m", "paceline", *map(str, words)]
    return subprocess.run(call, capture_output=True, text=True, check=False).stdout.strip()


@pytest.mark.usefixtures("_installed")
def test_it_keeps_a_record_over_the_death_of_the_master(tmp_path: Path) -> None:
    # A busy machine takes long for each command: the job must not be over before.
    with running(tmp_path, "--num-samples", "4096", "--slow-until-told", mode="bsp") as job:
        job.until_committed(256)
        os.kill(job.pid_of("worker-0"), signal.SIGKILL)
        until(lambda: told(job), "the feature's event")
        os.kill(job.status().master_pid, signal.SIGKILL)
        answer = until(lambda: said("deaths", job.job.path, "1"), "an answer of the next master")
        assert answer == "{'died': 1, 'enough': True}"
        os.kill(job.pid_of("worker-1"), signal.SIGKILL)
        until(lambda: len(told(job)) == 2, "the second event, counted on")
        until(lambda: "2 deaths, greeted" in " ".join(job.status().notes), "its note in the status")
        (job.out / "hurry").touch()
        job.check_finished()
        assert [event.sentence() for event in told(job)] == ["death number 1", "death number 2"]
        page = tmp_path / "page.html"
        assert "workers were killed: 2 times" in said("report", job.job.job_id, "--html", page)
        assert "<h2>Deaths</h2><p>workers were killed: 2 times</p>" in page.read_text()
        logs = [one.read_text() for one in job.job.logs.glob("*.log")]
    assert any("greeted {'rank': 0}" in log for log in logs)

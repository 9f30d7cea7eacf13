"""The environment of a run is that of its start: over deaths, resumes and other shells."""

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from paceline.jobs.launch import launch
from paceline.wire.client import StopJob
from paceline.wire.spec import JobSpec, NodeSpec
from tests.integration.running import RunningJob, until

SCRIPT = Path(__file__).with_name("jobs") / "surrounded.py"


def lives(out: Path) -> list[dict[str, Any]]:
    """What each life has written down, as long as it is whole."""
    return [json.loads(line) for line in (out / "lives").read_text().splitlines()]


def spec(out: Path, *args: str) -> JobSpec:
    out.mkdir()
    return JobSpec(
        script=str(SCRIPT),
        args=("--out", str(out), *args),
        strategy="allreduce",
        workers=NodeSpec(count=2),
        solution="none",
        preflight=False,
    )


@pytest.mark.soak
def test_a_resume_and_a_death_change_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("LANG", "C.UTF-8")
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    monkeypatch.setenv("PYTHONHASHSEED", "random")
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("MASTER_ADDR", "10.0.0.1")
    undisturbed = tmp_path / "undisturbed"
    monkeypatch.setenv("PYTHONHASHSEED", "77")
    with closing(RunningJob(launch(spec(undisturbed, "--step-s", "0")), undisturbed)) as job:
        assert job.end().state == "finished"
    out = tmp_path / "stopped"
    with closing(RunningJob(launch(spec(out)), out)) as job:
        job.until_committed(700)
        job.tell(StopJob())
        assert job.end().state == "stopped"
        monkeypatch.delenv("PYTHONHASHSEED")
        monkeypatch.delenv("TZ")
        monkeypatch.setenv("LANG", "C")
        job.resume()
        until(lambda: len(lives(out)) == 4, "two more lives")
        job.kill_nodes()
        assert job.end().state == "finished"
    found = lives(out)
    assert len(found) == 6
    assert found == [found[0]] * 6
    assert found[0]["zone"] == ["JST", "JST"]
    assert found[0]["language"] == "C.UTF-8"
    assert found[0]["foreign"] == []
    assert found[0] == lives(undisturbed)[0]
    losses = {float.fromhex(path.read_text()) for path in out.glob("loss.*")}
    (loss,) = {float.fromhex(path.read_text()) for path in undisturbed.glob("loss.*")}
    assert sorted(losses) == pytest.approx([loss] * len(losses), rel=1e-5)

"""The steps of the loop that finds a job's size are taken again by ``paceline replay``."""

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from paceline.cli.main import app
from paceline.features.sizes.policy.registry import RESOURCES
from paceline.features.sizes.policy.steering import SteeringLine, steer
from paceline.features.sizes.policy.steering_state import ApplyPlan
from paceline.jobs.jsonl import LineFile
from tests.unit.sizes.job_world import World
from tests.unit.sizes.test_closed_loop import CORES, JOBS, ONE, RULES


def write(path: Path, windows: int = 30) -> Path:
    """What a job writes down that begins too small; `optimus` finds it a size."""
    file, lines = LineFile(path), list[SteeringLine]()

    class Written(World):
        def _steer(self, fact: Any, rules: Any, policy: Any) -> None:
            acts = steer(self.state, fact, rules, policy)[1]
            lines.append(
                SteeringLine(policy="optimus", before=self.state, fact=fact, rules=rules, acts=acts)
            )
            super()._steer(fact, rules, policy)

    Written(JOBS["wide"], ONE, CORES, seed=1).run(RESOURCES.make("optimus"), windows, RULES)
    for line in lines:
        file.add(line)
    file.flush()
    return path


def run(*args: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["replay", *args])
    return result.exit_code, result.output


def test_the_log_s_own_policy_takes_the_same_steps(tmp_path: Path) -> None:
    path = write(tmp_path / "sizing.jsonl")
    assert ApplyPlan.__name__ in path.read_text()
    code, output = run(str(path))
    assert code == 0
    assert output.startswith("optimus: reproduces all 3")


def test_another_policy_is_shown_beside_the_log(tmp_path: Path) -> None:
    path = write(tmp_path / "sizing.jsonl")
    code, output = run(str(path), "--solution", "none")
    assert code == 0
    assert "none: plans in 0 of 3" in output
    assert "optimus: reproduces all 3" in output


def test_a_step_that_is_taken_otherwise_now_is_shown_and_fails(tmp_path: Path) -> None:
    path = write(tmp_path / "sizing.jsonl")
    lines = path.read_text().replace('"policy":"optimus"', '"policy":"none"')
    path.write_text(lines)
    code, output = run(str(path))
    assert code == 1
    assert "is now keep: the policy does not change sizes" in output
    assert "none: differs in" in output


def test_the_logs_of_a_job_are_both_taken_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))
    job = tmp_path / "jobs" / "job-1"
    job.mkdir(parents=True)
    (job / "job.json").write_text("{}")
    write(job / "sizing.jsonl", 3)
    assert run("job-1") == (0, "optimus: reproduces all 3 steps of the log of sizes\n")
    (job / "decisions.jsonl").write_text("")
    assert "nobody: reproduces all 0 decisions of the log" in run("job-1")[1]


def test_a_parameter_of_a_job_with_several_logs_needs_the_name_of_a_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))
    job = tmp_path / "jobs" / "job-1"
    job.mkdir(parents=True)
    (job / "job.json").write_text("{}")
    write(job / "sizing.jsonl", 3)
    (job / "decisions.jsonl").write_text("")
    code, output = run("job-1", "--set", "probes=2")
    assert code == 2 and "--set probes=...: this job has several logs" in output
    assert "sizing.jsonl: es, none, optimus, rm" in output and "decisions.jsonl: adj" in output


def test_a_log_that_is_not_there_is_refused_with_the_names_of_logs(tmp_path: Path) -> None:
    code, output = run(str(tmp_path / "sizes.jsonl"))
    assert code == 2 and "no such file; name a " in output
    for name in ("cures.jsonl", "decisions.jsonl", "sizing.jsonl"):
        assert f"a {name}, " in output


def test_a_policy_that_is_not_there_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "sizing.jsonl", 2)
    code, output = run(str(path), "--solution", "mine")
    assert code == 2
    assert "no resource policy 'mine'; there are" in output


def test_another_policy_is_asked_where_the_log_s_own_is_not_installed(tmp_path: Path) -> None:
    path = write(tmp_path / "sizing.jsonl", 3)
    path.write_text(path.read_text().replace('"policy":"optimus"', '"policy":"theirs"'))
    code, output = run(str(path), "--solution", "none")
    assert code == 0
    assert (
        "not compared with the log's own policy: no resource policy 'theirs'; there are" in output
    )
    code, output = run(str(path))
    assert code == 2 and "no resource policy 'theirs'" in output

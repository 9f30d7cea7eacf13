"""What the planner did about a script: told and made again, from its own file or one of before."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from paceline.base.errors import ConfigError
from paceline.base.jobdir import JobDir
from paceline.cli.main import app
from paceline.features.failslow.cures import cures_of, log_of, read_cures
from paceline.features.failslow.events import ComparedPart, DiagnosedEvent, SlowedEvent
from paceline.features.stragglers.policy.decision_log import log_of as decisions_of
from paceline.features.stragglers.stories import read_log
from paceline.wire.spec import JobSpec, save

RECORDED = Path(__file__).parent / "recorded" / "decisions.jsonl"


@pytest.fixture
def job(tmp_path: Path) -> JobDir:
    found = JobDir(tmp_path)
    save(JobSpec(script="/train.py", strategy="script"), found.spec)
    parts = (ComparedPart("product", ("worker-3",), 0.4, 0.2),)
    events = (
        SlowedEvent(t=1_699_999_960.0, step=9, before_s=1.0, after_s=1.5),
        DiagnosedEvent(
            t=1_699_999_970.0, culprit="computation", nodes=("worker-3",), ratio=1.5, parts=parts
        ),
    )
    launched = '{"t":1699999900.0,"event":"launched"}\n'
    found.events.write_text(launched + "".join(event.text() for event in events))
    return found


def run(*args: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, [*args])
    return result.exit_code, result.output


@pytest.mark.parametrize("place", ["cures.jsonl", "decisions.jsonl"])
def test_a_script_s_slowness_is_told_with_its_cures(job: JobDir, place: str) -> None:
    (job.path / place).write_bytes(RECORDED.read_bytes())
    code, output = run("explain", str(job.path))
    lines = output.splitlines()
    assert code == 0
    head = lines.index(f"{job.job_id}: the planner for scripts")
    assert lines[0].startswith(f"{job.job_id}: slow since ")
    assert "worker-3" in "".join(lines[3 : head - 1]) and not lines[head - 1]
    assert lines[head + 1 : head + 4] == ["  8 decisions written", "", lines[head + 3]]
    assert lines[head + 3].strip().endswith("decision 1: MICRO_BATCHES")
    seen = "a step took 1500.0 ms, 1.50 times the 1000.0 ms before"
    assert lines[head + 4] == f"         seen      {seen}"
    assert lines[head + 5].startswith("         rule      planner: computation: 2 s were lost")
    assert not lines[head + 6] and len(cures_of(job)) == 8
    assert run("failslow", str(job.path))[1].splitlines()[:3] == lines[:3]


@pytest.mark.parametrize("place", ["cures.jsonl", "decisions.jsonl"])
def test_a_job_s_cures_are_made_again(job: JobDir, place: str) -> None:
    (job.path / place).write_bytes(RECORDED.read_bytes())
    told = "the planner: reproduces all 8 decisions of the log\n"
    assert run("replay", str(job.path)) == (0, told)


def test_a_job_without_cures_has_nothing_to_make_again(job: JobDir) -> None:
    code, output = run("replay", str(job.path))
    assert code != 0
    assert "uneven" in output or "nothing is decided" in output
    assert "the planner for scripts" not in run("explain", str(job.path))[1]


def test_logs_of_both_kinds_pass_over_each_other_s_lines(job: JobDir) -> None:
    decisions_of(job).write_bytes(RECORDED.read_bytes() + b'{"type":"CurePla')
    assert read_log(decisions_of(job)) == []
    stragglers = Path(__file__).parents[1] / "stragglers" / "recorded" / "decisions.jsonl"
    assert read_cures(stragglers) == [] and len(read_cures(decisions_of(job))) == 8


def test_a_line_of_another_version_is_named(job: JobDir) -> None:
    first, second, *_ = RECORDED.read_text().splitlines()
    other = json.loads(second) | {"acts": "none"}
    log_of(job).write_text(f"{first}\n{json.dumps(other, separators=(',', ':'))}\n")
    with pytest.raises(ConfigError, match="line 2"):
        read_cures(log_of(job))

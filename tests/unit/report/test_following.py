"""A job that is followed as its files grow is the job that is read at once."""

import os
from pathlib import Path

import pytest

from paceline.base.jobdir import JobDir
from paceline.features.report.following import FollowedJob, find_job, log_tails
from paceline.features.report.page import render
from paceline.jobs.facts import read_facts
from tests.unit.cli.test_cli_commands import ended_job


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))
    return tmp_path


def grow(job: JobDir, n: int) -> None:
    with job.metrics.open("a") as file:
        file.write(f'{{"t":{2 + n}.0,"committed":{500 + n},"samples_per_s":10.0}}\n{{"t":')
    with job.events.open("a") as file:
        file.write(f'{{"t":{2 + n}.0,"event":"node_started","node":"worker-{n}","inc":{n + 1}}}\n')
    with job.curves.open("a") as file:
        file.write(f'{{"t":{n}.0,"step":{n},"samples":{n},"values":{{"loss":0.{n}}}}}\n')


def test_what_is_followed_is_what_is_read_at_once() -> None:
    job = ended_job()
    followed = FollowedJob(job)
    for n in range(1, 4):
        grow(job, n)
        assert followed.facts() == read_facts(job)
        with job.metrics.open("a") as file:
            file.write("1.0\n")  # the torn line is whole, and none


def test_curves_that_were_thinned_out_are_read_anew() -> None:
    job = ended_job()
    followed = FollowedJob(job)
    for n in range(1, 6):
        grow(job, n)
    assert len(followed.facts().curves["loss"]) == 5
    fresh = job.curves.with_suffix(".new")
    fresh.write_text('{"t":1.0,"step":1,"samples":1,"values":{"loss":0.1}}\n')
    fresh.replace(job.curves)
    grow(job, 7)
    assert [point.step for point in followed.facts().curves["loss"]] == [1, 7]


def test_the_newest_lines_of_logs_are_bounded_and_whole() -> None:
    job = ended_job()
    (job.logs / "worker-0.log").write_text("x" * 200_000 + "\nlast \r 50 %\r100 %\n")
    (job.logs / "worker-0.1.log").write_text("cut off\n")
    tails = {one.node: one.lines for one in log_tails(job)}
    assert tails["worker-0"] == ("100 %",) or tails["worker-0"][-1] == "100 %"
    assert "worker-0.1" not in tails
    assert find_job(job.job_id).path == job.path


def test_a_log_whose_name_is_no_text_has_a_place_on_the_page() -> None:
    job = ended_job()
    (job.logs / os.fsdecode(b"w\xff.log")).write_text("hello\n")
    assert "w\ufffd" in render(read_facts(job), log_tails(job)).encode().decode()

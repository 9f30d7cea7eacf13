"""Nodes that joined a job elsewhere, and whose agent was killed."""

import os
import time
from pathlib import Path

import pytest

from paceline.base.errors import ConfigError
from paceline.base.jobdir import JobDir
from paceline.base.joined import LOGS_KEPT_S, joined_directory, lost_nodes, remove_joined
from paceline.jobs.joining import check_same_script, script_digest
from paceline.jobs.leftovers import clear_leftovers
from paceline.wire.spec import JobSpec


@pytest.fixture
def joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobDir:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))
    job = JobDir(joined_directory(f"train-{os.getpid()}", "worker-1"))
    job.logs.mkdir(parents=True)
    job.secret_file.write_text("secret")
    job.make_run_dir()
    return job


def made_before(job: JobDir, age_s: float) -> None:
    then_s = time.time() - age_s
    os.utime(job.secret_file, (then_s, then_s))


def test_the_next_command_removes_what_a_killed_one_has_left(joined: JobDir) -> None:
    made_before(joined, 100.0)
    clear_leftovers()
    assert not joined.run_dir.exists()
    assert not joined.secret_file.exists()
    assert joined.logs.exists()
    assert not list(lost_nodes())


def test_logs_of_a_node_that_has_left_go_after_a_week(joined: JobDir) -> None:
    remove_joined(joined)
    log = joined.logs / "worker-1.log"
    for age_s, stays in ((LOGS_KEPT_S - 60.0, True), (LOGS_KEPT_S + 60.0, False)):
        log.write_text("a line")
        then_s = time.time() - age_s
        for path in (log, joined.logs, joined.path):
            os.utime(path, (then_s, then_s))
        clear_leftovers()
        assert joined.path.exists() == stays


@pytest.mark.parametrize(("age_s", "processes"), [(1.0, []), (100.0, ["its agent"])])
def test_one_that_starts_or_lives_is_left_alone(
    joined: JobDir, monkeypatch: pytest.MonkeyPatch, age_s: float, processes: list[str]
) -> None:
    monkeypatch.setattr("paceline.base.joined.find_job_processes", lambda _: processes)
    made_before(joined, age_s)
    clear_leftovers()
    assert joined.run_dir.exists()
    assert joined.secret_file.exists()
    made_before(joined, 100.0)
    monkeypatch.setattr("paceline.base.joined.find_job_processes", lambda _: [])
    clear_leftovers()
    assert not joined.run_dir.exists()


def test_nodes_of_a_machine_that_shares_this_home_are_its_own(
    joined: JobDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_before(joined, 100.0)
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr("socket.gethostname", lambda: "another")
        assert joined_directory(f"train-{os.getpid()}", "worker-1") != joined.path
        assert not list(lost_nodes())
        clear_leftovers()
    assert joined.secret_file.exists()
    assert [job.path for job in lost_nodes()] == [joined.path]
    clear_leftovers()


def test_a_control_group_that_is_busy_for_a_moment_is_removed_when_it_is_not(
    joined: JobDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([False, False, True])
    monkeypatch.setattr("paceline.base.joined.remove_job", lambda _: next(answers))
    remove_joined(joined)
    assert next(answers, "asked until it was gone") == "asked until it was gone"


def test_another_script_than_the_job_has_begun_with_is_refused(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    spec = JobSpec(script=str(script))
    assert script_digest(spec) == ""
    script.write_text("loss = 1\n")
    begun_with = script_digest(spec)
    check_same_script(spec, begun_with)
    script.write_text("loss = 2\n")
    with pytest.raises(ConfigError, match=r"train.py is another one on .* copy it from the master"):
        check_same_script(spec, begun_with)
    check_same_script(spec, "")
    assert script_digest(JobSpec(script="package.train", run_as="module")) == ""

"""How benchmarks fail: by the arm's name, with the end of its log, and by their exit status."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from paceline_experiments import harness
from paceline_experiments.harness import ArmError
from peers.install import chosen

from paceline.base.jobdir import JobDir
from paceline.jobs.outcome import Outcome, write_outcome
from paceline.wire.spec import JobSpec, save


@pytest.fixture
def job(tmp_path: Path) -> JobDir:
    """A job of an arm that has written into its log."""
    found = JobDir(tmp_path / "job")
    found.logs.mkdir(parents=True)
    save(JobSpec(script="train.py", name="bsp-2"), found.spec)
    lines = [f"line {number}" for number in range(100)]
    (found.logs / "worker-0.log").write_text("\n".join([*lines, "ValueError: no such table"]))
    return found


def end(job: JobDir, state: str, error: str = "", traceback: str = "") -> None:
    outcome = Outcome(
        state=state, exit_code=int(state == "failed"), error=error, traceback=traceback
    )
    write_outcome(outcome, job.outcome)


def test_a_wait_ends_with_its_job_and_shows_the_end_of_its_log(job: JobDir) -> None:
    end(job, "failed", "worker-0 ended", "Traceback: in train.py")
    with pytest.raises(ArmError) as caught:
        harness.require(job, lambda: False, 60.0, "no result")
    said = str(caught.value)
    assert said.startswith("arm bsp-2: no result; the job failed: worker-0 ended\nTraceback: in")
    assert said.endswith("line 99\nValueError: no such table")
    assert "line 80" not in said


def test_a_wait_is_over_when_what_it_waits_for_happened_in_the_job_that_ended(job: JobDir) -> None:
    end(job, "finished")
    harness.require(job, lambda: True, 60.0, "no result")
    harness.finish(job, 60.0)


def test_what_can_be_done_once_is_not_asked_for_again_when_it_is_done(job: JobDir) -> None:
    answers = iter([False, True])
    harness.require(job, lambda: next(answers), 60.0, "no result")


@pytest.mark.parametrize("state", ["failed", "stopped"])
def test_a_job_that_has_to_finish_must_not_end_otherwise(job: JobDir, state: str) -> None:
    end(job, state)
    with pytest.raises(ArmError, match=f"arm bsp-2: .*; the job {state}"):
        harness.finish(job, 60.0)


def test_a_job_that_runs_for_too_long_is_said_to_run(job: JobDir) -> None:
    with pytest.raises(ArmError, match="no result; the job still runs"):
        harness.require(job, lambda: False, 0.0, "no result")


def test_a_job_that_failed_after_its_last_wait_fails_its_arm(
    job: JobDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(harness, "launch", lambda _: job)
    monkeypatch.setattr(harness.tempfile, "gettempdir", lambda: str(tmp_path))
    with (
        pytest.raises(ArmError, match="the job failed: the export broke"),
        harness.running(JobSpec(script="train.py")),
    ):
        end(job, "failed", "the export broke")
    assert (tmp_path / "paceline-bench-failed-job" / "logs" / "worker-0.log").exists()


def test_a_process_that_fails_fails_its_arm() -> None:
    command = [sys.executable, "-c", "import sys; sys.exit('no such table')"]
    with pytest.raises(ArmError, match=r"arm peer: exit status 1\nno such table"):
        harness.output_of("peer", command)


def test_a_process_fails_with_the_one_that_it_needs(tmp_path: Path) -> None:
    master = harness.Child("master", ["false"], tmp_path / "master.log")
    worker = harness.Child("worker", ["sleep", "60"], tmp_path / "worker.log")
    try:
        with pytest.raises(ArmError, match="arm master: exit status 1"):
            worker.output(60.0, [master])
    finally:
        worker.kill()
        master.kill()


def test_an_arm_without_figure_is_named_when_all_are_printed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    figures = {"a": harness.summary([1.0]), "b": {"step_s": harness.summary([])}, "c": float("nan")}
    with pytest.raises(ArmError) as caught:
        harness.report("bench", figures, file=tmp_path / "all.json", failed={"d": "it broke"})
    for told in ("b, step_s: it brought no figure", "c: it brought no figure", "d: it broke"):
        assert told in str(caught.value)
    assert '"median": 1.0' in capsys.readouterr().out
    assert '"median": 1.0' in (tmp_path / "all.json").read_text()


def planted() -> None:
    harness.report("bench", {}, failed={"bsp-2": "it broke"})


@pytest.mark.parametrize(
    ("main", "status"),
    [(planted, "FAILED arm bsp-2: it broke"), (lambda: None, None), (lambda: 2, 2)],
    ids=["a planted failure", "no status", "a status"],
)
def test_the_exit_status(main: Callable[[], int | None], status: str | int | None) -> None:
    with pytest.raises(SystemExit) as caught:
        harness.run(main)
    assert caught.value.code == status


def test_a_peer_that_is_not_installed_is_skipped_by_name_unless_it_is_asked_for(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    arms = {"ours": None, "theirs": "torchft"}
    assert chosen(arms, None, None) == {"ours": Path(sys.executable)}
    assert chosen(arms, tmp_path, None) == {"ours": Path(sys.executable)}
    assert capsys.readouterr().out.count("skipped: theirs: not installed") == 2
    with pytest.raises(SystemExit, match="arm theirs: not installed"):
        chosen(arms, tmp_path, ["theirs"])
    python = tmp_path / "torchft" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    assert chosen(arms, tmp_path, ["theirs"]) == {"theirs": python}


def test_the_script_that_benchmarks_share_is_where_the_harness_says() -> None:
    assert harness.TINY.is_file()

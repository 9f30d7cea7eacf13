"""A trainer that goes on until it has counted enough batches ends as a plain run, whatever dies."""

import contextlib
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from paceline.jobs.launch import ask
from paceline.wire.client import StopJob
from tests.integration.pair import pair_of, run_alone
from tests.integration.running import RunningJob, until

SCRIPT = Path(__file__).with_name("jobs") / "cycled.py"
BATCH = 16


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))


def job_of(out: Path, *flags: str, **named: Any) -> contextlib.AbstractContextManager[RunningJob]:
    return pair_of(SCRIPT, out, *flags, **named)


def plain(out: Path, *flags: str) -> dict[str, Any]:
    """What the script holds at its end without a job."""
    run_alone(SCRIPT, out, *flags)
    (found,) = ends(out).values()
    return found


def ends(out: Path) -> dict[str, dict[str, Any]]:
    """What each worker's last life held, by its rank."""
    return {path.stem.partition("-")[0]: json.loads(path.read_text()) for path in out.glob("*.end")}


def check(job: RunningJob, expected: dict[str, Any], ranks: set[str]) -> None:
    outcome = job.end()
    assert outcome.state == "finished", outcome
    found = ends(job.out)
    assert found.keys() == ranks
    for held in found.values():
        for name, value in expected.items():
            assert held[name] == pytest.approx(value, rel=1e-9), name


@pytest.mark.soak
@pytest.mark.parametrize("flags", [(), ("--again",)])
@pytest.mark.proves(form="next", strategy="allreduce", death=("worker", "stop"))
def test_it_has_counted_each_batch_once(flags: tuple[str, ...], tmp_path: Path) -> None:
    expected = plain(tmp_path / "alone", *flags)
    with job_of(tmp_path / "job", *flags) as job:
        job.until_committed(12 * BATCH)
        os.kill(job.pid_of("worker-1"), signal.SIGKILL)
        job.until_committed(25 * BATCH)
        ask(job.job, StopJob())
        assert job.end().state == "stopped"
        job.resume()
        job.until_committed(35 * BATCH)
        os.kill(job.pid_of("worker-0"), signal.SIGKILL)
        check(job, expected, {"0", "1"})


@pytest.mark.soak
@pytest.mark.parametrize("meets", [False, True])
def test_a_stop_behind_its_last_step_trains_nothing_twice(meets: bool, tmp_path: Path) -> None:
    expected = plain(tmp_path / "alone")
    flags = ("--tail-s", "2", *["--meets"][:meets])
    with job_of(tmp_path / "job", *flags) as job:
        until(lambda: len(list(job.out.glob("left-*"))) == 2, "all have left their loop")
        ask(job.job, StopJob())
        if meets:  # at the barrier each worker hears of the stop
            assert job.end().state == "stopped"
            job.resume()
        check(job, expected, {"0", "1"})


@pytest.mark.soak
@pytest.mark.parametrize("flags", [("--again",), ()])
@pytest.mark.proves(form="next", strategy="allreduce", death="worker")
def test_a_life_that_finds_all_done_does_not_train_once_more(
    flags: tuple[str, ...], tmp_path: Path
) -> None:
    expected = plain(tmp_path / "alone", *flags)
    with job_of(tmp_path / "job", *flags, "--die", "1:50") as job:
        check(job, expected, {"0"})
        said = (job.job.logs / "worker-1.log").read_text()
        # The loop that it passes may end its script with an error of its own.
        ends = ("the other workers' scripts have returned", "This does not end the job")
        assert any(one in said for one in ends)


@pytest.mark.soak
def test_it_does_not_leave_in_the_first_block_of_its_last_step(tmp_path: Path) -> None:
    # Each block is a body that counts; all but the last one of a step are taken back.
    expected = plain(tmp_path / "alone", "--again")
    with job_of(tmp_path / "job", "--again", deterministic=True, blocks=4) as job:
        job.until_committed(20 * BATCH)
        os.kill(job.pid_of("worker-1"), signal.SIGKILL)
        job.until_committed(30 * BATCH)
        ask(job.job, StopJob())
        assert job.end().state == "stopped"
        job.resume()
        check(job, expected, {"0", "1"})

"""A script that declares nothing ends as a plain run does, whatever dies: its variables are found."""

import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paceline.jobs.launch import ask, launch
from paceline.wire.client import StopJob
from paceline.wire.spec import CheckpointSpec, JobSpec, NodeSpec, RestartSpec
from tests.integration.pair import run_alone
from tests.integration.running import RunningJob, until

SCRIPT = Path(__file__).with_name("jobs") / "plain_loop.py"
DRIVEN = SCRIPT.with_name("driven.py")
SAMPLES = 320


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))


@contextlib.contextmanager
def job_of(out: Path, *flags: str, step_s: float = 0.04, **spec: Any) -> Iterator[RunningJob]:
    fields: dict[str, Any] = {
        "script": str(SCRIPT),
        "args": ("--out", str(out), "--step-s", str(step_s), *flags),
        "strategy": "allreduce",
        "workers": NodeSpec(count=2),
        "checkpoint": CheckpointSpec(every_s=0.5, share=0.5),
        "restart": RestartSpec(backoff_s=0.1),
        "solution": "none",
        "preflight": False,
    }
    out.mkdir()
    with contextlib.closing(RunningJob(launch(JobSpec(**(fields | spec))), out)) as job:
        yield job


def plain(out: Path, *flags: str, script: Path = SCRIPT) -> dict[str, list[float]]:
    """What a script holds at its end without a job."""
    run_alone(script, out, *flags)
    (found,) = ends(out).values()
    return found


def ends(out: Path) -> dict[str, dict[str, list[float]]]:
    return {path.stem: json.loads(path.read_text()) for path in out.glob("*.end")}


def check_end(job: RunningJob, expected: dict[str, list[float]]) -> None:
    """Every life that came to its end holds what a plain run does."""
    outcome = job.end()
    assert outcome.state == "finished", outcome
    found = ends(job.out)
    assert {life.partition("-")[0] for life in found} == {"0", "1"}
    for life, held in found.items():
        assert held.keys() == expected.keys()
        for name, values in held.items():
            assert values == pytest.approx(expected[name], rel=1e-9), (life, name)


@pytest.mark.soak  # CI has a death behind a stop
@pytest.mark.parametrize("flags", [(), ("--counted",), ("--rollouts",)])
@pytest.mark.proves(form=("variables", "loader"), strategy="allreduce", death="worker")
def test_workers_die_in_mid_epoch_and_each_count_is_as_in_a_plain_run(
    flags: tuple[str, ...], tmp_path: Path
) -> None:
    expected = plain(tmp_path / "alone", *flags)
    with job_of(tmp_path / "job", *flags) as job:
        for at, node in ((1.4, "worker-1"), (2.2, "worker-0")):
            job.until_committed(int(at * SAMPLES))
            os.kill(job.pid_of(node), signal.SIGKILL)
        check_end(job, expected)
        assert len(job.deaths()) == 2


@pytest.mark.soak
@pytest.mark.parametrize("die_at", [20, 25], ids=["the last step of an epoch", "mid-epoch"])
def test_what_a_library_keeps_follows_where_it_drives_the_loop(die_at: int, tmp_path: Path) -> None:
    expected = plain(tmp_path / "alone", script=DRIVEN)
    flags = ("--die-at", str(die_at))
    with job_of(tmp_path / "job", *flags, script=str(DRIVEN), step_s=0.05) as job:
        job.until_committed(40 * 16)
        os.kill(job.pid_of("worker-0"), signal.SIGKILL)
        check_end(job, expected)
        assert len(job.deaths()) == 2


@pytest.mark.soak
def test_a_life_that_comes_into_a_broken_step_waits_for_the_end_of_its_body(tmp_path: Path) -> None:
    expected = plain(tmp_path / "alone", "--epochs", "2")
    with job_of(tmp_path / "job", "--epochs", "2", "--die-at", "7", step_s=0.01) as job:
        check_end(job, expected)
        assert len(job.deaths()) == 1


@pytest.mark.soak
def test_a_life_that_comes_when_the_last_loop_was_left_trains_no_more(tmp_path: Path) -> None:
    expected = plain(tmp_path / "alone", "--limit", "50")
    with job_of(tmp_path / "job", "--limit", "50", "--die-after", step_s=0.01) as job:
        check_end(job, expected)
        assert job.deaths()


@pytest.mark.proves(
    form=("variables", "loader"), strategy="allreduce", death=("worker", "master", "stop")
)
def test_a_stopped_job_goes_on_where_its_script_was(tmp_path: Path) -> None:
    expected = plain(tmp_path / "alone", "--epochs", "3")
    with job_of(tmp_path / "job", "--epochs", "3") as job:
        job.until_committed(int(1.4 * SAMPLES))
        ask(job.job, StopJob())
        assert job.end().state == "stopped"
        job.resume()
        job.until_committed(int(2.2 * SAMPLES))
        os.kill(job.pid_of("worker-1"), signal.SIGKILL)
        os.kill(job.status().master_pid, signal.SIGKILL)
        check_end(job, expected)


@pytest.mark.soak
def test_a_step_of_several_blocks_counts_once(tmp_path: Path) -> None:
    # Its rate follows from what it counts, and a death changes how many blocks a worker has.
    expected = plain(tmp_path / "alone", "--epochs", "3")
    with job_of(
        tmp_path / "job", "--epochs", "3", step_s=0.01, deterministic=True, blocks=4
    ) as job:
        job.until_committed(int(1.4 * SAMPLES))
        os.kill(job.pid_of("worker-1"), signal.SIGKILL)
        check_end(job, expected)


@pytest.mark.soak
@pytest.mark.proves(form=("variables", "loader"), strategy="allreduce", death="stop")
def test_a_job_that_is_stopped_between_two_loops_goes_on_behind_the_first(tmp_path: Path) -> None:
    # What stands there uses the last batch's loss.
    expected = plain(tmp_path / "alone", "--epochs", "4")
    flags = ("--epochs", "4", "--pause-s", "1.5")
    with job_of(tmp_path / "job", *flags, step_s=0.02) as job:
        job.until_committed(2 * SAMPLES)
        ask(job.job, StopJob())
        assert job.end().state == "stopped"
        job.resume()
        check_end(job, expected)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("held", "flags"),
    [
        ("1", ()),
        ("01", ()),
        ("01", ("--counted", "--at-break")),
        ("01", ("--numbered",)),
        ("01", ("--numbered", "--shard")),
    ],
)
def test_a_job_that_is_stopped_at_the_edge_of_a_loop_goes_on_there(
    held: str, flags: tuple[str, ...], tmp_path: Path
) -> None:
    # A worker that is not held has opened the loop, and waits for the other one.
    expected = plain(tmp_path / "alone", "--epochs", "4", *(set(flags) - {"--shard"}))
    strategy = "fsdp" if "--shard" in flags else "allreduce"
    flags = ("--epochs", "4", "--hold", held, *flags)
    with job_of(tmp_path / "job", *flags, step_s=0.02, strategy=strategy) as job:
        until(lambda: all((job.out / f"holds{rank}").exists() for rank in held), "held", 60.0)
        time.sleep(0.5)
        (job.out / "resumed").touch()
        ask(job.job, StopJob())
        assert job.end().state == "stopped"
        job.resume()
        check_end(job, expected)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("flags", "stop_at"),
    [(("--pause-s", "1.5"), 2.0), (("--counted", "--pause-s", "1.5"), 1.6), ((), 1.4)],
    ids=["behind a loop", "behind a loop that was left", "in a loop"],
)
@pytest.mark.proves(form=("variables", "loader"), strategy="fsdp", death=("worker", "stop"))
def test_shards_go_on_where_their_scripts_were(
    flags: tuple[str, ...], stop_at: float, tmp_path: Path
) -> None:
    # All begin again after a death: each comes late to the loop at whose end the cut is.
    expected = plain(tmp_path / "alone", "--epochs", "4", *flags)
    flags = ("--epochs", "4", "--shard", *flags)
    with job_of(tmp_path / "job", *flags, step_s=0.02, strategy="fsdp") as job:
        job.until_committed(int(stop_at * SAMPLES))
        ask(job.job, StopJob())
        assert job.end().state == "stopped"
        job.resume()
        job.until_committed(int(2.4 * SAMPLES))
        os.kill(job.pid_of("worker-1"), signal.SIGKILL)
        check_end(job, expected)


@pytest.mark.soak
def test_a_life_without_a_batch_of_an_epoch_does_nothing_of_it(tmp_path: Path) -> None:
    # Its mean over the epoch would be one over nothing.
    expected = plain(tmp_path / "alone", "--epochs", "3")
    flags = ("--epochs", "3", "--pause-s", "2", "--die-after")
    with job_of(tmp_path / "job", *flags, step_s=0.02) as job:
        job.until_committed(SAMPLES)
        os.kill(job.pid_of("worker-1"), signal.SIGKILL)
        check_end(job, expected)
        assert len(job.deaths()) == 2


@pytest.mark.soak
def test_nothing_is_found_where_state_is_declared(tmp_path: Path) -> None:
    # The new life counts its steps from 0, sets another rate by them, or divides by no batches.
    with job_of(tmp_path / "job", script_state="declared") as job:
        job.until_committed(int(1.4 * SAMPLES))
        os.kill(job.pid_of("worker-1"), signal.SIGKILL)
        assert job.end().state == "failed"

"""A loop over ``job.epochs`` ends with the model of a plain run, and does no epoch's end twice."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from paceline.jobs.launch import launch
from paceline.wire.spec import CheckpointSpec, JobSpec, NodeSpec, RestartSpec
from tests.integration.running import RunningJob, until

SCRIPT = Path(__file__).with_name("jobs") / "epochs.py"
EPOCHS, SAMPLES = 6, 256


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))


@contextlib.contextmanager
def job_of(out: Path, step_s: float, *flags: str, **spec: Any) -> Iterator[RunningJob]:
    """Two workers that train by epochs."""
    out.mkdir()
    fields: dict[str, Any] = {
        "script": str(SCRIPT),
        "args": ("--out", str(out), "--step-s", str(step_s), *flags),
        "name": "epochs",
        "workers": NodeSpec(count=2),
        "checkpoint": CheckpointSpec(every_s=0.5, share=0.5),
        "restart": RestartSpec(backoff_s=0.1),
        "solution": "none",
        "preflight": False,
    }
    with contextlib.closing(RunningJob(launch(JobSpec(**(fields | spec))), out)) as job:
        yield job


def plain(out: Path, *flags: str) -> list[float]:
    """What the script holds at its end without a job."""
    out.mkdir()
    env = {name: value for name, value in os.environ.items() if not name.startswith("PACELINE_")}
    command = [sys.executable, str(SCRIPT), "--out", str(out), *flags]
    subprocess.run(command, env=env, check=True, timeout=100)
    ((_, values),) = ends(out).items()
    return values


def ends(out: Path) -> dict[str, list[float]]:
    found = {path.stem: path.read_text().split() for path in out.glob("*.end")}
    return {life: [float.fromhex(one) for one in values] for life, values in found.items()}


def epochs_of(out: Path, what: str = "epochs") -> dict[str, list[int]]:
    """The epochs that each life has begun; ``ended``: that it has ended."""
    return {path.stem: [*map(int, path.read_text().split())] for path in out.glob(f"*.{what}")}


def check_end(job: RunningJob, expected: list[float], *, exact: float = 1e-9) -> None:
    outcome = job.end()
    assert outcome.state == "finished", outcome
    assert not job.events("diverged")
    found = ends(job.out)
    assert found
    for life, values in found.items():
        assert values == pytest.approx(expected, rel=exact), life


def check_lives(out: Path, *, passing: bool = True) -> None:
    """No life begins or ends an epoch twice, or leaves one out; ``passing``: some not with epoch 0.

    A life that waits in the epoch with which it begins goes on in the middle of its peers' next
    one: it does the end of an epoch that it has not begun, and then begins the one after.
    """
    lives, ended = epochs_of(out), epochs_of(out, "ended")
    assert len(lives) > 2
    first = {min(incs) for incs in incs_of(lives).values()}
    for life, begun in lives.items():
        done = ended.get(life, [])
        came_in_later = bool(done) and done[0] != begun[0]
        assert not (came_in_later and int(life.partition("-")[2]) in first), life
        begun = begun[1:] if came_in_later else begun
        assert done == in_a_row(done), life
        assert begun == in_a_row(begun), life
        if done and begun:
            assert begun[0] == done[0] + came_in_later, life
    assert any(begun[0] for begun in lives.values()) or not passing, lives


def incs_of(lives: Iterable[str]) -> dict[str, list[int]]:
    """The numbers of each rank's lives."""
    found: dict[str, list[int]] = {}
    for rank, _, inc in (life.partition("-") for life in lives):
        found.setdefault(rank, []).append(int(inc))
    return found


def in_a_row(epochs: list[int]) -> list[int]:
    return [*range(epochs[0], epochs[0] + len(epochs))] if epochs else []


FLAGS: dict[str, tuple[str, ...]] = {"allreduce": (), "servers": (), "fsdp": ("--sharded",)}
STRATEGIES: dict[str, dict[str, Any]] = {
    "allreduce": {"strategy": "allreduce"},
    "fsdp": {"strategy": "fsdp"},
    "servers": {"strategy": "ps", "mode": "bsp", "servers": NodeSpec(count=1)},
}


STREAM, SAMPLED, PREPARED = ("--stream",), ("--sampled",), ("--prepared",)


def marked(form: str, strategy: str, more: tuple[str, ...], *deaths: str) -> Any:
    """Mark a case that proves one more form in the map of promises."""
    proves = pytest.mark.proves(form=form, strategy=strategy, death=deaths)
    return pytest.param(strategy, more, marks=proves)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("strategy", "more"),
    [
        *((one, more) for one in STRATEGIES for more in ((), SAMPLED)),
        *(marked("iterable", one, STREAM, "worker", "master") for one in STRATEGIES),
        *(marked("loader", one, PREPARED, "worker", "master") for one in STRATEGIES),
    ],
)
@pytest.mark.proves(
    form=("epochs", "early", "evaluation"), strategy="{strategy}", death=("worker", "master")
)
def test_a_worker_and_the_master_die_and_no_epoch_ends_twice(
    strategy: str, more: tuple[str, ...], tmp_path: Path
) -> None:
    expected = plain(tmp_path / "alone", *more)
    assert len(expected) == 2 + EPOCHS - 1  # it stops early, by agreement
    with job_of(tmp_path / "job", 0.06, *FLAGS[strategy], *more, **STRATEGIES[strategy]) as job:
        job.until_committed(2 * SAMPLES + 40)
        os.kill(job.pid_of("worker-1"), signal.SIGKILL)
        until(lambda: len(epochs_of(job.out)) > 2, "a new life")
        os.kill(job.status().master_pid, signal.SIGKILL)
        check_end(job, expected)
        assert job.deaths()
        check_lives(job.out)


LOADED = pytest.mark.proves(
    form="loader", strategy="ps {mode}", death=("worker", "master"), ends="counted"
)


@pytest.mark.soak
@pytest.mark.proves(
    form=("epochs", "early", "evaluation"),
    strategy="ps {mode}",
    death=("worker", "master"),
    ends="counted",
)
@pytest.mark.parametrize("mode", ["asp", "ssp"])
@pytest.mark.parametrize("more", [SAMPLED, pytest.param(PREPARED, marks=LOADED)])
def test_where_no_run_is_another_each_sample_counts_once_in_each_epoch(
    mode: str, more: tuple[str, ...], tmp_path: Path
) -> None:
    on_servers = STRATEGIES["servers"] | {"mode": mode}
    with job_of(tmp_path / "job", 0.06, *more, **on_servers) as job:
        job.until_committed(2 * SAMPLES + 40)
        os.kill(job.pid_of("worker-1"), signal.SIGKILL)
        until(lambda: len(epochs_of(job.out)) > 2, "a new life")
        job.kill_master()
        outcome = job.end()
        assert outcome.state == "finished", outcome
        assert outcome.committed == (EPOCHS - 1) * SAMPLES
        check_lives(job.out)


@pytest.mark.soak
@pytest.mark.proves(form="left", strategy="allreduce", death="worker")
def test_who_joins_in_a_loop_that_its_peer_has_left_holds_up_nobody(tmp_path: Path) -> None:
    expected = plain(tmp_path / "alone", "--breaks")
    with job_of(tmp_path / "job", 0.0, "--late", "--breaks", strategy="allreduce") as job:
        until((job.out / "late").exists, "the end of the second epoch")
        os.kill(job.pid_of("worker-1"), signal.SIGKILL)
        assert job.end().state == "finished"
        assert ends(job.out)["0-1"] == pytest.approx(expected, rel=1e-9)


@pytest.mark.soak
@pytest.mark.parametrize("flags", [(), ("--breaks",)])
def test_who_dies_when_its_peer_has_returned_does_the_end_of_the_last_epoch_once(
    flags: tuple[str, ...], tmp_path: Path
) -> None:
    expected = plain(tmp_path / "alone", *flags)
    with job_of(tmp_path / "job", 0.0, "--die-last", *flags, strategy="allreduce") as job:
        check_end(job, expected)
        assert len(job.deaths()) == 1
        assert len(ends(job.out)) == 2


@pytest.mark.soak
def test_who_joins_between_two_loops_takes_over_a_peer_s_state_at_its_own_place(
    tmp_path: Path,
) -> None:
    expected = plain(tmp_path / "alone")
    with job_of(tmp_path / "job", 0.0, "--late", strategy="allreduce") as job:
        until((job.out / "late").exists, "the end of the second epoch")
        os.kill(job.pid_of("worker-1"), signal.SIGKILL)
        check_end(job, expected)
        assert job.deaths()


@pytest.mark.soak
@pytest.mark.parametrize("epoch", [0, 2])
def test_the_only_worker_that_evaluates_dies_and_its_next_life_holds_up_nobody(
    epoch: int, tmp_path: Path
) -> None:
    with job_of(tmp_path / "job", 0.0, "--first-only", strategy="allreduce") as job:
        job.until_committed(epoch * SAMPLES)
        (job.out / "evaluates").unlink(missing_ok=True)
        until((job.out / "evaluates").exists, "an evaluation")
        os.kill(job.pid_of("worker-0"), signal.SIGKILL)
        assert job.end().state == "finished"


@pytest.mark.soak
@pytest.mark.parametrize(
    ("strategy", "more"),
    [mark for one in STRATEGIES for mark in ((one, ()), marked("iterable", one, STREAM, "all"))],
)
@pytest.mark.parametrize("at", [SAMPLES + 1, 2 * SAMPLES + 100, 3 * SAMPLES])
@pytest.mark.proves(form=("epochs", "early", "evaluation"), strategy="{strategy}", death="all")
def test_all_die_and_the_job_goes_on_with_the_epoch_of_its_cut(
    strategy: str, more: tuple[str, ...], at: int, tmp_path: Path
) -> None:
    expected = plain(tmp_path / "alone", *more)
    with job_of(tmp_path / "job", 0.08, *FLAGS[strategy], *more, **STRATEGIES[strategy]) as job:
        job.until_committed(at, cuts=1)
        job.kill_everything()
        job.resume()
        check_end(job, expected)
        check_lives(job.out, passing=at > 2 * SAMPLES)  # an epoch ends in a cut on disk

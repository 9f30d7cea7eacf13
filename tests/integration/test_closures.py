"""Optimizers that call closures end as in one process, also if a worker dies in one of the calls.

So may the master, or all workers.
"""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.jobs.launch import launch
from paceline.wire.spec import CheckpointSpec, JobSpec, NodeSpec, RestartSpec
from tests.integration.running import RunningJob, run_group

SCRIPT = Path(__file__).with_name("jobs") / "closures.py"
CALLS = {"sgd": 1, "clipped": 2}
"""Calls of a closure in a step; of other kinds there are four at least."""


def proves(kind: str) -> pytest.MarkDecorator:
    """Mark a kill of a worker and the master."""
    form = "closure" if kind == "sgd" else "lbfgs"
    return pytest.mark.proves(form=form, strategy="allreduce", death=("worker", "master"))


def found(out: Path) -> list[list[float]]:
    lines = [path.read_text().split() for path in sorted(out.glob("*.end"))]
    return [[int(one[0]), *map(float.fromhex, one[1:])] for one in lines]


def alone(tmp_path: Path, *flags: str) -> list[float]:
    """What one process finds."""
    out = tmp_path / "alone"
    out.mkdir()
    env = {name: value for name, value in os.environ.items() if not name.startswith("PACELINE_")}
    command = [sys.executable, str(SCRIPT), "--out", str(out), *flags]
    subprocess.run(command, env=env, check=True, timeout=100)
    (values,) = found(out)
    assert values[0] == 24
    return values


def check(out: Path, expected: list[float], *, lives: int) -> None:
    ends = found(out)
    assert len(ends) == lives
    for values in ends:
        assert values == pytest.approx(expected, rel=1e-9)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("kind", "workers", "die"),
    [
        pytest.param("lbfgs", 3, "1:6:3", marks=proves("lbfgs")),
        *(
            pytest.param(kind, workers, die, marks=proves(kind))
            for kind in ("lbfgs", "wolfe", "clipped", "pair", "sgd")
            for workers in (2, 3)
            for die in ("1:0:1", "1:6:1", "1:6:2", "1:6:4", "1:23:4")
            if int(die[-1]) <= CALLS.get(kind, 4)
        ),
    ],
)
def test_a_step_that_breaks_between_two_calls_is_done_once(
    kind: str, workers: int, die: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))
    expected = alone(tmp_path, "--kind", kind)
    out = tmp_path / "job"
    out.mkdir()
    flags = ("--kind", kind, "--die", die, "--step-s", "0.1")
    run_group(SCRIPT, out, *flags, workers=workers, master_dies_at=32 * 8)
    check(out, expected, lives=workers)


def job_of(out: Path, *flags: str, workers: int = 2, strategy: str = "allreduce") -> RunningJob:
    out.mkdir()
    spec = JobSpec(
        script=str(SCRIPT),
        args=("--out", str(out), *flags),
        name="closures",
        strategy=strategy,  # type: ignore[arg-type]
        workers=NodeSpec(count=workers),
        checkpoint=CheckpointSpec(every_s=0.3, share=0.5),
        restart=RestartSpec(backoff_s=0.1),
        solution="none",
        preflight=False,
    )
    return RunningJob(launch(spec), out)


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["lbfgs", "wolfe", "pair"])
@pytest.mark.proves(form="lbfgs", strategy="allreduce", death="all")
def test_all_die_and_the_cut_has_the_history_of_lbfgs(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))
    expected = alone(tmp_path, "--kind", kind)
    flags = ("--kind", kind, "--step-s", "0.1")
    with contextlib.closing(job_of(tmp_path / "job", *flags)) as job:
        job.until_committed(32 * 10, cuts=1)
        job.kill_nodes()
        assert job.end().state == "finished"
        check(job.out, expected, lives=2)


@pytest.mark.soak
def test_workers_with_other_numbers_of_threads_hold_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dot products of so many numbers differ in their last bits with the number of threads."""
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))
    flags = ("--hidden", "4000", "--threads", "1", "2")
    with contextlib.closing(job_of(tmp_path / "job", *flags)) as job:
        outcome = job.end()
        assert outcome.state == "finished", outcome
        assert not job.events("diverged")
        one, other = found(job.out)
        assert one == other


@pytest.mark.soak
def test_workers_that_do_not_call_a_closure_equally_often_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))
    with contextlib.closing(job_of(tmp_path / "job", "--differ")) as job:
        outcome = job.end()
    assert outcome.state == "failed"
    assert "the workers call the closure of an optimizer differently: optimizer 0" in outcome.error
    assert "no other one in worker-1" in outcome.error


@pytest.mark.soak
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("lbfgs", marks=pytest.mark.refuses(form="lbfgs", strategy="fsdp")),
        pytest.param("sgd", marks=pytest.mark.proves(form="closure", strategy="fsdp")),
    ],
)
def test_shards_take_a_closure_that_is_called_once(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))
    expected = alone(tmp_path, "--kind", kind)
    flags = ("--kind", kind, "--sharded")
    with contextlib.closing(job_of(tmp_path / "job", *flags, strategy="fsdp")) as job:
        outcome = job.end()
        if kind == "sgd":
            assert outcome.state == "finished", outcome
            check(job.out, expected, lives=2)
        else:
            assert "LBFGS has gradients computed again in its step; train it" in outcome.error

"""Workers that hold shards of the model: after a loss they begin again in place, and are exact."""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from safetensors.numpy import load_file

from paceline.base.errors import PacelineError
from paceline.base.processes import find_job_processes, kill_quietly
from paceline.features.formats.process.export import export
from paceline.jobs.launch import ask, launch
from paceline.jobs.resize import Resize
from paceline.wire.client import Done, GetStatus, JobStatus, Scale, StopJob
from paceline.wire.events.nodes import RestartAllEvent
from paceline.wire.events.state import GroupRunsEvent
from paceline.wire.spec import CheckpointSpec, JobSpec, NodeSpec, RestartSpec, TimeoutSpec
from tests.chaos.oracle import leftovers
from tests.integration.running import RunningJob, until

SCRIPT = Path(__file__).with_name("jobs") / "sharded.py"
N = 2400
BATCH = 48
TOLERANCE = 1e-10

Final = dict[str, np.ndarray]  # type: ignore[type-arg]


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))


@contextlib.contextmanager
def sharded(
    out: Path, *flags: str, workers: int = 2, num_samples: int = N, **spec: Any
) -> Iterator[RunningJob]:
    """A job of jobs/sharded.py."""
    out.mkdir(exist_ok=True)
    fields: dict[str, Any] = {
        "script": str(SCRIPT),
        "args": ("--out", str(out), "--num-samples", str(num_samples), *flags),
        "name": "sharded",
        "strategy": "fsdp",
        "workers": NodeSpec(count=workers),
        "checkpoint": CheckpointSpec(every_s=0.3, share=1.0),
        "restart": RestartSpec(backoff_s=0.1),
        "solution": "none",
        "preflight": False,
    }
    with contextlib.closing(RunningJob(launch(JobSpec(**(fields | spec))), out)) as job:
        yield job


def check_finished(job: RunningJob, *, lives: int = 2) -> Final:
    """A good end that leaves nothing behind; what all that were there held then, which is the same."""
    outcome = job.end()
    assert outcome.state == "finished", outcome
    held = [load_file(path) for path in job.out.glob("*.final")]
    assert len(held) == lives
    for other in held:
        for name, values in held[0].items():
            np.testing.assert_array_equal(values, other[name], err_msg=name)
    evaluated = list(job.out.glob("*.evaluated"))
    assert evaluated
    for path in evaluated:
        found = load_file(path)
        np.testing.assert_array_equal(found["ids"], np.arange(found["ids"].size))
        np.testing.assert_array_equal(found["even"], found["ids"] % 2 == 0)
    until(lambda: not leftovers(job.job), "a clean machine")
    return held[0]


def alone(out: Path, num_samples: int = N) -> Final:
    """What one worker computes."""
    with sharded(out, workers=1, num_samples=num_samples) as job:
        return check_finished(job, lives=1)


def check_same(found: Final, wanted: Final) -> None:
    """Assert that two models are the same but for the last bits."""
    assert found.keys() == wanted.keys()
    for name, values in wanted.items():
        assert np.abs(values - found[name]).max() < TOLERANCE, name


def trains(job: RunningJob) -> list[GroupRunsEvent]:
    """Who has trained together, and since which step."""
    return job.told(GroupRunsEvent)


def listening(job: RunningJob) -> set[str]:
    """The addresses at which its workers listen by TCP."""
    found = set()
    for process in find_job_processes(job.job.path):
        if not process.runs("paceline.runtime.process.zygote"):
            continue
        with contextlib.suppress(psutil.Error):  # it has just ended
            for one in psutil.Process(process.pid).net_connections("tcp"):
                found |= {one.laddr.ip} if one.status == psutil.CONN_LISTEN else set()
    return found


def living(job: RunningJob) -> list[int]:
    """Its workers' processes, as far as the master answers."""
    with contextlib.suppress(PacelineError, OSError):
        reply = ask(job.job, GetStatus(), timeout_s=1.0)
        assert isinstance(reply, JobStatus)
        return [node.pid for node in reply.nodes if node.pid]
    return []


@pytest.mark.proves(form="batches", strategy="fsdp", death="worker")
def test_after_a_kill_all_go_on_from_a_cut_to_what_one_worker_computes(tmp_path: Path) -> None:
    single = alone(tmp_path / "alone")
    assert np.all(np.abs(single["seen"] - 1) < TOLERANCE)
    flags = ("--die", "worker-1:40", "--step-s", "0.03")
    with sharded(tmp_path / "two", *flags) as job:
        job.until_committed(BATCH)
        assert listening(job) == {"127.0.0.1"}
        check_same(check_finished(job), single)
        first, second = trains(job)
        assert (first.members, first.step) == (("worker-0", "worker-1"), 0)
        assert second.step > 0, "from a cut"
        (again,) = job.told(RestartAllEvent)
        assert (again.node, again.cause, again.wait_s) == ("worker-1", "signal SIGKILL", 0.0)
        agents = [event["node"] for event in job.events("agent_joined")]
        assert sorted(agents) == ["worker-0", "worker-1"], "restarted in place"
        steps = sum(map(len, job.samples().values())) // (BATCH // 2)
        assert steps < 2 * 2 * N // BATCH, "not from the start"
        # What a cut holds in two files comes out as whole tensors.
        export(tmp_path / "model", job.cuts()[-1], file_format="safetensors")
        check_same(load_file(tmp_path / "model"), single)


@pytest.mark.soak
def test_a_slice_that_cannot_be_divided_is_exact(tmp_path: Path) -> None:
    odd = N + 29
    single = alone(tmp_path / "alone", odd)
    for name, flags in (("three", ()), ("each", ("--per-worker", str(BATCH // 3)))):
        with sharded(tmp_path / name, *flags, workers=3, num_samples=odd) as job:
            check_same(check_finished(job, lives=3), single)
            computed = sum(map(len, job.samples().values()))
            assert computed == N + 3 * 29


@pytest.mark.soak
@pytest.mark.proves(form="batches", strategy="fsdp", death="stop")
def test_the_number_of_workers_changes_while_it_trains_and_between_two_runs(tmp_path: Path) -> None:
    single = alone(tmp_path / "alone")
    with sharded(tmp_path / "some", "--step-s", "0.05") as job:
        job.until_committed(4 * BATCH, cuts=1)
        refused = ask(job.job, Scale(workers=5))
        assert isinstance(refused, Done) and "48 samples is not divisible" in refused.error
        job.tell(Scale(workers=3))
        until(lambda: "worker-2" in trains(job)[-1].members, "three members")
        job.until_committed(job.status().committed + BATCH)
        job.tell(StopJob())
        assert job.end().state == "stopped"
        until(lambda: not leftovers(job.job), "a clean machine")
        job.resume(Resize(workers=2))
        check_same(check_finished(job), single)
        first, last = (event.step for event in trains(job)[1:])
        lives = (ids for life, ids in job.samples().items() if life.endswith((".3", ".4", ".5")))
        assert sum(map(len, lives)) == (last - first) * BATCH, "a stop costs no step"


@pytest.mark.soak
def test_who_is_preempted_costs_no_step(tmp_path: Path) -> None:
    single = alone(tmp_path / "alone")
    rare = CheckpointSpec(every_s=3600.0)
    with sharded(tmp_path / "two", "--step-s", "0.05", checkpoint=rare) as job:
        job.until_committed(8 * BATCH)
        until(lambda: len(living(job)) == 2, "an answer")
        os.kill(living(job)[1], signal.SIGTERM)
        check_same(check_finished(job), single)
        assert trains(job)[1].step >= 7, "from a cut"
        assert sum(map(len, job.samples().values())) == N, "nothing is computed again"


@pytest.mark.soak
@pytest.mark.parametrize("how", ["--freeze", "--sleep"])
def test_a_worker_that_hangs_costs_a_restart_in_place(how: str, tmp_path: Path) -> None:
    flags = (how, "worker-1:10", "--step-s", "0.02")
    with sharded(tmp_path / "out", *flags, timeouts=TimeoutSpec(hang_s=3.0)) as job:
        final = check_finished(job)
        assert np.all(np.abs(final["seen"] - 1) < TOLERANCE)
        assert len(trains(job)) == 2
        assert {event["node"] for event in job.events("hung")} == {"worker-1"}


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.proves(form="batches", strategy="fsdp", death="worker")
def test_kills_at_any_moment_change_nothing_of_the_model(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    single = alone(tmp_path / "alone")
    restart = RestartSpec(budget=100, backoff_s=0.05, backoff_max_s=0.1)
    with sharded(tmp_path / "three", "--step-s", "0.05", workers=3, restart=restart) as job:
        job.until_committed(1)
        for _ in range(12):
            time.sleep(rng.exponential(0.4))
            pids = living(job)
            for pid in rng.choice(pids, min(len(pids), int(rng.integers(1, 4))), replace=False):
                kill_quietly(int(pid))
        check_same(check_finished(job, lives=3), single)
        assert job.events("restart_all")


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        (("--batch-size", "49"), "49 samples cannot be divided evenly among 2 workers"),
        pytest.param(
            *(("--lopsided", "worker-1"), "the workers have prepared different models"),
            marks=pytest.mark.soak,
        ),
    ],
)
def test_what_cannot_be_trained_ends_the_job_before_it_trains(
    flags: tuple[str, ...], error: str, tmp_path: Path
) -> None:
    with sharded(tmp_path / "out", *flags) as job:
        outcome = job.end()
        assert outcome.state == "failed"
        assert error in outcome.traceback
        assert not job.samples() or not any(map(len, job.samples().values()))

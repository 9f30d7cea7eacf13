"""Scripts that do in their loop what they like: they leave it, compute nothing, or take long."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paceline.jobs.launch import launch
from paceline.jobs.outcome import End
from paceline.protocol.nodes.hangs import SLOW_S
from paceline.wire.client import StopJob
from paceline.wire.events.state import MemberSlowEvent
from paceline.wire.spec import JobSpec, NodeSpec, RestartSpec
from tests.integration.running import RunningJob

SCRIPT = Path(__file__).with_name("jobs") / "handling.py"
BATCH = 16
EVERY = ["allreduce", *(pytest.param(one, marks=pytest.mark.soak) for one in ("ps", "fsdp"))]


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path / "home"))


@contextlib.contextmanager
def job_of(out: Path, strategy: Any, *args: str) -> Iterator[RunningJob]:
    spec = JobSpec(
        script=str(SCRIPT),
        args=("--out", str(out), *args, *(["--shard"] if strategy == "fsdp" else [])),
        strategy=strategy,
        workers=NodeSpec(count=2),
        solution="none",
        preflight=False,
    )
    with contextlib.closing(RunningJob(launch(spec), out)) as job:
        yield job


def left(out: Path) -> set[int]:
    return {int(path.read_text()) for path in out.glob("*.left")}


@pytest.mark.soak
@pytest.mark.parametrize("strategy", EVERY)
@pytest.mark.proves(form="left", strategy="{strategy}", death="stop", ends="counted")
def test_a_handler_of_the_script_s_own_costs_no_last_cut(strategy: str, tmp_path: Path) -> None:
    with job_of(tmp_path, strategy, "--samples", "3200") as job:
        job.until_committed(20 * BATCH)
        job.tell(StopJob())
        outcome = job.end()
        assert outcome.end is End.STOPPED, outcome
        assert outcome.kept == outcome.committed >= 20 * BATCH
        # On servers a worker that leaves first takes its share of the last step along.
        assert outcome.kept in {step * BATCH for step in left(tmp_path)}
        assert not job.events("not_kept")
        job.resume()
        outcome = job.end()
        assert outcome.end is End.FINISHED, outcome
        assert outcome.committed == 3200


@pytest.mark.soak
@pytest.mark.parametrize("strategy", EVERY)
@pytest.mark.proves(form="left", strategy="{strategy}", ends="counted")
def test_a_loop_that_is_left_on_its_last_batch_is_through(strategy: str, tmp_path: Path) -> None:
    with job_of(tmp_path, strategy, "--samples", "640", "--break-at", "40") as job:
        outcome = job.end()
        assert (outcome.end, outcome.exit_code) == (End.FINISHED, 0), outcome
        assert outcome.committed == outcome.kept == 640
        assert left(tmp_path) == {40}


@pytest.mark.soak
@pytest.mark.parametrize("pause_s", [0.0, 2.0])
@pytest.mark.parametrize("mode", ["bsp", "asp", "ssp"])
def test_on_servers_a_life_that_began_later_ends_with_who_has_seen_all(
    mode: Any, pause_s: float, tmp_path: Path
) -> None:
    spec = JobSpec(
        script=str(SCRIPT.with_name("counting_batches.py")),
        args=("--out", str(tmp_path), "--pause-s", str(pause_s)),
        strategy="ps",
        mode=mode,
        workers=NodeSpec(count=2),
        servers=NodeSpec(count=1),
        solution="none",
        restart=RestartSpec(backoff_s=0.1),
    )
    with contextlib.closing(RunningJob(launch(spec), tmp_path)) as job:
        outcome = job.end()
        assert outcome.end is End.STOPPED_EARLY, outcome
        assert [death["node"] for death in job.deaths()] == ["worker-1"]
    (counted, step), *others = [
        [int(one) for one in path.read_text().split()] for path in tmp_path.glob("0.*.end")
    ]
    assert not others
    assert counted == 50
    # Rank 1 has computed what it had of its steps, and nothing behind that.
    ahead = 0 if mode == "bsp" else 6
    assert outcome.committed <= (step + ahead) * BATCH


@pytest.mark.soak
@pytest.mark.parametrize("strategy", ["allreduce", "fsdp"])
def test_a_script_that_takes_long_in_a_step_is_named_and_waited_for(
    strategy: str, tmp_path: Path
) -> None:
    with job_of(tmp_path, strategy, "--samples", "640", "--slow-s", "13") as job:
        outcome = job.end(80.0)
        assert outcome.end is End.FINISHED, outcome
        (slow,) = job.told(MemberSlowEvent)
        assert slow.node == "worker-0"
        assert slow.limit_s == SLOW_S
        assert not job.deaths()
        assert not job.events("hung")


@pytest.mark.parametrize("zeros", [False, pytest.param(True, marks=pytest.mark.soak)])
@pytest.mark.parametrize("strategy", EVERY)
def test_a_script_that_never_calls_backward_is_refused(
    strategy: str, zeros: bool, tmp_path: Path
) -> None:
    with job_of(tmp_path, strategy, "--no-backward", *(["--zeros"] * zeros)) as job:
        outcome = job.end()
        assert outcome.end is End.SCRIPT_FAILED, outcome
        assert outcome.committed == 0
        assert "no parameter has a gradient; call loss.backward() before it" in outcome.error

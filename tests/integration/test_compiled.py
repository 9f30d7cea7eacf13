"""A compiled model ends as the plain one does, though a worker and the master are killed."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from paceline.jobs.launch import launch
from paceline.wire.spec import CheckpointSpec, JobSpec, NodeSpec, RestartSpec
from tests.chaos.oracle import leftovers
from tests.integration.running import RunningJob, until

SCRIPT = Path(__file__).with_name("jobs") / "compiled.py"
SAMPLES = 512
"""Of an epoch."""
MOST_GRAPHS = 8
"""Of one life: forward with and without gradients, each for one size and for all, and in parts."""
pytestmark = pytest.mark.timeout(400)

FLAGS: dict[str, tuple[str, ...]] = {
    "allreduce": (),
    "servers": ("--sparse",),
    "fsdp": ("--sharded",),
}
STRATEGIES: dict[str, dict[str, Any]] = {
    "allreduce": {"strategy": "allreduce"},
    "servers": {"strategy": "ps", "mode": "bsp", "servers": NodeSpec(count=1)},
    "fsdp": {"strategy": "fsdp"},
}


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path / "home"))
    # What one life compiles the next ones find, and no other test.
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "compiled"))


def ends(out: Path) -> list[tuple[int, list[float]]]:
    """Of each life that came to its end: the graphs of the compiler, and what it held."""
    lines = [path.read_text().split() for path in sorted(out.glob("*.end"))]
    return [(int(one[0]), [*map(float.fromhex, one[1:])]) for one in lines]


def alone(out: Path, *flags: str) -> tuple[int, list[float]]:
    """What one process finds."""
    out.mkdir()
    env = {name: value for name, value in os.environ.items() if not name.startswith("PACELINE_")}
    command = [sys.executable, str(SCRIPT), "--out", str(out), *flags]
    subprocess.run(command, env=env, check=True, timeout=200)
    (found,) = ends(out)
    return found


@pytest.mark.soak
@pytest.mark.parametrize(
    ("strategy", "backend", "epochs", "flags"),
    [
        ("allreduce", "aot_eager", 3, ()),
        *(
            (strategy, "inductor", 6, flags)
            for strategy in STRATEGIES
            for flags in ((), ("--after",))
        ),
    ],
)
@pytest.mark.proves(form="compiled", strategy="{strategy}", death=("worker", "master"))
def test_with_a_worker_and_the_master_killed_it_is_the_model_that_nobody_compiled(
    strategy: str, backend: str, epochs: int, flags: tuple[str, ...], tmp_path: Path
) -> None:
    graphs, expected = alone(tmp_path / "plain", "--epochs", str(epochs))
    assert graphs == 0
    out = tmp_path / "job"
    out.mkdir()
    own = "--out", str(out), "--backend", backend, "--epochs", str(epochs), "--step-s", "0.06"
    fields: dict[str, Any] = {
        "script": str(SCRIPT),
        "args": (*own, *FLAGS[strategy], *flags),
        "name": "compiled",
        "workers": NodeSpec(count=2),
        "checkpoint": CheckpointSpec(every_s=0.5, share=0.5),
        "restart": RestartSpec(backoff_s=0.1),
        "solution": "none",
        "preflight": False,
    }
    job = RunningJob(launch(JobSpec(**(fields | STRATEGIES[strategy]))), out)
    with contextlib.closing(job):
        job.until_committed(SAMPLES * epochs // 6, patience_s=120.0)
        killed = job.living("worker-1")
        os.kill(killed.pid, signal.SIGKILL)
        until(lambda: job.node("worker-1").inc > killed.inc, "a new life")
        job.until_committed(SAMPLES * epochs // 3, patience_s=120.0)
        job.kill_master()
        outcome = job.end(patience_s=200.0)
        assert outcome.state == "finished", outcome
        assert job.deaths()
        assert len(job.events("master_started")) == 2
        assert not job.events("diverged")
        until(lambda: not leftovers(job.job), "a clean machine")
    found = ends(out)
    assert len(found) == 2
    for count, values in found:
        assert 0 < count <= MOST_GRAPHS
        assert values == pytest.approx(expected, rel=1e-9)


@pytest.mark.soak
@pytest.mark.parametrize("flags", [(), ("--sparse",)])
@pytest.mark.proves(form="compiled", strategy="alone")
def test_in_one_process_it_is_the_model_that_nobody_compiled(
    flags: tuple[str, ...], tmp_path: Path
) -> None:
    _, expected = alone(tmp_path / "plain")
    graphs, values = alone(tmp_path / "compiled-alone", "--backend", "inductor", *flags)
    assert 0 < graphs <= MOST_GRAPHS
    assert values == pytest.approx(expected, rel=1e-9)

"""What a script logs becomes one curve, whichever workers and masters die meanwhile."""

import contextlib
import os
import signal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from paceline.jobs.curves import CurvePoint, read_curves
from paceline.jobs.launch import launch
from paceline.wire.client import Kill
from paceline.wire.spec import CheckpointSpec, JobSpec, NodeSpec, RestartSpec
from tests.integration.running import RunningJob, until

SCRIPT = Path(__file__).with_name("jobs") / "logged.py"
EPOCHS, STEPS, BATCH = 3, 16, 16

SERVER = pytest.mark.proves(form="logging", strategy="ps bsp", death="server", ends="counted")


@pytest.mark.soak
@pytest.mark.parametrize(
    "strategy",
    [
        "allreduce",
        "fsdp",  # all go back to a cut
        pytest.param("ps", marks=SERVER),  # a server dies, too: steps come again
    ],
)
@pytest.mark.proves(
    form="logging", strategy="{strategy}", death=("worker", "master"), ends="counted"
)
def test_each_step_is_in_the_curve_once_though_a_worker_and_the_master_die(
    strategy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))
    fields: dict[str, Any] = {
        "script": str(SCRIPT),
        "args": ("--epochs", str(EPOCHS), *(["--sharded"] if strategy == "fsdp" else [])),
        "strategy": strategy,
        "workers": NodeSpec(count=2),
        "checkpoint": CheckpointSpec(every_s=0.5, share=0.5),
        "restart": RestartSpec(backoff_s=0.1),
        "solution": "none",
        "preflight": False,
    }
    with contextlib.closing(RunningJob(launch(JobSpec(**fields)), tmp_path)) as job:
        job.until_committed(2 * BATCH)
        job.tell(Kill(node="worker-1"))
        if strategy == "ps":
            job.tell(Kill(node="server-0"))
        until(lambda: job.events("process_exited"), "the end of worker-1")
        os.kill(job.status().master_pid, signal.SIGKILL)
        until(lambda: job.status().logged, "what the script has logged")
        outcome = job.end()
        assert outcome.state == "finished", outcome
        points = read_curves(job.job.curves).points
    every = list(range(1, EPOCHS * STEPS + 1))
    for name in ("loss", "step", "samples", "workers", "late"):
        assert [point.step for point in points[name]] == every, name
    assert [point.step for point in points["epoch/end"]] == [16, 32, 48]
    assert [point.value for point in points["epoch/end"]] == [0, 1, 2]
    assert all(str(point.value) == "nan" for point in points["late"])
    losses = values(points["loss"])
    assert losses[-1] < losses[0] / 2
    # In each step what the script saw of the job is what the curve is drawn by.
    assert values(points["step"]) == [step - 1 for step in every]
    assert [point.samples for point in points["loss"]] == [BATCH * step for step in every]
    assert all(one.t <= other.t for one, other in pairwise(points["loss"]))
    assert set(values(points["workers"])) <= {1.0, 1.5, 2.0}
    if strategy != "ps":
        assert values(points["samples"]) == [BATCH * step for step in every]


def values(points: list[CurvePoint]) -> list[float]:
    return [point.value for point in points]

"""Real jobs whose steps do not wait for a straggler apply every sample once all the same."""

import contextlib
from pathlib import Path

import numpy as np
import pytest
from equality import switching

from paceline.jobs.launch import launch
from paceline.policy.actions import AnyAction, BackupWorkers, Partial
from paceline.runtime.checkpoint import cutfile
from paceline.wire.client import Kill
from paceline.wire.spec import JobSpec, NodeSpec, RestartSpec
from tests.integration.running import RunningJob, running

SCRIPT = Path(__file__).with_name("jobs") / "straggling.py"
SCHEDULED = SCRIPT.with_name("scheduled.py")
NUM_SAMPLES, EPOCHS = 1024, 2


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path / "home"))


def num_updates(job: RunningJob) -> np.ndarray:  # type: ignore[type-arg]
    """How often each row was updated, from the last cut; in the order of the servers."""
    _, files = cutfile.read_cut(job.cuts()[-1])
    return np.concatenate(
        [
            array.reshape(-1)
            for file in files.values()
            for name, array in file.items()
            if name.startswith("table.") and name.endswith(".row_step")
        ]
    )


@pytest.mark.soak
@pytest.mark.parametrize(
    "action",
    [
        BackupWorkers(count=1),
        Partial(left_out=10, chunks=4),
        Partial(left_out=0, late=11, grace_s=0.02),
    ],
    ids=["backup", "partial", "grace"],
)
def test_steps_without_a_straggler_lose_no_sample_and_repeat_none(
    tmp_path: Path, action: AnyAction
) -> None:
    flags = ("--slow", "worker-1", "--epochs", str(EPOCHS), "--num-samples", str(NUM_SAMPLES))
    with (
        switching(4, [action]),
        running(tmp_path, workers=3, mode="bsp", script=str(SCRIPT), args=flags) as job,
    ):
        job.until_committed(NUM_SAMPLES // 2)
        job.tell(Kill(node="worker-2"))
        outcome = job.end()

        assert outcome.state == "finished", outcome
        assert not job.events("master_died")
        assert (outcome.committed, outcome.total) == (EPOCHS * NUM_SAMPLES,) * 2
        assert outcome.short_steps > 0
        assert outcome.left_out >= outcome.short_steps
        counts = num_updates(job)
        assert counts.size == NUM_SAMPLES
        assert np.all(counts == EPOCHS), np.unique(counts, return_counts=True)


@pytest.mark.soak
@pytest.mark.parametrize("strategy", ["allreduce", "ps"])
def test_a_schedule_has_as_many_steps_as_there_are_global_batches(
    tmp_path: Path, strategy: str
) -> None:
    spec = JobSpec(
        script=str(SCHEDULED),
        args=("--out", str(tmp_path), "--slow", "1", "--die-at", "30"),
        name="scheduled",
        strategy=strategy,
        workers=NodeSpec(count=2),
        restart=RestartSpec(backoff_s=0.1),
        solution="backup_workers",
        solution_args={"count": "1"},
        preflight=False,
    )
    with contextlib.closing(RunningJob(launch(spec), tmp_path)) as job:
        outcome = job.end()
        assert outcome.state == "finished", outcome
        assert len(job.events("relaunch")) == 1
    # The script compares the rate of every step itself.
    ends = [list(map(int, path.read_text().split())) for path in sorted(tmp_path.glob("*.end"))]
    assert [position for position, _ in ends] == [80, 80]
    assert ends[0][1] > 90, "no steps were short"

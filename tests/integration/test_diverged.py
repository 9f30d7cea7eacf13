"""Replicas are watched: one that differs is healed, one that goes on differing ends the job."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.jobs.launch import launch
from paceline.wire.spec import JobSpec, NodeSpec
from tests.integration.running import RunningJob

SCRIPT = Path(__file__).with_name("jobs") / "differing.py"


@contextlib.contextmanager
def job_of(out: Path, what: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningJob]:
    monkeypatch.setenv("PACELINE_HOME", str(out))
    spec = JobSpec(
        script=str(SCRIPT),
        args=(what,),
        name="differing",
        strategy="allreduce",
        workers=NodeSpec(count=3),
        solution="none",
        preflight=False,
    )
    with contextlib.closing(RunningJob(launch(spec), out)) as job:
        yield job


def test_a_worker_whose_weights_differ_copies_from_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with job_of(tmp_path, "weight", monkeypatch) as job:
        assert job.end().state == "finished"
        (found,) = [event["reason"] for event in job.events("diverged")]
        assert "weights or optimizer state differ after step 50: weight: " in found
        assert " in worker-0 and worker-2, " in found or " in worker-1, " in found
        logs = "".join(path.read_text() for path in sorted(job.job.logs.glob("worker-*.log")))
        ends = [line.split() for line in logs.splitlines() if line.startswith("END")]
        assert len(ends) == 3
        assert {steps for _, _, steps, _ in ends} == {"128"}
        assert len({weights for *_, weights in ends}) == 1


@pytest.mark.soak
def test_a_worker_that_goes_on_differing_ends_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with job_of(tmp_path, "rate", monkeypatch) as job:
        outcome = job.end()
        assert outcome.state == "failed"
        assert len(job.events("diverged")) == 2
        logs = "".join(path.read_text() for path in job.job.logs.glob("worker-1*.log"))
        assert "lr of SGD 0, group 0: 0.01 in worker-0 and worker-2, " in logs
        assert "for the second time. Set learning rates and the like by job.step" in logs

"""Servers go on serving while a cut of what they held is copied."""

import os
import signal
from pathlib import Path

import pytest

from paceline.wire.spec import CheckpointSpec
from tests.chaos.run import slow_disk
from tests.integration.running import RunningJob, running, until

N = 4096
COPY_S = 0.1
OFTEN = CheckpointSpec(every_s=0.1, share=1.0, keep=1000)


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))


def copies(job: RunningJob, node: str) -> set[str]:
    """The cuts of which a server has begun a copy in its memory."""
    return {path.parent.parent.name for path in job.job.memory.glob(f"*/{node}/*.safetensors")}


@pytest.mark.soak
def test_every_cut_holds_one_position_though_updates_go_on_and_a_server_dies_copying(
    tmp_path: Path,
) -> None:
    slow = ("--num-samples", str(N), "--slow-until-told")
    with slow_disk(0.0, COPY_S), running(tmp_path, *slow, checkpoint=OFTEN) as job:
        job.until_committed(1, cuts=2)
        before = copies(job, "server-1")
        until(lambda: copies(job, "server-1") - before, "the copy of the next cut")
        os.kill(job.pid_of("server-1"), signal.SIGKILL)
        (tmp_path / "hurry").touch()
        job.check_finished()
        assert [e["node"] for e in job.deaths()][:1] == ["server-1"]
        assert len(job.cuts()) > 3

"""Nodes of a running job get other cores and memory: in the kernel, while training goes on."""

import os
import signal
from pathlib import Path

import pytest
from typer.testing import CliRunner

from paceline.base.cgroups import create_node_group, find_trees, remove_job
from paceline.cli.main import app
from paceline.wire.client import ResizeNodes, Scale
from paceline.wire.spec import NodeSpec
from tests.integration.running import RunningJob, running, until

N = 4096
SLOW = ("--num-samples", str(2 * N), "--slow-until-told")
MIB = 1 << 20


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))
    _, note = create_node_group("probe", "worker-0", 1.0, None)
    remove_job("probe")
    if note:
        pytest.skip(note)


def quota(job: RunningJob, node: str) -> float | None:
    """Cores, by the kernel's word; None: no limit."""
    tree = find_trees()["cpu"]
    group = tree.base / "paceline" / job.job.job_id / node
    if tree.version == 2:
        quota, period = (group / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    quota_us = int((group / "cpu.cfs_quota_us").read_text())
    period_us = int((group / "cpu.cfs_period_us").read_text())
    return None if quota_us < 0 else quota_us / period_us


@pytest.mark.soak  # CI has one that sizes itself
def test_nodes_change_size_while_they_train_though_the_master_dies(tmp_path: Path) -> None:
    with running(tmp_path, *SLOW, mode="asp") as job:
        job.until_committed(N // 16)
        assert quota(job, "worker-0") is None
        until(lambda: all(node.rss_bytes for node in job.status().nodes), "what they use")
        sizes = ("--worker-cpu", "1.5", "--server-cpu", "1.25", "--server-memory", "900MiB")
        told = CliRunner().invoke(app, ["scale", job.job.job_id, *sizes])
        assert told.exit_code == 0, told.output
        assert "each worker gets 1.5 cores" in told.output
        os.kill(job.status().master_pid, signal.SIGKILL)
        wanted = {"worker-0": 1.5, "worker-1": 1.5, "server-0": 1.25, "server-1": 1.25}
        until(lambda: all(quota(job, node) == cores for node, cores in wanted.items()), "quotas")
        until(lambda: job.node("server-1").limit_bytes == 900 * MIB, "its word")
        job.tell(Scale(workers=3))
        until(lambda: job.node("worker-2").pid, "one more worker")
        assert quota(job, "worker-2") == 1.5
        until(lambda: job.node("worker-0").rss_bytes, "what it uses")
        too_little = CliRunner().invoke(app, ["scale", job.job.job_id, "--worker-memory", "1MiB"])
        assert too_little.exit_code == 2
        assert "of memory: it uses" in too_little.output
        (tmp_path / "hurry").touch()
        job.check_finished()
        assert not job.deaths()


@pytest.mark.soak
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="torch has one thread on one core")
def test_torch_has_more_threads_when_the_quota_of_its_worker_grows(tmp_path: Path) -> None:
    script = str(Path(__file__).with_name("jobs") / "threads.py")
    one = NodeSpec(count=1, cpu=(0.5,))
    args = ("--out", str(tmp_path))
    with running(tmp_path, workers=one, script=script, args=args, strategy="allreduce") as job:
        notes = tmp_path / "threads"
        until(lambda: notes.exists() and len(notes.read_text().split()) > 2, "some steps")
        job.tell(ResizeNodes(role="worker", cpu=(1.5,)))
        until(lambda: notes.read_text().split()[-1] == "2", "two threads")
        job.tell(ResizeNodes(role="worker", cpu=(1.0,)))
        until(lambda: notes.read_text().split()[-1] == "1", "one thread")
        (tmp_path / "end").touch()
        assert job.end().state == "finished"
        threads = notes.read_text().split()
        assert [threads[0], *sorted(set(threads))] == ["1", "1", "2"]
        said = (job.job.logs / "worker-0.log").read_text()
        assert "torch has 2 threads from now on, 1 before: a cpu quota of 1.5 cores" in said

"""A script for torchrun becomes slow: real ranks, real calls, and the verb that says who it was."""

import os
import signal
import subprocess
import urllib.request
from pathlib import Path

import pytest

from paceline.base.jobdir import JobDir
from paceline.base.node_files import NodeFiles
from paceline.features.exporter.exporter import address_of, token_of
from paceline.features.failslow.call_ring import OPS, CallRingReader, ring_of
from paceline.features.failslow.events import DiagnosedEvent, SlowedEvent, read
from paceline.jobs.history import read_events
from paceline.wire.step_ledger import StepLedgerReader
from tests.integration.running import until
from tests.integration.test_torchrun import PACELINE, Run

pytestmark = pytest.mark.timeout(180)
JOBS = Path(__file__).with_name("jobs")
KINDS = """
import gc, os, time, torch, torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import distribute_tensor, Shard
from torch.nn.parallel import DistributedDataParallel

gc.disable()  # it would mark a step
dist.init_process_group("gloo")
mesh, rank = init_device_mesh("cpu", (2,)), dist.get_rank()
replica = DistributedDataParallel(nn.Linear(8, 8))
shards = fully_shard(nn.Linear(8, 8), mesh=mesh)
optimizer = torch.optim.SGD(replica.parameters(), lr=0.1)
data = torch.ones(4, 8)
for step in range(4):
    replica(data).sum().backward()
    shards(data).sum().backward()
    distribute_tensor(torch.ones(4), mesh, [Shard(0)]).full_tensor()
    received = torch.empty(4, 8, requires_grad=True)  # as those of a pipeline's stages
    dist.send(data, 1) if rank == 0 else dist.recv(received, 0)
    optimizer.step()
open(f"{rank}.done", "w").close()
time.sleep(60)
"""


def test_calls_are_seen_whichever_way_they_are_made(tmp_path: Path) -> None:
    (tmp_path / "kinds.py").write_text(KINDS)
    run = Run(tmp_path, "--nproc-per-node", "2", "kinds.py")
    until(lambda: len([*tmp_path.glob("*.done")]) == 2, "all calls")
    job = run.job()
    for rank in range(2):
        page = StepLedgerReader(NodeFiles(job, f"worker-{rank}").ledger).read()
        assert page is not None and [record.step for record in page.records] == [1, 2, 3, 4]
        noted = CallRingReader(ring_of(job, f"worker-{rank}")).read(page.inc)
        assert [step.step for step in noted.steps] == [2, 3, 4], "the first holds the start"
        seen = {OPS[call.op] for call in noted.calls if call.step == 2}
        assert {"allreduce_", "_allgather_base_", "_reduce_scatter_base_"} <= seen
        assert "all_gather_into_tensor" in seen
        (pair,) = {call.op for call in noted.calls if OPS[call.op] in ("send", "recv_")}
        assert OPS[pair] == ("send" if rank == 0 else "recv_")
        ended = [call for call in noted.calls if call.step < 4]
        assert all(call.end_s > call.start_s for call in ended)
        ranks = {noted.groups[call.group].ranks for call in noted.calls}
        assert ranks == {(0, 1)}
    run.command.send_signal(signal.SIGINT)
    run.end()


def test_a_script_that_is_not_watched_finds_torch_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "alone.py").write_text(
        "import torch, torch.optim.optimizer as optimizer\n"
        "assert not optimizer._global_optimizer_post_hooks\n"
        "assert not hasattr(torch.save, '__wrapped__')\n"
    )
    run = Run(tmp_path, "--nproc-per-node", "1", "--set", "watch=false", "alone.py")
    code, _, err = run.end()
    assert code == 0, err
    assert not ring_of(run.job(), "worker-0").exists()


def slow(folder: Path, text: str) -> None:
    (folder / "fresh").write_text(text)
    (folder / "fresh").replace(folder / "slow")


def diagnoses(job: JobDir) -> list[DiagnosedEvent]:
    return [event for event in read(read_events(job.events)) if isinstance(event, DiagnosedEvent)]


@pytest.mark.soak  # it goes by the clock
def test_the_rank_that_makes_a_script_slow_is_named(tmp_path: Path) -> None:
    script, trouble = str(JOBS / "paced.py"), tmp_path / "slow"
    words = ("--set", "metrics_port=0", script, "--slow", str(trouble))
    run = Run(tmp_path, "--nproc-per-node", "3", *words)
    job = run.job()
    until(lambda: step_of(job) > 60, "a baseline, and a pace")
    since = step_of(job)
    slow(tmp_path, "2 0.1")
    until(lambda: diagnoses(job), "a diagnosis")
    (slowed, *_) = [one for one in read(read_events(job.events)) if isinstance(one, SlowedEvent)]
    found = diagnoses(job)[0]
    assert abs(slowed.step - since) < 60
    assert (found.culprit, found.nodes) == ("computation", ("worker-2",)), found
    code, out, _ = verb(tmp_path, "failslow")
    assert code == 0
    assert "worker-2 computes" in out and "its own part of a step" in out
    suspect = 'paceline_slow_ratio{culprit="computation",nodes="worker-2"}'
    until(lambda: suspect in scrape(job), "a second of the master's metrics")
    shown = scrape(job)
    assert shown[suspect] == pytest.approx(found.ratio) and shown["paceline_job_step_ratio"] > 1.1
    assert shown["paceline_job_slow"] == 1.0
    _, out, _ = verb(tmp_path, "status", job.job_id)
    assert "slow since" in out and "nothing: a script steers itself" in out
    run.command.send_signal(signal.SIGINT)
    run.end()
    code, out, _ = verb(tmp_path, "report", job.job_id)
    assert code == 0 and "Slow since" in job.report.read_text()
    assert '<h2>What was slow</h2><figure><div class="scroll"><svg' in job.report.read_text()


def scrape(job: JobDir) -> dict[str, float]:
    """The lines that Prometheus would read; values by name and labels."""
    request = urllib.request.Request(
        f"http://{address_of(job).read_text().strip()}/metrics",
        headers={"Authorization": f"Bearer {token_of(job).read_text().strip()}"},
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    values = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name: float(value) for name, value in values}


def step_of(job: JobDir) -> int:
    page = StepLedgerReader(NodeFiles(job, "worker-0").ledger).read()
    return page.step if page is not None else 0


def verb(folder: Path, *words: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [*PACELINE, *words],
        env={**os.environ, "PACELINE_HOME": str(folder / "home")},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return done.returncode, done.stdout, done.stderr


BY_HAND = """
import os, sys, time, torch, torch.distributed as dist

dist.init_process_group("gloo")
weights = torch.zeros(1000)
while True:
    time.sleep(0.05 + 0.1 * (dist.get_rank() == 1 and os.path.exists("slow")))
    grad = torch.randn(1000)
    dist.all_reduce(grad)
    norm = grad.norm()
    dist.all_reduce(norm)
    weights -= 0.1 * grad / norm
"""


@pytest.mark.soak
def test_a_script_without_an_optimizer_is_watched_by_its_calls(tmp_path: Path) -> None:
    (tmp_path / "by_hand.py").write_text(BY_HAND)
    run = Run(tmp_path, "--nproc-per-node", "2", "by_hand.py")
    job = run.job()
    until(lambda: step_of(job) > 100, "steps, half a minute after the first call", 90.0)
    slow(tmp_path, "")
    until(lambda: diagnoses(job), "a diagnosis")
    found = diagnoses(job)[0]
    assert (found.culprit, found.nodes, found.absent) == ("computation", ("worker-1",), ())
    run.command.send_signal(signal.SIGINT)
    run.end()

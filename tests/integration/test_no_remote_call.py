"""The training thread makes no remote call for bookkeeping while it holds a lease."""

import itertools
import json
import os
import signal
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from paceline.base.errors import TransientError
from paceline.base.jobdir import JobDir
from paceline.jobs.launch import ask, launch
from paceline.wire.client import GetStatus, JobStatus, StopJob
from paceline.wire.spec import JobSpec

START_S = 90.0
STEADY_STEPS = 200
"""By then speed is measured and the lease is some seconds of work."""
QUIET_STEPS = 100
PATIENCE_S = 3.0
"""For one step of 10 ms on a machine that others use; a call without an answer takes for ever."""

SCRIPT = """
import json, os, struct, sys, threading, time
import torch
import paceline as pl
from paceline.runtime.holding.servers.client import ServerTrainer

out = os.environ["TEST_OUT"]
steps = os.open(f"{out}/steps", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
seen = {"opened": [], "waits": 0, "idle_waits": 0}
inside = False

def audit(event, arguments):
    here = threading.current_thread() is threading.main_thread()
    if inside and here and event in ("socket.connect", "socket.getaddrinfo", "open", "subprocess.Popen"):
        seen["opened"].append([event, str(arguments[:2])])

def wait(self):
    # A wait for the model's values is the data plane's; for anything else it would be a call.
    if inside:
        pull = self._pulling is not None and self._pulling.result is None
        seen["waits" if pull else "idle_waits"] += 1
    inner(self)

inner, ServerTrainer._wait = ServerTrainer._wait, wait
sys.addaudithook(audit)

job = pl.init()
model = torch.nn.Linear(1, 1)
model, optimizer = job.prepare(model, torch.optim.SGD(model.parameters(), lr=1e-3))
data = torch.utils.data.TensorDataset(torch.rand(10**6, 1))
batches = iter(job.batches(data, batch_size=8))
for number in range(10**5):
    inside = number > STEADY
    (x,) = next(batches)
    inside = False
    model(x).mean().backward()
    time.sleep(0.01)
    inside = number > STEADY
    optimizer.step()
    inside = False
    os.write(steps, struct.pack("d", time.monotonic()))
    if number == STEADY + 100:
        with open(f"{out}/seen.new", "w") as file:
            json.dump(seen, file)
        os.rename(f"{out}/seen.new", f"{out}/seen.json")
"""


@pytest.fixture(params=[pytest.param("asp", marks=pytest.mark.soak), "bsp"])
def job(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[JobDir]:
    """A job of one worker and one server that trains for longer than the test."""
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path / "home"))
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.replace("STEADY", str(STEADY_STEPS)))
    spec = JobSpec(
        script=str(script), name="calm", mode=request.param, env={"TEST_OUT": str(tmp_path)}
    )
    job = launch(spec)
    try:
        yield job
    finally:
        wait_until(lambda: asked_to_stop(job), START_S)
        wait_until(lambda: not job.run_dir.exists(), START_S)


def asked_to_stop(job: JobDir) -> bool:
    """False: the master that was killed is not back yet."""
    try:
        ask(job, StopJob(now=True), timeout_s=5.0)
    except TransientError:
        return job.outcome.exists()
    return True


def wait_until(condition: Callable[[], bool], timeout_s: float) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, "it did not come"
        time.sleep(0.02)


def steps_of(out: Path) -> list[float]:
    path = out / "steps"
    data = path.read_bytes() if path.exists() else b""
    return [at for (at,) in struct.iter_unpack("d", data[: len(data) // 8 * 8])]


def status(job: JobDir) -> JobStatus:
    reply = ask(job, GetStatus())
    assert isinstance(reply, JobStatus)
    return reply


def assert_steps_go_on(out: Path) -> None:
    """A hundred steps from here on, none of which waits for somebody who does not answer."""
    first = len(steps_of(out))
    wait_until(lambda: len(steps_of(out)) > first + QUIET_STEPS, START_S)
    steps = steps_of(out)[first - 1 :]
    gaps = [after - before for before, after in itertools.pairwise(steps)]
    assert max(gaps) < PATIENCE_S


@pytest.mark.soak
def test_a_worker_with_a_lease_waits_for_nobody_but_its_servers(
    job: JobDir, tmp_path: Path
) -> None:
    wait_until((tmp_path / "seen.json").exists, START_S)
    seen = json.loads((tmp_path / "seen.json").read_text())
    assert seen["opened"] == []
    assert seen["idle_waits"] == 0
    agent = next(node.agent_pid for node in status(job).nodes if node.role == "worker")
    os.kill(agent, signal.SIGSTOP)
    try:
        assert_steps_go_on(tmp_path)
    finally:
        os.kill(agent, signal.SIGCONT)
    os.kill(status(job).master_pid, signal.SIGKILL)
    assert_steps_go_on(tmp_path)

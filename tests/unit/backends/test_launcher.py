"""A launcher without Ray: what it starts, when it ends itself, who gives the places back."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest

from paceline.backends.ray import launcher as launchers
from paceline.backends.ray.launcher import AgentOrder, AgentStarted, Launcher
from paceline.base.jobdir import JobDir
from paceline.base.joined import joined_directory
from paceline.base.processes import FoundProcess, kill_quietly
from paceline.jobs.tickets import Ticket
from paceline.protocol.nodes.ends import AgentEnd
from paceline.wire.spec import JobSpec, NodeSize, NodeSpec, load
from tests.integration.running import until

IDLE_S, LIMIT_S = 0.2, 20.0


class Ends:
    """How often a launcher has ended itself."""

    count = 0

    def __call__(self) -> None:
        self.count += 1


@pytest.fixture
def ends() -> Ends:
    return Ends()


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[JobDir]:
    """The master's directory of a job whose agents only sleep."""
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))
    monkeypatch.setattr(launchers, "IDLE_S", IDLE_S)

    def start(module: str, args: Sequence[str], *_: object) -> tuple[subprocess.Popen[bytes], int]:
        assert module == "paceline.agent"
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        return child, child.pid

    monkeypatch.setattr(launchers, "start_grandchild", start)
    job = JobDir.create("train")
    (job.path / "train.py").touch()
    yield job
    for path in (job.path, *tmp_path.glob("joined/*/*")):
        JobDir(path).run_dir.rmdir()


ANOTHERS = Ticket(address="127.0.0.1:1", secret="of another job", authority=b"")


def order(job: JobDir, **changes: Any) -> bytes:
    order = AgentOrder(
        job_id=job.job_id,
        path=str(job.path),
        node="worker-0",
        ticket=Ticket(address="127.0.0.1:1", secret=job.secret().decode(), authority=b""),
        spec=JobSpec(script=str(job.path / "train.py")),
    )
    return msgspec.json.encode(msgspec.structs.replace(order, **changes))


async def started(launcher: Launcher, launch: str, words: bytes) -> AgentStarted:
    return msgspec.json.decode(await launcher.start(launch, words), type=AgentStarted)


async def ended(launcher: Launcher, launch: str) -> AgentEnd:
    return msgspec.json.decode(await launcher.wait(launch), type=AgentEnd)


def test_a_launch_starts_one_agent_and_the_next_launch_ends_it(job: JobDir, ends: Ends) -> None:
    async def scenario() -> None:
        launcher = Launcher("place", ends, NodeSize())
        first = await started(launcher, "a", order(job))
        assert await started(launcher, "a", order(job)) == first
        waiting = asyncio.ensure_future(launcher.wait("a"))
        await asyncio.sleep(0)
        second = await started(launcher, "b", order(job))
        assert second.pid != first.pid
        over = msgspec.json.decode(await asyncio.wait_for(waiting, LIMIT_S), type=AgentEnd)
        assert over.signal == 9
        assert (await ended(launcher, "a")).why == "its launcher began again"
        kill_quietly(second.pid)
        assert (await asyncio.wait_for(ended(launcher, "b"), LIMIT_S)).signal == 9

    asyncio.run(scenario())


def test_a_launch_clears_what_nodes_of_jobs_that_are_gone_have_left_here(
    job: JobDir, ends: Ends
) -> None:
    same, other = joined_directory(job.job_id, "worker-7"), joined_directory("gone-1", "worker-0")
    for path in (same, other):
        left = JobDir(path)
        (left.cuts / "000001").mkdir(parents=True)
        left.secret_file.write_text("secret")
        os.utime(left.secret_file, (0, 0))

    async def scenario() -> None:
        launcher = Launcher("place", ends, NodeSize())
        agent = await started(launcher, "a", order(job))
        until(lambda: not JobDir(other).secret_file.exists(), "a clean folder")
        kill_quietly(agent.pid)
        await asyncio.wait_for(ended(launcher, "a"), LIMIT_S)

    asyncio.run(scenario())
    assert not JobDir(other).cuts.exists()
    assert JobDir(same).cuts.exists(), "it may be about to start here"
    shutil.rmtree(same)
    shutil.rmtree(other)


def test_a_place_gives_its_node_no_more_than_was_reserved_whatever_is_ordered(
    job: JobDir, ends: Ends, tmp_path: Path
) -> None:
    size, larger = (
        NodeSize(cpu=0.5, memory_bytes=1 << 30),
        NodeSpec(count=3, cpu=(4.0, 2.0), memory_bytes=8 << 30),
    )

    async def scenario() -> None:
        launcher = Launcher("place", ends, size)
        spec = JobSpec(script=str(job.path / "train.py"), workers=larger, servers=larger)
        agent = await started(launcher, "a", order(job, spec=spec))
        assert agent.size == size
        kill_quietly(agent.pid)
        await asyncio.wait_for(ended(launcher, "a"), LIMIT_S)

    asyncio.run(scenario())
    (path,) = tmp_path.glob("joined/*/*")
    there = load(JobDir(path).spec)
    assert there.workers.size_of(2) == size and there.workers.count == 3
    assert there.servers == larger, "that of another role"


@pytest.mark.parametrize(
    ("changes", "sees"),
    [({}, True), ({"path": "/nowhere"}, False), ({"ticket": ANOTHERS}, False)],
)
def test_a_launcher_says_whether_it_sees_the_jobs_directory(
    job: JobDir, ends: Ends, changes: dict[str, object], sees: bool
) -> None:
    async def scenario() -> None:
        launcher = Launcher("place", ends, NodeSize())
        found = await started(launcher, "a", order(job, **changes))
        assert found.sees_job is sees
        kill_quietly(found.pid)
        await asyncio.wait_for(ended(launcher, "a"), LIMIT_S)

    asyncio.run(scenario())


def test_a_launcher_that_nobody_asks_ends_itself_unless_its_agent_runs(
    job: JobDir, ends: Ends
) -> None:
    async def scenario() -> None:
        launcher = Launcher("place", ends, NodeSize())
        await launcher.state()
        agent = await started(launcher, "a", order(job))
        await asyncio.sleep(2 * IDLE_S)
        assert not ends.count, "its agent runs"
        kill_quietly(agent.pid, signal.SIGTERM)
        await asyncio.wait_for(ended(launcher, "a"), LIMIT_S)
        for _ in range(4):
            await asyncio.sleep(IDLE_S / 2)
            await launcher.state()
        assert not ends.count, "somebody asks"
        await asyncio.sleep(2 * IDLE_S)
        assert ends.count == 1

    asyncio.run(scenario())


def test_a_launcher_whose_raylet_is_gone_ends_with_its_agent(
    job: JobDir, ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        launcher = Launcher("place", ends, NodeSize())
        agent = await started(launcher, "a", order(job))
        monkeypatch.setattr(os, "getppid", lambda: 1)
        kill_quietly(agent.pid)
        await asyncio.wait_for(ended(launcher, "a"), LIMIT_S)
        assert ends.count == 1

    asyncio.run(scenario())


@pytest.mark.parametrize(("node", "seen"), [("worker-0", "0,1"), ("server-0", "")])
def test_an_agent_gets_nothing_of_rays_and_sees_only_gpus_that_its_node_asks_for(
    job: JobDir, monkeypatch: pytest.MonkeyPatch, node: str, seen: str
) -> None:
    for name in ("RAY_JOB_ID", "RAY_ADDRESS", "OMP_NUM_THREADS", "OF_THE_MACHINE"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")  # of two GPUs, by Ray
    spec = JobSpec(script=str(job.path / "train.py"), workers=NodeSpec(gpus=2.0))
    words = msgspec.json.decode(order(job, node=node, spec=spec), type=AgentOrder)
    found = launchers._environment(words)
    assert found["CUDA_VISIBLE_DEVICES"] == seen
    assert found["OF_THE_MACHINE"] == "1"
    assert not [name for name in found if name.startswith(("RAY_", "OMP_"))]


@pytest.mark.parametrize("ends_when_killed", [True, False])
def test_a_stop_says_whether_something_is_left(
    job: JobDir, ends: Ends, monkeypatch: pytest.MonkeyPatch, ends_when_killed: bool
) -> None:
    monkeypatch.setattr(launchers, "GONE_S", 0.05)
    stuck = [] if ends_when_killed else [FoundProcess(1 << 22, (), "worker-0")]
    monkeypatch.setattr(launchers, "find_job_processes", lambda _: stuck)

    async def scenario() -> None:
        launcher = Launcher("place", ends, NodeSize())
        assert await launcher.stop(), "it has started nothing"
        await started(launcher, "a", order(job))
        assert await launcher.stop() is ends_when_killed
        assert (await ended(launcher, "a")).signal == 9
        job_dir = launcher._job
        assert job_dir is not None
        job_dir.run_dir.mkdir()  # the fixture removes it

    asyncio.run(scenario())


class Cluster:
    """What an actor that leaves sees of Ray."""

    def __init__(self, own: str, names: Sequence[str]) -> None:
        self.own, self.names, self.gave_back = own, list(names), False

    def get_actor_name(self) -> str:
        return self.own

    def list_named_actors(self) -> list[str]:
        found = [*self.names]
        if len(self.names) > 1 and self.own in self.names:
            self.names.remove(max(self.names))  # they leave at the same time
        return found

    def remove_placement_group(self, group: str) -> None:
        assert group == "gang" and self.names in ([], [self.own])
        self.gave_back = True


@pytest.mark.parametrize(
    ("own", "names", "gives_back"),
    [
        ("worker-0.1", ["worker-0.1"], True),
        ("worker-0.1", ["worker-0.1", "worker-1.1", "worker-2.1"], True),
        ("worker-1.1", ["worker-0.1", "worker-1.1"], False),
        ("worker-1.1", [], True),
        ("worker-0.1", ["worker-0.2"], False),
    ],
)
def test_the_last_launcher_gives_back_the_places_that_were_reserved_together(
    own: str, names: list[str], gives_back: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray")
    from paceline.backends.ray import cluster as module

    cluster = Cluster(own, names)
    monkeypatch.setattr(module, "LOOK_S", 0.01)
    monkeypatch.setattr(module.threading, "Timer", Mock())
    monkeypatch.setattr(module.ray, "get_runtime_context", lambda: cluster)
    for name in ("list_named_actors", "remove_placement_group"):
        monkeypatch.setattr(module.ray.util, name, getattr(cluster, name))
    monkeypatch.setattr(module.ray.util, "get_placement_group", lambda name: name)
    monkeypatch.setattr(module.os, "_exit", sys.exit)
    with pytest.raises(SystemExit) as leaving:
        module._leave()
    assert leaving.value.code == 0
    assert cluster.gave_back is gives_back

"""What there is of a job on a Ray cluster, seen from outside of both."""

import contextlib
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil

from paceline.backends.ray.backend import RayBackend, open_backend
from paceline.base.cgroups import find_trees
from paceline.base.jobdir import RUN_PREFIX, SHARED_MEMORY, JobDir
from paceline.base.processes import JOB_DIR, FoundProcess, find_job_processes, kill_quietly
from paceline.wire.spec import DataPlaneSpec, JobSpec, load, save
from tests.integration.running import until
from tests.integration.test_local_backend import spoil
from tests.ray.cluster import HOST

LAUNCHER, GATEWAY = "ray::LauncherActor", "paceline.backends.ray.gateway"
PATIENCE_S = 60.0


def on_ray() -> dict[str, Any]:
    """The fields of a spec that `prepare` fills in."""
    plane = DataPlaneSpec(transport="tcp")
    address = os.environ["RAY_ADDRESS"]
    return {"backend": "ray", "ray_address": address, "listen": HOST, "data_plane": plane}


def processes(what: str) -> list[psutil.Process]:
    """Live processes whose command or title holds this."""
    found = []
    for one in psutil.process_iter(["cmdline"]):
        if what in " ".join(one.info["cmdline"] or ()):
            found.append(one)
    return found


def folders(job: JobDir, node: str = "*") -> list[Path]:
    """What nodes have on their machines, whose homes are those of the raylets."""
    home, name = (
        Path(os.environ["PACELINE_TEST_RAY"]),
        f"joined/{socket.gethostname()}/{job.job_id}.{node}",
    )
    return [*home.glob(name), *home.glob(f"*/{name}")]


def nodes_processes(job: JobDir, node: str) -> list[FoundProcess]:
    """All that runs of a node, but for its launcher."""
    return [process for path in folders(job, node) for process in find_job_processes(path)]


def agent_of(job: JobDir, node: str) -> int:
    """The process of a node's agent."""

    def found() -> int | None:
        agents = (one for one in nodes_processes(job, node) if one.runs("paceline.agent"))
        return next((one.pid for one in agents), None)

    pid: int = until(found, f"the agent of {node}", PATIENCE_S)
    return pid


def launcher_of(job: JobDir, node: str) -> psutil.Process:
    """The actor that has started a node's agent."""
    shell = psutil.Process(agent_of(job, node)).parent()
    found = shell.parent() if shell is not None else None
    assert found is not None and LAUNCHER in " ".join(found.cmdline())
    return found


def raylet_of(job: JobDir, node: str) -> psutil.Process:
    """The raylet of the machine that a node is on."""
    found = launcher_of(job, node).parent()
    assert found is not None and found.name() == "raylet"
    return found


def pull_the_plug(job: JobDir, node: str) -> None:
    """End a machine: its raylet, and all that runs of the node there."""
    raylet, launcher = raylet_of(job, node), launcher_of(job, node)
    raylet.kill()
    launcher.kill()
    for process in nodes_processes(job, node):
        kill_quietly(process.pid)


def left(job: JobDir) -> list[str]:
    """What is left of a job on the machines of the cluster; its ports end with its processes."""
    found = []
    for one in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            words = " ".join(one.cmdline())
            if job.job_id in one.environ().get(JOB_DIR, "") or LAUNCHER in words:
                found.append(words)
    found += [str(path) for path in SHARED_MEMORY.glob(f"{RUN_PREFIX}{job.job_id}.*")]
    trees = {tree.base for tree in find_trees().values()}
    found += [str(path) for base in trees for path in base.glob(f"paceline/{job.job_id}*/*")]
    return found


def left_in_ray() -> list[str]:
    """Which launchers and groups of places Ray keeps."""
    from ray._private.state import GlobalState
    from ray._raylet import GcsClientOptions

    state, address = GlobalState(), os.environ["RAY_ADDRESS"]  # a driver would end with the head
    cluster = {"allow_cluster_id_nil": True, "fetch_cluster_id_if_nil": True}
    state._initialize_global_state(GcsClientOptions.create(address, None, **cluster))
    try:
        actors, groups = state.actor_table(None), state.placement_group_table()
    finally:
        state.disconnect()
    launchers = [one for one in actors.values() if one["ActorClassName"] in LAUNCHER]
    found = [f"{one['Name']}: {one['State']}" for one in launchers if one["State"] != "DEAD"]
    return found + [str(one) for one in groups.values() if one["state"] != "REMOVED"]


class Ray:
    """The cluster, as the conformance suite sees it."""

    def __init__(self, job: JobDir) -> None:
        self.job = job
        script = job.path / "train.py"
        script.touch()
        spec = msgspec.structs.replace(load(job.spec), script=str(script), **on_ray())
        save(spec, job.spec)
        self._spec: JobSpec = spec
        job.master_address.write_text(f"{HOST}:1\n")  # where nobody answers
        self._open: list[RayBackend] = []

    def open(self, *, crowded: bool = False) -> RayBackend:
        spec = self._spec
        if crowded:
            servers = msgspec.structs.replace(spec.servers, cpu=(1_000.0,))
            spec = msgspec.structs.replace(spec, servers=servers)
        self._open.append(open_backend(self.job, spec))
        return self._open[-1]

    async def agent(self, node: str) -> int:
        import asyncio

        return await asyncio.to_thread(agent_of, self.job, node)

    def kill(self, agent_pid: int) -> None:
        os.kill(agent_pid, signal.SIGKILL)

    def kill_launcher(self, node: str) -> None:
        launcher_of(self.job, node).kill()

    def spoil(self, node: str) -> None:
        there = JobDir(self.job.path.with_name(f"{self.job.job_id}.{node}"))
        there.make_run_dir()
        spoil(there, node)

    def cut_off(self) -> None:
        """The platform is out of reach for a moment."""
        for one in processes(GATEWAY):
            one.kill()

    def is_clean(self) -> bool:
        return not any(nodes_processes(self.job, f"server-{number}") for number in range(2))

    @contextlib.asynccontextmanager
    async def clean(self) -> AsyncIterator[None]:
        import asyncio

        try:
            yield
        finally:
            for backend in self._open:
                await backend.close()
        deadline_s = time.monotonic() + PATIENCE_S
        while found := left(self.job) + left_in_ray():
            assert time.monotonic() < deadline_s, found
            await asyncio.sleep(0.05)


@contextlib.contextmanager
def ended(job: JobDir, *, has_head: bool = True) -> Iterator[None]:
    """After what is within, nothing is left of the job; a head that is gone says nothing."""
    yield
    until(lambda: not left(job), "clean machines", PATIENCE_S)
    if has_head:
        until(lambda: not left_in_ray(), "a clean cluster", PATIENCE_S)

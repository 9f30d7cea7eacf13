"""A place of Ray's keeps its size: a node gets another one elsewhere, once nothing of it runs.

`tests.ray.cluster` runs this file.
"""

import asyncio

import pytest

from paceline.base.jobdir import JobDir
from paceline.wire.places import AskedPlace
from paceline.wire.spec import NodeSize, load
from tests.integration.test_local_backend import job, start_node
from tests.ray.platform import PATIENCE_S, Ray, folders, launcher_of, left_in_ray

__all__ = ["job"]

pytestmark = pytest.mark.timeout(120)
MOVES, STAYS = "server-0", "server-1"


def size_of(job: JobDir, node: str) -> tuple[float, ...] | None:
    """The cores that the agent of a node was started with."""
    (folder,) = folders(job, node)
    return load(JobDir(folder).spec).servers.cpu


def test_a_node_moves_to_a_place_of_its_new_size_and_leaves_nothing_reserved(job: JobDir) -> None:
    platform = Ray(job)

    async def scenario() -> None:
        backend = platform.open()
        for node in (MOVES, STAYS):
            start_node(backend, node)
        agents = {node: await platform.agent(node) for node in (MOVES, STAYS)}
        before = {node: launcher_of(job, node) for node in agents}
        assert any("gang" in one for one in left_in_ray()), "a server and a worker, together"
        half = AskedPlace(size=NodeSize(cpu=0.5))
        start_node(backend, MOVES, half, may_move=True)
        start_node(backend, STAYS, half)  # a process of it may run
        async with asyncio.timeout(PATIENCE_S):
            for node, agent in agents.items():
                while await platform.agent(node) == agent:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            assert (size_of(job, MOVES), size_of(job, STAYS)) == ((0.5,), None)
            assert launcher_of(job, STAYS) == before[STAYS]
            assert launcher_of(job, MOVES) != before[MOVES]
            while any("gang" in one for one in left_in_ray()):  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    async def body() -> None:
        async with platform.clean():
            await scenario()

    asyncio.run(body())

"""The order of a gateway's deeds for one node, without a cluster."""

import asyncio
from pathlib import Path

import pytest

from paceline.backends.ray.messages import Shape, Want

pytest.importorskip("ray")

from paceline.backends.ray import gateway as gateways
from paceline.backends.ray.gang import Gang
from paceline.backends.ray.gateway import Gateway


@pytest.fixture
def gateway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Gateway:
    """One whose launches and ends are noted, and take a moment."""
    made = Gateway.__new__(Gateway)
    for name in ("_keeping", "_places", "_launches", "_locks", "_coming"):
        setattr(made, name, {})
    made._gang = Gang()
    made._drops = set()
    made.done = []  # type: ignore[attr-defined]

    async def keep(want: Want) -> None:
        async with made._lock_of(want.node):
            made.done.append(f"run {want.launch}")  # type: ignore[attr-defined]
            await asyncio.sleep(0.01)

    async def end(node: str) -> None:
        await asyncio.sleep(0.02)
        made.done.append(f"end {node}")  # type: ignore[attr-defined]

    monkeypatch.setattr(made, "_keep", keep)
    monkeypatch.setattr(made, "_end_launchers", end)
    return made


def want(launch: str) -> Want:
    return Want(node="worker-0", launch=launch, shape=Shape())


def test_a_launch_that_follows_a_drop_waits_for_it_and_is_done(gateway: Gateway) -> None:
    async def scenario() -> None:
        gateway.launch(want("a"))
        await asyncio.sleep(0)
        gateway.drop("worker-0")
        gateway.launch(want("b"))  # in the same breath
        await asyncio.sleep(0.1)

    asyncio.run(scenario())
    assert gateway.done == ["run a", "end worker-0", "run b"]  # type: ignore[attr-defined]


def test_a_drop_that_ray_refuses_is_tried_again(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []

    async def refuse_once(node: str) -> None:
        tried.append(node)
        if len(tried) == 1:
            raise gateways.ray.exceptions.RayError("no answer")

    monkeypatch.setattr(gateway, "_end_launchers", refuse_once)
    monkeypatch.setattr(gateways, "LOOK_S", 0.01)

    async def scenario() -> None:
        await asyncio.wait_for(gateway.drop("worker-0"), 5.0)

    asyncio.run(scenario())
    assert tried == ["worker-0", "worker-0"]

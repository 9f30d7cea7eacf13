"""The order of a gateway's deeds for one node, without a cluster."""

import asyncio
from collections.abc import Awaitable
from pathlib import Path
from types import SimpleNamespace

import pytest

from paceline.backends.ray.messages import DropNode, Want
from paceline.protocol.nodes.platform import NodeStopped
from paceline.wire.places import AskedPlace

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
    made._drops, made._begun = set(), set()
    made._say = lambda line: made.done.append(f"said {line.word}")  # type: ignore[attr-defined]
    made.done = []  # type: ignore[attr-defined]

    async def keep(want: Want) -> None:
        async with made._lock_of(want.node):
            made.done.append(f"run {want.launch}")  # type: ignore[attr-defined]
            await asyncio.sleep(0.01)

    async def end(order: DropNode) -> bool:
        await asyncio.sleep(0.02)
        made.done.append(f"end {order.node}")  # type: ignore[attr-defined]
        return True

    monkeypatch.setattr(made, "_keep", keep)
    monkeypatch.setattr(made, "_end_launchers", end)
    return made


def want(launch: str) -> Want:
    return Want(node="worker-0", launch=launch, place=AskedPlace())


def test_a_launch_that_follows_a_drop_waits_for_it_and_is_done(gateway: Gateway) -> None:
    async def scenario() -> None:
        gateway.launch(want("a"))
        await asyncio.sleep(0)
        gateway.drop(DropNode("worker-0", "a"))
        gateway.launch(want("b"))  # in the same breath
        await asyncio.sleep(0.1)

    asyncio.run(scenario())
    said = f"said {NodeStopped(node='worker-0', launch='a')}"
    assert gateway.done == ["run a", "end worker-0", said, "run b"]  # type: ignore[attr-defined]


def test_a_drop_that_ray_refuses_is_tried_again(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []

    async def refuse_once(order: DropNode) -> bool:
        tried.append(order.node)
        if len(tried) == 1:
            raise gateways.ray.exceptions.RayError("no answer")
        return True

    monkeypatch.setattr(gateway, "_end_launchers", refuse_once)
    monkeypatch.setattr(gateways, "LOOK_S", 0.01)

    async def scenario() -> None:
        await asyncio.wait_for(gateway.drop(DropNode("worker-0", "a")), 5.0)

    asyncio.run(scenario())
    assert tried == ["worker-0", "worker-0"]


class Launchers:
    """The launchers of worker-0 that Ray knows, by name, and what each answers to a stop."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stops: dict[str, bool | Exception] = {}
        self.state = "ALIVE"
        monkeypatch.setattr(gateways, "names_of", lambda _: [*self.stops])
        monkeypatch.setattr(gateways, "state_of", lambda _: self.state)
        monkeypatch.setattr(gateways.ray, "get_actor", self._actor)
        monkeypatch.setattr(gateways.ray, "kill", lambda actor: self.stops.pop(actor.name))

    def _actor(self, name: str) -> SimpleNamespace:
        async def stop(grace_s: float) -> bool:
            answer = self.stops[name]
            if isinstance(answer, Exception):
                raise answer
            return answer

        return SimpleNamespace(name=name, stop=SimpleNamespace(remote=stop))


@pytest.fixture
def launchers(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> Launchers:
    def end(order: DropNode) -> Awaitable[bool]:
        return Gateway._end_launchers(gateway, order)

    monkeypatch.setattr(gateway, "_end_launchers", end)
    return Launchers(monkeypatch)


def says_stopped(gateway: Gateway, launch: str = "a") -> bool:
    async def scenario() -> None:
        await asyncio.wait_for(gateway.drop(DropNode("worker-0", launch)), 5.0)

    gateway.done.clear()  # type: ignore[attr-defined]
    asyncio.run(scenario())
    return bool(gateway.done)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (True, True),
        (False, False),
        (TimeoutError(), False),
        (gateways.ray.exceptions.RayError("it died"), False),
    ],
)
def test_a_node_is_said_to_be_stopped_only_if_its_launcher_says_that_nothing_is_left(
    gateway: Gateway, launchers: Launchers, answer: bool | Exception, said: bool
) -> None:
    launchers.stops["worker-0.1"] = answer
    assert says_stopped(gateway) is said
    assert not launchers.stops, "its place is given back all the same"


def test_a_launcher_that_has_never_come_up_has_left_nothing(
    gateway: Gateway, launchers: Launchers
) -> None:
    launchers.stops["worker-0.1"], launchers.state = False, "PENDING_CREATION"
    assert says_stopped(gateway)


def test_a_launcher_that_is_gone_may_have_left_an_agent(
    gateway: Gateway, launchers: Launchers
) -> None:
    assert says_stopped(gateway, ""), "a node that never was"
    assert not says_stopped(gateway), "a gateway before this one was told to launch it"
    gateway._begun.add("worker-0.1")
    gateway._launches["worker-0"] = "a"
    launchers.stops["worker-0.2"] = True
    assert not says_stopped(gateway), "the launcher before this one died"
    gateway._begun.clear()
    assert says_stopped(gateway)

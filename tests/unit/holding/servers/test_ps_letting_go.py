"""What a server keeps of workers and servers that are gone: nothing."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from paceline.base.samples import SampleSet
from paceline.protocol.holding.servers.moving import copying, switched
from paceline.protocol.holding.servers.server import ServerState
from paceline.protocol.records import MoveBegun
from paceline.runtime.server.peers import Peers
from paceline.runtime.server.server import ServerProcess
from paceline.wire.messages.base import CutRef, Server, ServerMap
from paceline.wire.messages.data import At, Data, Order, Pull
from paceline.wire.messages.node import ChangeMap, Fence, Restore
from paceline.wire.messages.order import Remap

LEADER, OTHER, NEW, WORKER, PROMPT = 1, 2, 3, 11, 12
MAP = ServerMap(
    version=1,
    servers=(Server(LEADER, "a", "ipc:///tmp/no-a"), Server(OTHER, "b", "ipc:///tmp/no-b")),
    owners=(0, 1),
)
JOINER = Server(NEW, "c", "ipc:///tmp/no-c")
BEGUN = MoveBegun(joining=(JOINER,), leaving=(OTHER,), owners=(LEADER, NEW), version=MAP.version)
COPY = copying(MAP, BEGUN)
SWITCH = switched(COPY, BEGUN)


class Edge(ServerProcess):
    """A server in a BSP epoch, without process and sockets that anybody could reach."""

    def __init__(self, inc: int) -> None:
        self.inc, self.state = inc, ServerState(inc)
        self.store = self.sender = self.arriving = None
        anything: Any = SimpleNamespace(misfit=lambda *_: "", meet=lambda _: None)
        self.admission = anything
        self.route, self.asked, self.handler_s, self.refused = {}, {}, {}, set()
        self.aside_s, self.tensors, self.early = 0.0, {}, {}
        self.peers = Peers(inc, b"ab" * 32, f"server-{inc}")
        without: Any = SimpleNamespace(
            send=lambda *_: None, set_holders=lambda *_: None, start_epoch=lambda *_, **__: None
        )
        self.data, self.writer = without, without
        self.process: Any = SimpleNamespace(link=without)
        restore = Restore(
            epoch_no=1,
            inc=inc,
            cut=CutRef(cut_no=0),
            map=MAP,
            mode="bsp",
            samples="exactly-once",
        )
        self.peers.meet(MAP)
        self.state.loaded(restore, 0, SampleSet())

    def hears(self, inc: int, message: Data, *frames: memoryview) -> None:
        self._serve(b"node-%d" % inc, message, frames)


@pytest.fixture
def leader() -> Iterator[Edge]:
    edge = Edge(LEADER)
    yield edge
    edge.peers.close()


@pytest.fixture
def follower() -> Iterator[Edge]:
    edge = Edge(OTHER)
    yield edge
    edge.peers.close()


def pulls(edge: Edge, inc: int) -> None:
    pull = Pull(epoch_no=1, inc=inc, ticket=1, min_step=1, tables=(0,), map_version=1)
    edge.hears(inc, pull, memoryview(bytes(8)))


def known_of(edge: Edge, inc: int) -> list[bool]:
    return [
        inc in kept for kept in (edge.asked, edge.route, edge.handler_s, edge.state.waiting.pulls)
    ]


def test_a_leader_keeps_nothing_of_a_worker_that_it_fences(leader: Edge) -> None:
    pulls(leader, WORKER)
    pulls(leader, PROMPT)
    assert all(known_of(leader, WORKER))
    leader._obey(Fence(epoch_no=1, inc=LEADER, fenced=WORKER))
    assert not any(known_of(leader, WORKER))
    assert all(known_of(leader, PROMPT))


def test_others_keep_nothing_of_it_once_they_hear_of_the_fence(follower: Edge) -> None:
    pulls(follower, WORKER)
    pulls(follower, PROMPT)
    order = Order(epoch_no=1, leader=LEADER, start=1, entries=(), fenced=((WORKER, 0),))
    follower.hears(LEADER, order)
    assert not any(known_of(follower, WORKER))
    assert all(known_of(follower, PROMPT))


def test_who_leaves_the_map_keeps_no_ids_of_pulls_that_others_answer(follower: Edge) -> None:
    pulls(follower, WORKER)
    alone = ServerMap(version=2, servers=MAP.servers[:1], owners=(0, 0))
    order = Order(epoch_no=1, leader=LEADER, start=1, entries=(Remap(map=alone),))
    follower.hears(LEADER, order)
    assert not follower.asked


def test_a_server_that_left_is_let_go_when_it_has_heard_of_it(leader: Edge) -> None:
    leader._obey(ChangeMap(epoch_no=1, inc=LEADER, map=COPY))
    leader._obey(ChangeMap(epoch_no=1, inc=LEADER, map=SWITCH))
    assert set(leader.peers.keys()) == {OTHER, NEW}, "it is still to be told"
    leader.peers.poll = lambda *_: [(OTHER, At(epoch_no=1, server=OTHER, position=2), [])]  # type: ignore[assignment,misc]
    leader._hear_peers()
    assert set(leader.peers.keys()) == {NEW}


def test_servers_of_an_older_epoch_are_let_go(leader: Edge) -> None:
    restore = Restore(
        epoch_no=2,
        inc=LEADER,
        cut=CutRef(cut_no=0),
        map=SWITCH,
        mode="bsp",
        samples="exactly-once",
    )
    leader._load = lambda message: leader.state.loaded(message, 0, SampleSet())  # type: ignore[assignment,misc]
    leader._obey(restore)
    assert set(leader.peers.keys()) <= {NEW}

"""Nodes move one at a time to places of another size: by single cases, and from end to end."""

import pytest
from msgspec.structs import replace

from paceline.protocol.nodes.resizing import (
    AddSpare,
    Await,
    Condition,
    DropSpare,
    GiveUpResize,
    MoveNode,
    ResizeMove,
    ResizeOver,
    SizedNode,
    SizesSeen,
    next_move,
)

PATIENCE_S = 120.0


def node(name: str, *, fits: bool | None = True, condition: Condition = "works") -> SizedNode:
    return SizedNode(name=name, role=name.partition("-")[0], condition=condition, fits=fits)


def seen(*nodes: SizedNode, **fields: object) -> SizesSeen:
    return replace(SizesSeen(nodes=nodes, patience_s=PATIENCE_S), **fields)


OLD, NEW = node("worker-0", fits=False), node("worker-1")
SERVER = node("server-0", fits=False)
PENDING = node("worker-1", condition="waits")


@pytest.mark.parametrize(
    ("facts", "move"),
    [
        (seen(OLD), AddSpare()),
        (seen(OLD, may_add=False), MoveNode("worker-0")),
        (seen(OLD, PENDING, spare="worker-1", ends=True), GiveUpResize("the job is about to end")),
        (seen(OLD, NEW, spare="worker-1"), MoveNode("worker-0")),
        (seen(OLD, SERVER), MoveNode("server-0")),
        (seen(OLD, buckets_move=True), Await("buckets move")),
        (seen(OLD, PENDING, spare="worker-1"), Await("worker-1")),
        (seen(node("worker-0"), NEW, spare="worker-1"), DropSpare()),
        (seen(node("worker-0"), node("server-1")), ResizeOver()),
        # An agent that has not connected to this master may be on a place of either size.
        (
            seen(node("worker-0", fits=None), OLD),
            Await("an agent has not said what its node has"),
        ),
        # It has died by itself: its next life needs no other worker to stand in.
        (seen(node("worker-0", fits=False, condition="ended")), MoveNode("worker-0")),
        (seen(node("worker-0", fits=True, condition="ended")), Await("worker-0")),
        (
            seen(node("worker-0", fits=False, condition="ended"), tried=frozenset({"worker-0"})),
            Await("worker-0"),
        ),
    ],
)
def test_what_comes_next(facts: SizesSeen, move: ResizeMove) -> None:
    assert next_move(facts) == move


@pytest.mark.parametrize(
    ("condition", "waited_s", "why"),
    [
        ("waits", PATIENCE_S, ""),
        ("waits", PATIENCE_S + 1, "worker-1 has no place after 120 s"),
        ("starts", PATIENCE_S + 1, ""),
        ("starts", 5 * PATIENCE_S + 1, "worker-1 does not work after 600 s"),
        ("refused", 0.0, "the platform refuses worker-1"),
    ],
)
def test_a_node_that_does_not_come_is_waited_for_so_long(
    condition: Condition, waited_s: float, why: str
) -> None:
    facts = seen(OLD, node("worker-1", condition=condition), spare="worker-1", waited_s=waited_s)
    assert next_move(facts) == (GiveUpResize(why) if why else Await("worker-1"))


def test_a_node_that_comes_back_as_it_was_does_not_move_again() -> None:
    move = next_move(seen(OLD, NEW, spare="worker-1", tried=frozenset({"worker-0"})))
    assert isinstance(move, GiveUpResize) and "worker-0" in move.why


class Cluster:
    """Nodes that obey at once; the platform has a fixed number of free places."""

    def __init__(self, workers: int, servers: int, free: int, *, may_add: bool) -> None:
        self.fits = {f"worker-{number}": False for number in range(workers)}
        self.fits |= {f"server-{number}": False for number in range(servers)}
        self.workers, self.free, self.may_add = workers, free, may_add
        self.spare, self.tried = "", frozenset[str]()
        self.fewest = workers
        self.moves: list[ResizeMove] = []

    def run(self) -> ResizeMove:
        while not isinstance(move := next_move(self._seen()), ResizeOver | GiveUpResize):
            self.moves.append(move)
            assert len(self.moves) < 100
            self._do(move)
            working = [name for name in self.fits if name.startswith("worker")]
            self.fewest = min(self.fewest, len(working))
        return move

    def _seen(self) -> SizesSeen:
        nodes = [node(name, fits=fits) for name, fits in self.fits.items()]
        waits = self.free < 0
        if waits:
            nodes[-1] = replace(nodes[-1], condition="waits")
        return seen(
            *nodes,
            spare=self.spare,
            may_add=self.may_add,
            tried=self.tried,
            waited_s=PATIENCE_S + 1 if waits else 0.0,
        )

    def _do(self, move: ResizeMove) -> None:
        match move:
            case AddSpare():
                self.spare = f"worker-{self.workers}"
                self.fits[self.spare] = True
                self.free -= 1
            case DropSpare():
                del self.fits[self.spare]
                self.spare = ""
                self.free += 1
            case MoveNode(node=name) if name.startswith("server"):
                self.tried |= {name}
                del self.fits[name]
                self.fits[f"server-{len(self.moves) + 10}"] = True
            case MoveNode(node=name):
                self.tried |= {name}
                if not self.spare:
                    self.fewest = min(self.fewest, self.workers - 1)
                self.fits[name] = True
            case _:
                raise AssertionError(move)


@pytest.mark.parametrize(
    ("may_add", "fewest", "num_moves"), [(True, 3, 2 + 1 + 3 + 1), (False, 2, 2 + 3)]
)
def test_all_nodes_move_and_workers_are_as_many_as_before(
    may_add: bool, fewest: int, num_moves: int
) -> None:
    cluster = Cluster(3, 2, free=1, may_add=may_add)
    assert cluster.run() == ResizeOver()
    assert all(cluster.fits.values()) and not cluster.spare
    assert cluster.fewest == fewest
    assert len(cluster.moves) == num_moves
    assert {name for name in cluster.fits if name.startswith("worker")} == {
        "worker-0",
        "worker-1",
        "worker-2",
    }


def test_without_a_free_place_no_worker_gives_up_its_own() -> None:
    cluster = Cluster(3, 0, free=0, may_add=True)
    assert isinstance(cluster.run(), GiveUpResize)
    assert cluster.moves == [AddSpare()]

"""What nodes may use: ordered, told one after the other, told again to who has missed it."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from paceline.base.errors import ConfigError
from paceline.base.jobdir import JobDir
from paceline.master.node_sizes import NodeSizes
from paceline.master.parts import MasterParts
from paceline.protocol.nodes.resizing import (
    FormerSize,
    NodesResized,
    NodesResizing,
    NodesSized,
    OrderedSize,
)
from paceline.wire.client import ResizeNodes
from paceline.wire.events.nodes import NotResizedEvent, ResizeDeferredEvent
from paceline.wire.messages.agent import AgentHello, Hardware, LimitNode, NodeLimited
from paceline.wire.places import AskedPlace, CannotResize, Deferred, Resized, Resizing
from paceline.wire.spec import JobSpec, NodeSize, NodeSpec, load, save

MIB = 1 << 20


class Edges:
    """What the sizes are given of a master, with what they have told."""

    def __init__(self, folder: Path, live: bool = True, **fields: Any) -> None:
        self.job = JobDir(folder)
        spec = JobSpec(
            script="train.py",
            workers=NodeSpec(count=2, cpu=(0.5,)),
            servers=NodeSpec(count=1),
            **fields,
        )
        self.spec = spec
        self.answer: Resizing = Resized() if live else CannotResize("it keeps its size")
        self.records: list[Any] = []
        save(spec, self.job.spec)
        self.sent: list[tuple[str, LimitNode]] = []
        self.events: list[Any] = []
        self.streams = {name: object() for name in ("worker-0", "worker-1", "server-0")}
        used = {"worker-0": 300 * MIB, "worker-1": 100 * MIB}
        nodes = {
            name: SimpleNamespace(facts=SimpleNamespace(rss_bytes=size))
            for name, size in used.items()
        }
        parts = SimpleNamespace(
            job=self.job,
            spec=spec,
            backend=SimpleNamespace(resize=self._resize),
            members=SimpleNamespace(roster=SimpleNamespace(of_role=self._of_role)),
            monitor=SimpleNamespace(nodes=nodes, hardware=lambda _node, _hardware: None),
            outbox=SimpleNamespace(
                streams=self.streams,
                to_agent=lambda node, message: self.sent.append((node, message)),
                tell=self.events.append,
                record=self.records.append,
            ),
        )
        self.sizes = NodeSizes(cast(MasterParts, parts))

    def _resize(self, node: str, place: AskedPlace) -> Resizing:
        return self.answer

    def _of_role(self, role: str) -> list[Any]:
        life = SimpleNamespace(is_alive=True)
        names = [name for name in self.streams if name.startswith(role)]
        return [SimpleNamespace(name=name, life=life) for name in names]

    def has(
        self, node: str, cores: float | None, memory: int | None = None, note: str = ""
    ) -> None:
        hardware = Hardware(cores=cores, memory_bytes=memory)
        self.sizes.limited(NodeLimited(node=node, hardware=hardware, note=note))

    def hello(self, node: str, cores: float | None) -> None:
        hardware = Hardware(cores=cores)
        self.sizes.hello(AgentHello(node=node, agent="a", agent_pid=1, host="h", hardware=hardware))

    def started(self, node: str, cores: float) -> None:
        size = NodeSize(cpu=cores)
        self.sizes.hello(AgentHello(node=node, agent="a", agent_pid=1, host="h", size=size))


@pytest.fixture
def edges(tmp_path: Path) -> Edges:
    return Edges(tmp_path)


def test_one_node_after_the_other_is_told_and_the_spec_has_it_first(edges: Edges) -> None:
    edges.sizes.order(ResizeNodes(role="worker", cpu=(1.0, 2.0), memory_bytes=512 * MIB))
    kept = load(edges.job.spec).workers
    assert (kept.count, kept.cpu, kept.memory_bytes) == (2, (1.0, 2.0), 512 * MIB)
    assert edges.sent == [("worker-0", LimitNode(cpu=1.0, memory_bytes=512 * MIB))]
    assert edges.sizes.is_changing and not edges.events
    edges.has("worker-0", 1.0, 512 * MIB)
    assert edges.sent[1:] == [("worker-1", LimitNode(cpu=2.0, memory_bytes=512 * MIB))]
    edges.has("worker-1", 2.0, 512 * MIB)
    assert not edges.sizes.is_changing
    assert [event.node for event in edges.events] == ["worker-0", "worker-1"]


def test_what_is_so_already_is_not_told(edges: Edges) -> None:
    edges.sizes.order(ResizeNodes(role="worker", cpu=(0.5,)))
    assert not edges.sent


def test_memory_below_what_a_node_uses_is_refused_before_anything_changes(edges: Edges) -> None:
    with pytest.raises(
        ConfigError, match="cannot give worker-0 200 MiB of memory: it uses 300 MiB"
    ):
        edges.sizes.order(ResizeNodes(role="worker", memory_bytes=200 * MIB))
    assert load(edges.job.spec).workers.memory_bytes is None and not edges.sent


def test_less_memory_is_refused_while_nobody_knows_what_a_node_uses(edges: Edges) -> None:
    """As just after the master has died."""
    with pytest.raises(
        ConfigError, match="server-0 900 MiB of memory: what it uses is not known yet"
    ):
        edges.sizes.order(ResizeNodes(role="server", memory_bytes=900 * MIB))
    assert not edges.sent


def sized(cpu: float) -> NodesSized:
    return NodesSized(sizes={"worker": OrderedSize(cpu=(cpu,)), "server": OrderedSize()})


def test_what_is_ordered_is_journalled_for_a_master_on_another_machine(edges: Edges) -> None:
    edges.sizes.begin()
    assert not edges.records and not edges.sizes.records, "all is as it was launched"
    edges.sizes.order(ResizeNodes(role="worker", cpu=(1.0,)))
    edges.sizes.begin()
    assert edges.records == edges.sizes.records == [sized(1.0)]
    assert sized(1.0).put_into(edges.spec) == load(edges.job.spec)


def test_a_resume_with_other_sizes_counts_and_not_an_order_before_it(edges: Edges) -> None:
    edges.sizes.apply(sized(4.0))
    edges.sizes.begin()
    assert edges.records == edges.sizes.records == [sized(0.5)]
    assert edges.sizes.of("worker").cpu == (0.5,)


@pytest.fixture
def moving(tmp_path: Path) -> Edges:
    """On a platform where a place keeps its size."""
    return Edges(tmp_path, live=False)


def test_where_a_place_keeps_its_size_the_order_is_kept_with_the_sizes_before(
    moving: Edges,
) -> None:
    for cpu in ((1.0,), (2.0,)):
        moving.sizes.order(ResizeNodes(role="worker", cpu=cpu))
    assert not moving.sent and moving.sizes.is_changing
    assert moving.sizes.place_of("worker-0").size.cpu == 2.0
    assert load(moving.job.spec).workers.cpu == (2.0,)
    change = NodesResizing(former={"worker": FormerSize(cpu=(0.5,))})
    moves = [one for one in moving.records if not isinstance(one, NodesSized)]
    assert moves == [change, change], "the newest order has another aim, no other origin"
    another = Edges(moving.job.path, live=False)
    another.sizes.apply(change)
    assert another.sizes.is_changing and another.sizes.records == [change]


def test_a_node_has_moved_when_its_agent_has_started_with_the_new_size(moving: Edges) -> None:
    moving.started("worker-0", 0.5)
    moving.sizes.order(ResizeNodes(role="worker", cpu=(1.0,)))
    assert moving.sizes.fits("worker-0") is False
    assert moving.sizes.fits("worker-1") is None and moving.sizes.fits("server-0") is True
    moving.started("worker-0", 1.0)
    moving.started("worker-0", 1.0)
    assert moving.sizes.fits("worker-0") is True
    assert [(event.node, event.cores) for event in moving.events] == [("worker-0", 1.0)]


def test_on_a_backend_whose_agents_change_limits_no_node_is_still_to_move(edges: Edges) -> None:
    edges.sizes.apply(NodesResizing(former={"worker": FormerSize(cpu=(0.5,))}))
    assert edges.sizes.fits("worker-0") is None
    edges.started("worker-0", 0.5)
    assert edges.sizes.fits("worker-0") is True, "the job began elsewhere"


def test_a_size_that_the_platform_cannot_give_yet_is_asked_for_again(edges: Edges) -> None:
    edges.sizes.order(ResizeNodes(role="worker", cpu=(1.0,)))
    edges.has("worker-0", 1.0)
    assert [node for node, _ in edges.sent] == ["worker-0", "worker-1"]
    edges.answer = Deferred("the machine is full")
    edges.sizes.order(ResizeNodes(role="server", cpu=(1.0,)))
    edges.has("worker-1", 1.0)
    edges.sizes.try_again()
    assert len(edges.sent) == 2 and edges.sizes.is_changing
    told = [one for one in edges.events if isinstance(one, ResizeDeferredEvent)]
    assert [(one.node, one.reason) for one in told] == [("server-0", "the machine is full")]
    edges.answer = Resized()
    edges.sizes.try_again()
    assert [node for node, _ in edges.sent] == ["worker-0", "worker-1", "server-0"]


def test_nodes_whose_places_turn_out_to_be_too_small_move(edges: Edges) -> None:
    edges.sizes.order(ResizeNodes(role="worker", cpu=(1.0,)))
    edges.answer = CannotResize("its machine has 1 core")
    edges.has("worker-0", 1.0)
    assert edges.sizes.change == NodesResizing(former={"worker": FormerSize(cpu=(0.5,))})
    assert [node for node, _ in edges.sent] == ["worker-0"]


def test_a_node_that_cannot_move_keeps_its_size_and_the_event_has_the_remedy(
    tmp_path: Path,
) -> None:
    edges = Edges(tmp_path, samples="at-least-once")
    edges.sizes.order(ResizeNodes(role="server", cpu=(1.0,)))
    edges.sent.clear()
    edges.answer = CannotResize("its machine has 1 core")
    edges.hello("server-0", 0.5)
    assert not edges.sent and not edges.sizes.is_changing
    (event,) = edges.events
    assert isinstance(event, NotResizedEvent)
    assert event.reason.startswith("server-0: its machine has 1 core; ")
    assert "paceline kill" in event.reason


def test_what_is_taken_back_is_launched_as_before_and_tried_again_by_persons_alone(
    moving: Edges,
) -> None:
    wanted = ResizeNodes(role="worker", cpu=(1.0,))
    moving.sizes.order(wanted)
    with pytest.raises(ConfigError, match="cannot scale yet"):
        moving.sizes.check_may_scale()
    assert moving.sizes.change is not None
    moving.sizes.take_back(moving.sizes.change)
    assert not moving.sizes.is_changing
    assert moving.sizes.place_of("worker-0").size.cpu == 0.5
    assert load(moving.job.spec).workers.cpu == (0.5,)
    moving.sizes.check_may_scale()
    with pytest.raises(ConfigError, match="workers found no place of another size before"):
        moving.sizes.order(wanted, by_itself=True)
    moving.sizes.order(wanted)
    assert moving.sizes.is_changing


@pytest.mark.parametrize(
    ("role", "fields", "why"),
    [
        ("server", {"samples": "at-least-once"}, "buckets cannot move; use `paceline kill`"),
        ("worker", {"strategy": "fsdp", "mode": "bsp"}, "no other sizes with strategy fsdp"),
    ],
)
def test_nodes_that_cannot_go_on_elsewhere_keep_their_sizes(
    tmp_path: Path, role: str, fields: dict[str, Any], why: str
) -> None:
    edges = Edges(tmp_path, live=False, **fields)
    with pytest.raises(ConfigError, match=why):
        edges.sizes.order(ResizeNodes(role=role, cpu=(1.0,)))
    assert not edges.sizes.is_changing


def test_an_order_of_a_number_of_workers_keeps_the_one_that_stands_in(moving: Edges) -> None:
    moving.sizes.keep(NodesResizing(spared=2))
    moving.sizes.scaled()
    assert moving.sizes.change is None and isinstance(moving.records[-1], NodesResized)


def test_a_node_that_keeps_its_limits_is_told_and_the_next_goes_on(edges: Edges) -> None:
    edges.sizes.order(ResizeNodes(role="worker", cpu=(1.0,)))
    edges.has("worker-0", 0.5, note="worker-0 keeps the limits that it has (busy)")
    assert edges.events[0].reason.endswith("(busy)")
    assert edges.sent[-1][0] == "worker-1"


def test_an_agent_that_is_gone_holds_nobody_up_and_hears_it_when_it_is_back(edges: Edges) -> None:
    edges.sizes.order(ResizeNodes(role="worker", cpu=(1.0,)))
    edges.sizes.gone("worker-0")
    assert edges.sent[-1][0] == "worker-1"
    edges.hello("worker-0", 0.5)
    edges.has("worker-1", 1.0)
    assert edges.sent[-1] == ("worker-0", LimitNode(cpu=1.0, memory_bytes=None))
    edges.has("worker-0", 1.0)
    edges.hello("worker-0", 1.0)
    assert not edges.sizes.is_changing and len(edges.sent) == 3


def test_an_agent_that_cannot_limit_its_node_is_not_asked_again(edges: Edges) -> None:
    hello = AgentHello(
        node="worker-0", agent="a", agent_pid=1, host="h", note="worker-0 runs without limits"
    )
    edges.sizes.hello(hello)
    assert not edges.sent and edges.events[0].reason == hello.note

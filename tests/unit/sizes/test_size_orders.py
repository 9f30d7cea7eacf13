"""A change of a job's size that does not come: what of it is withdrawn before it has failed."""

from types import SimpleNamespace
from typing import Literal, cast

import pytest
from msgspec.structs import replace

from paceline.base.errors import ConfigError
from paceline.features.sizes.orders import SizeOrders
from paceline.features.sizes.policy.plan import NodeTarget
from paceline.master.feature_port import Core
from paceline.master.members import MembersEdge
from paceline.master.node_acts import NodeActs
from paceline.master.node_sizes import NodeSizes
from paceline.policy.job_size import JobSize
from paceline.protocol.nodes.node import ServersChanging
from paceline.wire.client import ResizeNodes
from paceline.wire.spec import JobSpec, NodeSpec, ResourcesSpec

PATIENCE_S = 10.0


class Job:
    """A job of one worker and one server, whose other servers never come."""

    def __init__(self, backend: Literal["local", "ray"] = "local", servers: int = 1) -> None:
        self.change: ServersChanging | None = None
        self.calls: list[str] = []
        self.is_over = True
        """Whether a withdrawal is over at once."""
        self.refuses = ""
        spec = JobSpec(
            script="train.py", backend=backend, resources=ResourcesSpec(patience_s=PATIENCE_S)
        )
        self.all = {
            role: [
                SimpleNamespace(name=f"{role}-{rank}", rank=rank, word="running")
                for rank in range(count)
            ]
            for role, count in (("worker", 1), ("server", servers))
        }
        self.quotas: dict[str, tuple[float, ...]] = {"worker": (1.0,), "server": (1.0,)}
        sizes = SimpleNamespace(is_changing=False, of=self._sizes_of, order=self._resize)
        acts = NodeActs(cast(MembersEdge, self), cast(NodeSizes, sizes))
        core = SimpleNamespace(spec=spec, roster=self, nodes=acts, scene=None)
        self.orders = SizeOrders(cast(Core, core))

    # of its sizes

    def _sizes_of(self, role: str) -> NodeSpec:
        return NodeSpec(count=1, cpu=self.quotas[role])

    def _resize(self, wanted: ResizeNodes, *, by_itself: bool) -> None:
        assert not by_itself
        assert wanted.cpu is not None
        self.quotas[wanted.role] = wanted.cpu

    # of its roster

    def wanted_workers(self) -> list[SimpleNamespace]:
        return self.all["worker"]

    def in_place(self) -> list[SimpleNamespace]:
        return self.all["server"]

    def of_role(self, role: str) -> list[SimpleNamespace]:
        return self.all[role]

    @property
    def nodes(self) -> dict[str, SimpleNamespace]:
        return {node.name: node for nodes in self.all.values() for node in nodes}

    # of their edge

    def scale_servers(self, servers: int) -> None:
        if self.refuses:
            raise ConfigError(self.refuses)
        self.calls.append(f"scale {servers}")
        joining = tuple(f"server-{number}" for number in range(1, servers))
        self.change = ServersChanging(joining=joining, leaving=())

    def restart(self, name: str, _why: str) -> None:
        self.calls.append(f"restart {name}")
        self.change = ServersChanging(joining=("server-1",), leaving=(name,))

    def withdraw_servers(self) -> bool:
        self.calls.append("withdraw")
        self.change = None if self.is_over else self.change
        return self.is_over


ONE = JobSize(workers=1, servers=1, worker_cpu=1.0, server_cpu=1.0)
TWO = replace(ONE, servers=2)
MIGRATED = (NodeTarget(node="server-0", cpu=1.0, migrate=True),)


@pytest.fixture
def job() -> Job:
    return Job()


def test_servers_that_do_not_come_are_withdrawn(job: Job) -> None:
    job.orders.begin(TWO, (), 0.0)
    assert job.orders.go_on(0.0) is None
    assert job.orders.go_on(PATIENCE_S) is None
    assert job.calls == ["scale 2"]
    assert job.orders.go_on(PATIENCE_S + 0.1) == "pending"
    assert job.calls == ["scale 2", "withdraw"]
    assert job.orders.detail == "the servers' parts of the model move for 10 s"


def test_a_change_has_failed_when_its_servers_are_awaited_no_more(job: Job) -> None:
    job.is_over = False
    job.orders.begin(TWO, (), 0.0)
    job.orders.go_on(0.0)
    assert job.orders.go_on(11.0) is None
    assert job.orders.go_on(12.0) is None
    assert job.calls == ["scale 2", "withdraw", "withdraw"]
    job.change = None  # the leader has said that nothing moves
    assert job.orders.go_on(13.0) == "pending"


def test_a_server_whose_successor_does_not_come_stays() -> None:
    job = Job("ray")
    job.orders.begin(ONE, MIGRATED, 0.0)
    assert job.orders.go_on(0.0) is None
    assert job.orders.go_on(11.0) == "pending"
    assert job.calls == ["restart server-0", "withdraw"]


def test_a_server_is_not_moved_to_another_machine_where_there_is_none(job: Job) -> None:
    job.orders.begin(ONE, MIGRATED, 0.0)
    assert job.orders.go_on(0.0) == "refused"
    assert job.calls == []
    why = "server-0 should go to another machine, and backend local has one"
    assert job.orders.detail == why


@pytest.mark.parametrize(
    "other",
    [
        ServersChanging(joining=("server-1", "server-2"), leaving=()),
        ServersChanging(joining=("server-1",), leaving=("server-0",)),
    ],
    ids=["a person scales", "a slow server is replaced"],
)
def test_what_another_order_moves_is_not_withdrawn(job: Job, other: ServersChanging) -> None:
    job.orders.begin(TWO, (), 0.0)
    job.change = other
    assert job.orders.go_on(0.0) is None
    assert job.orders.go_on(11.0) == "pending"
    assert job.calls == []


def test_an_order_that_is_refused_fails_the_change_with_its_words(job: Job) -> None:
    job.refuses = "no room"
    job.orders.begin(TWO, (), 0.0)
    assert job.orders.go_on(0.0) == "refused"
    assert job.orders.detail == "no room"


def test_more_for_a_role_takes_nothing_from_a_node_that_has_more() -> None:
    job = Job(servers=3)
    job.quotas["server"] = (0.05, 1.0, 1.0)
    origin = job.orders.size
    assert origin.server_cpu == 0.05

    job.orders.begin(replace(origin, server_cpu=0.1), (), 0.0)
    job.orders.go_on(0.0)
    assert job.quotas["server"] == (0.1, 1.0, 1.0)
    assert job.orders.is_done


def test_a_node_of_its_own_size_and_the_way_back() -> None:
    job = Job(servers=3)
    job.quotas["server"] = (0.05, 1.0, 1.0)
    origin, before = (
        job.orders.size,
        tuple(
            NodeTarget(node=f"server-{number}", cpu=cores)
            for number, cores in enumerate((0.05, 1.0, 1.0))
        ),
    )

    job.orders.begin(replace(origin, server_cpu=1.0), (NodeTarget(node="server-0", cpu=1.0),), 0.0)
    job.orders.go_on(0.0)
    assert job.quotas["server"] == (1.0,)
    assert job.orders.is_done

    job.orders.begin(origin, before, 1.0)
    job.orders.go_on(1.0)
    assert job.quotas["server"] == (0.05, 1.0, 1.0)
    assert job.orders.is_done


def test_a_change_that_is_given_up_leaves_each_node_what_it_had() -> None:
    job = Job(servers=2)
    job.quotas["server"] = (0.5, 1.0)
    origin = job.orders.size
    before = (NodeTarget(node="server-0", cpu=0.5), NodeTarget(node="server-1", cpu=1.0))

    job.orders.begin(replace(origin, server_cpu=1.5, servers=2), (), 0.0)
    job.orders.go_on(0.0)
    assert job.quotas["server"] == (1.5,)
    job.orders.give_up(origin, before)
    assert job.quotas["server"] == (0.5, 1.0)

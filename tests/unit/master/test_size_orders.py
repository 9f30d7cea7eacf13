"""A change of a job's size that does not come: what of it is withdrawn before it has failed."""

from types import SimpleNamespace
from typing import Literal, cast

import pytest
from msgspec.structs import replace

from paceline.base.errors import ConfigError
from paceline.master.members import MembersEdge
from paceline.master.node_sizes import NodeSizes
from paceline.master.parts import MasterParts
from paceline.master.size_orders import SizeOrders
from paceline.master.training import Training
from paceline.policy.resources.observation import JobSize
from paceline.policy.resources.plan import NodeTarget
from paceline.protocol.nodes.node import ServersChanging
from paceline.wire.spec import JobSpec, NodeSpec, ResourcesSpec

PATIENCE_S = 10.0


class Job:
    """A job of one worker and one server, whose other servers never come."""

    def __init__(self, backend: Literal["local", "ray"] = "local") -> None:
        self.change: ServersChanging | None = None
        self.calls: list[str] = []
        self.is_over = True
        """Whether a withdrawal is over at once."""
        self.refuses = ""
        spec = JobSpec(
            script="train.py", backend=backend, resources=ResourcesSpec(patience_s=PATIENCE_S)
        )
        self.nodes = {
            role: SimpleNamespace(name=f"{role}-0", rank=0, word="running")
            for role in ("worker", "server")
        }
        parts = SimpleNamespace(spec=spec, members=self, backend=None)
        nodes = NodeSpec(count=1, cpu=(1.0,))
        sizes = SimpleNamespace(is_changing=False, of=lambda _role: nodes)
        self.orders = SizeOrders(
            cast(MasterParts, parts),
            cast(Training, None),
            cast(MembersEdge, self),
            cast(NodeSizes, sizes),
        )

    # of its members

    def wanted_workers(self) -> list[SimpleNamespace]:
        return [self.nodes["worker"]]

    def in_place(self) -> list[SimpleNamespace]:
        return [self.nodes["server"]]

    def of_role(self, role: str) -> list[SimpleNamespace]:
        return [self.nodes[role]]

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
    assert job.orders.detail == "the servers' share of the model moves for 10 s"


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

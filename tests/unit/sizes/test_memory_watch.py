"""Memory that is raised before it runs out, and after: as far as the spec allows, and said once."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from paceline.base.jobdir import JobDir
from paceline.base.numbering import Inc
from paceline.base.samples import Intervals
from paceline.features.sizes import memory
from paceline.features.sizes.events import (
    MachineShortEvent,
    MemoryRaisedEvent,
    MemoryShortEvent,
)
from paceline.features.sizes.memory import FREEING_S, KEPT, MemoryWatch
from paceline.features.sizes.policy.history import SizingHistory
from paceline.features.sizes.policy.memory_forecast import memory_plan
from paceline.features.sizes.policy.observation import NodeUse, ResourceObservation, RowsSeen
from paceline.master.feature_port import Core
from paceline.master.members import MembersEdge
from paceline.master.node_acts import NodeActs
from paceline.master.node_sizes import NodeSizes
from paceline.master.parts import MasterParts
from paceline.policy.job_size import JobSize
from paceline.wire.events.nodes import (
    ProcessExitedEvent,
    ServersChangedEvent,
    Verdict,
)
from paceline.wire.messages.agent import Hardware, LimitNode, NodeFacts, NodeLimited
from paceline.wire.messages.base import TableHeld
from paceline.wire.messages.feeds import Feed
from paceline.wire.places import CannotResize, Resized
from paceline.wire.spec import JobSpec, NodeSpec, ResourcesSpec, load, save

MIB = 1 << 20
SERVERS = ("server-0", "server-1")
NOBODY_PLANS = ResourcesSpec()


class Watched:
    """A job of two servers whose table grows by a row of 1 KiB with each sample."""

    def __init__(
        self,
        folder: Path,
        limit: int | None,
        most: int | None,
        live: bool = True,
        resources: ResourcesSpec = NOBODY_PLANS,
    ) -> None:
        nodes = NodeSpec(count=2, memory_bytes=limit, max_memory_bytes=most)
        spec = JobSpec(script="t.py", servers=nodes, workers=nodes, resources=resources)
        self.job = JobDir(folder)
        save(spec, self.job.spec)
        self.events: list[Any] = []
        self.sent: list[tuple[str, LimitNode]] = []
        names = ("worker-0", *SERVERS)
        self.samples = 0
        feed = Feed(
            feed=0,
            purpose="train",
            num_samples=1_000_000,
            epochs=3,
            batch_size=1,
            shard_size=1,
            shuffle=False,
            seed=0,
        )
        self.done: dict[int, Intervals] = {}
        ledger = SimpleNamespace(
            feeds={0: feed}, done=SimpleNamespace(lines=self.done), total=lambda _: 3_000_000
        )

        def nodes_of(role: str) -> list[SimpleNamespace]:
            return [SimpleNamespace(name=name) for name in names if name.startswith(role)]

        backend = SimpleNamespace(
            resize=lambda *_: Resized() if live else CannotResize("it keeps its size")
        )
        roster = SimpleNamespace(of_role=nodes_of)
        self.monitor = SimpleNamespace(
            nodes={}, hardware=lambda *_: None, samples_per_s=100.0, tables={}
        )
        parts = SimpleNamespace(
            job=self.job,
            spec=spec,
            backend=backend,
            members=SimpleNamespace(roster=roster),
            monitor=self.monitor,
            outbox=SimpleNamespace(
                streams=dict.fromkeys(names),
                to_agent=lambda node, message: self.sent.append((node, message)),
                tell=self.events.append,
                record=lambda _: None,
            ),
        )
        self.failed: list[str] = []
        self.sizes = NodeSizes(cast(MasterParts, parts))
        core = SimpleNamespace(
            spec=spec,
            roster=roster,
            monitor=self.monitor,
            nodes=NodeActs(cast(MembersEdge, None), self.sizes),
            scene=SimpleNamespace(state=SimpleNamespace(ledger=ledger)),
            tell=self.events.append,
            fail=self.failed.append,
        )
        self.watch = MemoryWatch(cast(Core, core))
        self.now_s = 0.0

    def grow(
        self, samples: int, rows: int | None = None, servers: tuple[str, ...] = SERVERS
    ) -> None:
        """A second later so many samples are in the model, with a row for each."""
        rows = samples // 2 if rows is None else rows
        self.now_s += 1.0
        self.samples = samples
        self.done[0] = Intervals([0, samples] if samples else [])
        for node in servers:
            table = TableHeld("keys", rows, 1024 - 64)
            self.monitor.tables[node] = (table,)
            facts = NodeFacts(inc=Inc(1), memory_bytes=100 * MIB + rows * 1024)
            self.watch.heartbeat(node, facts, self.now_s)
        self.watch.tick(self.now_s)

    def grow_until_told(self, most: int = 900_000) -> None:
        self.grow(0)
        while not self.events and self.samples < most:
            self.grow(self.samples + 10_000)

    def answer(self) -> None:
        """The agents have done what they were told."""
        while self.sent:
            node, wanted = self.sent.pop(0)
            hardware = Hardware(cores=wanted.cpu, memory_bytes=wanted.memory_bytes)
            self.sizes.limited(NodeLimited(node=node, hardware=hardware))


def test_all_servers_get_more_memory_before_the_first_runs_out(tmp_path: Path) -> None:
    job = Watched(tmp_path, 300 * MIB, 4096 * MIB)
    job.grow_until_told()
    (told,) = job.events
    assert isinstance(told, MemoryRaisedEvent)
    # With half as many samples again the limit would be reached, or a table be copied within it.
    assert told.used_bytes < 250 * MIB
    assert (told.limit_bytes, told.after_oom, told.node) == (300 * MIB, False, "server-0")
    # All of the first epoch, after which no key is new: 488 MiB on each, and a doubled table.
    assert 600 * MIB < told.given_bytes < 1500 * MIB
    assert load(job.job.spec).servers.memory_bytes == told.given_bytes
    job.answer()
    while job.samples < 1_000_000:
        job.grow(job.samples + 10_000)
        job.answer()
    given = load(job.job.spec).servers.memory_bytes
    assert given is not None
    assert given <= 1500 * MIB
    told_before = len(job.events)
    rows = 500_000
    while job.samples < 2_990_000:  # the other epochs
        job.grow(job.samples + 10_000, rows=rows)
    assert len(job.events) == told_before
    assert [one for one in job.events[1:] if not isinstance(one, MemoryRaisedEvent)] == [
        one for one in job.events[1:] if type(one).__name__ == "NodeResizedEvent"
    ]


def test_rows_that_come_after_the_first_epoch_count_all_the_same(tmp_path: Path) -> None:
    job = Watched(tmp_path, 1400 * MIB, 8000 * MIB)
    while job.samples < 2_990_000:
        job.grow(job.samples + 10_000)
        job.answer()
    raised = [one for one in job.events if isinstance(one, MemoryRaisedEvent)]
    assert raised
    assert max(one.used_bytes / one.limit_bytes for one in raised) < 0.95


def test_a_server_that_may_have_no_more_is_told_of_once(tmp_path: Path) -> None:
    job = Watched(tmp_path, 300 * MIB, None)
    job.grow_until_told()
    job.grow(job.samples + 10_000)
    job.grow(job.samples + 10_000)
    (told,) = job.events
    assert isinstance(told, MemoryShortEvent)
    assert told.sentence().endswith("set servers.max_memory, or use more servers")
    assert load(job.job.spec).servers.memory_bytes == 300 * MIB


def server_died() -> ProcessExitedEvent:
    return ProcessExitedEvent(node="server-0", inc=Inc(1), verdict=Verdict.OOM, signal=9)


def test_a_need_that_was_computed_and_cannot_be_met_ends_the_job_with_the_first_kill(
    tmp_path: Path,
) -> None:
    job = Watched(tmp_path, 300 * MIB, None)
    job.grow_until_told()
    assert job.failed == [], "a forecast may be wrong"
    job.watch.note(server_died())
    (said,) = job.failed
    assert said.startswith("server-0 ran out of memory, as was foreseen: server-")
    assert said.endswith("the spec allows no more: set servers.max_memory, or use more servers")


def test_a_bound_that_is_reached_is_to_be_raised(tmp_path: Path) -> None:
    job = Watched(tmp_path, 300 * MIB, 300 * MIB)
    job.grow_until_told()
    job.watch.note(server_died())
    (said,) = job.failed
    assert said.endswith("the spec allows no more: raise servers.max_memory, or use more servers")


def test_a_kill_that_nobody_has_foreseen_is_no_end(tmp_path: Path) -> None:
    job = Watched(tmp_path, 300 * MIB, None)
    for _ in range(3):
        job.watch.note(server_died())
    assert job.failed == []


def test_what_was_computed_for_fewer_servers_does_not_count_any_more(tmp_path: Path) -> None:
    job = Watched(tmp_path, 300 * MIB, None)
    job.grow_until_told()
    job.watch.note(ServersChangedEvent(count=3, joined=("server-2",)))
    job.watch.note(server_died())
    assert job.failed == []


def test_the_limit_is_raised_as_far_as_allowed_and_then_it_is_said(tmp_path: Path) -> None:
    job = Watched(tmp_path, 300 * MIB, 310 * MIB)
    job.grow_until_told()
    job.answer()
    for _ in range(4):
        job.grow(job.samples + 10_000)
    kinds = [type(one).__name__ for one in job.events]
    assert kinds == ["MemoryRaisedEvent", *["NodeResizedEvent"] * 2, "MemoryShortEvent"]
    assert job.events[0].given_bytes == 310 * MIB


def test_what_the_backend_cannot_do_is_said_with_its_reason(tmp_path: Path) -> None:
    job = Watched(tmp_path, 300 * MIB, 4096 * MIB, live=False)
    job.sizes._given_up.add("server")
    job.grow_until_told()
    (told,) = job.events
    assert told.sentence().endswith("servers found no place of another size before")


@pytest.mark.parametrize("limit", [None, 4096 * MIB])
def test_a_job_with_enough_memory_is_left_alone(tmp_path: Path, limit: int | None) -> None:
    job = Watched(tmp_path, limit, None)
    job.grow_until_told(most=1_000_000)
    assert job.samples == 1_000_000
    assert job.events == []


def test_servers_that_nothing_limits_may_need_more_than_their_machine_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Watched(tmp_path, None, None)
    # 500,000 rows of 1 KiB will be on each of two servers: with a doubled table, over 1 GiB in all.
    monkeypatch.setattr(memory, "memory_left", lambda: (700 - job.samples // 1000) * MIB)
    job.grow_until_told(most=1_000_000)
    (told,) = job.events
    assert isinstance(told, MachineShortEvent)
    assert 100_000 < job.samples < 500_000
    assert told.left_bytes == (700 - job.samples // 1000) * MIB
    assert 600 * MIB < told.need_bytes < 2000 * MIB
    for _ in range(3):
        job.grow(job.samples + 10_000)
    assert len(job.events) == 1


def test_nothing_is_forecast_while_a_server_is_missing(tmp_path: Path) -> None:
    job = Watched(tmp_path, 128 * MIB, None)
    for samples in range(0, 200_000, 10_000):
        job.grow(samples, servers=SERVERS[:1])
    assert job.events == []
    job.grow(210_000)
    assert [type(one) for one in job.events] == [MemoryShortEvent]


def test_an_end_out_of_memory_doubles_what_the_next_life_has(tmp_path: Path) -> None:
    job = Watched(tmp_path, 300 * MIB, 1000 * MIB)
    oom = ProcessExitedEvent(node="worker-0", inc=Inc(1), verdict=Verdict.OOM, signal=9)
    job.watch.note(ProcessExitedEvent(node="worker-0", inc=Inc(1), verdict=Verdict.RETRYABLE))
    assert job.events == []
    for limit, given in ((300, 600), (600, 1000)):
        job.watch.note(oom)
        told = job.events[-1]
        assert (told.limit_bytes, told.given_bytes) == (limit * MIB, given * MIB)
        assert told.after_oom
        job.answer()
    job.watch.note(oom)
    job.watch.note(oom)
    assert [type(one) for one in job.events if isinstance(one, MemoryShortEvent)] == [
        MemoryShortEvent
    ]
    assert load(job.job.spec).servers.memory_bytes == 300 * MIB
    assert load(job.job.spec).workers.memory_bytes == 1000 * MIB


def test_looks_at_a_table_stay_few_and_span_the_job(tmp_path: Path) -> None:
    job = Watched(tmp_path, None, None)
    for samples in range(0, 1_000_000, 1_000):
        job.grow(samples)
    seen = job.watch._seen["keys"]
    assert len(seen) <= KEPT
    assert (seen[0].samples, seen[-1].samples) == (0, 999_000)
    assert [one.samples for one in seen] == sorted({one.samples for one in seen})
    job.grow(500)  # a restore
    assert [one.samples for one in job.watch._seen["keys"]] == [0, 500]


def test_what_servers_used_while_buckets_moved_does_not_count_afterwards(tmp_path: Path) -> None:
    job = Watched(tmp_path, 300 * MIB, None, resources=ResourcesSpec(policy="rm"))
    for samples in range(0, 100_000, 10_000):
        job.grow(samples)
    nodes = tuple(NodeUse(node=name, role="server") for name in SERVERS)
    seen = ResourceObservation(
        now_s=0.0, mode="asp", batch_size=1, samples_done=1, size=JobSize(workers=1), nodes=nodes
    )
    before = job.watch.completed(seen).nodes[0].used_bytes
    assert before is not None
    job.watch.note(ServersChangedEvent(count=3, joined=("server-2",)))
    job.grow(100_000, rows=90_000)
    assert job.watch.completed(seen).nodes[0].used_bytes is None, "a part of it is still there"
    job.now_s += FREEING_S
    job.grow(100_000, rows=20_000)
    after = job.watch.completed(seen).nodes[0].used_bytes
    assert after is not None
    assert after < before


def test_a_server_that_has_left_is_not_waited_for(tmp_path: Path) -> None:
    job = Watched(tmp_path, 300 * MIB, 4096 * MIB)
    gone = TableHeld("keys", 10, 1024 - 64)
    job.monitor.tables["server-9"] = (gone,)
    job.grow_until_told()
    assert isinstance(job.events[0], MemoryRaisedEvent)


def test_a_resource_policy_sees_the_tables_and_plans_for_them(tmp_path: Path) -> None:
    job = Watched(tmp_path, 300 * MIB, None, resources=ResourcesSpec(policy="rm"))
    job.grow(0)
    while job.samples < 350_000:
        job.grow(job.samples + 10_000)
    assert job.events == []  # it is the policy's to plan
    size = JobSize(workers=1, servers=2, server_memory=300 * MIB)
    nodes = [NodeUse(node=name, role="server", granted_bytes=300 * MIB) for name in SERVERS]
    seen = ResourceObservation(
        now_s=0.0,
        mode="asp",
        batch_size=1,
        samples_done=job.samples,
        samples_total=3_000_000,
        size=size,
        nodes=tuple(nodes),
    )
    assert memory_plan(seen, SizingHistory()) is None
    seen = job.watch.completed(seen)
    (table,) = seen.model.tables
    assert (table.seen[-1], seen.model.last_new) == (RowsSeen(350_000, 350_000), 1_000_000)
    assert seen.nodes[0].base_bytes == 100 * MIB
    plan = memory_plan(seen, SizingHistory())
    assert plan is not None
    assert (plan.target.servers, plan.aim) == (2, "safe")
    assert 600 * MIB < plan.target.server_memory < 1500 * MIB

"""What the monitor makes of reports and events, and what a solution sees of it."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from paceline.agent.facts import FactsReader
from paceline.base.samples import Span
from paceline.master.jobnow import JobNow, job_now
from paceline.master.monitor import MAX_ENDS, Monitor
from paceline.policy.actions import Share
from paceline.policy.observation import LifeEnded
from paceline.policy.stats.history import Lengths
from paceline.protocol.holding.servers.master import ServerHolder
from paceline.protocol.holding.servers.server import ServerState
from paceline.protocol.nodes.lives import Fate
from paceline.protocol.nodes.membership import Membership
from paceline.protocol.records import EpochStarted, FeedAdded, Place, Plan, Planned
from paceline.protocol.samples.plans import portion_of
from paceline.protocol.training import MasterState
from paceline.runtime.server.server import ServerProcess, WaitingPull
from paceline.runtime.server.service_time import ServiceTime
from paceline.wire.events.base import Event
from paceline.wire.events.job import ScaledEvent
from paceline.wire.events.nodes import (
    NodeLostEvent,
    NodeStartedEvent,
    ProcessExitedEvent,
    ProcessUpEvent,
    Verdict,
)
from paceline.wire.messages.agent import NodeFacts
from paceline.wire.messages.base import CutRef, Server, ServerMap
from paceline.wire.messages.data import Pull
from paceline.wire.messages.feeds import Feed
from paceline.wire.messages.node import Prepared, ProcessUp
from paceline.wire.schema import ModelSchema
from paceline.wire.spec import RestartSpec
from paceline.wire.step_ledger import StepLedgerWriter

SHORT = Lengths(short_iterations=10, short_s=60.0, long_iterations=20, long_s=120.0)


def exited(node: str, inc: int) -> ProcessExitedEvent:
    return ProcessExitedEvent(node=node, inc=inc, reason="as ordered", verdict=Verdict.STOPPED)


def lost(node: str, inc: int) -> NodeLostEvent:
    return NodeLostEvent(node=node, inc=inc, reason="silent for 9.0 s", silent_s=9.0)


@dataclasses.dataclass
class Node:
    """A worker that reports."""

    monitor: Monitor
    name: str
    inc: int = 1
    samples: int = 0

    def report(self, now_s: float, steps: int, compute_s: float, batch: int = 64) -> None:
        self.samples += steps * batch
        facts = NodeFacts(
            inc=self.inc,
            samples=self.samples,
            steps=steps,
            step_samples=float(batch),
            compute_s=compute_s,
            server_s=0.01,
            message_s=0.02,
            bpt_s=compute_s + 0.05,
        )
        self.monitor.heartbeat(self.name, facts, now_s)


def job(*workers: str, servers: tuple[str, ...] = (), **fields: object) -> JobNow:
    values: dict[str, object] = {
        "step": 5,
        "mode": "bsp",
        "global_batch": 64 * len(workers),
        "steps_left": 100,
        "shares": {name: Share(64) for name in workers},
        "servers": servers,
        "restarts": {},
    }
    return JobNow(**{**values, **fields})  # type: ignore[arg-type]


def test_windows_are_counted_in_iterations_and_filled_by_reports() -> None:
    monitor = Monitor(SHORT)
    worker = Node(monitor, "worker-0")
    for second in range(30):
        worker.report(float(second), steps=2, compute_s=0.1 if second < 25 else 0.4)
    (seen,) = monitor.observe(29.0, job("worker-0")).workers
    assert seen.short is not None
    assert seen.long is not None
    assert (seen.short.iterations, seen.long.iterations) == (10, 20)
    assert seen.short.compute_s == pytest.approx(0.4)
    assert seen.long.compute_s == pytest.approx(0.25)
    assert (seen.short.samples, seen.short.server_s, seen.short.message_s) == (64, 0.01, 0.02)
    assert seen.regime is not None


def test_a_report_without_new_steps_is_in_no_window() -> None:
    monitor = Monitor(SHORT)
    worker = Node(monitor, "worker-0")
    worker.report(1.0, steps=4, compute_s=0.1)
    for second in range(2, 9):
        worker.report(float(second), steps=0, compute_s=0.0)
    (seen,) = monitor.observe(9.0, job("worker-0")).workers
    assert seen.short is not None
    assert seen.short.iterations == 4
    assert seen.long is None


@pytest.mark.parametrize("event", [exited("worker-0", 1), lost("worker-0", 1), None], ids=str)
def test_a_new_life_is_measured_afresh(event: Event | None) -> None:
    """By its first report at the latest, also where its end was not told."""
    monitor = Monitor(SHORT)
    worker = Node(monitor, "worker-0")
    for second in range(30):
        worker.report(float(second), steps=2, compute_s=0.9)
    if event:
        monitor.note(event, 30.0)
        assert monitor.observe(30.0, job("worker-0")).workers[0].short is None
    worker.inc, worker.samples = 2, 0
    worker.report(31.0, steps=3, compute_s=0.1)
    (seen,) = monitor.observe(31.0, job("worker-0")).workers
    assert seen.short is not None
    assert (seen.short.iterations, seen.long) == (3, None)
    assert seen.short.compute_s == pytest.approx(0.1)


@pytest.mark.parametrize("pulls", [1, 4])
def test_a_server_of_steps_takes_as_long_for_one_in_however_many_batches_shares_are(
    pulls: int, tmp_path: Path
) -> None:
    """Its own ledger, the agent's reading of it, and the monitor's."""
    now_s, monitor = [100.0], Monitor(SHORT)
    monitor.trains(2)
    ledger = StepLedgerWriter(tmp_path / "server-0.ledger", inc=1)
    service = ServiceTime(ledger, 0.05, lambda: now_s[0])
    reader = FactsReader(tmp_path / "server-0.ledger")
    up = ProcessUp(node="server-0", inc=1, pid=1, role="server")
    edge: Any = object.__new__(ServerProcess)
    edge.inc, edge.state, edge.service = 1, ServerState(1), service
    edge.state.mode = "bsp"
    edge.route, edge.handler_s, edge.tensors = {7: b"worker-7", 8: b"worker-8"}, {}, {}
    edge.arriving = None
    edge.store = SimpleNamespace(
        dense=dict, apply=lambda *_: None, scripts=SimpleNamespace(at=lambda _: None)
    )
    edge.data = SimpleNamespace(send=lambda *_: None)
    for step in range(1, 11):
        for inc in (7, 8) * pulls:
            service.wait()
            service.work()
            now_s[0] += 0.02 / pulls
            edge.asked = {inc: WaitingPull(step, (), 0.0)}
            edge._answer(Pull(epoch_no=1, inc=inc, ticket=step))
            service.rest(step - 1)
        service.wait()
        service.work()
        now_s[0] += 0.06
        edge._apply([], 1.0)
        service.rest(step)
        monitor.heartbeat("server-0", reader.read(up), now_s[0])
    (seen,) = monitor.observe(now_s[0], job(servers=("server-0",))).servers
    assert seen.short is not None
    assert seen.short.iterations == 10
    assert seen.short.server_s == pytest.approx(0.1)
    assert monitor.metrics(0.0, 0).nodes["server-0"].server_s == pytest.approx(0.1)


def test_without_steps_an_iteration_of_a_server_is_one_pull_of_each_worker() -> None:
    monitor = Monitor(SHORT)
    monitor.trains(4)
    for second in range(10):
        facts = NodeFacts(inc=1, steps=6, server_s=0.03 if second < 5 else 0.06)
        monitor.heartbeat("server-0", facts, float(second))
    (seen,) = monitor.observe(9.0, job(servers=("server-0",))).servers
    assert seen.short is not None
    # 60 pulls are 15 iterations; the newest 10 of them are the 6 newest reports, all but one slow.
    assert seen.short.iterations in (10, 11)
    assert 4 * 0.05 < seen.short.server_s < 4 * 0.06
    assert seen.short.bpt_s == pytest.approx(1 / 1.5, rel=0.1)
    assert seen.short.compute_s == 0.0
    shown = monitor.metrics(0.0, 0).nodes["server-0"]
    assert shown.server_s == pytest.approx(4 * 0.06), "in the same unit as the windows"
    monitor.heartbeat("server-0", NodeFacts(inc=1), 10.0)
    assert monitor.metrics(0.0, 0).nodes["server-0"] == shown


def test_ends_of_lives_are_seen_with_their_evidence_while_they_are_new() -> None:
    monitor = Monitor(SHORT)
    monitor.note(NodeStartedEvent(node="worker-0", inc=1), 1.0)
    oom = ProcessExitedEvent(
        node="worker-0",
        inc=1,
        reason="out of memory",
        verdict=Verdict.OOM,
        signal=9,
        oom_kills=1,
    )
    monitor.note(oom, 2.0)
    monitor.note(lost("worker-1", 2), 3.0)
    monitor.note(ScaledEvent(role="worker", count=3, before=2), 4.0)
    first, second = monitor.observe(5.0, job("worker-0")).ends
    assert first == LifeEnded(
        t_s=2.0,
        node="worker-0",
        inc=1,
        reason="out of memory",
        verdict="oom",
        signal=9,
        oom_kills=1,
    )
    assert (second.node, second.reason, second.exit_code) == ("worker-1", "silent for 9.0 s", None)
    assert monitor.observe(2.5 + SHORT.long_s, job("worker-0")).ends == (second,)


def test_ends_of_lives_take_bounded_memory() -> None:
    monitor = Monitor()
    for number in range(3 * MAX_ENDS):
        monitor.note(exited("worker-0", number), float(number))
    kept = monitor.observe(3.0 * MAX_ENDS, job("worker-0")).ends
    assert (len(kept), kept[-1].inc) == (MAX_ENDS, 3 * MAX_ENDS - 1)


def test_who_is_no_more_is_forgotten_and_its_name_may_come_again() -> None:
    monitor = Monitor()
    for name in ("worker-0", "worker-1"):
        monitor.restarts.launched(name, 0.0, first=True)
        monitor.note(ProcessUpEvent(node=name, inc=1, pid=5), 1.0)
        Node(monitor, name).report(2.0, steps=1, compute_s=0.1)
    monitor.note(exited("worker-1", 1), 10.0)
    monitor.keep({"worker-0"})
    assert list(monitor.metrics(0.0, 0).nodes) == ["worker-0"]
    monitor.restarts.launched("worker-1", 3600.0, first=True)
    monitor.note(ProcessUpEvent(node="worker-1", inc=2, pid=6), 3601.0)
    monitor.restarts.works("worker-1", 3602.0)
    cost = monitor.restarts.take_fresh()[-1]
    assert (cost.first, cost.cost.start_s) == (True, 1.0)


def test_a_start_is_measured_until_its_first_step_began() -> None:
    monitor = Monitor()
    monitor.restarts.launched("worker-0", 0.0, first=True)
    monitor.restarts.placed("worker-0", 2.0)
    monitor.restarts.joined("worker-0")
    monitor.note(ProcessUpEvent(node="worker-0", inc=1, pid=5), 3.0)
    monitor.restarts.built("worker-0", 7.0)
    worker = Node(monitor, "worker-0")
    worker.report(9.0, steps=0, compute_s=0.0)
    worker.report(10.0, steps=2, compute_s=0.45)
    (one,) = monitor.restarts.take_fresh()
    assert one.cost.pending_s == 2.0
    assert one.cost.start_s == pytest.approx(1.0)
    assert one.cost.rebuild_s == pytest.approx(4.0)
    assert one.cost.restore_s == pytest.approx(10.0 - 2 * 0.5 - 7.0)


def test_the_plan_in_force_and_the_third_party_s_facts_are_seen_as_they_are() -> None:
    monitor = Monitor()
    now = job(
        "worker-0",
        "worker-1",
        restarts={"worker-1": 2},
        absent=3,
        pending_s=None,
        since_action_s=3.0,
    )
    seen = monitor.observe(9.0, now)
    assert [worker.restarts for worker in seen.workers] == [0, 2]
    assert (seen.absent, seen.pending_s, seen.since_action_s) == (3, None, 3.0)
    assert seen.server_restart.stall_s == 0.0, "a server serves until another has its buckets"
    assert (seen.step, seen.mode, seen.global_batch, seen.steps_left) == (5, "bsp", 128, 100)


# --------------------------------------------------------------------------- the job now


class Training:
    """Two servers and some workers in training, without their messages."""

    def __init__(self, mode: str, num_workers: int, *, batch_size: int = 10) -> None:
        self.state = MasterState(ServerHolder(), mode=mode, samples="exactly-once")
        self.members = Membership(num_workers=num_workers, num_servers=2, restart=RestartSpec())
        for inc, node in enumerate(list(self.members.roster.nodes.values()), 1):
            self.members._new_life(node, 0.0)
            up = ProcessUp(node=node.name, inc=inc, pid=inc, role=node.role, address=f"a{inc}")
            self.members.process_up(up, 0.0)
            if node.role == "worker":
                self.state.worker_up(inc)
                self.state.holder.prepare(Prepared(inc=inc, schema=ModelSchema()))
        servers = (Server(1, "server-0", "a1"), Server(2, "server-1", "a2"))
        feed = Feed(
            feed=0,
            purpose="train",
            num_samples=100,
            epochs=2,
            batch_size=batch_size,
            shard_size=50,
            shuffle=False,
            seed=0,
        )
        self.state.apply(FeedAdded(feed=feed))
        self.state.apply(
            EpochStarted(
                epoch_no=1,
                cut=CutRef(cut_no=0),
                step=0,
                committed=(),
                map=ServerMap(version=1, servers=servers, owners=(0, 1)),
            )
        )

    def now(self, committed: int = 0, total: int | None = 200) -> JobNow | None:
        return job_now(
            self.state,
            self.members.roster,
            committed=committed,
            total=total,
            pending_s=0.0,
            since_action_s=None,
        )


def test_a_synchronous_step_is_shared_as_the_ledger_shares_it() -> None:
    training = Training("bsp", 3)
    training.state.step = 4
    now = training.now(committed=40)
    assert now is not None
    assert (now.step, now.global_batch, now.steps_left) == (4, 10, 16)
    assert now.servers == ("server-0", "server-1")
    sizes = [share.batch_size for share in now.shares.values()]
    names = list(now.shares)
    parts = [portion_of(Plan(), names, member).of([Span(0, 0, 10)]) for member in range(3)]
    assert sizes == [sum(len(span) for span in spans) for spans in parts]


def test_a_synchronous_step_is_shared_as_the_plan_says() -> None:
    training = Training("bsp", 3)
    plan = Plan(no=1, shares={"worker-0": Share(9), "worker-1": Share(1)})
    training.state.apply(Planned(plan=plan, since=Place(), step=1, undecided=Place()))
    now = training.now()
    assert now is not None
    assert [share.batch_size for share in now.shares.values()] == [9, 1, 5]


def test_what_a_step_is_decided_without_is_that_of_the_plan() -> None:
    training = Training("bsp", 3)
    plan = Plan(no=1, left_out=1, late=4, grace_s=0.5)
    training.state.apply(Planned(plan=plan, since=Place(), step=1, undecided=Place()))
    now = training.now()
    assert now is not None
    assert (now.backup, now.left_out, now.late, now.grace_s) == (0, 1, 4, 0.5)
    seen = Monitor().observe(0.0, now)
    assert (seen.left_out, seen.late, seen.grace_s) == (1, 4, 0.5)


def test_what_short_steps_have_left_out_makes_more_steps() -> None:
    training = Training("bsp", 3)
    training.state.step = 20
    now = training.now(committed=175)
    assert now is not None
    assert now.steps_left == 3


def test_an_asynchronous_job_counts_contributions() -> None:
    now = Training("asp", 3).now(committed=31)
    assert now is not None
    assert (now.global_batch, now.step, now.steps_left) == (3, 10, 57)
    assert list(now.shares) == ["worker-0", "worker-1", "worker-2"]
    assert Training("asp", 3).now(total=None).steps_left is None  # type: ignore[union-attr]


def test_workers_are_in_the_order_of_their_ranks_whatever_their_lives() -> None:
    training = Training("asp", 3)
    node = training.members.roster.nodes["worker-0"]
    training.state.worker_lost(node.life.inc)
    training.members._new_life(node, 1.0)
    node.past.decided = 1
    training.state.worker_up(node.life.inc)
    now = training.now()
    assert now is not None
    assert (list(now.shares), now.absent) == (["worker-1", "worker-2"], 1), "its script prepares"
    training.state.holder.prepare(Prepared(inc=node.life.inc, schema=ModelSchema()))
    now = training.now()
    assert now is not None
    assert list(now.shares) == ["worker-0", "worker-1", "worker-2"]
    assert now.restarts == {"worker-0": 1}


def test_workers_under_restart_are_absent_and_those_who_leave_are_not_missed() -> None:
    training = Training("asp", 4)
    lost, leaving = (training.members.roster.nodes[f"worker-{i}"] for i in (1, 3))
    training.state.worker_lost(lost.life.inc)
    leaving.fate = Fate.LEAVES
    now = training.now()
    assert now is not None
    assert (now.absent, len(now.shares)) == (1, 3)
    training.state.worker_lost(leaving.life.inc)
    now = training.now()
    assert now is not None
    assert (now.absent, list(now.shares)) == (1, ["worker-0", "worker-2"])


def test_there_is_nothing_to_see_while_nobody_trains() -> None:
    training = Training("asp", 2)
    training.state.holder.restoring = {1}
    assert training.now() is None
    training.state.holder.restoring = set()
    training.state.ledger.commit([Span(0, 0, 200)])
    training.state.complete.add(0)
    assert training.now() is None


def test_a_new_master_counts_on_from_what_the_one_before_has_measured() -> None:
    before = Monitor(SHORT)
    for name, inc, samples, cpu_s in (("a", 1, 100, 1.0), ("a", 2, 30, 0.5), ("b", 3, 70, 2.0)):
        facts = NodeFacts(inc=inc, samples=samples, cpu_s=cpu_s, steps=1, bpt_s=0.5)
        before.heartbeat(name, facts, 1.0)
    monitor = Monitor(SHORT)
    monitor.go_on_from(before.metrics(1.0, 200))
    assert totals_of(monitor) == {"a": (130, 1.5), "b": (70, 2.0)}
    assert {node.bpt_s for node in monitor.metrics(0, 0).nodes.values()} == {0.0}
    # The process of a lives on, that of b is another.
    monitor.heartbeat("a", NodeFacts(inc=2, samples=40, cpu_s=0.75), 2.0)
    monitor.heartbeat("b", NodeFacts(inc=4, samples=5, cpu_s=0.25), 2.0)
    assert totals_of(monitor) == {"a": (140, 1.75), "b": (75, 2.25)}
    monitor.heartbeat("a", NodeFacts(inc=5, samples=1, cpu_s=0.25), 3.0)
    assert totals_of(monitor)["a"] == (141, 2.0)


def test_who_left_before_a_new_master_came_is_not_counted() -> None:
    before = Monitor(SHORT)
    before.heartbeat("a", NodeFacts(inc=1, samples=100), 1.0)
    monitor = Monitor(SHORT)
    monitor.go_on_from(before.metrics(1.0, 100))
    monitor.keep(["b"])
    monitor.heartbeat("a", NodeFacts(inc=2, samples=1), 2.0)
    assert totals_of(monitor) == {"a": (1, 0.0)}


def totals_of(monitor: Monitor) -> dict[str, tuple[int, float]]:
    return {name: (one.samples, one.cpu_s) for name, one in monitor.metrics(0, 0).nodes.items()}


def test_what_a_node_waits_for_its_own_quota_is_no_load_of_its_machine() -> None:
    monitor = Monitor(SHORT)
    facts = NodeFacts(inc=1, samples=64, steps=2, compute_s=0.5, stolen_s=0.4, throttled_s=0.3)
    monitor.heartbeat("worker-0", facts, 1.0)
    (seen,) = monitor.observe(1.0, job("worker-0")).workers
    assert seen.short is not None
    assert seen.short.stolen_s == pytest.approx(0.1)


@pytest.mark.parametrize(("throttled_s", "is_cut"), [(0.05, False), (0.2, True)])
def test_a_server_whose_quota_its_machine_has_cut_is_known_by_it(
    throttled_s: float, is_cut: bool
) -> None:
    """An iteration has a pull of each of two workers; what a report says is of one."""
    monitor = Monitor(SHORT)
    monitor.trains(2)
    for second in range(1, 6):
        facts = NodeFacts(
            inc=1, steps=3, server_s=0.3, stolen_s=throttled_s, throttled_s=throttled_s
        )
        monitor.heartbeat("server-0", facts, float(second))
    (seen,) = monitor.observe(5.0, job("worker-0", servers=("server-0",))).servers
    assert seen.regime is not None
    assert seen.regime.is_cut == is_cut
    assert seen.regime.stolen_s == 0.0

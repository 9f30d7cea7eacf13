"""Strategies script and fsdp: one worker's failure ends all, and all begin again together."""

from types import SimpleNamespace
from typing import Any, TypeVar

import pytest

from paceline.master.status import job_state
from paceline.protocol.nodes.ends import AgentEnd
from paceline.protocol.nodes.membership import REPEAT_END_S, Membership
from paceline.protocol.nodes.node import (
    Act,
    EndLife,
    FailJob,
    FindPort,
    JobEnded,
    KeepRecord,
    Launch,
    NodeFinished,
    RoundSet,
    Start,
)
from paceline.protocol.nodes.orders import NodeOrders
from paceline.protocol.nodes.rounds import Rounds
from paceline.wire.events.nodes import RestartAllEvent
from paceline.wire.messages.agent import AgentHello, ExitEvidence, ProcessExited
from paceline.wire.messages.node import Finished, ProcessUp, ScriptError
from paceline.wire.spec import RestartSpec

KILLED = ExitEvidence(signal=9)
ORDERED = ExitEvidence(signal=15, stopped_by_us=True)
FAILED = ExitEvidence(exit_code=7)
GRACE_S = 4.0
PEER = "RuntimeError: [pair.cc:534] Connection closed by peer [127.0.0.1]:12345"
T = TypeVar("T")


def of(kind: type[T], acts: list[Act]) -> list[T]:
    return [act for act in acts if isinstance(act, kind)]


class Job:
    """Workers 0 and 1, whose agents are there; ports count up from 1."""

    def __init__(
        self, *, kept: list[KeepRecord] | None = None, by_itself: bool = True, **restart: float
    ) -> None:
        self.now_s = 1000.0
        self.ports = iter(range(1, 100))
        self.members = Membership(
            num_workers=2,
            num_servers=0,
            restart=RestartSpec(**restart),  # type: ignore[arg-type]
            rounds=Rounds(grace_s=GRACE_S, by_itself=by_itself),
        )
        self.kept = list(kept or [])
        for keep in self.kept:
            self.members.roster.apply(keep.record)

    def run(self) -> "Job":
        """All workers start and come up."""
        self.note(self.members.begin(self.now_s))
        for node in ("worker-0", "worker-1"):
            self.hello(node)
            self.up(node)
        return self

    def note(self, acts: list[Act]) -> list[Act]:
        """Keep the records; all acts, with what follows from a port that was asked for."""
        done: list[Act] = []
        for act in acts:
            self.kept += of(KeepRecord, [act])
            found = isinstance(act, FindPort) and self.members.meet_at(next(self.ports), self.now_s)
            done += self.note(found) if found else [act]
        return done

    def hello(self, node: str, *running: ProcessUp) -> list[Act]:
        hello = AgentHello(
            node=node, agent="50", launch="50", agent_pid=50, host="h", running=running
        )
        return self.note(self.members.hello(hello, self.now_s))

    def inc(self, node: str) -> int:
        return self.members.roster.nodes[node].life.inc

    def process(self, node: str) -> ProcessUp:
        return ProcessUp(node=node, inc=self.inc(node), pid=1000, role="worker")

    def up(self, node: str) -> None:
        self.note(self.members.process_up(self.process(node), self.now_s))

    def exit(self, node: str, how: ExitEvidence, last_line: str = "") -> list[Act]:
        inc = self.inc(node)
        if last_line:
            kind, text = last_line.partition(":")[0], f"Traceback…\n{last_line}\n"
            self.members.script_error(
                ScriptError(inc=inc, kind=kind, traceback=text, in_user_code=True, step=-1)
            )
        message = ProcessExited(node=node, inc=inc, evidence=how)
        return self.note(self.members.process_exited(message, self.now_s, any_committed=False))

    def returned(self, node: str) -> list[Act]:
        self.members.script_returned(Finished(inc=self.inc(node)))
        return self.exit(node, ExitEvidence(exit_code=0))

    def tick(self, after_s: float) -> list[Act]:
        self.now_s += after_s
        for node in self.members.roster.nodes:
            self.members.heard(node, self.now_s)
        return self.note(
            self.members.tick(self.now_s, lost_after_s=10.0, others_wait=True, any_committed=False)
        )


def starts(acts: list[Act]) -> dict[str, tuple[int, int]]:
    return {act.node: (act.message.restart, act.message.port) for act in of(Start, acts)}


def test_all_workers_of_a_round_meet_at_one_port() -> None:
    job = Job()
    job.note(job.members.begin(job.now_s))
    assert starts(job.hello("worker-0") + job.hello("worker-1")) == {
        "worker-0": (0, 1),
        "worker-1": (0, 1),
    }


@pytest.mark.parametrize("phase", ["forming", "training"])
def test_of_shards_it_is_known_how_far_they_are_of_a_script_only_that_it_runs(phase: str) -> None:
    state: Any = SimpleNamespace(phase=phase)
    job = Job()
    assert job_state(state, job.members, None) == "starting"
    assert job_state(state, job.run().members, None) == "running"
    assert job_state(state, Job(by_itself=False).run().members, None) == phase


def test_one_workers_death_ends_all_and_then_all_begin_again_elsewhere() -> None:
    job = Job().run()
    acts = job.exit("worker-1", KILLED)
    assert of(EndLife, acts) == [EndLife("worker-0", job.inc("worker-0"), GRACE_S)]
    assert not of(Start, acts)
    acts = job.exit("worker-0", ORDERED)
    assert starts(acts) == {"worker-0": (1, 2), "worker-1": (1, 2)}
    (told,) = of(RestartAllEvent, acts)
    assert (told.node, told.cause, told.wait_s) == ("worker-1", "signal SIGKILL", 0.0)
    assert job.members.roster.num_restarts() == 1


def test_a_port_is_journalled_before_anybody_is_started() -> None:
    job = Job()
    job.note(job.members.begin(job.now_s))
    acts = job.hello("worker-0")
    kinds = [act.record if isinstance(act, KeepRecord) else type(act) for act in acts]
    assert kinds.index(RoundSet(number=0, port=1)) < kinds.index(Start)


def test_who_only_lost_its_peer_is_not_to_blame_even_if_it_is_heard_first() -> None:
    job = Job(budget=0).run()
    job.exit("worker-0", ExitEvidence(exit_code=1), PEER)
    (failed,) = of(FailJob, job.exit("worker-1", KILLED))
    assert failed.reason.startswith("worker-1: signal SIGKILL")


def test_a_script_that_ends_by_sigterm_counts_from_wherever_it_came() -> None:
    job = Job(budget=0).run()
    job.exit("worker-0", ExitEvidence(signal=15))
    (failed,) = of(FailJob, job.exit("worker-1", ORDERED))
    assert failed.reason.startswith("worker-0: signal SIGTERM; the budget of 0")


def test_the_scripts_exit_code_and_traceback_come_when_the_budget_is_spent() -> None:
    job = Job(budget=1, repeat=True).run()
    job.exit("worker-0", FAILED, "SystemExit: 7")
    assert starts(job.exit("worker-1", ORDERED))
    job.exit("worker-0", FAILED, "SystemExit: 7")
    (failed,) = of(FailJob, job.exit("worker-1", ORDERED))
    assert failed.exit_code == 7
    assert "SystemExit: 7" in failed.traceback
    assert "budget of 1" in failed.reason


def test_the_same_error_soon_again_ends_the_job_whoever_has_it() -> None:
    job = Job().run()
    job.exit("worker-0", FAILED, "KeyError: 'a'")
    job.exit("worker-1", ORDERED)
    job.exit("worker-1", FAILED, "KeyError: 'a'")
    (failed,) = of(FailJob, job.exit("worker-0", ORDERED))
    assert "second time in a row" in failed.reason


def test_the_same_error_long_after_is_another_one() -> None:
    job = Job().run()
    for _ in range(3):
        job.now_s += 3600.0
        job.exit("worker-0", FAILED, "KeyError: 'a'")
        assert starts(job.exit("worker-1", ORDERED))


def test_a_script_that_ends_with_0_while_others_run_has_not_failed() -> None:
    job = Job().run()
    acts = job.exit("worker-0", ExitEvidence(exit_code=0))
    assert of(KeepRecord, acts) == [KeepRecord(NodeFinished(node="worker-0", joined=False))]
    assert not of(EndLife, acts)
    job.returned("worker-1")
    assert job.members.roster.all_finished()


def test_a_script_that_returned_and_died_in_teardown_has_not_failed() -> None:
    job = Job().run()
    job.members.script_returned(Finished(inc=job.inc("worker-0")))
    job.exit("worker-0", ExitEvidence(signal=6))
    job.returned("worker-1")
    assert job.members.roster.all_finished()


def test_who_has_finished_begins_again_with_the_others() -> None:
    job = Job().run()
    job.returned("worker-0")
    acts = job.exit("worker-1", KILLED)
    assert of(Launch, acts) == [Launch("worker-0")]
    assert starts(acts) == {"worker-1": (1, 2)}
    assert starts(job.hello("worker-0")) == {"worker-0": (1, 2)}


def test_an_agent_that_does_not_come_up_ends_nobody_who_is_in_the_round_already() -> None:
    job = Job().run()
    job.returned("worker-0")
    job.note(NodeOrders(job.members).kill("worker-1"))
    job.exit("worker-1", ORDERED)
    job.up("worker-1")
    inc = job.inc("worker-1")
    acts = job.note(job.members.agent_ended("worker-0", "", AgentEnd(why="it died"), job.now_s))
    for _ in range(4):
        acts += job.tick(1.0)
    assert of(Launch, acts) == [Launch("worker-0")], "once more"
    assert "worker-1" not in starts(acts)
    assert job.inc("worker-1") == inc
    assert starts(job.hello("worker-0")) == {"worker-0": (1, 2)}


def test_who_returned_when_the_round_was_over_begins_again() -> None:
    job = Job().run()
    job.exit("worker-1", KILLED)
    assert starts(job.returned("worker-0")) == {"worker-0": (1, 2), "worker-1": (1, 2)}


def test_a_worker_killed_by_order_costs_no_budget() -> None:
    job = Job(budget=0).run()
    job.note(NodeOrders(job.members).kill("worker-1"))
    job.exit("worker-1", ORDERED)
    assert starts(job.exit("worker-0", ExitEvidence(exit_code=1), PEER))
    assert job.members.roster.num_restarts() == 0


def test_rounds_that_fail_soon_wait_longer_each_time() -> None:
    job = Job(backoff_s=1.0, budget=9).run()
    waits = []
    for _ in range(3):
        job.exit("worker-0", KILLED)
        acts, before_s = job.exit("worker-1", ORDERED), job.now_s
        while not starts(acts):
            acts = job.tick(0.5)
        waits.append(job.now_s - before_s)
        for node in ("worker-0", "worker-1"):
            job.up(node)
    assert waits == [0.0, 1.0, 2.0]


def test_an_end_that_got_lost_is_ordered_again() -> None:
    job = Job().run()
    job.exit("worker-1", KILLED)
    assert not of(EndLife, job.tick(REPEAT_END_S / 2))
    assert of(EndLife, job.tick(REPEAT_END_S)) == [
        EndLife("worker-0", job.inc("worker-0"), GRACE_S)
    ]


def test_a_new_master_ends_what_is_left_of_a_round_that_is_over() -> None:
    old = Job().run()
    old.exit("worker-1", KILLED)
    job = Job(kept=old.kept)
    job.members.begin(job.now_s, {"worker-0", "worker-1"})
    job.hello("worker-0", job.process("worker-0"))
    job.hello("worker-1")
    acts = job.exit("worker-1", KILLED)
    assert not of(Start, acts)
    acts += job.tick(REPEAT_END_S)
    assert of(EndLife, acts)[0].node == "worker-0"
    assert starts(job.exit("worker-0", ORDERED)) == {"worker-0": (1, 1), "worker-1": (1, 1)}


def test_a_new_master_keeps_the_round_and_its_port() -> None:
    old = Job().run()
    old.exit("worker-1", KILLED)
    old.exit("worker-0", ORDERED)
    for kept in (old.kept, [KeepRecord(record) for record in old.members.roster.snapshot()]):
        job = Job(kept=kept)
        assert job.members.rounds is not None
        assert (job.members.rounds.number, job.members.rounds.port) == (1, 2)
        assert {node.life.round_no for node in job.members.roster.nodes.values()} == {1}


def test_a_resumed_job_begins_again_with_all_of_its_workers() -> None:
    old = Job().run()
    old.returned("worker-0")
    job = Job(kept=[*old.kept, KeepRecord(JobEnded())])
    assert of(Launch, job.members.begin(job.now_s)) == [Launch("worker-0"), Launch("worker-1")]
    assert starts(job.hello("worker-0")) == {"worker-0": (1, 1)}


def test_a_script_that_trains_with_us_has_returned_when_it_says_so() -> None:
    job = Job(by_itself=False).run()
    acts = job.exit("worker-0", ExitEvidence(exit_code=0))
    assert of(EndLife, acts), "it left early: all begin again"
    job = Job(by_itself=False).run()
    assert not of(EndLife, job.returned("worker-0"))


def test_one_more_worker_begins_with_all_others() -> None:
    job = Job(by_itself=False).run()
    acts = job.note(NodeOrders(job.members).scale(3, job.now_s, GRACE_S))
    assert of(Launch, acts) == [Launch("worker-2")]
    assert {end.node for end in of(EndLife, acts)} == {"worker-0", "worker-1"}
    assert not of(Start, job.exit("worker-0", ORDERED))
    assert not of(Start, job.hello("worker-2"))
    acts = job.exit("worker-1", ORDERED)
    assert {start.node for start in of(Start, acts)} == {"worker-0", "worker-1", "worker-2"}
    assert all(start.message.num_workers == 3 for start in of(Start, acts))
    assert job.members.roster.num_restarts() == 0


@pytest.mark.parametrize("how", [KILLED, FAILED])
@pytest.mark.parametrize("budget", [0, 3])
def test_a_worker_that_failed_may_be_scaled_away_before_the_others_have_ended(
    how: ExitEvidence, budget: int
) -> None:
    job = Job(budget=budget).run()
    job.exit("worker-1", how)
    job.note(NodeOrders(job.members).scale(1, job.now_s, GRACE_S))
    assert set(job.members.roster.nodes) == {"worker-0"}
    acts = job.exit("worker-0", ORDERED)
    failed = [act.reason.partition(":")[0] for act in of(FailJob, acts)]
    assert failed == ([] if budget else ["worker-1"])
    assert len(of(Start, acts)) == (1 if budget else 0)


def test_one_worker_less_begins_anew_without_the_one_that_leaves() -> None:
    job = Job(by_itself=False).run()
    acts = job.note(NodeOrders(job.members).scale(1, job.now_s, GRACE_S))
    assert {end.node for end in of(EndLife, acts)} == {"worker-0", "worker-1"}
    assert not of(Start, job.exit("worker-0", ORDERED))
    acts = job.exit("worker-1", ORDERED)
    assert {start.node for start in of(Start, acts)} == {"worker-0"}
    assert set(job.members.roster.nodes) == {"worker-0"}


@pytest.mark.parametrize("how", ["its agent ended", "its agent is silent"])
def test_the_next_round_does_not_wait_for_a_leaver_that_nobody_can_reach(how: str) -> None:
    job = Job(by_itself=False).run()
    job.note(NodeOrders(job.members).scale(1, job.now_s, GRACE_S))
    assert not of(Start, job.exit("worker-0", ORDERED))
    acts: list[Act] = []
    if how == "its agent ended":
        acts = job.note(
            job.members.agent_ended("worker-1", "50", AgentEnd(why="it died"), job.now_s)
        )
    for _ in range(20):
        job.now_s += 1.0
        job.members.heard("worker-0", job.now_s)
        acts += job.note(
            job.members.tick(job.now_s, lost_after_s=10.0, others_wait=True, any_committed=False)
        )
    assert {start.node for start in of(Start, acts)} == {"worker-0"}
    assert set(job.members.roster.nodes) == {"worker-0"}

"""Who belongs to the job, in which life: facts in, instructions out, the clock by hand."""

import random
from typing import TypeVar

import pytest

from paceline.protocol.nodes.ends import AgentEnd
from paceline.protocol.nodes.exits import PREEMPTED_IN_A_ROW
from paceline.protocol.nodes.lives import Fate
from paceline.protocol.nodes.membership import BRIEF, PATIENCE, REPEAT_END_S, Membership
from paceline.protocol.nodes.node import (
    Act,
    EndLife,
    FailJob,
    HangUp,
    JobEnded,
    JoinerLost,
    KeepRecord,
    Launch,
    NodeFinished,
    NodeStarted,
    Retire,
    ServersChanged,
    ServersChanging,
    Start,
    WorkerLost,
    WorkerUp,
)
from paceline.protocol.nodes.orders import NodeOrders
from paceline.protocol.nodes.roster import Roster
from paceline.wire.events.base import Event
from paceline.wire.events.job import ScaledEvent
from paceline.wire.events.nodes import (
    AgentJoinedEvent,
    FencedEvent,
    LeftLoopEvent,
    LeftOutEvent,
    NodeLostEvent,
    NotReplacedEvent,
    ProcessExitedEvent,
    RelaunchEvent,
    ServersChangedEvent,
    ServersNotChangedEvent,
)
from paceline.wire.messages.agent import AgentHello, ExitEvidence, ProcessExited
from paceline.wire.messages.base import Server
from paceline.wire.messages.node import Finished, ProcessUp, ScriptError
from paceline.wire.spec import RestartSpec

KILLED = ExitEvidence(signal=9)
LOST_AFTER_S = 10.0
T = TypeVar("T")


def of(kind: type[T], acts: list[Act]) -> list[T]:
    return [act for act in acts if isinstance(act, kind)]


class Job:
    """A membership of one worker and one server by default, driven as its edge would."""

    def __init__(
        self,
        num_workers: int = 1,
        num_servers: int = 1,
        min_workers: int = 1,
        **restart: float | None,
    ) -> None:
        self.spec = RestartSpec(**restart)  # type: ignore[arg-type]
        self.size = (num_workers, num_servers, min_workers)
        self.members = self.fresh()
        self.now_s = 0.0
        self.others_wait = False
        self.kept: list[KeepRecord] = []
        self.note(self.members.begin(0.0))

    def fresh(self) -> Membership:
        workers, servers, least = self.size
        members = Membership(num_workers=workers, num_servers=servers, restart=self.spec)
        members.min_workers = least
        return members

    def note(self, acts: list[Act]) -> list[Act]:
        self.kept += of(KeepRecord, acts)
        return acts

    def hello(self, node: str, pid: int, *running: ProcessUp) -> list[Act]:
        hello = AgentHello(
            node=node, agent=str(pid), launch=str(pid), agent_pid=pid, host="h", running=running
        )
        return self.note(self.members.hello(hello, self.now_s))

    def up(self, node: str, address: str = "") -> list[Act]:
        return self.note(self.members.process_up(self.process(node, address), self.now_s))

    def process(self, node: str, address: str = "") -> ProcessUp:
        inc = self.members.roster.nodes[node].life.inc
        role = node.partition("-")[0]
        return ProcessUp(node=node, inc=inc, pid=1000 + inc, role=role, address=address)

    def run(self, node: str, pid: int = 50) -> int:
        """Bring a node up; its incarnation."""
        self.hello(node, pid)
        self.up(node, "ipc://a" if node.startswith("server") else "")
        return self.members.roster.nodes[node].life.inc

    def exit(self, node: str, evidence: ExitEvidence = KILLED, inc: int | None = None) -> list[Act]:
        inc = self.members.roster.nodes[node].life.inc if inc is None else inc
        message = ProcessExited(node=node, inc=inc, evidence=evidence)
        return self.note(self.members.process_exited(message, self.now_s, any_committed=True))

    def tick(self, to_s: float) -> list[Act]:
        self.now_s = to_s
        acts = self.members.tick(
            to_s, lost_after_s=LOST_AFTER_S, others_wait=self.others_wait, any_committed=True
        )
        return self.note(acts)

    def restarted(self, awaited: tuple[str, ...] = ()) -> "Job":
        """The same job under a new master: only the records are left."""
        other = Job(*self.size)
        other.members = self.fresh()
        for keep in self.kept:
            other.members.roster.apply(keep.record)
        other.kept, other.now_s = list(self.kept), self.now_s
        other.first = other.note(other.members.begin(self.now_s, awaited))
        return other

    first: list[Act] = []


def test_every_node_is_launched_at_the_start() -> None:
    members = Membership(num_workers=2, num_servers=1, restart=RestartSpec())
    assert of(Launch, members.begin(0.0)) == [
        Launch("server-0"),
        Launch("worker-0"),
        Launch("worker-1"),
    ]


def test_a_life_is_journalled_before_it_is_started() -> None:
    acts = Job().hello("worker-0", 50)
    kinds = [type(act) for act in acts]
    assert kinds.index(KeepRecord) < kinds.index(Start)
    (start,) = of(Start, acts)
    assert (start.message.role, start.message.rank, start.message.num_workers) == ("worker", 0, 1)


def test_a_node_nobody_asked_for_is_sent_away() -> None:
    job = Job()
    assert job.hello("worker-7", 50) == [Retire("worker-7")]


def test_incarnations_are_never_given_twice() -> None:
    job = Job(num_workers=2, budget=100, backoff_s=0)
    seen = [job.run("server-0"), job.run("worker-0"), job.run("worker-1")]
    for _ in range(5):
        for node in ("worker-0", "worker-1", "server-0"):
            job.exit(node)
            job.up(node, "a")
            seen.append(job.members.roster.nodes[node].life.inc)
    later = job.restarted()
    later.tick(1.0)
    later.hello("worker-0", 51)
    later.tick(3.0)
    seen.append(later.members.roster.nodes["worker-0"].life.inc)
    assert len(set(seen)) == len(seen)


def test_servers_are_known_when_all_have_said_their_address() -> None:
    job = Job(num_servers=2)
    first = job.run("server-0")
    assert job.members.roster.servers() is None
    job.hello("server-1", 51)
    job.up("server-1", "")
    assert job.members.roster.servers() is None
    job.up("server-1", "ipc://b")
    assert job.members.roster.servers() == (
        Server(first, "server-0", "ipc://a"),
        Server(first + 1, "server-1", "ipc://b"),
    )


def test_a_killed_worker_is_fenced_and_started_again_at_once() -> None:
    job = Job()
    inc = job.run("worker-0")
    acts = job.exit("worker-0")
    assert of(WorkerLost, acts) == [WorkerLost(inc)]
    (start,) = of(Start, acts)
    assert start.message.inc > inc
    assert job.exit("worker-0", inc=inc) == []


def test_a_worker_that_keeps_dying_waits_longer_each_time() -> None:
    job = Job(backoff_s=1.0, backoff_max_s=3.0)
    job.run("worker-0")
    waits = []
    for _ in range(5):
        job.exit("worker-0")
        at_s = job.now_s
        while not job.members.roster.nodes["worker-0"].life.is_alive:
            job.tick(job.now_s + 0.5)
        waits.append(job.now_s - at_s)
        job.members.heard("worker-0", job.now_s)
        job.up("worker-0")
    assert waits == [0.0, 1.0, 2.0, 3.0, 3.0]


def test_a_long_life_makes_up_for_short_ones() -> None:
    job = Job(backoff_s=1.0, backoff_max_s=3.0)
    job.run("worker-0")
    job.exit("worker-0")
    job.up("worker-0")
    job.now_s = 100.0
    assert of(Start, job.exit("worker-0"))


def test_the_budget_ends_the_job() -> None:
    job = Job(budget=1, backoff_s=0)
    job.run("worker-0")
    assert not of(FailJob, job.exit("worker-0"))
    (fail,) = of(FailJob, job.exit("worker-0"))
    assert "signal SIGKILL" in fail.reason
    assert "budget of 1" in fail.reason


@pytest.mark.parametrize("window_s", [100.0, None])
def test_what_was_used_up_of_the_budget_comes_back_unless_it_is_for_good(
    window_s: float | None,
) -> None:
    job = Job(budget=2, backoff_s=0, window_s=window_s)
    job.run("worker-0")
    for at_s in (0.0, 60.0, 110.0):
        job.now_s = at_s
        acts = job.exit("worker-0")
        job.up("worker-0")
    assert bool(of(FailJob, acts)) == (window_s is None)
    if window_s is not None:
        job.now_s = 159.0
        (fail,) = of(FailJob, job.exit("worker-0"))
        assert "the budget of 2 restarts within 100 s is used up" in fail.reason


@pytest.mark.parametrize("window_s", [100.0, None])
def test_a_restarted_master_counts_anew_unless_it_is_for_good(window_s: float | None) -> None:
    job = Job(budget=1, backoff_s=0, window_s=window_s)
    job.run("worker-0")
    job.exit("worker-0")
    job.up("worker-0")
    later = job.restarted(awaited=("worker-0",))
    later.members._restart = job.spec
    later.hello("worker-0", 50, job.process("worker-0"))
    assert bool(of(FailJob, later.exit("worker-0"))) == (window_s is None)


def test_preemption_costs_no_budget() -> None:
    job = Job(budget=0)
    job.run("worker-0")
    assert of(Start, job.exit("worker-0", ExitEvidence(signal=15)))


@pytest.mark.parametrize("long_s", [0.0, 100.0])
def test_sigterm_in_one_short_life_after_the_other_is_the_script_s_own(long_s: float) -> None:
    job = Job(budget=0, backoff_s=0)
    failed: list[FailJob] = []
    for _ in range(2 * PREEMPTED_IN_A_ROW):
        job.run("worker-0")
        job.now_s += long_s
        failed += of(FailJob, job.exit("worker-0", ExitEvidence(exit_code=143)))
    if long_s:
        assert failed == []
    else:
        assert failed[0].reason.startswith("worker-0: signal SIGTERM from outside the job; the bu")


def test_an_unretryable_error_ends_the_job_with_the_script_s_code_and_traceback() -> None:
    job = Job()
    inc = job.run("worker-0")
    error = ScriptError(inc=inc, kind="ValueError", traceback="TB", in_user_code=True, step=3)
    for expected in (0, 1):
        error = ScriptError(
            inc=job.members.roster.nodes["worker-0"].life.inc,
            kind="ValueError",
            traceback="TB",
            in_user_code=True,
            step=3,
        )
        job.members.script_error(error)
        fails = of(FailJob, job.exit("worker-0", ExitEvidence(exit_code=4)))
        assert len(fails) == expected
    assert (fails[0].traceback, fails[0].exit_code) == ("TB", 4)


@pytest.mark.parametrize(
    ("evidence", "code"),
    [(ExitEvidence(exit_code=3, step=7), 3), (ExitEvidence(signal=6, step=7), 0)],
)
def test_a_script_that_ends_its_process_thrice_at_one_step_ends_the_job(
    evidence: ExitEvidence, code: int
) -> None:
    job = Job(num_workers=2)
    job.run("worker-0")
    job.run("worker-1")
    assert not of(FailJob, job.exit("worker-0", evidence))
    job.tick(1.0)
    job.up("worker-0")
    assert not of(FailJob, job.exit("worker-0", evidence))
    job.tick(60.0)
    job.up("worker-0")
    job = job.restarted(awaited=("worker-0", "worker-1"))  # the next master knows as much
    job.hello("worker-0", 50, job.process("worker-0"))
    job.exit("worker-0", ExitEvidence(exit_code=76))  # given up meanwhile: not its own end
    job.tick(120.0)
    job.run("worker-0")
    (failed,) = of(FailJob, job.exit("worker-0", evidence))
    assert failed.exit_code == code
    assert failed.reason.startswith("worker-0: its process ended (")


@pytest.mark.parametrize(
    ("kind", "text", "told"),
    [
        ("ValueError", "TB\nValueError: x", "TB\nValueError: x"),
        ("RuntimeError", "TB\nRuntimeError: DataLoader worker (pid 7) is killed by signal", ""),
        # What the death of a peer led to is not the cause.
        ("RuntimeError", "TB\nRuntimeError: Connection closed by peer [127.0.0.1]", ""),
    ],
)
def test_the_traceback_of_an_error_of_the_script_is_told_at_once(
    kind: str, text: str, told: str
) -> None:
    job = Job()
    inc = job.run("worker-0")
    error = ScriptError(inc=inc, kind=kind, traceback=text, in_user_code=True, step=3)
    job.members.script_error(error)
    acts = job.exit("worker-0", ExitEvidence(exit_code=1, log_tail="last lines"))
    (end,) = of(ProcessExitedEvent, acts)
    assert end.traceback == told
    assert of(Start, acts) or job.members.roster.nodes["worker-0"].next.due_s is not None
    job.up("worker-0")
    acts = job.exit("worker-0", ExitEvidence(signal=9, log_tail="last lines"))
    assert [one.traceback for one in of(ProcessExitedEvent, acts)] == [""]


def test_another_end_in_between_begins_the_count_again() -> None:
    job = Job(budget=100, backoff_s=0)
    job.run("worker-0")
    left, killed = ExitEvidence(exit_code=3, step=7), KILLED
    for evidence in (left, left, killed, left, left):
        assert not of(FailJob, job.exit("worker-0", evidence))
        job.up("worker-0")
    assert of(FailJob, job.exit("worker-0", left))


def test_a_returned_script_is_finished_and_not_started_again() -> None:
    job = Job()
    inc = job.run("worker-0")
    job.members.script_returned(Finished(inc=inc))
    acts = job.exit("worker-0", ExitEvidence(exit_code=0))
    assert of(KeepRecord, acts) == [KeepRecord(NodeFinished(node="worker-0"))]
    assert of(Retire, acts) == [Retire("worker-0")]
    assert of(WorkerLost, acts) == [WorkerLost(inc)]
    assert job.members.roster.all_finished()
    later = job.restarted()
    assert Launch("worker-0") not in later.first
    assert later.members.roster.all_finished()


def test_a_worker_that_left_its_loop_is_told_once_unless_it_was_told_to_leave() -> None:
    job = Job(num_workers=2)
    left = Finished(inc=job.run("worker-0"), left_step=5, miscount=7)
    told = LeftLoopEvent(node="worker-0", inc=left.inc, step=5, miscount=7)
    assert job.members.script_returned(left) == [told]
    assert job.members.script_returned(left) == []
    job.run("worker-1")
    job.members.roster.nodes["worker-1"].fate = Fate.LEAVES
    inc = job.members.roster.nodes["worker-1"].life.inc
    assert job.members.script_returned(Finished(inc=inc, left_step=9)) == []


@pytest.mark.parametrize("how", ["live", "restarted", "compacted"])
def test_a_worker_that_is_refused_is_not_started_again_and_not_awaited(how: str) -> None:
    job = Job(num_workers=2)
    first, second = job.run("worker-0"), job.run("worker-1")
    acts = job.note(NodeOrders(job.members).refuse(second, "another model"))
    assert [type(act) for act in acts] == [
        LeftOutEvent,
        FencedEvent,
        WorkerLost,
        KeepRecord,
        Retire,
    ]
    if how != "live":
        if how == "compacted":
            job.kept = [KeepRecord(record) for record in job.members.roster.snapshot()]
        job = job.restarted(awaited=("worker-0", "worker-1"))
        job.hello("worker-0", 50, job.process("worker-0"))
    assert job.exit("worker-1") == []
    assert job.hello("worker-1", 51) == [Retire("worker-1")]
    assert Launch("worker-1") not in job.tick(1000.0)
    node = job.members.roster.nodes["worker-1"]
    assert (node.word, node.life.note) == ("failed", "another model")
    assert [one.name for one in job.members.roster.wanted_workers()] == ["worker-0"]
    assert NodeOrders(job.members).refuse(second, "another model") == []
    job.members.script_returned(Finished(inc=first))
    job.exit("worker-0", ExitEvidence(exit_code=0))
    assert job.members.roster.all_finished()


def test_with_too_few_left_a_refusal_ends_the_job() -> None:
    job = Job(num_workers=3, min_workers=2)
    incs = [job.run(f"worker-{rank}") for rank in range(3)]
    assert not of(FailJob, NodeOrders(job.members).refuse(incs[0], "another model"))
    (failed,) = of(FailJob, NodeOrders(job.members).refuse(incs[1], "another model"))
    assert failed.reason == "another model"


def test_a_job_goes_on_with_a_machine_that_joined_alone() -> None:
    job = Job(num_workers=1)
    inc, other = job.run("worker-0"), joined(job)
    job.hello(other, 70)
    assert not of(FailJob, NodeOrders(job.members).refuse(inc, "another model"))


def test_what_a_joined_machine_lacks_is_no_error_of_the_others() -> None:
    job = Job()
    name = joined(job)
    job.hello(name, 70)
    job.up(name)
    inc = job.members.roster.nodes[name].life.inc
    error = ScriptError(
        inc=inc, kind="paceline.base.errors.ConfigError", traceback="", in_user_code=False, step=0
    )
    job.members.script_error(error)
    acts = job.exit(name, ExitEvidence(exit_code=1))
    assert not of(FailJob, acts)
    (retired,) = of(Retire, acts)
    assert retired.node == name
    assert retired.why
    assert [one.name for one in job.members.roster.wanted_workers()] == ["worker-0"]


def lacks_a_source(job: Job, name: str, *, any_committed: bool, remote: bool = True) -> list[Act]:
    """A worker's machine cannot read what the script reads."""
    agent = job.members.roster.nodes[name].agent
    agent.is_remote, agent.host = remote, "b"
    inc = job.members.roster.nodes[name].life.inc
    error = ScriptError(
        inc=inc,
        kind="FileNotFoundError",
        traceback="",
        in_user_code=True,
        step=0,
        unreadable="/data/x",
    )
    job.members.script_error(error)
    message = ProcessExited(node=name, inc=inc, evidence=ExitEvidence(exit_code=1))
    return job.note(job.members.process_exited(message, job.now_s, any_committed=any_committed))


def test_a_machine_without_the_data_ends_the_job_before_anything_is_trained() -> None:
    job = Job(num_workers=2)
    job.run("worker-0")
    job.run("worker-1")
    (failed,) = of(FailJob, lacks_a_source(job, "worker-1", any_committed=False))
    assert failed.reason.startswith("worker-1: b cannot read /data/x; put it at the same path")


def test_one_that_comes_later_is_left_out_and_the_others_train_on() -> None:
    job = Job(num_workers=2)
    job.run("worker-0")
    job.run("worker-1")
    acts = lacks_a_source(job, "worker-1", any_committed=True)
    assert not of(FailJob, acts)
    (told,) = of(LeftOutEvent, acts)
    assert of(Retire, acts) == [Retire("worker-1", told.reason)]
    assert told.reason.startswith("b cannot read /data/x;")
    assert [one.name for one in job.members.roster.wanted_workers()] == ["worker-0"]
    assert of(FailJob, lacks_a_source(job, "worker-0", any_committed=True)), "nobody is left"


def test_on_the_only_machine_a_missing_file_is_an_error_of_the_script() -> None:
    job = Job(num_workers=2)
    job.run("worker-0")
    job.run("worker-1")
    (failed,) = of(FailJob, lacks_a_source(job, "worker-1", any_committed=False, remote=False))
    assert "before anything was trained" in failed.reason


def test_a_resumed_job_tries_again_who_was_refused() -> None:
    job = Job(num_workers=2)
    job.run("worker-0")
    job.note(NodeOrders(job.members).refuse(job.run("worker-1"), "another model"))
    job.kept.append(KeepRecord(JobEnded()))
    assert Launch("worker-1") in job.restarted().first


def test_a_person_brings_back_who_was_left_out() -> None:
    job = Job(num_workers=2)
    job.run("worker-0")
    job.run("worker-1")
    lacks_a_source(job, "worker-1", any_committed=True)
    acts = job.note(NodeOrders(job.members).scale(2, 1.0, grace_s=1.0))
    assert of(Launch, acts) == [Launch("worker-1")]
    # A master that dies before the worker is there has it launched, too.
    assert Launch("worker-1") in job.restarted().first
    job.hello("worker-1", 99)
    assert [one.name for one in job.members.roster.wanted_workers()] == ["worker-0", "worker-1"]
    again = job.restarted().members
    assert [one.name for one in again.roster.wanted_workers()] == ["worker-0", "worker-1"]


def test_a_dead_agent_alone_is_launched_again_and_the_life_goes_on() -> None:
    job = Job()
    inc = job.run("worker-0")
    acts = job.members.agent_ended("worker-0", "50", AgentEnd(why="killed"), 1.0)
    assert of(Launch, acts) == [Launch("worker-0")]
    assert not of(WorkerLost, acts)
    acts = job.hello("worker-0", 51, job.process("worker-0"))
    assert not of(Start, acts)
    job.tick(5.0)
    assert job.members.roster.nodes["worker-0"].life.inc == inc


def test_an_agent_that_finds_nothing_gets_a_new_life_after_a_moment() -> None:
    job = Job()
    inc = job.run("worker-0")
    assert not of(Start, job.hello("worker-0", 51))
    assert not of(WorkerLost, job.tick(0.5))
    acts = job.tick(1.5)
    assert of(WorkerLost, acts) == [WorkerLost(inc)]
    assert of(Start, acts)[0].message.inc > inc


def test_an_agent_that_was_launched_since_has_nothing_more_to_say() -> None:
    job = Job()
    inc = job.run("worker-0")
    job.members.agent_ended("worker-0", "50", AgentEnd(why="killed"), 1.0)
    job.hello("worker-0", 51)
    assert of(WorkerLost, job.tick(0.2)) == [WorkerLost(inc)]


def test_the_end_that_a_new_agent_reports_is_judged_by_its_evidence() -> None:
    job = Job()
    inc = job.run("worker-0")
    job.hello("worker-0", 51)
    acts = job.exit("worker-0", ExitEvidence(signal=15), inc)
    assert [told.signal for told in of(ProcessExitedEvent, acts)] == [15]
    assert of(Start, acts)


def test_a_start_that_got_lost_is_repeated_with_the_same_number() -> None:
    job = Job()
    (first,) = of(Start, job.hello("worker-0", 50))
    assert of(Start, job.hello("worker-0", 50)) == [first]
    assert of(Start, job.tick(1.0)) == []
    assert of(Start, job.tick(2.5)) == [first]


def test_another_agent_never_starts_a_number_that_may_have_run() -> None:
    job = Job()
    (first,) = of(Start, job.hello("worker-0", 50))
    acts = [*job.hello("worker-0", 51), *job.tick(1.5)]
    assert [start.message.inc for start in of(Start, acts)] == [first.message.inc + 1]


def test_a_life_that_never_came_up_costs_no_budget_and_waits_longer_each_time() -> None:
    job = Job(budget=0, backoff_s=1.0, backoff_max_s=4.0)
    job.run("worker-0")
    job.exit("worker-0", ExitEvidence(signal=15))
    pid, waits, incs = 50, [], []
    for _ in range(6):
        pid += 1
        incs.append(job.members.roster.nodes["worker-0"].life.inc)
        job.members.agent_ended("worker-0", str(pid - 1), AgentEnd(why="killed"), job.now_s)
        job.hello("worker-0", pid)
        at_s = job.now_s
        acts = job.tick(at_s + 0.1)
        while not of(Start, acts):
            acts = job.tick(job.now_s + 0.5)
        assert not of(FailJob, acts)
        waits.append(round(job.now_s - at_s))
    assert waits == [1, 2, 4, 4, 4, 4]
    assert len(set(incs)) == len(incs), "a number is given once"
    assert job.members.roster.num_restarts() == 0


def test_a_life_that_was_heard_of_and_vanished_uses_the_budget() -> None:
    job = Job(budget=0)
    job.run("worker-0")
    job.members.agent_ended("worker-0", "50", AgentEnd(why="killed"), 1.0)
    job.hello("worker-0", 51)
    assert "nobody saw how" in of(FailJob, job.tick(1.2))[0].reason


def test_what_a_former_master_started_may_have_run() -> None:
    job = Job(budget=0)
    job.hello("worker-0", 50)
    later = job.restarted(awaited=("worker-0",))
    later.members._restart = RestartSpec(budget=0)
    later.hello("worker-0", 51)
    assert of(FailJob, later.tick(2.0))


def test_agents_that_die_young_after_a_long_life_wait_longer_each_time() -> None:
    job = Job(backoff_s=1.0)
    job.run("worker-0")
    job.now_s = 1000.0
    waits = []
    job.members.agent_ended("worker-0", "50", AgentEnd(why="killed"), job.now_s)
    for _ in range(3):
        job.members.agent_ended("worker-0", "", AgentEnd(why="no memory"), job.now_s)
        at_s = job.now_s
        while not of(Launch, job.tick(job.now_s + 0.5)):
            pass
        waits.append(job.now_s - at_s)
    assert waits[1:] == [1.0, 2.0]


def test_an_agent_that_never_comes_up_uses_the_budget() -> None:
    job = Job(budget=1, backoff_s=0)
    acts = job.members.agent_ended("worker-0", "", AgentEnd(why="no such file"), 0.0)
    assert of(Launch, acts) == [Launch("worker-0")]
    acts = job.members.agent_ended("worker-0", "", AgentEnd(why="no such file"), 0.0)
    assert "no such file" in of(FailJob, acts)[0].reason


@pytest.mark.parametrize("before", ["running", "moving", "ended"])
def test_agents_of_a_resumed_job_that_never_come_up_use_the_budget(before: str) -> None:
    job = Job()
    job.run("worker-0")
    if before == "moving":
        job.note(NodeOrders(job.members).restart("worker-0", 1.0, grace_s=5.0))
    if before == "ended":
        job.note([job.members.roster.keep(JobEnded())])
    later = job.restarted()
    waits: list[float] = []
    acts: list[Act] = []
    while not of(FailJob, acts) and len(waits) < 99:
        acts = later.members.agent_ended("worker-0", "", AgentEnd(why="no such file"), later.now_s)
        waits += [event.wait_s for event in of(RelaunchEvent, acts)]
        later.now_s += waits[-1]
        later.tick(later.now_s)
    assert waits[:4] == [0.0, 0.5, 1.0, 2.0]
    free = before != "ended"  # the end of a life that a former master knew costs nothing
    assert len(waits) == later.spec.budget + free


def test_a_silent_agent_is_replaced_but_its_process_is_not_given_up() -> None:
    job = Job()
    job.run("worker-0")
    job.run("server-0")
    job.members.heard("server-0", 10.0)
    assert job.tick(9.0) == []
    acts = job.tick(10.5)
    assert of(Launch, acts) == [Launch("worker-0")]
    assert not of(WorkerLost, acts)


def test_an_agent_after_brief_ones_has_longer() -> None:
    job = Job(num_servers=0)
    up = ProcessUp(node="worker-0", inc=job.run("worker-0"), pid=9, role="worker")

    def silence_of_next(lasted_s: float) -> float:
        """How long an agent that spoke for so long may be silent then."""
        begun_s = job.now_s
        job.hello("worker-0", round(1000 + begun_s), up)
        job.members.heard("worker-0", begun_s + lasted_s)
        job.now_s += lasted_s
        while not of(Launch, job.tick(job.now_s + 0.5)):
            pass
        return job.now_s - begun_s - lasted_s

    # The first one is the node's, and has said nothing since it was greeted.
    first = silence_of_next(lasted_s=0.0)
    assert first == LOST_AFTER_S
    silences = [silence_of_next(lasted_s=1.0) for _ in range(5)]
    assert silences == [LOST_AFTER_S * k for k in (2, 4, 8, 8, 8)]
    silence_of_next(lasted_s=BRIEF * PATIENCE * LOST_AFTER_S)
    assert silence_of_next(lasted_s=1.0) == LOST_AFTER_S


def test_an_unreachable_worker_is_fenced_only_when_others_wait() -> None:
    job = Job(num_servers=0)
    inc = job.run("worker-0")
    job.tick(10.5)
    assert not of(WorkerLost, job.tick(30.0))
    job.others_wait = True
    assert of(WorkerLost, job.tick(30.5)) == [WorkerLost(inc)]
    acts = job.hello("worker-0", 51, ProcessUp(node="worker-0", inc=inc, pid=9, role="worker"))
    assert of(Start, [*acts, *job.tick(31.0)])[0].message.inc > inc


@pytest.mark.parametrize("by_itself", [True, False])
def test_the_agent_of_one_that_joined_and_is_given_up_has_to_greet_again(by_itself: bool) -> None:
    job = Job(num_servers=0)
    inc = job.run("worker-0")
    node = job.members.roster.nodes["worker-0"]
    node.by_itself = by_itself
    acts = job.note(job.members.unreachable(node, "its machine answers nobody", 10.0))
    assert of(WorkerLost, acts) == [WorkerLost(inc)]
    assert of(HangUp, acts) == [HangUp("worker-0")] * by_itself
    if by_itself:
        up = ProcessUp(node="worker-0", inc=inc, pid=9, role="worker")
        assert of(Start, job.hello("worker-0", 51, up))[0].message.inc > inc


def test_a_worker_counts_as_up_once() -> None:
    job = Job()
    job.hello("worker-0", 50)
    assert of(WorkerUp, job.up("worker-0")) == [
        WorkerUp(job.members.roster.nodes["worker-0"].life.inc)
    ]
    assert job.up("worker-0") == []


def test_scaling_down_lets_the_highest_ranks_leave_in_order() -> None:
    job = Job(num_workers=3)
    incs = [job.run(f"worker-{i}") for i in range(3)]
    acts = NodeOrders(job.members).scale(1, 0.0, grace_s=4.0)
    assert of(EndLife, acts) == [
        EndLife("worker-1", incs[1], 4.0),
        EndLife("worker-2", incs[2], 4.0),
    ]
    gone = job.exit("worker-2", ExitEvidence(exit_code=0))
    assert of(WorkerLost, gone) == [WorkerLost(incs[2])]
    assert of(Retire, gone) == [Retire("worker-2")]
    assert "worker-2" not in job.members.roster.nodes


def test_a_worker_wanted_again_before_it_left_gets_a_new_life() -> None:
    job = Job(num_workers=2)
    job.run("worker-0")
    inc = job.run("worker-1")
    NodeOrders(job.members).scale(1, 0.0, grace_s=4.0)
    acts = NodeOrders(job.members).scale(2, 0.0, grace_s=4.0)
    assert of(WorkerLost, acts) == [WorkerLost(inc)]
    assert of(Launch, acts) == [Launch("worker-1")]
    assert job.exit("worker-1", inc=inc) == []


def test_a_restarted_master_awaits_agents_that_may_be_there() -> None:
    job = Job()
    inc = job.run("worker-0")
    later = job.restarted(awaited=("worker-0",))
    assert Launch("worker-0") not in later.first
    assert of(WorkerUp, later.hello("worker-0", 50, job.process("worker-0"))) == [WorkerUp(inc)]


def test_a_restarted_master_launches_the_others_and_gives_up_what_they_do_not_know() -> None:
    job = Job()
    inc = job.run("worker-0")
    later = job.restarted()
    assert Launch("worker-0") in later.first
    later.hello("worker-0", 51)
    acts = later.tick(0.2)
    assert of(WorkerLost, acts) == [WorkerLost(inc)]
    assert of(Start, acts)
    assert later.members.roster.num_restarts() == 0


def test_an_ended_job_that_is_resumed_starts_afresh() -> None:
    job = Job(budget=1)
    inc = job.run("worker-0")
    job.exit("worker-0")
    job.note([job.members.roster.keep(JobEnded())])
    later = job.restarted()
    assert later.members.roster.num_restarts() == 0
    acts = later.hello("worker-0", 51)
    assert of(Start, acts)[0].message.inc > inc + 1


def test_a_snapshot_stands_for_all_records() -> None:
    job = Job(num_workers=3)
    for i in range(3):
        job.run(f"worker-{i}")
    job.run("server-0")
    job.exit("worker-0")
    job.note(NodeOrders(job.members).scale(2, 0.0, grace_s=1.0))
    job.exit("worker-2", ExitEvidence(exit_code=0))
    fresh = Membership(num_workers=3, num_servers=1, restart=RestartSpec())
    for record in job.members.roster.snapshot():
        fresh.roster.apply(record)
    assert fresh.roster.snapshot() == job.members.roster.snapshot()
    assert fresh.roster.num_restarts() == 1
    records = of(
        KeepRecord, fresh.hello(AgentHello(node="server-9", agent="a", agent_pid=1, host=""), 0.0)
    )
    assert records == []
    fresh.begin(0.0)
    hello = AgentHello(node="worker-1", agent="a", agent_pid=9, host="")
    fresh.hello(hello, 0.0)
    acts = fresh.tick(2.0, lost_after_s=99, others_wait=False, any_committed=True)
    newest = max(k.record.inc for k in job.kept if isinstance(k.record, NodeStarted))
    (keep,) = of(KeepRecord, acts)
    assert isinstance(keep.record, NodeStarted)
    assert keep.record.inc == newest + 1


def joined(job: Job) -> str:
    name, acts = NodeOrders(job.members).join("elsewhere", job.now_s)
    job.note(acts)
    return name


def test_who_joins_is_one_more_worker_that_nobody_launches() -> None:
    job = Job()
    name = joined(job)
    assert name == "worker-1"
    acts = job.hello(name, 70)
    (start,) = of(Start, acts)
    assert (start.node, start.message.rank, start.message.num_workers) == ("worker-1", 1, 2)
    job.up(name)
    acts = job.exit(name)
    assert of(Start, acts)[0].node == name, "its process is started again where it is"
    assert not of(Launch, acts)


def test_one_who_joined_and_went_silent_is_dropped_only_when_others_wait() -> None:
    job = Job()
    job.run("worker-0")
    inc = job.run(joined(job), 70)
    job.members.stream_lost("worker-1", job.now_s)
    for to_s in (LOST_AFTER_S + 1, 9 * LOST_AFTER_S):
        job.members.heard("worker-0", to_s)
        assert not of(WorkerLost, job.tick(to_s))
    job.others_wait = True
    acts = job.tick(9 * LOST_AFTER_S + 1)
    assert of(WorkerLost, acts) == [WorkerLost(inc)]
    assert not of(Launch, acts)
    assert "worker-1" not in job.members.roster.nodes
    assert job.members.roster.num_workers == 1
    assert job.hello("worker-1", 70) == [Retire("worker-1")]


def test_one_who_joined_and_leaves_in_order_is_dropped_at_once() -> None:
    job = Job()
    inc = job.run(joined(job), 70)
    acts = job.exit("worker-1", ExitEvidence(exit_code=143, stopped_by_us=True))
    assert of(WorkerLost, acts) == [WorkerLost(inc)]
    assert "worker-1" not in job.members.roster.nodes


def test_scaling_counts_workers_and_not_the_numbers_of_those_that_have_left() -> None:
    job = Job()
    job.run("worker-0")
    job.run(joined(job), 70)
    inc = job.run(joined(job), 71)
    job.exit("worker-1", ExitEvidence(exit_code=143, stopped_by_us=True))
    roster, orders = job.members.roster, NodeOrders(job.members)
    assert [node.name for node in roster.of_role("worker")] == ["worker-0", "worker-2"]
    acts = job.note(orders.scale(2, job.now_s, grace_s=1.0))
    assert not of(EndLife, acts)
    assert not of(Launch, acts)
    assert [node.name for node in roster.of_role("worker")] == ["worker-0", "worker-2"]
    acts = job.note(orders.scale(3, job.now_s, grace_s=1.0))
    assert of(Launch, acts) == [Launch("worker-3")]
    assert [(one.before, one.count) for one in of(ScaledEvent, acts)] == [(2, 3)]
    acts = job.note(orders.scale(1, job.now_s, grace_s=1.0))
    assert [one.inc for one in of(EndLife, acts)] == [inc]
    assert [node.name for node in roster.wanted_workers()] == ["worker-0"]


def test_one_who_was_to_join_and_never_came_is_dropped() -> None:
    job = Job()
    job.run("worker-0")
    joined(job)
    job.members.heard("worker-0", 61.0)
    acts = job.tick(61.0)
    assert [type(act) for act in of(Event, acts) if act.node == "worker-1"] == [NodeLostEvent]
    assert Launch("worker-1") not in acts
    assert "worker-1" not in job.members.roster.nodes


def test_a_restarted_master_awaits_who_joined_and_forgets_who_was_dropped() -> None:
    job = Job()
    first, second = joined(job), joined(job)
    inc = job.run(second, 71)
    job.run(first, 70)
    job.exit(first, ExitEvidence(exit_code=143, stopped_by_us=True))
    later = job.restarted()
    assert Launch(second) not in later.first
    assert first not in later.members.roster.nodes
    up = ProcessUp(node=second, inc=inc, pid=9, role="worker")
    assert not of(Start, later.hello(second, 71, up))
    fresh = Membership(num_workers=1, num_servers=1, restart=RestartSpec())
    for record in job.members.roster.snapshot():
        fresh.roster.apply(record)
    assert fresh.roster.snapshot() == job.members.roster.snapshot()
    assert set(fresh.roster.nodes) == {"server-0", "worker-0", second}


def test_a_job_that_ends_does_not_wait_for_one_who_joined_and_vanished() -> None:
    job = Job()
    job.run(joined(job), 70)
    job.members.close(job.now_s, 1.0)
    assert of(WorkerLost, job.tick(LOST_AFTER_S + 1))


def test_an_agent_launched_while_the_job_ends_is_told_as_well() -> None:
    job = Job()
    inc = job.run("worker-0", 50)
    job.members.agent_ended("worker-0", "50", AgentEnd(why="exit code -9"), 0.0)
    told = [EndLife("worker-0", inc, 7.0)]
    assert job.members.close(0.0, 7.0) == told  # the agent before was gone, and never read it
    job.hello("worker-0", 51, job.process("worker-0"))
    assert job.tick(REPEAT_END_S) == told
    job.exit("worker-0")
    assert job.tick(2 * REPEAT_END_S) == []


AS_ORDERED = ExitEvidence(exit_code=143, stopped_by_us=True)


def test_a_restart_by_decision_ends_in_order_and_goes_on_at_another_place() -> None:
    job = Job(num_workers=2, budget=0)
    inc = job.run("worker-1")
    acts = job.note(NodeOrders(job.members).restart("worker-1", 1.0, grace_s=7.0))
    assert of(EndLife, acts) == [EndLife("worker-1", inc, 7.0)]
    after = job.exit("worker-1", AS_ORDERED)
    assert [act for act in after if isinstance(act, Retire | Launch)] == [
        Retire("worker-1"),
        Launch("worker-1"),
    ]
    assert of(Start, after) == []
    assert len(of(Start, job.hello("worker-1", 51))) == 1
    node = job.members.roster.nodes["worker-1"]
    assert (node.past.restarts, node.past.decided, job.members.roster.num_restarts()) == (0, 1, 0)
    # The next end is no decision: the agent stays, and there is no budget left.
    job.up("worker-1")
    assert of(FailJob, job.exit("worker-1"))


def test_restarts_by_decision_are_counted_by_the_next_master() -> None:
    job = Job(budget=3)
    job.run("worker-0")
    for _ in range(2):
        job.note(NodeOrders(job.members).restart("worker-0", 0.0, grace_s=1.0))
        job.exit("worker-0", AS_ORDERED)
        job.run("worker-0")
    job.exit("worker-0")
    job.tick(job.spec.backoff_s)
    node = job.restarted().members.roster.nodes["worker-0"]
    assert (node.past.restarts, node.past.decided) == (1, 2)
    compacted = Job(budget=3)
    for record in job.members.roster.snapshot():
        compacted.members.roster.apply(record)
    assert compacted.members.roster.nodes["worker-0"].past.decided == 2


def test_the_order_to_end_is_repeated_until_the_process_has_ended() -> None:
    job = Job(budget=0)
    inc = job.run("worker-0")
    job.note(NodeOrders(job.members).restart("worker-0", 1.0, grace_s=5.0))
    assert of(EndLife, job.tick(2.0)) == []
    assert of(EndLife, job.tick(3.0)) == [EndLife("worker-0", inc, 5.0)]
    job.exit("worker-0", AS_ORDERED)
    assert of(EndLife, job.tick(6.0)) == []


def test_the_order_to_leave_is_repeated_until_the_process_has_ended() -> None:
    job = Job(num_workers=2)
    inc = job.run("worker-1")
    job.note(NodeOrders(job.members).scale(1, 1.0, grace_s=4.0))
    job.members.stream_lost("worker-1", 1.0)  # with the order in it
    job.hello("worker-1", 50, job.process("worker-1"))
    assert of(EndLife, job.tick(2.0)) == []
    assert of(EndLife, job.tick(3.0)) == [EndLife("worker-1", inc, 4.0)]
    assert of(Retire, job.exit("worker-1", AS_ORDERED)) == [Retire("worker-1")]
    assert of(EndLife, job.tick(6.0)) == []


def test_a_worker_that_leaves_and_is_silent_is_gone() -> None:
    job = Job(num_workers=2)
    job.run("worker-0")
    inc = job.run("worker-1")
    job.note(NodeOrders(job.members).scale(1, 1.0, grace_s=4.0))
    job.members.heard("worker-0", LOST_AFTER_S)
    assert not of(WorkerLost, job.tick(LOST_AFTER_S - 1))
    acts = job.tick(LOST_AFTER_S)
    assert of(WorkerLost, acts) == [WorkerLost(inc)]
    assert of(Launch, acts) == []
    assert [event.node for event in of(NodeLostEvent, acts)] == ["worker-1"]
    assert "worker-1" not in job.members.roster.nodes
    assert job.hello("worker-1", 50, ProcessUp(node="worker-1", inc=inc, pid=9, role="worker")) == [
        Retire("worker-1")
    ]


@pytest.mark.parametrize("compacted", [False, True])
def test_the_next_master_carries_on_with_an_ordered_restart(compacted: bool) -> None:
    job = Job(budget=0)
    inc = job.run("worker-0")
    job.note(NodeOrders(job.members).restart("worker-0", 1.0, grace_s=5.0))
    if compacted:
        job.kept = [KeepRecord(record) for record in job.members.roster.snapshot()]
    after = job.restarted(awaited=("worker-0",))
    after.hello("worker-0", 50, after.process("worker-0"))
    assert of(EndLife, after.tick(3.0)) == [EndLife("worker-0", inc, 5.0)]
    ended = after.exit("worker-0", AS_ORDERED)
    assert of(Retire, ended) == [Retire("worker-0")]
    assert of(FailJob, ended) == []
    after.run("worker-0", 51)
    assert after.members.roster.nodes["worker-0"].past.decided == 1
    assert of(EndLife, after.tick(9.0)) == [], "the next life is not to end"


def test_a_machine_that_joined_is_restarted_where_it_is() -> None:
    job = Job()
    name, acts = NodeOrders(job.members).join("elsewhere", 0.0)
    job.note(acts)
    job.run(name)
    job.note(NodeOrders(job.members).restart(name, 1.0, grace_s=1.0))
    after = job.exit(name, AS_ORDERED)
    assert of(Retire, after) == []
    assert len(of(Start, after)) == 1
    assert job.members.roster.nodes[name].past.decided == 1


def test_the_end_of_a_life_is_told_with_its_evidence() -> None:
    job = Job()
    job.run("worker-0")
    (ended,) = of(ProcessExitedEvent, job.exit("worker-0"))
    assert (ended.verdict, ended.signal, ended.exit_code) == ("retryable", KILLED.signal, None)
    assert ended.reason == "signal SIGKILL"


# ---------------------------------------------------------------------- servers


def replacing(budget: int = 8) -> Job:
    job = Job(num_workers=1, num_servers=2, budget=budget)
    for index, node in enumerate(("server-0", "server-1")):
        job.hello(node, 10 + index)
        job.up(node, f"shm://{node}")
    job.note(NodeOrders(job.members).replace_server("server-0", 0.0, "slow"))
    return job


def test_a_server_that_joins_counts_when_it_has_taken_the_others_place() -> None:
    job = replacing()
    before = job.members.roster.servers()
    job.hello("server-2", 20)
    job.up("server-2", "shm://server-2")
    assert job.members.roster.servers() == before
    assert job.members.roster.change_due() == ((Server(3, "server-2", "shm://server-2"),), (1,))

    acts = job.note(job.members.changed())

    assert Retire("server-0") in acts
    assert [s.node for s in job.members.roster.servers() or ()] == ["server-1", "server-2"]
    assert job.members.roster.change is None
    assert "server-0" not in job.members.roster.nodes
    assert job.members.roster.nodes["server-2"].past.decided == 1, (
        "what it is worth to replace this one again"
    )


def test_a_server_that_is_not_needed_leaves() -> None:
    job = replacing()
    job.hello("server-2", 20)

    acts = job.note(job.members.not_changed())

    assert Retire("server-2") in acts
    assert sorted(node.name for node in job.members.roster.of_role("server")) == [
        "server-0",
        "server-1",
    ]
    assert not job.members.not_changed(), "again: nothing"
    assert job.members.roster.nodes["server-0"].past.decided == 1


def test_a_joining_server_that_uses_up_the_budget_ends_the_move_and_not_the_job() -> None:
    job = replacing(budget=0)
    job.hello("server-2", 20)

    exited = ProcessExited(node="server-2", inc=3, evidence=KILLED)
    acts = job.note(job.members.process_exited(exited, 0.0, any_committed=True))

    assert not of(FailJob, acts)
    assert Retire("server-2") in acts
    assert [told.node for told in of(NotReplacedEvent, acts)] == ["server-0"]
    assert job.members.roster.change is None


def test_a_joining_server_that_fails_for_good_ends_the_move_and_not_the_job() -> None:
    job = replacing()
    job.hello("server-2", 20)
    kind = "paceline.base.errors.PermanentError"
    error = ScriptError(inc=3, kind=kind, traceback="", in_user_code=False, step=0)
    job.members.script_error(error)

    exited = ProcessExited(node="server-2", inc=3, evidence=ExitEvidence(exit_code=1))
    acts = job.note(job.members.process_exited(exited, 0.0, any_committed=True))

    assert not of(FailJob, acts)
    assert [told.node for told in of(NotReplacedEvent, acts)] == ["server-0"]
    assert job.members.roster.nodes["server-0"].past.decided == 1


def test_a_move_that_a_crash_of_another_has_ended_was_not_futile() -> None:
    job = replacing()
    job.hello("server-2", 20)
    job.note(job.members.not_changed(futile=False))
    assert job.members.roster.nodes["server-0"].past.decided == 0


def test_servers_that_are_not_wanted_any_more_leave_and_do_not_come_late() -> None:
    job = Job(num_workers=1, num_servers=1)
    job.hello("server-0", 10)
    job.up("server-0", "shm://server-0")
    job.note(NodeOrders(job.members).scale_servers(3, 0.0))
    job.hello("server-1", 20)

    acts = job.note(job.members.not_changed(futile=False, withdrawn=True))

    assert {act.node for act in of(Retire, acts)} == {"server-1", "server-2"}
    (told,) = of(ServersNotChangedEvent, acts)
    assert told.clause == "still 1: the order is withdrawn"
    assert [node.name for node in job.members.roster.of_role("server")] == ["server-0"]
    assert job.hello("server-2", 30) == [Retire("server-2")]


def test_a_joining_server_that_dies_is_told() -> None:
    job = replacing()
    job.hello("server-2", 20)
    job.up("server-2", "shm://server-2")
    inc = job.members.roster.nodes["server-2"].life.inc

    exited = ProcessExited(node="server-2", inc=inc, evidence=KILLED)
    acts = job.note(job.members.process_exited(exited, 0.0, any_committed=True))

    assert JoinerLost(inc) in acts


@pytest.mark.parametrize("taken", [False, True])
def test_who_serves_survives_the_master(taken: bool) -> None:
    job = replacing()
    job.hello("server-2", 20)
    job.up("server-2", "shm://server-2")
    if taken:
        job.note(job.members.changed())

    for records in ([keep.record for keep in job.kept], job.members.roster.snapshot()):
        again = job.fresh()
        for record in records:
            again.roster.apply(record)
        again.begin(0.0)
        names = {node.name for node in again.roster.of_role("server")}
        assert names == {node.name for node in job.members.roster.of_role("server")}
        assert (again.roster.change is None) == taken
        assert [node.name for node in again.roster.of_role("server") if node.joins] == (
            [] if taken else ["server-2"]
        )


@pytest.mark.parametrize("count", [1, 2, 4])
def test_a_job_is_resumed_with_another_number_of_servers(count: int) -> None:
    members = Membership(num_workers=1, num_servers=2, restart=RestartSpec())
    # One of them took the place of another, under a name of its own.
    members.roster.apply(ServersChanging(joining=("server-2",), leaving=("server-1",)))
    members.roster.apply(ServersChanged())
    members.roster.forget(members.roster.nodes["server-1"])
    records = [
        act.record for act in NodeOrders(members).resize(3, count) if isinstance(act, KeepRecord)
    ]
    launched = {act.node for act in members.begin(0.0) if isinstance(act, Launch)}
    servers = [name for name in launched if name.startswith("server")]
    assert len(servers) == count
    assert "server-0" in servers
    assert {"worker-0", "worker-1", "worker-2"} < launched

    replayed = Membership(num_workers=1, num_servers=2, restart=RestartSpec())
    for record in [*members.roster.snapshot(), *records]:
        replayed.roster.apply(record)
    assert sorted(map(repr, replayed.roster.snapshot())) == sorted(
        map(repr, members.roster.snapshot())
    )


def scaling(before: int, after: int) -> Job:
    job = Job(num_workers=1, num_servers=before)
    for index in range(before):
        job.hello(f"server-{index}", 10 + index)
        job.up(f"server-{index}", f"shm://server-{index}")
    job.note(NodeOrders(job.members).scale_servers(after, 0.0))
    return job


def test_servers_join_when_all_of_them_are_up() -> None:
    job = scaling(2, 4)
    before = job.members.roster.servers()
    assert job.members.roster.change_due() is None
    for index in (2, 3):
        job.hello(f"server-{index}", 20 + index)
        job.up(f"server-{index}", f"shm://server-{index}")
    due = job.members.roster.change_due()
    assert due is not None
    assert ([server.node for server in due[0]], due[1]) == (["server-2", "server-3"], ())
    assert job.members.roster.servers() == before

    acts = job.note(job.members.changed())

    assert not of(Retire, acts)
    assert [told.count for told in of(ServersChangedEvent, acts)] == [4]
    assert [s.node for s in job.members.roster.servers() or ()] == [f"server-{i}" for i in range(4)]


def test_the_servers_that_came_last_leave() -> None:
    job = scaling(3, 1)
    due = job.members.roster.change_due()
    assert due is not None
    assert due[0] == ()
    assert len(due[1]) == 2
    assert len(job.members.roster.servers() or ()) == 3, (
        "they serve until all they have is elsewhere"
    )

    acts = job.note(job.members.changed())

    assert [act.node for act in of(Retire, acts)] == ["server-1", "server-2"]
    assert [s.node for s in job.members.roster.servers() or ()] == ["server-0"]


def test_servers_that_cannot_join_leave_all_as_it_was() -> None:
    job = scaling(1, 3)
    acts = job.note(job.members.not_changed())
    assert [act.node for act in of(Retire, acts)] == ["server-1", "server-2"]
    assert [told.count for told in of(ServersNotChangedEvent, acts)] == [1]
    assert job.members.roster.change is None
    assert NodeOrders(job.members).scale_servers(1, 0.0) == [], "as many as there are"


def test_a_server_that_joins_by_the_name_of_one_that_has_left_survives_the_master() -> None:
    job = scaling(2, 1)
    job.note(job.members.changed())
    job.note(NodeOrders(job.members).scale_servers(2, 2.0))
    assert [node.name for node in job.members.roster.nodes.values() if node.joins] == ["server-1"]

    later = job.restarted()

    assert later.members.roster.change == job.members.roster.change
    assert later.members.roster.change_due() is None, "it is not up"
    assert Launch("server-1") in later.first
    later.hello("server-1", 60)
    later.up("server-1", "shm://server-1")
    due = later.members.roster.change_due()
    assert due is not None
    assert [server.node for server in due[0]] == ["server-1"]


@pytest.mark.parametrize("seed", range(20))
def test_who_reads_the_journal_has_the_servers_that_its_writer_had(seed: int) -> None:
    rng = random.Random(seed)
    job = scaling(2, 2)
    for number in range(8):
        if job.members.roster.change is None:
            job.note(NodeOrders(job.members).scale_servers(rng.randint(1, 5), 0.0))
        elif rng.random() < 0.3:
            job.note(job.members.not_changed())
        else:
            for place, name in enumerate(job.members.roster.change.joining):
                job.hello(name, 100 * number + place + 20)
                job.up(name, f"shm://{name}")
            job.note(job.members.changed())

        for records in ([keep.record for keep in job.kept], job.members.roster.snapshot()):
            again = job.fresh()
            for record in records:
                again.roster.apply(record)
            again.begin(0.0)
            assert again.roster.change == job.members.roster.change
            again.roster.change_due()
            for servers in (Roster.in_place, lambda roster: roster.of_role("server")):
                there = {node.name for node in servers(again.roster)}
                assert there == {node.name for node in servers(job.members.roster)}


@pytest.mark.parametrize("counts", [(1, 3), (3, 1)])
def test_a_change_of_servers_survives_the_master(counts: tuple[int, int]) -> None:
    job = scaling(*counts)
    for records in ([keep.record for keep in job.kept], job.members.roster.snapshot()):
        again = job.fresh()
        for record in records:
            again.roster.apply(record)
        assert again.roster.change == job.members.roster.change
        assert again.roster.change is not None


def test_agents_that_have_the_same_pid_are_told_apart() -> None:
    """In containers each agent has PID 1: a second one must not start the life of the first."""
    job = Job(num_servers=0)
    first = AgentHello(node="worker-0", agent="a", launch="x", agent_pid=1, host="pod-a")
    (start,) = of(Start, job.members.hello(first, 1.0))
    job.members.stream_lost("worker-0", 1.5)  # it may run that incarnation all the same
    second = AgentHello(node="worker-0", agent="b", launch="y", agent_pid=1, host="pod-b")
    acts = job.members.hello(second, 2.0)
    assert not of(Start, acts)
    assert [one.pid for one in of(AgentJoinedEvent, acts)] == [1]
    again = of(Start, job.tick(2.5) + job.tick(4.0))
    assert [one.message.inc for one in again] == [start.message.inc + 1]
    assert job.members.agent_ended("worker-0", "x", AgentEnd(why="exit code 1"), 4.5) == [], (
        "of the first"
    )

"""Rounds of a job on several machines: all but the first join, and none begins without one."""

from typing import TypeVar

import pytest

from paceline.protocol.nodes.membership import FIRST_HELLO_S, REPEAT_START_S, Membership
from paceline.protocol.nodes.node import Act, EndLife, FailJob, FindPort, KeepRecord, Retire, Start
from paceline.protocol.nodes.orders import NodeOrders
from paceline.protocol.nodes.platform import NodePlaces
from paceline.protocol.nodes.rounds import Rounds, by_machine, ranks_of
from paceline.wire.events.nodes import (
    MachineJoinedEvent,
    MachinesAwaitedEvent,
    NodeLostEvent,
    RestartAllEvent,
)
from paceline.wire.messages.agent import AgentHello, ExitEvidence, ProcessExited
from paceline.wire.messages.node import ProcessUp
from paceline.wire.spec import RestartSpec

PLACES_S, LOST_S = 300.0, 10.0
HERE, THERE = ("worker-0", "worker-1"), ("worker-2", "worker-3")
HOST = "10.0.0.5"
KILLED = ExitEvidence(signal=9)
ORDERED = ExitEvidence(signal=15, stopped_by_us=True)
T = TypeVar("T")


def of(kind: type[T], acts: list[Act]) -> list[T]:
    return [act for act in acts if isinstance(act, kind)]


class Job:
    """Four workers on two machines; agents answer where a round meets, at ports from 1 on."""

    def __init__(self, kept: list[KeepRecord] | None = None, *, anywhere: bool = False) -> None:
        self.now_s = 1000.0
        self.ports = iter(range(1, 100))
        self.answers = True
        machines = 1 if anywhere else 2
        self.members = Membership(
            num_workers=4,
            num_servers=0,
            restart=RestartSpec(),
            rounds=Rounds(grace_s=4.0, machines=machines, anywhere=anywhere),
        )
        self.members.places_s = PLACES_S
        self.kept = list(kept or [])
        for keep in self.kept:
            self.members.roster.apply(keep.record)
        self.silent = set[str]()
        self.note(self.members.begin(self.now_s))

    def note(self, acts: list[Act]) -> list[Act]:
        done: list[Act] = []
        for act in acts:
            self.kept += of(KeepRecord, [act])
            done.append(act)
            if isinstance(act, FindPort) and self.answers:
                done += self.meet(node=act.node)
        return done

    def meet(self, number: int | None = None, node: str = "") -> list[Act]:
        rounds = self.members.rounds
        assert rounds is not None
        number = rounds.number if number is None else number
        port = next(self.ports)
        acts = self.members.meet_at(port, self.now_s, host=HOST, number=number, node=node)
        return self.note(acts)

    def hello(self, *nodes: str, machine: str = "") -> list[Act]:
        acts: list[Act] = []
        for node in nodes:
            files = f"{machine}:4711" if machine else ""
            hello = AgentHello(node=node, agent=f"a-{node}-{machine}-{self.now_s}", agent_pid=50,
                               host="h", files=files)  # fmt: skip
            self.members.roster.nodes[node].agent.is_remote = bool(machine)
            acts += self.note(self.members.hello(hello, self.now_s))
        return acts

    def join(self) -> tuple[str, ...]:
        names, acts = NodeOrders(self.members).join_machine("host-b", self.now_s)
        assert len(of(MachineJoinedEvent, acts)) == bool(names)
        return names

    def up(self, *nodes: str) -> None:
        for node in nodes:
            inc = self.members.roster.nodes[node].life.inc
            up = ProcessUp(node=node, inc=inc, pid=1000, role="worker")
            self.note(self.members.process_up(up, self.now_s))

    def run(self) -> "Job":
        self.hello(*HERE)
        assert self.join() == THERE
        assert starts(self.hello(*THERE, machine="tcp://10.0.0.6")) == [*HERE, *THERE]
        self.up(*HERE, *THERE)
        return self

    def exit(self, node: str, how: ExitEvidence) -> list[Act]:
        inc = self.members.roster.nodes[node].life.inc
        message = ProcessExited(node=node, inc=inc, evidence=how)
        return self.note(self.members.process_exited(message, self.now_s, any_committed=False))

    def tick(self, after_s: float) -> list[Act]:
        self.now_s += after_s
        for node in self.members.roster.nodes.keys() - self.silent:
            self.members.heard(node, self.now_s)
        return self.note(
            self.members.tick(
                self.now_s, lost_after_s=LOST_S, others_wait=True, any_committed=False
            )
        )

    def vanish(self, *nodes: str) -> list[Act]:
        """The machine of these is gone, as the kernel there says."""
        for node in nodes:
            self.members.stream_lost(node, self.now_s)
        self.silent |= {*nodes}
        self.now_s += 1.0
        return self.note(NodePlaces(self.members).departed(self.now_s, group_broke=False))


def starts(acts: list[Act]) -> list[str]:
    return [act.node for act in of(Start, acts)]


def test_no_worker_begins_before_all_machines_are_there() -> None:
    job = Job()
    (told,) = of(MachinesAwaitedEvent, job.hello(*HERE))
    assert job.members.roster.nodes["worker-2"].word == "pending"
    assert (told.count, told.wanted) == (1, 2)
    assert not of(MachinesAwaitedEvent, job.tick(0.5)), "it is told once"
    assert job.join() == THERE
    assert not starts(job.hello("worker-2", machine="tcp://10.0.0.6"))
    acts = job.hello("worker-3", machine="tcp://10.0.0.6")
    assert starts(acts) == [*HERE, *THERE]
    seats = [act.message.ranks for act in of(Start, acts)]
    assert [(s.rank, s.local_rank, s.machine, s.host) for s in seats if s is not None] == [
        (0, 0, 0, HOST),
        (1, 1, 0, HOST),
        (2, 0, 1, HOST),
        (3, 1, 1, HOST),
    ]
    assert {act.message.port for act in of(Start, acts)} == {1}


def test_the_agent_of_rank_0_is_asked_where_to_meet_until_it_answers() -> None:
    job = Job()
    job.answers = False
    job.hello(*HERE)
    job.join()
    (asked,) = of(FindPort, job.hello(*THERE, machine="tcp://10.0.0.6"))
    assert asked.node == "worker-0"
    assert not of(FindPort, job.tick(0.1))
    assert of(FindPort, job.tick(REPEAT_START_S))
    assert not job.meet(number=7), "an answer about another round"
    assert not job.meet(node="worker-2"), "an answer of one that had rank 0 when it was asked"
    assert starts(job.meet(node="worker-0")) == [*HERE, *THERE]
    assert not job.meet(), "it says so twice"


def test_a_machine_that_does_not_come_ends_the_job_with_the_remedy() -> None:
    job = Job()
    job.hello(*HERE)
    job.tick(0.5)
    assert not of(FailJob, job.tick(PLACES_S - 1.0))
    (failed,) = of(FailJob, job.tick(1.0))
    assert failed.reason.startswith("1 of 2 machines came within 300 s")
    assert "`paceline agent --join ticket`" in failed.reason


def test_a_place_is_given_to_one_machine_and_is_open_again_if_that_does_not_come() -> None:
    job = Job()
    job.hello(*HERE)
    assert job.join() == THERE
    assert job.join() == ()
    job.silent |= {*THERE}
    job.tick(FIRST_HELLO_S - 1.0)
    assert job.join() == ()
    job.tick(1.0)
    assert job.join() == THERE


def test_a_killed_rank_has_all_begin_again_in_place() -> None:
    job = Job().run()
    acts = job.exit("worker-3", KILLED)
    assert {end.node for end in of(EndLife, acts)} == {"worker-0", "worker-1", "worker-2"}
    for node in (*HERE, "worker-2"):
        acts = job.exit(node, ORDERED)
    assert starts(acts) == [*HERE, *THERE]
    assert {act.message.restart for act in of(Start, acts)} == {1}
    assert not of(Retire, acts)


def test_the_next_round_waits_for_a_machine_when_one_has_died() -> None:
    job = Job().run()
    acts = job.vanish(*THERE)
    assert [lost.node for lost in of(NodeLostEvent, acts)] == [*THERE]
    for node in HERE:
        acts = job.exit(node, ORDERED)
    (again,) = of(RestartAllEvent, acts)
    assert again.node == "worker-2"
    assert not starts(acts)
    (told,) = of(MachinesAwaitedEvent, [*acts, *job.tick(1.0)])
    assert (told.count, told.wanted) == (1, 2)
    assert job.join() == THERE
    acts = job.hello(*THERE, machine="tcp://10.0.0.7")
    assert starts(acts) == [*HERE, *THERE]
    assert {act.message.restart for act in of(Start, acts)} == {1}


def test_a_machine_that_leaves_by_ctrl_c_is_waited_for_at_no_cost() -> None:
    job = Job().run()
    for node in THERE:
        job.exit(node, ORDERED)
        job.members.stream_lost(node, job.now_s)
    job.silent |= {*THERE}
    acts = [act for node in HERE for act in job.exit(node, ORDERED)]
    assert not of(RestartAllEvent, acts), "nothing has failed"
    assert job.members.roster.num_restarts() == 0
    (told,) = of(MachinesAwaitedEvent, [*acts, *job.tick(0.2)])
    assert told.count == 1
    assert job.join() == THERE
    assert starts(job.hello(*THERE, machine="tcp://10.0.0.6")) == [*HERE, *THERE]


def test_a_machine_that_answers_nobody_is_waited_for_until_it_speaks_again() -> None:
    job = Job().run()
    nodes = [job.members.roster.nodes[name] for name in THERE]
    job.silent |= {*THERE}
    job.note(NodePlaces(job.members).without_machine(nodes, job.now_s))
    for node in HERE:
        job.exit(node, ORDERED)
    assert not starts(job.tick(1.0))
    job.silent.clear()  # the cable is plugged in again: it speaks on the same streams
    assert starts(job.tick(1.0)) == [*HERE, *THERE]


def test_a_master_that_starts_again_knows_the_seats_and_waits_for_the_machine() -> None:
    job = Job().run()
    job.vanish(*THERE)
    for snapshot in (False, True):
        kept = job.kept
        if snapshot:
            kept = [KeepRecord(record) for record in job.members.roster.snapshot()]
        after = Job(kept)
        assert after.members.roster.nodes["worker-2"].by_itself
        assert not after.members.roster.nodes["worker-1"].by_itself
        assert after.members.rounds is not None
        assert after.members.rounds.number == 1
    before = Job()
    before.run()
    rounds = Job(before.kept).members.rounds
    assert rounds is not None
    assert (rounds.port, rounds.host) == (1, HOST)
    assert rounds.ranks["worker-3"].local_rank == 1


def test_a_rank_that_has_finished_on_a_joined_machine_keeps_its_agent() -> None:
    job = Job().run()
    assert not of(Retire, job.exit("worker-3", ExitEvidence(exit_code=0)))
    assert of(Retire, job.exit("worker-1", ExitEvidence(exit_code=0))) == [Retire("worker-1")]
    job.exit("worker-2", KILLED)
    acts = job.exit("worker-0", ORDERED)
    assert not starts(acts), "the agent of worker-1 has left"
    assert starts(job.hello("worker-1")) == [*HERE, *THERE]


@pytest.mark.parametrize("machines", ["aabb", "abab"])
def test_ranks_of_one_machine_are_contiguous_wherever_the_platform_puts_them(machines: str) -> None:
    job = Job(anywhere=True)
    acts: list[Act] = []
    for number, machine in enumerate(machines):
        acts += job.hello(f"worker-{number}", machine=f"tcp://10.0.0.{machine}")
    seats = {act.node: act.message.ranks for act in of(Start, acts)}
    found = [(s.rank, s.machine, s.local_rank) for s in seats.values() if s is not None]
    assert sorted(found) == [(0, 0, 0), (1, 0, 1), (2, 1, 0), (3, 1, 1)]


def test_seats_follow_from_the_groups() -> None:
    groups = by_machine([("a", "x"), ("b", "y"), ("c", "x")])
    assert groups == (("a", "c"), ("b",))
    seats = ranks_of(groups, HOST)
    assert [(name, ranks.rank, ranks.local_size) for name, ranks in seats.items()] == [
        ("a", 0, 2),
        ("c", 1, 2),
        ("b", 2, 1),
    ]

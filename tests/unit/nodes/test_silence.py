"""Machines that lose their power: what is probed, and what an unanswered probe means."""

from paceline.protocol.nodes.silence import AGAIN_S, MOST_PROBED, ProbeOrder, SilentMachines
from paceline.wire.messages.agent import AgentHello
from tests.unit.nodes.test_membership import Job

BEAT_S = 0.5
ONE, TWO, THREE = "tcp://10.0.0.1", "tcp://10.0.0.2", "tcp://10.0.0.3"


class Spread(Job):
    """A job whose workers live on machines of their own, which have answered a first probe."""

    def __init__(self, *machines: str, answer: bool = True) -> None:
        super().__init__(num_workers=len(machines), num_servers=0)
        for number, machine in enumerate(machines):
            name = f"worker-{number}"
            self.members.roster.nodes[name].agent.is_remote = True
            hello = AgentHello(
                node=name, agent=name, agent_pid=1, host="h", files=f"{machine}:5000"
            )
            self.members.hello(hello, 0.0)
            self.up(name)
        self.machines = SilentMachines(self.members.roster, BEAT_S)
        asked = set[str]()
        while more := self.due(0.0):
            asked.update(more)
            for machine in more:
                assert not self.answer(machine, 0.1, answered=answer)
        assert asked == set(machines), "once they are heard"

    def due(self, now_s: float, *, stands: bool = False) -> list[str]:
        return [order.machine for order in self.machines.due(now_s, stands=stands)]

    def hear(self, number: int, now_s: float) -> None:
        self.members.heard(f"worker-{number}", now_s)

    def answer(
        self, machine: str, now_s: float, *, answered: bool, stands: bool = True
    ) -> list[str]:
        gone = self.machines.probed(machine, now_s, answered=answered, stands=stands)
        return [node.name for node in gone]


def test_a_machine_that_is_silent_and_answers_no_probe_is_gone_with_all_its_nodes() -> None:
    job = Spread(ONE, ONE, TWO)
    job.hear(2, 0.9)
    assert job.due(0.4) == [], "no heartbeat is missed so far"
    assert job.due(0.9) == [ONE]
    assert job.due(1.0) == [], "a probe is under way"
    assert job.answer(ONE, 1.2, answered=False) == ["worker-0", "worker-1"]


def test_while_the_job_stands_a_machine_is_probed_before_a_heartbeat_is_missed() -> None:
    job = Spread(ONE, TWO)
    job.hear(1, 0.3)
    assert job.due(0.4) == []
    assert job.due(0.4, stands=True) == [ONE], "the answer is there in time"
    assert job.answer(ONE, 0.5, answered=False) == [], "its next word is not due so far"
    assert job.due(0.5, stands=True) == [ONE]
    job.hear(1, 0.6)
    assert job.answer(ONE, 0.7, answered=False) == ["worker-0"]


def test_a_machine_whose_kernel_answers_is_busy() -> None:
    job = Spread(ONE, TWO)
    job.hear(1, 9.0)
    assert job.due(9.0) == [ONE]
    assert job.answer(ONE, 9.1, answered=True) == []
    assert job.due(9.2) == [ONE], "it is asked again as long as it is silent"


def test_what_would_be_a_guess_is_left_to_the_longer_time() -> None:
    behind_a_firewall = Spread(ONE, TWO, answer=False)
    behind_a_firewall.hear(1, 2.0)
    assert behind_a_firewall.due(2.0) == []
    speaks = Spread(ONE, ONE, TWO)
    speaks.hear(0, 0.9), speaks.hear(2, 0.9)
    assert speaks.due(0.9) == [], "another agent of the machine speaks"
    trains_on = Spread(ONE, TWO)
    trains_on.hear(1, 0.9)
    assert trains_on.due(0.9) == [ONE]
    assert trains_on.answer(ONE, 1.2, answered=False, stands=False) == []
    assert trains_on.due(1.3) == [ONE]
    trains_on.hear(1, 1.5)
    assert trains_on.answer(ONE, 1.6, answered=False) == ["worker-0"], "now it stands"
    back = Spread(ONE, TWO)
    back.hear(1, 0.9)
    assert back.due(0.9) == [ONE]
    back.hear(0, 1.0)
    assert back.answer(ONE, 1.2, answered=False) == [], "it has spoken meanwhile"
    cut_off = Spread(ONE, TWO)
    assert sorted(cut_off.due(2.0)) == [ONE, TWO]
    assert cut_off.answer(ONE, 2.3, answered=False) == [], "our own cable, more likely"


def test_the_only_other_machine_counts_as_gone() -> None:
    job = Spread(ONE)
    assert job.due(2.0) == [ONE]
    assert job.answer(ONE, 2.3, answered=False) == ["worker-0"]


def test_a_machine_must_have_answered_lately() -> None:
    job = Spread(ONE, TWO)
    now_s = AGAIN_S + 1.0
    for number in range(2):
        job.hear(number, now_s)
    assert sorted(job.due(now_s)) == [ONE, TWO]
    assert job.answer(ONE, now_s + 0.3, answered=False) == [], "a firewall has been put up"
    job.hear(1, now_s + 2.0)
    assert ONE not in job.due(now_s + 2.0)


def seen_by(job: Spread, witness: str, now_s: float, *, answered: bool) -> list[str]:
    """Of a job that trains on."""
    gone = job.machines.witnessed(ONE, witness, now_s, answered=answered, stands=False)
    return [node.name for node in gone]


def test_where_another_machine_is_not_answered_either_the_job_need_not_stand() -> None:
    job = Spread(ONE, TWO, THREE)
    job.hear(1, 0.9), job.hear(2, 0.9)
    (order,) = job.machines.due(0.9)
    assert order == ProbeOrder(ONE, ("worker-1", "worker-2"))
    assert job.answer(ONE, 1.2, answered=False, stands=False) == []
    assert seen_by(job, "worker-7", 1.2, answered=False) == [], "it was not asked"
    assert seen_by(job, "worker-1", 1.25, answered=False) == ["worker-0"]


def test_the_witness_may_be_first() -> None:
    job = Spread(ONE, TWO)
    job.hear(1, 0.9)
    assert job.due(0.9) == [ONE]
    assert seen_by(job, "worker-1", 1.1, answered=False) == []
    assert job.answer(ONE, 1.2, answered=False, stands=False) == ["worker-0"]


def test_a_machine_that_a_witness_reaches_is_given_up_only_if_the_job_stands() -> None:
    job = Spread(ONE, TWO, THREE)
    job.hear(1, 0.9), job.hear(2, 0.9)
    assert job.due(0.9) == [ONE]
    assert job.answer(ONE, 1.2, answered=False, stands=False) == []
    assert seen_by(job, "worker-1", 1.2, answered=True) == []
    assert seen_by(job, "worker-2", 1.2, answered=False) == [], "the link to us is broken"
    job.hear(1, 1.3), job.hear(2, 1.3)
    assert job.due(1.3) == [ONE], "it is asked again"
    assert seen_by(job, "worker-2", 1.4, answered=False) == []
    assert job.answer(ONE, 1.5, answered=False, stands=True) == ["worker-0"]


def test_no_silent_node_is_a_witness() -> None:
    job = Spread(ONE, TWO, THREE)
    job.hear(2, 0.9)
    orders = {order.machine: order.witnesses for order in job.machines.due(0.9)}
    assert orders == {ONE: ("worker-2",), TWO: ("worker-2",)}


def test_an_agent_on_the_masters_machine_is_no_witness_against_our_own_cable() -> None:
    job = Spread(ONE, TWO, THREE)
    job.machines = SilentMachines(job.members.roster, BEAT_S, here="10.0.0.3")
    assert sorted(job.due(0.0)) == [ONE, TWO]
    for machine in (ONE, TWO):
        job.answer(machine, 0.1, answered=True)
    job.hear(2, 0.9)
    orders = {order.machine: order.witnesses for order in job.machines.due(0.9)}
    assert orders == {ONE: (), TWO: ()}
    assert job.answer(ONE, 1.2, answered=False) == []


def test_a_master_that_is_late_probes_a_few_machines_at_a_time() -> None:
    names = [f"tcp://10.0.1.{number}" for number in range(3 * MOST_PROBED)]
    job = Spread(*names)
    assert len(job.due(9.0)) == MOST_PROBED, "all are silent"
    assert job.due(9.1) == []
    first = [name for name, known in job.machines._known.items() if known.waits]
    for name in first:
        job.answer(name, 9.3, answered=True)
    second = job.due(9.4)
    assert len(second) == MOST_PROBED
    assert not set(first) & set(second), "the others come first"

"""Machines that lose their power: what is probed, and what an unanswered probe means."""

from paceline.protocol.nodes.silence import AGAIN_S, SilentMachines
from paceline.wire.messages.agent import AgentHello
from tests.unit.nodes.test_membership import Job

BEAT_S = 0.5
ONE, TWO = "tcp://10.0.0.1", "tcp://10.0.0.2"


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
        assert sorted(self.machines.due(0.0)) == sorted(set(machines)), "once they are heard"
        for machine in set(machines):
            assert not self.answer(machine, 0.1, answered=answer)

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
    assert job.machines.due(0.4) == [], "no heartbeat is missed so far"
    assert job.machines.due(0.9) == [ONE]
    assert job.machines.due(1.0) == [], "a probe is under way"
    assert job.answer(ONE, 1.2, answered=False) == ["worker-0", "worker-1"]


def test_a_machine_whose_kernel_answers_is_busy() -> None:
    job = Spread(ONE, TWO)
    job.hear(1, 9.0)
    assert job.machines.due(9.0) == [ONE]
    assert job.answer(ONE, 9.1, answered=True) == []
    assert job.machines.due(9.2) == [ONE], "it is asked again as long as it is silent"


def test_what_would_be_a_guess_is_left_to_the_longer_time() -> None:
    behind_a_firewall = Spread(ONE, TWO, answer=False)
    behind_a_firewall.hear(1, 2.0)
    assert behind_a_firewall.machines.due(2.0) == []
    speaks = Spread(ONE, ONE, TWO)
    speaks.hear(0, 0.9), speaks.hear(2, 0.9)
    assert speaks.machines.due(0.9) == [], "another agent of the machine speaks"
    trains_on = Spread(ONE, TWO)
    trains_on.hear(1, 0.9)
    assert trains_on.machines.due(0.9) == [ONE]
    assert trains_on.answer(ONE, 1.2, answered=False, stands=False) == []
    assert trains_on.machines.due(1.3) == [ONE]
    trains_on.hear(1, 1.5)
    assert trains_on.answer(ONE, 1.6, answered=False) == ["worker-0"], "now it stands"
    back = Spread(ONE, TWO)
    back.hear(1, 0.9)
    assert back.machines.due(0.9) == [ONE]
    back.hear(0, 1.0)
    assert back.answer(ONE, 1.2, answered=False) == [], "it has spoken meanwhile"
    cut_off = Spread(ONE, TWO)
    assert sorted(cut_off.machines.due(2.0)) == [ONE, TWO]
    assert cut_off.answer(ONE, 2.3, answered=False) == [], "our own cable, more likely"


def test_the_only_other_machine_counts_as_gone() -> None:
    job = Spread(ONE)
    assert job.machines.due(2.0) == [ONE]
    assert job.answer(ONE, 2.3, answered=False) == ["worker-0"]


def test_a_machine_must_have_answered_lately() -> None:
    job = Spread(ONE, TWO)
    now_s = AGAIN_S + 1.0
    for number in range(2):
        job.hear(number, now_s)
    assert sorted(job.machines.due(now_s)) == [ONE, TWO]
    assert job.answer(ONE, now_s + 0.3, answered=False) == [], "a firewall has been put up"
    job.hear(1, now_s + 2.0)
    assert ONE not in job.machines.due(now_s + 2.0)

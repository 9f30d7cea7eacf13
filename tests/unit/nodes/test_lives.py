"""What a node's agent, life and fate are together, and the word that status shows for it."""

import pytest

from paceline.protocol.nodes.ends import AgentEnd
from paceline.protocol.nodes.exits import Judged
from paceline.protocol.nodes.lives import EndOrder, Fate, LifePhase, Presence
from paceline.protocol.nodes.node import KeepRecord, Launch, Node, Retire
from paceline.protocol.nodes.orders import NodeOrders
from paceline.wire.events.nodes import Verdict
from paceline.wire.messages.agent import ExitEvidence
from tests.unit.nodes.test_membership import AS_ORDERED, LOST_AFTER_S, Job, of


def word(job: Job, node: str = "worker-0") -> str:
    return job.members.roster.nodes[node].word


def test_status_shows_how_far_a_node_has_come() -> None:
    job = Job(budget=5)
    assert word(job) == "pending"
    job.hello("worker-0", 50)
    assert word(job) == "starting"
    job.up("worker-0")
    assert word(job) == "running"
    job.exit("worker-0")
    assert word(job) == "starting", "the first relaunch does not wait"
    job.exit("worker-0")
    assert word(job) == "backing off"
    job.tick(job.spec.backoff_s)
    assert word(job) == "starting"


def test_a_node_whose_agent_is_launched_again_is_pending() -> None:
    job = Job(budget=5)
    job.run("worker-0")
    job.exit("worker-0")
    job.exit("worker-0")
    job.members.agent_ended("worker-0", "50", AgentEnd(why="exit code 1"), job.now_s)
    assert word(job) == "pending"
    job.hello("worker-0", 51)
    assert word(job) == "pending", "its agent is there, and its time has not come"


def test_a_running_node_is_running_whatever_becomes_of_its_agent() -> None:
    job = Job()
    job.run("worker-0")
    job.members.stream_lost("worker-0", job.now_s)
    job.tick(LOST_AFTER_S)
    assert job.members.roster.nodes["worker-0"].agent.presence is Presence.RELAUNCHED
    assert word(job) == "running"


def test_the_next_master_awaits_agents_that_may_be_there_and_launches_the_others() -> None:
    job = Job(num_workers=2)
    for node in ("server-0", "worker-0", "worker-1"):
        job.run(node)
    later = job.restarted(awaited=("worker-0",))
    shown = {node.name: node.word for node in later.members.roster.nodes.values()}
    assert shown == {"server-0": "pending", "worker-0": "not known", "worker-1": "pending"}
    later.hello("worker-0", 50, later.process("worker-0"))
    assert word(later) == "running"


def test_what_ends_while_the_job_ends_is_lost() -> None:
    job = Job()
    job.run("worker-0")
    job.members.close(job.now_s, 1.0)
    job.exit("worker-0", AS_ORDERED)
    assert word(job) == "lost"


@pytest.mark.parametrize(
    ("returned", "shown"),
    [(ExitEvidence(exit_code=0), "finished"), (ExitEvidence(signal=9), "failed")],
)
def test_the_last_life_says_how_it_ended(returned: ExitEvidence, shown: str) -> None:
    job = Job(budget=0)
    job.run("worker-0")
    job.members.roster.nodes["worker-0"].life.returned = shown == "finished"
    job.exit("worker-0", returned)
    assert word(job) == shown


def test_a_life_that_ends_to_move_still_moves_when_the_user_kills_it() -> None:
    job = Job(budget=0)
    job.run("worker-0")
    orders = NodeOrders(job.members)
    job.note(orders.restart("worker-0", 1.0, grace_s=5.0))
    orders.kill("worker-0")
    ended = job.exit("worker-0")
    assert of(Launch, ended) == [Launch("worker-0")]
    assert job.members.roster.nodes["worker-0"].past.decided == 1


def test_a_worker_that_leaves_leaves_even_if_it_is_refused_meanwhile() -> None:
    job = Job(num_workers=2)
    job.run("worker-0")
    inc = job.run("worker-1")
    orders = NodeOrders(job.members)
    job.note(orders.scale(1, 1.0, grace_s=5.0))
    job.note(orders.refuse(inc, "another model"))
    assert job.members.roster.nodes["worker-1"].fate is Fate.LEAVES
    later = job.restarted()
    assert Retire("worker-1") in later.first
    assert "worker-1" not in later.members.roster.nodes


def test_a_name_that_is_given_again_is_a_worker_that_stays_also_for_the_next_master() -> None:
    job = Job(num_workers=2)
    job.run("worker-0")
    job.run("worker-1")
    orders = NodeOrders(job.members)
    job.note(orders.scale(1, 1.0, grace_s=5.0))
    job.exit("worker-1", AS_ORDERED)
    name, acts = orders.join("elsewhere", 2.0)
    job.note(acts)
    assert name == "worker-1"
    later = job.restarted(awaited=("worker-0",))
    assert later.members.roster.nodes["worker-1"].fate is Fate.STAYS
    assert Retire("worker-1") not in later.first


def test_a_worker_that_is_absent_stays_so_after_a_compaction() -> None:
    job = Job(num_workers=2)
    job.run("worker-0")
    del job.members.roster.nodes["worker-1"]
    job.kept = [KeepRecord(record) for record in job.members.roster.snapshot()]
    assert Launch("worker-1") not in job.restarted(awaited=("worker-0",)).first


def test_a_worker_that_leaves_still_does_after_a_compaction() -> None:
    job = Job(num_workers=1)
    job.run("worker-0")
    job.note(NodeOrders(job.members).scale(2, 1.0, grace_s=5.0))
    job.run("worker-1")
    job.note(NodeOrders(job.members).scale(1, 1.0, grace_s=5.0))
    job.kept = [KeepRecord(record) for record in job.members.roster.snapshot()]
    later = job.restarted(awaited=("worker-0", "worker-1"))
    assert Retire("worker-1") in later.first
    assert set(later.members.roster.nodes) == {"server-0", "worker-0"}


def test_what_a_life_was_is_not_what_the_next_one_is() -> None:
    job = Job(budget=5)
    job.run("worker-0")
    node = job.members.roster.nodes["worker-0"]
    NodeOrders(job.members).kill("worker-0")
    job.exit("worker-0")
    life = node.life
    assert (life.phase, life.end, life.up, life.note) == (
        LifePhase.STARTING,
        EndOrder.NONE,
        None,
        "",
    )


def test_equal_ends_are_counted_and_another_begins_the_count_again() -> None:
    node = Node("worker-0", "worker", 0)
    sign = Judged("error", Verdict.RETRYABLE, "", sign=("ValueError", 3)).sign
    for _ in range(2):
        node.past.remember(sign)
    assert (node.past.previous, node.past.repeats) == (sign, 2)
    node.past.remember(None)
    assert (node.past.previous, node.past.repeats) == (None, 1)

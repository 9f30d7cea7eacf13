"""What the platform's words do: nothing to a node whose agent speaks."""

import itertools

import pytest

from paceline.protocol.nodes.lives import REFUSED_MAX_S
from paceline.protocol.nodes.membership import AGENT_START_S
from paceline.protocol.nodes.node import (
    BROKEN_RETURN_S,
    RETURN_S,
    FailJob,
    Launch,
    Start,
    WorkerLost,
)
from paceline.protocol.nodes.orders import NodeOrders
from paceline.protocol.nodes.platform import (
    AgentGone,
    AnyWord,
    NodePlaces,
    PlaceDraining,
    PlaceLost,
    PlacePending,
    PlaceRefused,
    PlaceTaken,
)
from paceline.wire.events.nodes import (
    NodeLostEvent,
    NotSharedEvent,
    PlaceDrainingEvent,
    PlacePendingEvent,
    PlaceRefusedEvent,
    RelaunchEvent,
    UnbackedEvent,
)
from paceline.wire.messages.agent import AgentHello
from paceline.wire.messages.node import ProcessUp
from tests.unit.nodes.test_membership import LOST_AFTER_S, Job, joined, of

NODE = "worker-0"


def say(job: Job, word: AnyWord) -> list[object]:
    return job.note(NodePlaces(job.members).heard(word, job.now_s))


def departed(job: Job, after_s: float, *, group_broke: bool = False) -> list[object]:
    now_s = job.now_s + after_s
    return job.note(NodePlaces(job.members).departed(now_s, group_broke=group_broke))


def word_of(job: Job) -> str:
    return job.members.roster.nodes[NODE].word


def test_a_place_that_is_called_dead_costs_a_node_that_speaks_nothing() -> None:
    job = Job()
    job.run(NODE)
    acts = say(job, PlaceLost(node=NODE, why="raylet"))
    assert of(UnbackedEvent, acts) and not of(WorkerLost, acts) and not of(Launch, acts)
    assert not say(job, PlaceLost(node=NODE, why="raylet")), "once"
    assert word_of(job) == "unbacked"
    say(job, PlaceTaken(node=NODE, host="h"))
    assert word_of(job) == "running", "it is reachable again"


def test_a_machine_that_does_not_see_the_jobs_directory_is_named_once() -> None:
    job = Job()
    job.run(NODE)
    places = NodePlaces(job.members)
    heard = [
        *places.heard(PlaceTaken(node=NODE, host="one"), job.now_s),
        *places.heard(PlaceTaken(node=NODE, host="two", unseen="/jobs/train"), job.now_s),
        *places.heard(PlaceTaken(node=NODE, host="three", unseen="/jobs/train"), job.now_s),
    ]
    assert [type(act) for act in heard] == [NotSharedEvent]
    (event,) = of(NotSharedEvent, heard)
    assert "(/jobs/train is not on two)" in event.sentence()


def test_a_place_that_is_called_dead_is_another_ones_where_nobody_speaks() -> None:
    job = Job()
    job.run(NODE)
    job.members.stream_lost(NODE, job.now_s)
    acts = say(job, PlaceLost(node=NODE, why="raylet"))
    assert of(Launch, acts) and not of(WorkerLost, acts), "its process may live on"


def test_a_launch_that_waits_for_its_place_is_not_launched_again() -> None:
    job = Job()
    assert of(PlacePendingEvent, say(job, PlacePending(node=NODE, why="no room")))
    assert not say(job, PlacePending(node=NODE, why="no room")), "once"
    assert not say(job, PlacePending(node=NODE, why="1 CPU is free")), "for people to see"
    assert job.members.roster.nodes[NODE].place.why == "1 CPU is free"
    job.members.heard("worker-1", 1000.0)
    assert not [one for one in of(Launch, job.tick(1000.0)) if one.node == NODE]
    say(job, PlaceTaken(node=NODE, host="h"))
    assert not [one for one in of(Launch, job.tick(1001.0)) if one.node == NODE]


def test_a_silent_life_is_given_up_also_where_another_agent_waits_for_its_place() -> None:
    job = Job()
    job.run(NODE)
    job.others_wait = True
    job.members.heard("server-0", 1000.0)
    job.members.heard(NODE, 100.0)
    silent_s = 100.0 + LOST_AFTER_S
    assert of(Launch, job.tick(silent_s)), "its machine may be cut off"
    say(job, PlacePending(node=NODE, why="no room"))
    assert not of(WorkerLost, job.tick(silent_s + 1.0)), "an agent has time to come up"
    acts = job.tick(silent_s + max(LOST_AFTER_S, AGENT_START_S))
    assert of(WorkerLost, acts) and of(NodeLostEvent, acts)
    assert not of(Launch, acts), "another place was asked for already"
    assert not of(Launch, job.tick(500.0))
    assert of(Start, job.hello(NODE, 51)), "it has come"


QUOTA = "403 exceeded quota"


def trains(num_workers: int, *, min_workers: int = 1) -> Job:
    """A job of which all workers train but the first, which the platform has refused."""
    job = Job(num_workers=num_workers, num_servers=0, min_workers=min_workers, budget=3)
    for number in range(1, num_workers):
        job.run(f"worker-{number}")
    assert of(PlaceRefusedEvent, say(job, PlaceRefused(node=NODE, why=QUOTA)))
    return job


def hear_refusals(job: Job, until_s: float) -> tuple[list[float], list[object]]:
    """Refuse each launch that follows; when they came, and all that was decided."""
    launches, heard = list[float](), list[object]()
    while job.now_s < until_s:
        for name in job.members.roster.nodes:
            if name != NODE:
                job.members.heard(name, job.now_s)
        acts: list[object] = [*job.tick(job.now_s + 0.5)]
        if [one for one in of(Launch, acts) if one.node == NODE]:
            launches.append(job.now_s)
            acts += say(job, PlaceRefused(node=NODE, why=QUOTA))
        heard += acts
        if of(FailJob, acts):
            break
    return launches, heard


def test_a_quota_that_refuses_for_an_hour_costs_nothing_and_is_told_once() -> None:
    job = trains(3)
    launches, heard = hear_refusals(job, 3600.0)
    waits_s = [b - a for a, b in itertools.pairwise(launches)]
    assert waits_s[:6] == pytest.approx([2, 4, 8, 16, 32, 64], abs=1.0)
    assert max(waits_s) <= REFUSED_MAX_S + 1.0
    assert not of(FailJob, heard)
    assert not of(PlaceRefusedEvent, heard) and not of(RelaunchEvent, heard)
    assert job.members.roster.num_restarts() == 0
    assert word_of(job) == "refused"
    assert of(Launch, job.tick(job.now_s + REFUSED_MAX_S))
    say(job, PlaceTaken(node=NODE, host="h"))
    assert of(Start, job.hello(NODE, 9)), "as soon as there is a place"
    assert of(PlaceRefusedEvent, say(job, PlaceRefused(node=NODE, why=QUOTA))), "it is news again"


@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_job_ends_when_what_it_needs_was_refused_for_too_long(num_workers: int) -> None:
    job = trains(num_workers, min_workers=num_workers)
    _, heard = hear_refusals(job, 1000.0)
    (failed,) = of(FailJob, heard)
    assert job.now_s == pytest.approx(job.members.places_s, abs=2.0)
    assert failed.reason.startswith(f"worker-0: its place was refused for 300 s ({QUOTA}), and")


def test_a_refusal_says_nothing_about_a_life_that_may_go_on() -> None:
    job = Job(num_servers=0)
    job.run(NODE)
    job.members.stream_lost(NODE, job.now_s)
    acts = say(job, PlaceRefused(node=NODE, why=QUOTA))
    assert of(PlaceRefusedEvent, acts) and not of(WorkerLost, acts)


def test_a_life_that_is_given_up_after_a_refusal_has_its_place_asked_for_again() -> None:
    job = Job(num_servers=0)
    job.run(NODE)
    job.others_wait = True
    job.members.stream_lost(NODE, job.now_s)
    assert of(Launch, job.tick(LOST_AFTER_S))
    say(job, PlaceRefused(node=NODE, why=QUOTA))
    acts = job.tick(100.0)
    assert of(WorkerLost, acts) and of(Launch, acts)


def test_an_agent_that_is_back_after_a_refusal_needs_no_other_place() -> None:
    job = Job(num_servers=0)
    job.run(NODE)
    job.members.stream_lost(NODE, job.now_s)
    say(job, PlaceRefused(node=NODE, why=QUOTA))
    job.hello(NODE, 50, job.process(NODE))
    acts = job.exit(NODE)
    assert of(Start, acts) and not of(Launch, acts)


def test_a_node_whose_place_drains_is_to_leave_until_it_has_or_the_time_is_over() -> None:
    job = Job(num_servers=2)
    places = NodePlaces(job.members)
    for name in ("server-0", "server-1"):
        job.run(name)
        places.heard(PlaceDraining(node=name, why="spot", within_s=60.0), 10.0)
    assert [(one.node, one.left_s) for one in places.leavers(30.0)] == [
        ("server-0", 40.0),
        ("server-1", 40.0),
    ]
    orders = NodeOrders(job.members)
    job.note(orders.replace_server("server-0", 30.0, "spot"))
    assert [one.node for one in places.leavers(31.0)] == ["server-1"], "the other is on its way"
    places.heard(PlaceDraining(node="server-1", why="spot", within_s=5.0), 40.0)
    assert [one.left_s for one in places.leavers(41.0)] == [4.0], "the newest word counts"
    assert places.leavers(45.0) == (), "it is too late"


def test_a_place_that_goes_away_is_told_of_once() -> None:
    job = Job()
    job.run(NODE)
    assert of(PlaceDrainingEvent, say(job, PlaceDraining(node=NODE, why="spot")))
    assert not say(job, PlaceDraining(node=NODE, why="spot"))
    assert word_of(job) == "draining"


def test_an_agent_that_is_gone_is_replaced_and_its_process_kept() -> None:
    job = Job()
    job.run(NODE)
    launch = job.members.roster.nodes[NODE].agent.launch
    acts = say(job, AgentGone(node=NODE, launch=launch))
    assert of(Launch, acts) and not of(WorkerLost, acts)


def test_a_machine_that_closed_its_connection_and_does_not_come_back_is_lost() -> None:
    job = Job()
    job.run(NODE)
    job.members.roster.nodes[NODE].agent.is_remote = True
    job.members.stream_lost(NODE, job.now_s)
    assert not departed(job, RETURN_S / 2)
    acts = departed(job, RETURN_S)
    assert of(WorkerLost, acts) and of(NodeLostEvent, acts)
    assert [one.node for one in of(Launch, acts)] == [NODE], "at another place"
    assert RETURN_S < LOST_AFTER_S


def test_a_machine_whose_group_broke_as_well_is_lost_sooner() -> None:
    job = Job()
    job.run(NODE)
    job.members.roster.nodes[NODE].agent.is_remote = True
    job.members.stream_lost(NODE, job.now_s)
    assert not departed(job, BROKEN_RETURN_S / 2, group_broke=True)
    assert not departed(job, BROKEN_RETURN_S)
    assert of(WorkerLost, departed(job, BROKEN_RETURN_S, group_broke=True))
    assert not departed(job, BROKEN_RETURN_S, group_broke=True), "once"


def test_an_agent_that_speaks_is_not_lost_with_its_group() -> None:
    job = Job()
    job.run(NODE)
    job.members.roster.nodes[NODE].agent.is_remote = True
    assert not departed(job, RETURN_S, group_broke=True)


def test_a_machine_is_not_missed_while_the_job_closes() -> None:
    job = Job()
    job.run(NODE)
    job.members.roster.nodes[NODE].agent.is_remote = True
    job.note(job.members.close(job.now_s, 5.0))
    job.members.stream_lost(NODE, job.now_s)
    assert not departed(job, RETURN_S)


def test_a_machine_that_comes_back_in_time_has_lost_nothing() -> None:
    job = Job()
    job.run(NODE)
    job.members.roster.nodes[NODE].agent.is_remote = True
    pid = job.members.roster.nodes[NODE].agent.pid
    job.members.stream_lost(NODE, job.now_s)
    job.hello(NODE, pid, job.process(NODE))
    assert not departed(job, 2 * RETURN_S)
    assert not of(Start, job.tick(job.now_s + 2 * RETURN_S))


def test_of_two_machines_agents_the_one_stays_that_has_the_node_or_runs_its_life() -> None:
    def hello(machine: str, *running: ProcessUp) -> AgentHello:
        files = f"{machine}:5000" if machine else ""
        return AgentHello(node=NODE, agent="a", agent_pid=7, host="h", running=running, files=files)

    job = Job()
    old = hello("10.0.0.2")
    assert not job.members.roster.nodes[NODE].turns_away(old), "nobody is there"
    job.note(job.members.hello(old, job.now_s))
    job.up(NODE)
    former = job.process(NODE)
    assert not job.members.roster.nodes[NODE].turns_away(hello("10.0.0.2", former)), (
        "it comes again"
    )
    job.members.launch(job.members.roster.nodes[NODE], job.now_s)
    new = hello("10.0.0.3")
    assert not job.members.roster.nodes[NODE].turns_away(new), "another one was asked for"
    job.note(job.members.hello(new, job.now_s))
    assert not job.members.roster.nodes[NODE].turns_away(hello("10.0.0.2", former)), (
        "it runs the node's life"
    )
    job.tick(job.now_s + 2.0)
    assert job.members.roster.nodes[NODE].life.inc > former.inc, "another life has begun"
    assert job.members.roster.nodes[NODE].turns_away(hello("10.0.0.2", former))
    assert job.members.roster.nodes[NODE].turns_away(hello(""))


def test_a_machine_that_joined_and_closed_its_connection_is_given_up_and_may_return() -> None:
    job = Job(num_servers=0)
    job.run(NODE)
    name = joined(job)
    inc = job.run(name, 70)
    job.members.roster.nodes[name].agent.is_remote = True
    job.members.stream_lost(name, job.now_s)
    assert not departed(job, RETURN_S / 2)
    acts = departed(job, RETURN_S)
    assert of(WorkerLost, acts) == [WorkerLost(inc)] and of(NodeLostEvent, acts)
    assert not of(Launch, acts) and not of(RelaunchEvent, acts), "nobody can start it there"
    assert of(Start, job.hello(name, 70)), "it takes its own place again"
    job.up(name)
    job.members.stream_lost(name, job.now_s)
    assert of(WorkerLost, departed(job, RETURN_S))
    job.members.heard(NODE, 2 * LOST_AFTER_S)
    acts = job.tick(2 * LOST_AFTER_S)
    assert name not in job.members.roster.nodes, "it has not come back"
    assert not of(NodeLostEvent, acts), "that was told"

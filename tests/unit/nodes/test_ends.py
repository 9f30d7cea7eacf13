"""Ends of agents in words, and ends with a place, which cost a node no restart."""

import signal

import pytest

from paceline.protocol.nodes.ends import TAKEN_AWAY, AgentEnd, EndKind, end_of
from paceline.protocol.nodes.node import FailJob, Launch, Start
from paceline.protocol.nodes.platform import (
    AgentGone,
    AnyWord,
    NodePlaces,
    PlaceDraining,
    PlaceLost,
)
from paceline.wire.events.nodes import ProcessExitedEvent, Verdict
from paceline.wire.messages.agent import ExitEvidence
from tests.unit.nodes.test_membership import Job, of

NODE = "worker-0"


def say(job: Job, word: AnyWord) -> list[object]:
    return [*job.note(NodePlaces(job.members).heard(word, job.now_s))]


@pytest.mark.parametrize(
    ("end", "words"),
    [
        (AgentEnd(), ""),
        (AgentEnd(code=3), "exit code 3"),
        (AgentEnd(signal=9), "signal SIGKILL"),
        (AgentEnd(signal=200), "signal 200"),
        (AgentEnd(code=2, why="no such file"), "no such file"),
        (AgentEnd(signal=9, kind=EndKind.OOM), "out of memory: signal SIGKILL"),
        (AgentEnd(kind=EndKind.NODE_LOST, why="raylet"), "its machine is lost: raylet"),
        (AgentEnd(kind=EndKind.EVICTED), "the platform took its place away"),
        (AgentEnd(kind=EndKind.IMAGE, why="ErrImagePull"), "its image cannot be had: ErrImagePull"),
    ],
)
def test_an_end_says_its_cause(end: AgentEnd, words: str) -> None:
    assert end.words == words


@pytest.mark.parametrize(
    ("code", "oom_kills", "end"),
    [
        (0, 0, AgentEnd(code=0)),
        (3, 5, AgentEnd(code=3)),
        (None, 0, AgentEnd()),
        (-9, 0, AgentEnd(signal=9)),
        (-9, 1, AgentEnd(signal=9, kind=EndKind.OOM)),
        (-15, 1, AgentEnd(signal=15)),
    ],
)
def test_what_a_machine_knows_of_an_end(code: int | None, oom_kills: int, end: AgentEnd) -> None:
    assert end_of(code, oom_kills=oom_kills) == end


def lost_with_its_place(job: Job, kind: EndKind, *, whole: bool) -> list[object]:
    """End the node's agent, and have the next agent find nothing of its process."""
    node = job.members.roster.nodes[NODE]
    end = AgentEnd(kind=kind, whole=whole)
    acts = say(job, AgentGone(node=NODE, launch=node.agent.launch, end=end))
    job.now_s += 400.0
    acts += job.tick(job.now_s)
    acts += job.hello(NODE, int(node.agent.launch) + 1)
    acts += job.tick(job.now_s + 2.0)
    return acts


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("kind", sorted(TAKEN_AWAY))
def test_a_place_that_is_taken_away_costs_no_restart_however_often(
    kind: EndKind, whole: bool
) -> None:
    job = Job(budget=0)
    job.run(NODE)
    for _ in range(5):
        acts = lost_with_its_place(job, kind, whole=whole)
        assert of(Launch, acts) and of(Start, acts) and not of(FailJob, acts)
        (ended,) = of(ProcessExitedEvent, acts)
        assert (ended.verdict, ended.reason) == (Verdict.TAKEN_AWAY, AgentEnd(kind=kind).words)
        job.up(NODE)
    assert job.members.roster.num_restarts() == 0


def test_memory_that_ended_all_of_a_node_is_known_as_such() -> None:
    job = Job()
    job.run(NODE)
    (ended,) = of(ProcessExitedEvent, lost_with_its_place(job, EndKind.OOM, whole=True))
    assert ended.verdict is Verdict.OOM and "out of memory" in ended.reason
    assert job.members.roster.num_restarts() == 1


def test_an_agent_whose_place_is_taken_away_before_it_came_up_costs_no_restart() -> None:
    job = Job(budget=0)
    for _ in range(5):
        end = AgentEnd(kind=EndKind.PREEMPTED)
        acts = say(job, AgentGone(node=NODE, end=end))
        assert not of(FailJob, acts)
        job.now_s += 400.0
        job.tick(job.now_s)
    assert job.members.roster.num_restarts() == 0


def test_a_process_that_is_killed_on_a_place_that_drains_was_taken_away() -> None:
    job = Job(budget=0)
    job.run(NODE)
    say(job, PlaceDraining(node=NODE, why="spot", within_s=5.0))
    (ended,) = of(ProcessExitedEvent, job.exit(NODE, ExitEvidence(signal=signal.SIGKILL)))
    assert ended.verdict is Verdict.TAKEN_AWAY


def test_a_place_that_is_called_lost_says_so_of_a_process_that_nobody_saw_end() -> None:
    job = Job(budget=0)
    job.run(NODE)
    job.members.stream_lost(NODE, job.now_s)
    acts = say(job, PlaceLost(node=NODE, why="raylet", kind=EndKind.PREEMPTED))
    assert of(Launch, acts)
    acts = [*job.hello(NODE, 51), *job.tick(job.now_s + 2.0)]
    assert of(Start, acts) and not of(FailJob, acts)


def test_a_process_that_outlives_its_agent_ends_by_its_own_later_on() -> None:
    job = Job()
    job.run(NODE)
    launch = job.members.roster.nodes[NODE].agent.launch
    say(job, AgentGone(node=NODE, launch=launch, end=AgentEnd(signal=9, kind=EndKind.OOM)))
    job.hello(NODE, 51, job.process(NODE))
    (ended,) = of(ProcessExitedEvent, job.exit(NODE, ExitEvidence(signal=9)))
    assert ended.verdict is Verdict.RETRYABLE

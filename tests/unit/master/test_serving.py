"""Nodes of other machines hear who serves files: all of them at first, then what has changed."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from paceline.base.jobdir import JobDir
from paceline.cuts.store import LocalCuts
from paceline.master.serving import TELL_S, CutsServed
from paceline.protocol.nodes.agent import KnowServers, NodeState
from paceline.wire.control import AgentStream
from paceline.wire.messages.agent import AgentHello, FileServers
from paceline.wire.spec import JobSpec, save


class HeardStream:
    """What a node is told, as its agent takes it in."""

    def __init__(self, node: str) -> None:
        self.state = NodeState(node)
        self.heard: list[FileServers] = []
        self.known: FileServers | None = None

    def send_nowait(self, message: FileServers) -> None:
        self.heard.append(message)
        (act,) = self.state.on_master(message, 0.0)
        assert isinstance(act, KnowServers)
        self.known = act.servers


class ServedJob:
    def __init__(self, job: JobDir) -> None:
        self.served = CutsServed(job, LocalCuts(job.cuts, job.memory))
        self.nodes: dict[str, HeardStream] = {}

    def come(self, name: str) -> None:
        stream: Any = HeardStream(name)
        self.nodes[name] = stream
        hello = AgentHello(
            node=name, agent=name, agent_pid=1, host="h", files=f"tcp://10.0.0.9:{name}"
        )
        self.served.hello(cast(AgentStream, stream), hello)

    def known(self, name: str) -> set[str]:
        told = self.nodes[name].known
        assert told is not None
        assert told.master
        assert all(address == f"tcp://10.0.0.9:{node}" for node, address in told.nodes.items())
        return set(told.nodes)


@pytest.fixture
def job(tmp_path: Path) -> Iterator[ServedJob]:
    directory = JobDir(tmp_path / "served")
    directory.fill()
    save(JobSpec(script="/train.py"), directory.spec)
    served = ServedJob(directory)
    yield served
    served.served.close()
    for path in sorted(directory.run_dir.rglob("*"), reverse=True):
        path.unlink()
    directory.run_dir.rmdir()


def test_a_node_that_comes_knows_all_at_once_and_the_others_soon(job: ServedJob) -> None:
    for name in ("a", "b", "c"):
        job.come(name)
    assert [job.known(name) for name in ("a", "b", "c")] == [{"a"}, {"a", "b"}, {"a", "b", "c"}]
    job.served.tick(5.0)
    assert all(job.known(name) == {"a", "b", "c"} for name in job.nodes)


def test_a_node_that_is_gone_is_taken_off_and_one_that_returns_is_told_anew(
    job: ServedJob,
) -> None:
    for name in ("a", "b", "c"):
        job.come(name)
    job.served.tick(5.0)
    job.served.gone("b")
    job.served.tick(5.0 + TELL_S / 2)
    assert job.known("a") == {"a", "b", "c"}, "it is not told at once"
    job.served.tick(5.0 + TELL_S)
    assert job.known("a") == job.known("c") == {"a", "c"}
    job.come("b")
    assert job.known("b") == {"a", "b", "c"}
    job.served.tick(5.0 + 2 * TELL_S)
    assert job.known("a") == {"a", "b", "c"}


def test_nodes_that_come_together_cost_one_word_to_each(job: ServedJob) -> None:
    names = [f"n{number}" for number in range(100)]
    for name in names:
        job.come(name)
    job.served.tick(5.0)
    job.served.tick(6.0)
    heard = [len(node.heard) for node in job.nodes.values()]
    assert heard == [2] * len(names)
    job.come("late")
    job.served.tick(7.0)
    assert [len(node.heard[-1].nodes) for node in job.nodes.values()] == [1] * 101

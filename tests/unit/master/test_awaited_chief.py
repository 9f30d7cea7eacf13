"""Workers wait for worker 0 where they would begin their next loop, but not for ever."""

from pathlib import Path
from typing import Any

import pytest

from paceline.base.jobdir import JobDir
from paceline.base.samples import Span
from paceline.master.holding.group import GroupEdge
from paceline.master.monitor import Monitor
from paceline.master.parts import MasterParts
from paceline.master.training import Training
from paceline.protocol.nodes.lives import Fate
from paceline.protocol.nodes.membership import Membership
from paceline.protocol.samples.awaited_chief import LONGEST_S
from paceline.wire.messages.agent import NodeFacts
from paceline.wire.messages.feeds import Feed
from paceline.wire.messages.node import AskPlace, FeedOpened, OpenFeed, PlaceIs, ProcessUp
from paceline.wire.spec import JobSpec, NodeSpec, RestartSpec
from tests.unit.master.test_training import NoBackend, Recorded

NODES = ("worker-0", "worker-1", "worker-2")
SIZE = 64


def loop(number: int, purpose: str = "train") -> Feed:
    return Feed(
        feed=number,
        place=(0, number),
        purpose=purpose,
        num_samples=SIZE,
        epochs=1,
        batch_size=8,
        shard_size=8,
        shuffle=False,
        seed=0,
    )


class Job:
    """Three workers that have done their first loop together."""

    def __init__(self, path: Path, min_workers: int = 1) -> None:
        self.job = job = JobDir(path)
        job.cuts.mkdir()
        self.failed: list[str] = []
        workers = NodeSpec(count=3)
        spec = JobSpec(
            script="train.py", strategy="allreduce", workers=workers, min_workers=min_workers
        )
        self.members = Membership(num_workers=3, num_servers=0, restart=RestartSpec())
        backend = NoBackend()
        self.outbox = Recorded(job, self.members, backend)
        parts = MasterParts(job, spec, backend, self.members, Monitor(), self.outbox)
        self.edge = GroupEdge(spec)
        self.training = Training(parts, self.edge, self.failed.append, lambda found: None)
        self.now_s = 0.0
        for name in NODES:
            self.live(name)
            self.opens(name, 0)
        self.training.state.ledger.advance([Span(0, 0, SIZE)])

    def live(self, name: str) -> None:
        """A life of this node begins."""
        node = self.members.roster.nodes[name]
        self.members._new_life(node, self.now_s)
        up = ProcessUp(node=name, inc=node.life.inc, pid=1, role="worker", address="")
        self.members.process_up(up, self.now_s)
        self.training.worker_up(node.life.inc)

    def die(self, name: str) -> None:
        node = self.members.roster.nodes[name]
        self.training.worker_lost(node.life.inc)
        self.members.lost(node)

    def opens(self, name: str, number: int, purpose: str = "train", step: int = 8) -> set[str]:
        """A worker comes to a loop; who hears that it is open."""
        inc = self.members.roster.nodes[name].life.inc
        self.say(name, OpenFeed(inc=inc, feed=loop(number, purpose), step=step))
        told = [one for one in self.outbox.sent if isinstance(one[1], FeedOpened)]
        return {NODES[index] for inc, _ in told for index in [self._index(inc)]}

    def is_awaited(self, name: str) -> bool:
        inc = self.members.roster.nodes[name].life.inc
        self.say(name, AskPlace(inc=inc))
        ((_, answer),) = self.outbox.sent
        assert isinstance(answer, PlaceIs)
        return answer.awaited

    def say(self, name: str, message: Any) -> None:
        self.outbox.sent.clear()
        self.training.handle(name, message, self.now_s)

    def _index(self, inc: int) -> int:
        node = self.members.roster.node_of(inc)  # type: ignore[arg-type]
        assert node is not None
        return NODES.index(node.name)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def test_the_next_loop_is_open_once_the_first_worker_comes_to_it(job: Job) -> None:
    assert job.opens("worker-1", 1) == set()
    assert job.opens("worker-2", 1) == set()
    assert job.opens("worker-0", 1) == set(NODES)


def test_a_new_life_of_it_is_waited_for(job: Job) -> None:
    job.die("worker-0")
    assert job.opens("worker-1", 1) == set()
    job.live("worker-0")
    assert job.opens("worker-1", 1) == set()
    assert job.is_awaited("worker-0")
    assert not job.is_awaited("worker-2")
    assert job.opens("worker-0", 0) == {"worker-0"}
    assert job.is_awaited("worker-0"), "it has not done what stands behind the loop"
    assert job.opens("worker-0", 1) == {"worker-0", "worker-1"}
    assert not job.is_awaited("worker-0")


def test_evaluations_and_loops_that_are_open_wait_for_nobody(job: Job) -> None:
    job.die("worker-0")
    assert job.opens("worker-1", 1, "evaluate") == {"worker-1"}
    assert job.opens("worker-1", 0) == {"worker-1"}


def test_what_they_held_is_not_known_so_nobody_waits(job: Job) -> None:
    job.training.state.ledger.restore((), again=True)
    job.die("worker-0")
    assert job.opens("worker-1", 1, step=-1) == {"worker-1"}


@pytest.mark.parametrize("fate", [Fate.FINISHED, Fate.FAILED, Fate.LEAVES])
def test_one_that_does_not_come_again_is_not_waited_for(job: Job, fate: Fate) -> None:
    job.die("worker-0")
    assert job.opens("worker-1", 1) == set()
    job.members.roster.nodes["worker-0"].fate = fate
    assert job.opens("worker-2", 1) == {"worker-2"}
    assert job.opens("worker-1", 1) == {"worker-1"}


def give_up(job: Job, number: int) -> None:
    """Worker 0 has died, and no life of it has come in time."""
    assert job.opens("worker-1", number) == set()
    job.now_s += LONGEST_S
    assert job.opens("worker-1", number) == set()
    job.now_s += 1.0
    assert job.opens("worker-1", number) == {"worker-1"}


def test_one_that_never_comes_is_given_up_once_and_that_is_said(job: Job) -> None:
    job.die("worker-0")
    give_up(job, 1)
    assert not job.training.state.awaited, "a life that comes later goes to where the others are"
    assert job.opens("worker-1", 2) == {"worker-1"}
    job.outbox.flush()
    lines = job.job.events.read_text().splitlines()
    (told,) = (line for line in lines if "chief_missed" in line and "worker-0" in line)
    assert '"waited_s":61.0' in told
    job.live("worker-0")
    job.opens("worker-0", 2)
    assert job.opens("worker-1", 3) == set(), "it is there again"
    job.opens("worker-0", 3)
    job.now_s += 2 * LONGEST_S
    job.die("worker-0")
    give_up(job, 4)


def test_the_time_it_had_alive_does_not_count(job: Job) -> None:
    assert job.opens("worker-1", 1) == set()
    job.now_s = 300.0
    assert job.opens("worker-1", 1) == set(), "it saves the model, say"
    job.die("worker-0")
    job.now_s += LONGEST_S - 1
    assert job.opens("worker-1", 1) == set()
    job.live("worker-0")
    assert job.opens("worker-1", 1) == set()
    job.die("worker-0")
    give_up(job, 1)


def test_one_that_waits_in_the_loop_that_others_have_left_ends_their_wait(job: Job) -> None:
    job.training.state.ledger.restore((), again=True)
    assert job.opens("worker-1", 1) == set()
    chief = job.members.roster.nodes["worker-0"].life.inc
    job.training.monitor.heartbeat("worker-0", NodeFacts(inc=chief, waiting_s=2.0), 1.0)
    assert job.opens("worker-1", 1) == {"worker-1"}, "the step finds that their loops differ"


def test_all_go_on_if_it_begins_another_loop_than_they(job: Job) -> None:
    assert job.opens("worker-1", 1) == set()
    assert job.opens("worker-0", 2) == {"worker-0", "worker-1"}

"""What ten thousand nodes cost a master's machines: calls of functions, counted, and not seconds.

Each word of a node costs the same however many nodes there are, and what is done once for all of
them grows as they do. A scan of all nodes for each word would make it a hundred times as much.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from types import FrameType

import pytest

from paceline.base.numbering import Inc, StepNo
from paceline.base.samples import Span
from paceline.master.monitor import Monitor
from paceline.master.status import describe
from paceline.protocol.acts import Instruction, Send
from paceline.protocol.holding.group.master import GroupHolder
from paceline.protocol.nodes.membership import Membership
from paceline.protocol.nodes.node import Start, WorkerLost, WorkerUp
from paceline.protocol.training import MasterState
from paceline.wire.messages.agent import AgentHello, ExitEvidence, NodeFacts, ProcessExited
from paceline.wire.messages.feeds import Feed
from paceline.wire.messages.group import (
    NO_STEP,
    CatchUp,
    GroupStopped,
    JoinGroup,
    Progress,
    RunGroup,
    StopGroup,
)
from paceline.wire.messages.node import OpenFeed, ProcessUp
from paceline.wire.spec import RestartSpec

FEED = Feed(
    feed=0,
    purpose="train",
    num_samples=10**9,
    epochs=1,
    batch_size=1,
    shard_size=100,
    shuffle=True,
    seed=0,
)
FEW, MANY = 100, 10_000
WORD = 200
"""Most calls that one word of a node takes. A scan of all nodes would be ten thousand."""


def calls_of(act: Callable[[], object]) -> int:
    """Count the calls of Python functions, and the turns of generators, that an act makes."""
    count = 0

    def note(_frame: FrameType, event: str, _arg: object) -> None:
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        act()
    finally:
        sys.setprofile(before)
    return count


class ManyNodes:
    """The machines of a master with so many workers, driven as its edges do."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.members = Membership(num_workers=size, num_servers=0, restart=RestartSpec())
        self.holder = GroupHolder(min_members=1)
        self.state = MasterState(self.holder, mode="bsp", samples="exactly-once")
        self.monitor = Monitor()
        self.now_s = 1.0
        self.incs: dict[str, Inc] = {}
        self.heard: list[Send] = []
        self.told: Counter[type] = Counter()
        self.members.begin(0.0)

    @property
    def names(self) -> Iterator[str]:
        return (f"worker-{number}" for number in range(self.size))

    def do(self, acts: Iterable[object]) -> None:
        for act in acts:
            if isinstance(act, WorkerUp):
                self.take(self.state.worker_up(act.inc, ""))
            elif isinstance(act, WorkerLost):
                self.take(self.state.worker_lost(act.inc))

    def take(self, done: Iterable[Instruction]) -> None:
        sent = [one for one in done if isinstance(one, Send)]
        self.heard += sent
        self.told.update(type(one.message) for one in sent)

    def come(self, name: str) -> None:
        """Have an agent say hello, and its process start."""
        hello = AgentHello(
            node=name, agent=name, agent_pid=7, host="h", files=f"tcp://10.0.0.1:{name}"
        )
        acts = self.members.hello(hello, self.now_s)
        self.do(acts)
        (start,) = (act.message for act in acts if isinstance(act, Start))
        self.incs[name] = start.inc
        up = ProcessUp(node=name, inc=start.inc, pid=8, role="worker")
        self.do(self.members.process_up(up, self.now_s))

    def join(self, name: str) -> None:
        word = JoinGroup(inc=self.incs[name], address=f"tcp://{name}", replica="r")
        expected = self.members.roster.num_wanted()
        self.take(self.holder.member_said(word, node=name, expected=expected, distant=True))

    def stopped(self, inc: Inc, step: StepNo, ran: int = 0) -> None:
        group = self.holder.group
        said = GroupStopped(
            epoch_no=group.epoch_no,
            inc=inc,
            group=group.number,
            step=step,
            committed=(Span(0, 0, step),) if step > 0 else (),
            ran=ran,
        )
        self.take(self.holder.member_said(said))

    def answer(self, steps: Callable[[Inc], StepNo]) -> None:
        """Answer all that was said, as members do, until nothing is said any more."""
        while self.heard:
            heard, self.heard = self.heard, []
            for one in heard:
                if isinstance(one.message, StopGroup):
                    self.stopped(one.inc, steps(one.inc))
                elif isinstance(one.message, CatchUp):
                    self.stopped(one.inc, one.message.step)

    def form_first(self) -> None:
        self.answer(lambda _: NO_STEP)
        self.take(self.holder.restore_group())
        self.answer(lambda _: NO_STEP)

    def open_feed(self, name: str) -> None:
        self.take(self.state.open_feed(OpenFeed(inc=self.incs[name], feed=FEED)))

    def progress(self, name: str, step: int) -> None:
        group = self.holder.group
        said = Progress(
            epoch_no=group.epoch_no,
            inc=self.incs[name],
            group=group.number,
            step=StepNo(step),
            committed=(Span(0, 0, step),),
        )
        self.take(self.holder.member_said(said))

    def report(self, name: str, step: int) -> None:
        self.members.heard(name, self.now_s)
        facts = NodeFacts(inc=self.incs[name], step=step, samples=step, steps=5, bpt_s=0.1)
        self.monitor.heartbeat(name, facts, self.now_s)

    def die(self, name: str) -> None:
        end = ProcessExited(node=name, inc=self.incs[name], evidence=ExitEvidence(signal=9))
        self.do(self.members.process_exited(end, self.now_s, any_committed=True))

    def status(self) -> int:
        told = describe(
            "job",
            self.state,
            self.members,
            self.monitor,
            master_pid=1,
            started_s=0.0,
            num_events=0,
            ending=None,
        )
        return len(told.nodes)

    def tick(self) -> None:
        self.now_s += 0.2
        self.do(
            self.members.tick(self.now_s, lost_after_s=5.0, others_wait=False, any_committed=True)
        )


def costs_of(size: int) -> dict[str, float]:
    """Return the number of calls for each node, by what is done."""
    job = ManyNodes(size)
    group = job.holder.group

    def each(act: Callable[[str], object]) -> float:
        return calls_of(lambda: [act(name) for name in job.names]) / size

    costs = {"hello": each(job.come), "join": each(job.join)}
    assert not group.running
    costs["form"] = calls_of(job.form_first) / size
    assert group.running
    assert len(group.members) == size
    costs["feed"] = each(job.open_feed)
    costs["progress"] = each(lambda name: job.progress(name, 100))
    costs["report"] = each(lambda name: job.report(name, 100))
    costs["tick"] = calls_of(job.tick) / size
    costs["status"] = calls_of(job.status) / size

    def death() -> None:
        job.die("worker-3")
        job.answer(lambda inc: StepNo(101 + inc % 2))

    costs["death"] = calls_of(death) / size
    assert group.running
    assert len(group.members) == size - 1
    assert job.status() == size
    return costs


@pytest.fixture(scope="module")
def few() -> dict[str, float]:
    return costs_of(FEW)


@pytest.mark.soak
def test_each_of_ten_thousand_nodes_costs_what_each_of_hundred_does(few: dict[str, float]) -> None:
    many = costs_of(MANY)
    for what, cost in many.items():
        assert cost <= min(WORD, 1.2 * few[what] + 2), (what, cost, few[what])


def test_each_of_thousand_nodes_costs_what_each_of_hundred_does(few: dict[str, float]) -> None:
    for what, cost in costs_of(1_000).items():
        assert cost <= min(WORD, 1.2 * few[what] + 2), (what, cost, few[what])


def test_all_members_are_told_once_of_each_thing() -> None:
    job = ManyNodes(FEW)
    for name in job.names:
        job.come(name)
    for name in job.names:
        job.join(name)
    assert job.told == {StopGroup: FEW}
    job.form_first()
    assert job.told == {StopGroup: FEW, CatchUp: FEW, RunGroup: FEW}

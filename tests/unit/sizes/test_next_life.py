"""A life that ended out of memory: the doubled limit is ordered before the next life is."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from paceline.base import features
from paceline.base.jobdir import JobDir
from paceline.base.numbering import Inc
from paceline.features.sizes.events import MemoryRaisedEvent
from paceline.features.sizes.master import SizesPart
from paceline.master.feature_parts import FeatureParts
from paceline.master.inbox import Inbox
from paceline.master.job_end import JobEnd
from paceline.master.members import MembersEdge
from paceline.master.node_acts import NodeActs
from paceline.master.node_sizes import NodeSizes
from paceline.master.parts import make_parts
from paceline.master.training import Training
from paceline.protocol.nodes.node import Launch, Start
from paceline.wire.events.nodes import ProcessExitedEvent, Verdict
from paceline.wire.messages.agent import LimitNode, StartProcess
from paceline.wire.places import AskedPlace
from paceline.wire.spec import JobSpec, NodeSpec, load, save
from tests.unit.master.test_training import NoBackend

MIB = 1 << 20


class Acting(NoBackend):
    """Notes what it is told, in order."""

    def __init__(self) -> None:
        self.said: list[object] = []

    def launch(self, node: str, place: AskedPlace, token: str, *, may_move: bool = False) -> None:
        self.said.append((node, place.size.memory_bytes))

    def send_nowait(self, message: object) -> None:
        self.said.append(type(message))


def test_a_doubled_limit_is_in_force_before_the_next_life(tmp_path: Path, monkeypatch: Any) -> None:
    nodes = NodeSpec(count=1, memory_bytes=300 * MIB, max_memory_bytes=4096 * MIB)
    spec, backend = JobSpec(script="t.py", strategy="allreduce", workers=nodes), Acting()
    job = JobDir(tmp_path)
    save(spec, job.spec)
    parts, times = make_parts(job, spec, cast(Any, backend), lambda: 0.0, None)
    parts.members.begin(0.0, ())
    nothing = cast(Any, None)
    edge = MembersEdge(
        parts,
        times,
        lambda _node: {},
        cast(Inbox, SimpleNamespace()),
        cast(JobEnd, nothing),
        cast(Training, nothing),
    )
    sizes = NodeSizes(parts)
    monkeypatch.setattr(features, "parts_of", lambda *_: [("sizes", SizesPart)])
    scene = cast(Any, SimpleNamespace(state=None))
    found = FeatureParts(
        parts, times, nothing, nothing, scene, nothing, nothing, NodeActs(edge, sizes)
    )
    edge.watchers.append(found.at_once)
    parts.outbox.streams["worker-0"] = cast(Any, backend)

    start = StartProcess(inc=Inc(2), role="worker", rank=0, num_workers=1)
    ended = ProcessExitedEvent(node="worker-0", inc=Inc(1), verdict=Verdict.OOM, signal=9)
    edge.act([ended, Launch(node="worker-0"), Start(node="worker-0", message=start)])
    parts.outbox.flush()

    assert [one.name for one in parts.outbox.told] == ["process_exited", "memory_raised"]
    raised = parts.outbox.told[1]
    assert isinstance(raised, MemoryRaisedEvent)
    assert raised.given_bytes == load(job.spec).workers.memory_bytes == 600 * MIB
    assert backend.said == [LimitNode, ("worker-0", 600 * MIB), StartProcess]

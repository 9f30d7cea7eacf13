"""The rooms of a master, built: each is one thing that it does."""

from typing import NamedTuple

import msgspec

from paceline.master.agents import AgentRooms, Agents
from paceline.master.feature_parts import FeatureParts
from paceline.master.holding import EDGES
from paceline.master.inbox import Inbox
from paceline.master.job_end import JobEnd
from paceline.master.journal_recovery import JournalRecovery
from paceline.master.keeping import Keeping
from paceline.master.leaving import PlaceLeaving
from paceline.master.members import MembersEdge
from paceline.master.node_acts import NodeActs
from paceline.master.node_sizes import NodeSizes
from paceline.master.parts import MasterParts, Times
from paceline.master.probing import MachineWatch
from paceline.master.replies import Replies
from paceline.master.reporting import Reporting
from paceline.master.scene import Scene
from paceline.master.shutdown import Shutdown
from paceline.master.size_moves import SizeMoves
from paceline.master.sources import Sources
from paceline.master.training import ForNodes, Training
from paceline.master.uploads import Uploads, open_uploads
from paceline.wire.client import Order


class Rooms(NamedTuple):
    """What a master feeds with facts."""

    inbox: Inbox
    sources: Sources
    recovery: JournalRecovery
    training: Training
    members: MembersEdge
    agents: Agents
    sizes: NodeSizes
    moves: SizeMoves
    leaving: PlaceLeaving
    end: JobEnd
    shutdown: Shutdown
    replies: Replies
    reporting: Reporting
    features: FeatureParts
    scene: Scene
    machines: MachineWatch
    keeping: Keeping
    uploads: Uploads | None
    """None: cuts stay here."""


def build(parts: MasterParts, times: Times) -> Rooms:
    """Build them around fresh machines."""
    spec, inbox = parts.spec, Inbox()
    end = JobEnd(parts, times, inbox)
    members: MembersEdge

    def follow(found: ForNodes) -> None:  # the two know each other: the training is made first
        members.follow(found)

    training = Training(parts, EDGES[spec.traits.holder](spec), end.fail, follow)
    features: FeatureParts

    def told(node: str) -> dict[str, msgspec.Raw]:  # features may look at members, made first
        return features.starts(node)

    members = MembersEdge(parts, times, told, inbox, end, training)
    replies: Replies

    def order(call: Order) -> None:  # features order what people may order, which is made later
        replies.to(call)

    sizes = NodeSizes(parts)
    scene = _scene(parts, training, members, sizes, end)
    features = FeatureParts(
        parts,
        times,
        training.edge.place,
        order,
        scene,
        inbox.for_threads(),
        end.fail,
        NodeActs(members, sizes),
    )
    members.watchers.append(features.at_once)
    if features.want_links:
        training.edge.measure_links()
    sources = Sources(parts, inbox)
    keeping = Keeping(parts, times, sources.spawn)
    machines = MachineWatch(parts, times, inbox, sources.spawn, members)
    takers = AgentRooms(training, members, features, sizes, keeping, machines)
    agents = Agents(parts, times, inbox, takers)
    shutdown = Shutdown(parts, times, end, training, members)
    reporting = Reporting(parts, training.state, features.shown, features.measured, keeping)
    recovery = JournalRecovery(parts, times.wall, training, sizes, features, keeping)
    replies = Replies(
        parts,
        training,
        shutdown,
        members,
        lambda: scene.now(times.steady()),
        reporting,
        sizes,
        features,
    )
    return Rooms(
        inbox=inbox,
        sources=sources,
        recovery=recovery,
        training=training,
        members=members,
        agents=agents,
        sizes=sizes,
        moves=SizeMoves(parts, times, training, members, sizes),
        leaving=PlaceLeaving(parts, times, training, members, sizes),
        end=end,
        shutdown=shutdown,
        replies=replies,
        reporting=reporting,
        features=features,
        scene=scene,
        keeping=keeping,
        machines=machines,
        uploads=open_uploads(parts, training.cuts, training.state, end.fail),
    )


def _scene(
    parts: MasterParts, training: Training, members: MembersEdge, sizes: NodeSizes, end: JobEnd
) -> Scene:
    return Scene(
        training,
        parts.members,
        parts.monitor,
        pending_s=lambda: parts.backend.room(sizes.place_of("worker-0")).pending_s,
        restart=members.restart,
        is_ending=lambda: end.ending is not None,
    )

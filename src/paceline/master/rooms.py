"""The rooms of a master, built: each is one thing that it does."""

from typing import NamedTuple

from paceline.master.agents import Agents
from paceline.master.feature_parts import FeatureParts
from paceline.master.holding import EDGES
from paceline.master.inbox import Inbox
from paceline.master.job_end import JobEnd
from paceline.master.journal_recovery import JournalRecovery
from paceline.master.measuring import Measuring, checks_of
from paceline.master.members import MembersEdge
from paceline.master.node_acts import NodeActs
from paceline.master.node_sizes import NodeSizes
from paceline.master.parts import MasterParts, Times
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
    measuring: Measuring
    sizes: NodeSizes
    moves: SizeMoves
    end: JobEnd
    shutdown: Shutdown
    replies: Replies
    reporting: Reporting
    features: FeatureParts
    scene: Scene
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
    checks = checks_of(parts)
    members = MembersEdge(parts, times, checks, inbox, end, training)
    measuring = Measuring(parts, times, checks)
    replies: Replies

    def order(call: Order) -> None:  # features order what people may order, which is made later
        replies.to(call)

    scene = Scene(
        training,
        parts.members,
        parts.monitor,
        pending_s=parts.backend.pending_s,
        restart=members.restart,
        is_ending=lambda: end.ending is not None,
    )
    sizes = NodeSizes(parts)
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
    agents = Agents(parts, times, inbox, training, members, measuring, features, sizes)
    shutdown = Shutdown(parts, times, end, training, members)
    pace = parts.outbox.pace
    reporting = Reporting(
        parts.job,
        training.state,
        parts.members,
        parts.monitor,
        pace,
        features.shown,
        features.measured,
    )
    recovery = JournalRecovery(parts, times.wall, checks, training, sizes, features)
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
        sources=Sources(parts, inbox),
        recovery=recovery,
        training=training,
        members=members,
        agents=agents,
        measuring=measuring,
        sizes=sizes,
        moves=SizeMoves(parts, times, training, members, sizes),
        end=end,
        shutdown=shutdown,
        replies=replies,
        reporting=reporting,
        features=features,
        scene=scene,
        uploads=open_uploads(parts, training.cuts, training.state, end.fail),
    )

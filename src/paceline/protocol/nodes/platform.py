"""Words of the platform about the places of nodes, what follows, and whose machine is gone.

The platform's word is a hint, the agent's own stream is the truth. A platform may call a node dead
that works on, and it may take a minute to miss one that is gone. So a word ends a life only where
no agent speaks; everything else is kept for people to see. docs/failure-model.md has the order.
"""

from collections.abc import Iterable
from typing import assert_never

import msgspec

from paceline.protocol.nodes.ends import AgentEnd, EndKind
from paceline.protocol.nodes.leaving import Leaver
from paceline.protocol.nodes.lives import (
    Backing,
    EndOrder,
    Fate,
    NodePlace,
    Presence,
    Refusals,
)
from paceline.protocol.nodes.membership import Membership
from paceline.protocol.nodes.node import BROKEN_RETURN_S, RETURN_S, Act, Node
from paceline.wire.events.base import Event
from paceline.wire.events.nodes import (
    NotSharedEvent,
    PlaceDrainingEvent,
    PlacePendingEvent,
    UnbackedEvent,
)


class PlatformWord(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A word about one node; the base of all."""

    node: str


class PlacePending(PlatformWord, frozen=True):
    """The launch waits for its place."""

    why: str


class PlaceTaken(PlatformWord, frozen=True):
    """The node has its place: an agent is started there."""

    host: str = ""
    unseen: str = ""
    """The job's directory, if it is not there, and its cuts are nowhere else."""


class PlaceRefused(PlatformWord, frozen=True):
    """The platform does not start the node."""

    why: str
    """Reason in the platform's own words."""


class PlaceDraining(PlatformWord, frozen=True):
    """The place is going away."""

    why: str
    within_s: float | None = None
    """Seconds that are left; None: the platform does not say."""


class PlaceLost(PlatformWord, frozen=True):
    """The platform calls the place dead; the agent there may work on."""

    why: str
    kind: EndKind = EndKind.NODE_LOST
    """What has become of it: the machine is lost, taken away, or short of memory."""


class AgentGone(PlatformWord, frozen=True):
    """An agent that was launched or adopted has ended."""

    launch: str = ""
    """Token of its launch; empty: it never came up."""
    end: AgentEnd = AgentEnd()


class NodeStopped(PlatformWord, frozen=True):
    """Nothing runs any more of a node that was stopped."""

    launch: str = ""
    """Token of the launch that was stopped; empty: it is not known."""


AnyWord = (
    PlacePending | PlaceTaken | PlaceRefused | PlaceDraining | PlaceLost | AgentGone | NodeStopped
)


class NodePlaces:
    """The places of one job's nodes."""

    def __init__(self, members: Membership) -> None:
        self._members, self._roster = members, members.roster
        self._said_unseen = False

    def heard(self, said: AnyWord, now_s: float) -> list[Act]:
        """Take in a word of the platform; repetitions change nothing."""
        node = self._roster.nodes.get(said.node)
        if node is None:
            return []
        told: Event
        match said:
            case AgentGone():
                return self._members.agent_ended(node.name, said.launch, said.end, now_s)
            case NodeStopped():
                return []  # it concerns the next launch of this name: `Stops`
            case PlacePending(why=why):
                waits = node.place.backing is Backing.PENDING
                self._becomes(node, Backing.PENDING, why)  # what is free changes all the time
                told = PlacePendingEvent(node=node.name, inc=node.life.inc, reason=why)
                return [] if waits else [told]
            case PlaceTaken(host=host, unseen=unseen):
                if not node.agent.has_greeted:
                    node.agent.heard_s = now_s  # its first word is awaited from now on
                node.place, node.refusals = NodePlace(Backing.TAKEN, host=host), Refusals()
                return self._unseen(node, unseen)
            case PlaceRefused(why=why):
                self._becomes(node, Backing.REFUSED, why)
                return self._members.refused(node.name, why, now_s)
            case PlaceDraining(why=why, within_s=within_s):
                told = PlaceDrainingEvent(node=node.name, inc=node.life.inc, reason=why)
                is_news = self._becomes(node, Backing.DRAINING, why)
                until_s = None if within_s is None else now_s + within_s
                node.place = msgspec.structs.replace(node.place, until_s=until_s)
                return [told] if is_news else []
            case PlaceLost():
                return self._lost(node, said, now_s)
            case _:
                assert_never(said)

    def leavers(self, now_s: float) -> tuple[Leaver, ...]:
        """Return which nodes have yet to leave places that drain.

        A place that drains is a state: what could not be done at the first word is tried until the
        node has left, or the time is over.
        """
        replaced = self._roster.being_replaced
        return tuple(
            Leaver(
                node=node.name,
                role=node.role,
                why=node.place.why,
                left_s=None if node.place.until_s is None else node.place.until_s - now_s,
            )
            for node in self._roster.nodes.values()
            if node.place.backing is Backing.DRAINING
            and node.life.is_alive
            and node.life.end is not EndOrder.MOVE
            and node.fate is not Fate.LEAVES
            and node.name != replaced
            and (node.place.until_s is None or now_s < node.place.until_s)
        )

    def departed(self, now_s: float, *, group_broke: bool) -> list[Act]:
        """Give up nodes whose machine has ended the connection, and whose agent stays away.

        Args:
            now_s: of the master's clock.
            group_broke: members say that they cannot work together.
        """
        acts: list[Act] = []
        return_s = BROKEN_RETURN_S if group_broke else RETURN_S
        for node in list(self._roster.nodes.values()):
            if node.has_departed(now_s, return_s):
                acts += self._gone(node, "its connection broke for good", now_s)
        return acts

    def without_machine(self, nodes: Iterable[Node], now_s: float) -> list[Act]:
        """Give up nodes whose machine is gone; see `SilentMachines`."""
        nodes, why = list(nodes), "its machine answers nobody"
        for node in nodes:
            node.life.taken = EndKind.NODE_LOST
        return [act for node in nodes for act in self._gone(node, why, now_s)]

    def _gone(self, node: Node, why: str, now_s: float) -> list[Act]:
        if self._members.closing and node.fate is not Fate.LEAVES:
            return []
        node.next.in_new_agent = not node.by_itself
        return self._members.unreachable(node, why, now_s)

    def _unseen(self, node: Node, folder: str) -> list[Act]:
        """Say once that another machine does not see the job's directory."""
        if not folder or self._said_unseen:
            return []
        self._said_unseen = True
        host = node.place.host
        return [NotSharedEvent(node=node.name, inc=node.life.inc, folder=folder, host=host)]

    def _lost(self, node: Node, said: PlaceLost, now_s: float) -> list[Act]:
        if node.agent.presence is Presence.CONNECTED:
            told = UnbackedEvent(node=node.name, inc=node.life.inc, reason=said.why)
            return [told] if self._becomes(node, Backing.LOST, said.why) else []
        launch = node.agent.launch if node.agent.has_greeted else ""
        end = AgentEnd(kind=said.kind, why=said.why)
        return self._members.agent_ended(node.name, launch, end, now_s)

    @staticmethod
    def _becomes(node: Node, backing: Backing, why: str) -> bool:
        """Note it; whether that is news."""
        news = (node.place.backing, node.place.why) != (backing, why)
        node.place = NodePlace(backing, why, node.place.host)
        return news

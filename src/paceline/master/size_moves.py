"""Nodes get other sizes where a place keeps its size: the moves, one after the other, carried out.

`paceline.protocol.nodes.resizing` decides. What moves is journalled (`NodesResizing`); what each
node has, its agent says when it connects. So a later master goes on where this one was.
"""

from typing import assert_never

from msgspec.structs import replace

from paceline.base.errors import ConfigError
from paceline.master.members import MembersEdge
from paceline.master.monitor import Monitor
from paceline.master.node_sizes import NodeSizes
from paceline.master.orders import check_scale
from paceline.master.parts import MasterParts, Times
from paceline.master.training import Training
from paceline.protocol.nodes.lives import Backing, EndOrder, Fate
from paceline.protocol.nodes.node import Node
from paceline.protocol.nodes.orders import NodeOrders
from paceline.protocol.nodes.resizing import (
    AddSpare,
    Await,
    Condition,
    DropSpare,
    GiveUpResize,
    MoveNode,
    NodesResized,
    NodesResizing,
    ResizeMove,
    ResizeOver,
    SizedNode,
    SizesSeen,
    next_move,
)
from paceline.wire.events.nodes import NotResizedEvent

RESIZE_AGAIN_S = 2.0
"""Seconds between two requests for a size that the platform could not give yet."""
ANOTHER_SIZE = "its next place has another size"


class SizeMoves:
    """The moves of one job's nodes."""

    def __init__(
        self,
        parts: MasterParts,
        times: Times,
        training: Training,
        edge: MembersEdge,
        sizes: NodeSizes,
    ) -> None:
        self._spec, self._members, self._monitor = parts.spec, parts.members, parts.monitor
        self._roster = parts.members.roster
        self._outbox, self._times = parts.outbox, times
        self._training, self._edge, self._sizes = training, edge, sizes
        self._orders = NodeOrders(parts.members)
        self._tried: frozenset[str] = frozenset()
        self._order_no = 0
        """The order that nodes were tried for."""
        self._again_s = 0.0
        self._awaited, self._since_s = "", 0.0
        """What is awaited, and since when."""

    def tick(self, now_s: float) -> None:
        """Order the next move, if it is due."""
        if now_s >= self._again_s:
            self._again_s = now_s + RESIZE_AGAIN_S
            self._sizes.try_again()
        change = self._sizes.change
        if change is None or not change.former:
            return  # workers that stand in may be left: `paceline.master.leaving` has them
        if self._order_no != self._sizes.num_orders:
            self._order_no, self._tried = self._sizes.num_orders, frozenset()
        seen = self._see(change, now_s)
        move = next_move(seen)
        try:
            self._do(move, change)
        except ConfigError as refused:
            self._give_up(change, str(refused))

    def _do(self, move: ResizeMove, change: NodesResizing) -> None:
        count = self._roster.num_workers
        match move:
            case Await():
                return
            case AddSpare():
                self._sizes.keep(replace(change, spared=count))
                self._edge.scale(count + 1)
            case DropSpare():
                self._sizes.keep(replace(change, spared=0))
                self._edge.scale(change.spared)
            case MoveNode(node=name):
                self._tried |= {name}
                self._move(self._roster.nodes[name])
            case GiveUpResize(why=why):
                self._give_up(change, why)
            case ResizeOver():
                self._sizes.keep(NodesResized())
            case _:
                assert_never(move)

    def _move(self, node: Node) -> None:
        if node.fate is Fate.BACKS_OFF and not node.life.is_alive:
            self._edge.act(self._orders.begin_elsewhere(node.name))
        else:
            self._edge.restart(node.name, ANOTHER_SIZE)

    def _give_up(self, change: NodesResizing, why: str) -> None:
        """Leave nodes that have not moved as they are; those without a place ask for their own."""
        try:
            self._sizes.take_back(change)
        except ConfigError:
            return  # the disk refuses the spec: the next tick tries again
        self._outbox.tell(NotResizedEvent(reason=why))
        if self._roster.change is not None and not self._training.edge.is_moving:
            self._edge.act(self._members.not_changed())
        spare = _spare(change)
        if spare in self._roster.nodes and self._condition(self._roster.nodes[spare]) != "works":
            self._sizes.scaled()
            self._edge.scale(change.spared)
        for node in list(self._roster.nodes.values()):
            if self._condition(node) in ("waits", "refused"):
                self._edge.act(self._members.launch(node, self._times.own()))

    # ------------------------------------------------------------------ what is there

    def _see(self, change: NodesResizing, now_s: float) -> SizesSeen:
        nodes = tuple(
            SizedNode(
                name=node.name,
                role=node.role,
                condition=self._condition(node),
                fits=node.by_itself or self._sizes.fits(node.name),
            )
            for node in self._roster.nodes.values()
            if node.fate in (Fate.STAYS, Fate.BACKS_OFF)
        )
        awaited = next(
            (f"{one.name} {one.condition}" for one in nodes if one.condition != "works"), ""
        )
        if awaited != self._awaited:
            self._awaited, self._since_s = awaited, now_s
        return SizesSeen(
            nodes=nodes,
            spare=_spare(change),
            may_add=self._may_add(),
            buckets_move=self._roster.change is not None or self._training.edge.is_moving,
            tried=self._tried,
            waited_s=now_s - self._since_s,
            patience_s=self._spec.resources.patience_s,
            ends=any(one.fate is Fate.FINISHED for one in self._roster.nodes.values()),
        )

    def _may_add(self) -> bool:
        feed = self._training.state.plans.in_training()
        try:
            check_scale(self._spec, feed, self._roster.num_workers + 1)
        except ConfigError:
            return False
        return True

    def _condition(self, node: Node) -> Condition:
        life, agent = node.life, node.agent
        if not life.is_alive:
            if node.place.backing is Backing.REFUSED:
                return "refused"
            if not agent.has_greeted:
                return "waits"
            leaves = node.next.in_new_agent or node.fate is not Fate.BACKS_OFF
            return "starts" if leaves else "ended"
        is_up = life.up is not None and life.end is not EndOrder.MOVE
        return "works" if is_up and does_its_work(node, self._monitor) else "starts"


def does_its_work(node: Node, monitor: Monitor) -> bool:
    """Tell whether a server serves, and whether a worker has computed samples in this life."""
    if node.role == "server":
        return bool(node.life.up and node.life.up.address)
    seen = monitor.nodes.get(node.name)
    return seen is not None and seen.facts.inc == node.life.inc and seen.facts.samples > 0


def _spare(change: NodesResizing) -> str:
    """The worker that stands in; empty: none does."""
    return f"worker-{change.spared}" if change.spared else ""

"""Nodes leave places that drain, carried out; `paceline.protocol.nodes.leaving` decides.

How many workers stand in is journalled (`NodesResizing.spared`), as where nodes move to places of
another size; which places drain, the platform says again to each master.
"""

from typing import assert_never

from paceline.base.errors import ConfigError
from paceline.base.numbering import Inc
from paceline.master.members import MembersEdge
from paceline.master.node_sizes import NodeSizes
from paceline.master.orders import check_scale
from paceline.master.parts import MasterParts, Times
from paceline.master.size_moves import does_its_work
from paceline.master.training import Training
from paceline.protocol.nodes.leaving import (
    AskStandIn,
    DismissStandIns,
    LeavePlace,
    Leaver,
    LeavingSeen,
    LeavingStep,
    next_step,
)
from paceline.protocol.nodes.lives import EndOrder, Fate
from paceline.protocol.nodes.node import Node
from paceline.protocol.nodes.resizing import NodesResized, NodesResizing
from paceline.wire.events.nodes import NotMovedAwayEvent, StandInEvent

LEAVE_AGAIN_S = 3.0
"""Seconds between two attempts of a node to leave a place that drains: a server that was to take
its place may have failed, and the next one needs as long to come up."""


class PlaceLeaving:
    """The nodes of one job that leave places, and the workers that stand in for them."""

    def __init__(
        self,
        parts: MasterParts,
        times: Times,
        training: Training,
        edge: MembersEdge,
        sizes: NodeSizes,
    ) -> None:
        self._spec, self._members, self._monitor = parts.spec, parts.members, parts.monitor
        self._roster, self._outbox = parts.members.roster, parts.outbox
        self._times, self._training = times, training
        self._edge, self._sizes = edge, sizes
        self._again_s: dict[str, float] = {}
        """Earliest time at which a node that could not leave its place tries again."""
        self._told: dict[str, tuple[Inc, str]] = {}
        """Why a node could not leave, as it was told."""
        self._drained_s = times.own()
        """Time at which a place was last seen to drain; a fresh master has yet to hear of any."""

    def tick(self) -> None:
        """Do what is next; while nodes move to places of another size, all leave at once."""
        now_s = self._times.own()
        leavers = self._edge.places.leavers(now_s)
        if leavers:
            self._drained_s = now_s
        elif not self._stand_ins:
            self._again_s, self._told = {}, {}
            return
        change = self._sizes.change
        if change is not None and change.former:
            for leaver in leavers:
                self._leave(leaver, now_s)
            return
        step = next_step(self._see(leavers, now_s))
        if step is not None:
            self._do(step, now_s)

    def _see(self, leavers: tuple[Leaver, ...], now_s: float) -> LeavingSeen:
        names = {one.node for one in leavers}
        stand_ins = self._stand_ins
        lives_on = (Fate.STAYS, Fate.BACKS_OFF)
        others = [one for one in self._roster.of_role("worker") if one.fate in lives_on]
        return LeavingSeen(
            leavers=tuple(one for one in leavers if now_s >= self._again_s.get(one.node, now_s)),
            stand_ins=len(stand_ins),
            trains=sum(self._works(one) and one.name not in names for one in stand_ins),
            away=sum(not self._works(one) for one in others if one not in stand_ins),
            may_add=self._may_add(),
            buckets_move=self._roster.change is not None or self._training.edge.is_moving,
            quiet_s=now_s - self._drained_s,
            ends=any(one.fate is Fate.FINISHED for one in self._roster.nodes.values()),
        )

    @property
    def _stand_ins(self) -> list[Node]:
        change = self._sizes.change
        if change is None or not change.spared:
            return []
        workers = self._roster.of_role("worker")
        return [one for one in workers if one.rank >= change.spared and one.fate.lives_on]

    def _works(self, node: Node) -> bool:
        is_up = node.life.is_alive and node.life.up is not None
        return is_up and node.life.end is not EndOrder.MOVE and does_its_work(node, self._monitor)

    def _may_add(self) -> bool:
        if self._members.rounds is not None:
            return False  # all begin again together whenever one leaves, or comes
        try:
            feed = self._training.state.plans.in_training()
            check_scale(self._spec, feed, self._roster.num_workers + 1)
        except ConfigError:
            return False
        return True

    # ------------------------------------------------------------------ steps

    def _do(self, step: LeavingStep, now_s: float) -> None:
        count = self._roster.num_workers
        match step:
            case AskStandIn(node=name):
                if not self._stand_ins:
                    self._sizes.keep(NodesResizing(spared=count))
                self._edge.scale(count + 1)
                inc = self._roster.nodes[name].life.inc
                self._edge.act([StandInEvent(node=name, inc=inc, successor=f"worker-{count}")])
            case LeavePlace(leaver=leaver):
                self._leave(leaver, now_s)
            case DismissStandIns():
                change = self._sizes.change or NodesResizing()
                self._sizes.keep(NodesResized())
                self._edge.scale(change.spared)
            case _:
                assert_never(step)

    def _leave(self, leaver: Leaver, now_s: float) -> None:
        """Have a node leave its place; what fails or is refused now is tried again."""
        name, inc = leaver.node, self._roster.nodes[leaver.node].life.inc
        if now_s < self._again_s.get(name, now_s):
            return
        self._again_s[name] = now_s + LEAVE_AGAIN_S
        try:
            self._edge.restart(name, leaver.why, leaver.left_s)
        except ConfigError as error:  # told once, though it is tried again
            if self._told.get(name) != (inc, str(error)):
                self._told[name] = inc, str(error)
                self._edge.act([NotMovedAwayEvent(node=name, inc=inc, reason=str(error))])

"""Orders about nodes: more or fewer of them, one killed, restarted, left out."""

from paceline.base.numbering import Inc
from paceline.protocol.nodes.lives import EndOrder, Fate, Presence
from paceline.protocol.nodes.membership import REPEAT_END_S, Membership
from paceline.protocol.nodes.node import (
    Act,
    EndLife,
    Node,
    NodeJoined,
    NodeRecalled,
    RestartOrdered,
    Retire,
    RoundSet,
    ServersChanging,
    ServersWanted,
    WorkersWanted,
)
from paceline.wire.events.job import ScaledEvent
from paceline.wire.events.nodes import (
    HungEvent,
    KilledEvent,
    KillRestartEvent,
    MachineJoinedEvent,
    ReplacingEvent,
)


class NodeOrders:
    """Orders of the user and of solutions for the nodes of one job."""

    def __init__(self, members: Membership) -> None:
        self.members, self._roster = members, members.roster

    def resize(self, workers: int | None, servers: int | None) -> list[Act]:
        """Before `begin`: go on with so many nodes; None: as many as there were."""
        acts: list[Act] = []
        if workers is not None:
            acts.append(self._roster.keep(WorkersWanted(count=workers)))
            acts.append(ScaledEvent(role="worker", count=workers))
        if servers is not None:
            acts.append(self._roster.keep(ServersWanted(count=servers)))
            acts.append(ScaledEvent(role="server", count=servers))
        return acts

    def scale(self, count: int, now_s: float, grace_s: float) -> list[Act]:
        """Set the number of workers; the highest ranks leave in order, those left out come back.

        Those that live in rounds begin the next one.
        """
        if self.members.rounds is not None and count == self._roster.num_workers:
            return []  # else all would begin again
        before = sum(node.fate.lives_on for node in self._roster.of_role("worker"))
        acts: list[Act] = [ScaledEvent(role="worker", count=count, before=before)]
        reach = self._roster.reach(count) if self.members.rounds is None else count
        for node in list(self._roster.of_role("worker")):
            if node.fate is Fate.LEAVES and node.rank < reach:
                # Wanted again before it was gone: the next agent takes its place.
                acts += [*self.members.lost(node), *([Retire(node.name)] if node.by_itself else [])]
        known = set(self._roster.nodes)
        for node in self._roster.of_role("worker"):
            known -= {node.name} if node.fate is Fate.LEAVES else set()
        acts.insert(0, self._roster.keep(WorkersWanted(count=reach)))
        for node in list(self._roster.of_role("worker")):
            if node.fate is Fate.LEAVES:
                acts += self._send_away(node, now_s, grace_s)
            elif node.fate is Fate.FAILED and not node.by_itself:
                acts.append(self._roster.keep(NodeRecalled(node=node.name)))
                acts += self.members.launch(node, now_s)
            elif node.name not in known:
                acts += self.members.launch(node, now_s)
        if self.members.rounds is not None:
            acts.append(self._roster.keep(RoundSet(number=self.members.rounds.number + 1)))
            acts += self.members.end_formers(now_s)
        return acts

    def replace_server(self, name: str, now_s: float, reason: str) -> list[Act]:
        """Start a server that is to take the place of this one (`Roster.change_due`)."""
        inc = self._roster.nodes[name].life.inc
        acts = self._change(1, (name,), now_s)
        successor = max(node.rank for node in self._roster.of_role("server"))
        told = ReplacingEvent(node=name, inc=inc, cause=reason, successor=f"server-{successor}")
        return [acts[0], told, *acts[1:]]

    def scale_servers(self, count: int, now_s: float) -> list[Act]:
        """Have buckets move to so many servers; those that came last leave.

        They stay until all they have is elsewhere (`Membership.changed`).
        """
        present = [node.name for node in self._roster.in_place()]
        if count == len(present):
            return []
        told = ScaledEvent(role="server", count=count, before=len(present))
        acts = self._change(max(0, count - len(present)), tuple(present[count:]), now_s)
        return [acts[0], told, *acts[1:]]

    def _change(self, num_joining: int, leaving: tuple[str, ...], now_s: float) -> list[Act]:
        first = 1 + max(node.rank for node in self._roster.of_role("server"))
        joining = tuple(f"server-{first + number}" for number in range(num_joining))
        keep = self._roster.keep(ServersChanging(joining=joining, leaving=leaving))
        fresh = (self._roster.nodes[name] for name in joining)
        return [keep, *(act for node in fresh for act in self.members.launch(node, now_s))]

    def join_machine(self, host: str, now_s: float) -> tuple[tuple[str, ...], list[Act]]:
        """Give a machine the places of one that is missing; their names; none: all are taken.

        Its agents are about to be started there.
        """
        missing: dict[int, list[Node]] = {}
        for node in self._roster.of_role("worker"):
            if node.by_itself:
                missing.setdefault(self._roster.machine_of(node), []).append(node)
        for nodes in missing.values():
            if all(node.agent.is_awaited and not node.life.is_alive for node in nodes):
                for node in nodes:
                    node.agent.expect(now_s)
                names = tuple(node.name for node in nodes)
                return names, [MachineJoinedEvent(nodes=names, host=host)]
        return (), []

    def join(self, host: str, now_s: float) -> tuple[str, list[Act]]:
        """Add a worker, whose agent is about to be started there; returns its name, too."""
        ranks = (node.rank for node in self._roster.of_role("worker"))
        name = f"worker-{max(ranks, default=-1) + 1}"
        keep = self._roster.keep(NodeJoined(node=name))
        told = ScaledEvent(node=name, role="worker", count=self._roster.num_workers, host=host)
        self._roster.nodes[name].agent.heard_s = now_s
        return name, [keep, told]

    def _send_away(self, node: Node, now_s: float, grace_s: float) -> list[Act]:
        if node.life.is_alive and node.agent.presence is Presence.CONNECTED:
            node.life.end_grace_s = grace_s
            return [node.end_life(now_s, grace_s)]
        return self.members.gone_for_good(node)

    def kill(self, name: str) -> list[Act]:
        """End a node's process at once, as a crash would; it is started again."""
        life = self._roster.nodes[name].life
        if not life.end_is_ordered:
            life.end = EndOrder.KILL
        return [KilledEvent(node=name, inc=life.inc), EndLife(name, life.inc, 0.0)]

    def hung(self, name: str, now_s: float, since_s: float, *, silent: bool) -> list[Act]:
        """End a node's process that hangs. While it still hangs this is repeated seldom.

        Args:
            name: of the node.
            now_s: as always.
            since_s: so long it has made no progress.
            silent: it has not even spoken.
        """
        node = self._roster.nodes.get(name)
        if node is None or not node.life.is_alive or now_s < node.life.end_told_s + REPEAT_END_S:
            return []
        told = HungEvent(node=name, inc=node.life.inc, since_s=since_s, silent=silent)
        return [told, node.end_life(now_s, 0.0, hung=True)]

    def restart(self, name: str, now_s: float, grace_s: float, reason: str = "") -> list[Act]:
        """KILL_RESTART: end a node's process in order, and start it again at another place.

        It costs no budget (``restart.budget`` is the user's, for what goes wrong) and no backoff.
        """
        node = self._roster.nodes[name]
        keep = self._roster.keep(RestartOrdered(node=name, grace_s=grace_s))
        told = KillRestartEvent(node=name, inc=node.life.inc, reason=reason)
        return [keep, told, node.end_life(now_s, grace_s)]

    def begin_elsewhere(self, name: str) -> list[Act]:
        """Have the next life of a node, whose last one has ended, begin at another place."""
        self._roster.nodes[name].next.in_new_agent = True
        return [Retire(name)]

    def refuse(self, inc: Inc, reason: str) -> list[Act]:
        """This worker cannot take part: see `Membership.left_out`."""
        node = self._roster.node_of(inc)
        if node is None or not node.life.is_alive:
            return []
        return self.members.left_out(node, reason, self.members.lost(node))

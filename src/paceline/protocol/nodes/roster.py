"""Which nodes a job has: changed by records only, so that a restarted master has the same.

`paceline.protocol.nodes.membership` holds a roster and decides which records come. Code that
only looks at the nodes needs no more than the roster.
"""

import itertools
from collections.abc import Iterator
from typing import assert_never

from paceline.base.numbering import Inc
from paceline.protocol.nodes.lives import EndOrder, Fate, LifePhase, NodeLife
from paceline.protocol.nodes.node import (
    JobEnded,
    KeepRecord,
    MemberRecords,
    Node,
    NodeDropped,
    NodeFinished,
    NodeJoined,
    NodeRecalled,
    NodeRefused,
    NodeStarted,
    RestartOrdered,
    RoundSet,
    ServerAdded,
    ServersChanged,
    ServersChanging,
    ServersNotChanged,
    ServersWanted,
    WorkersWanted,
)
from paceline.protocol.nodes.rounds import Rounds
from paceline.wire.messages.base import Server


class Roster:
    """The nodes of one job, as records have made them."""

    def __init__(self, num_workers: int, num_servers: int, rounds: Rounds | None) -> None:
        self._rounds = rounds
        self._num_servers = num_servers
        self.next_inc = Inc(1)
        """Incarnation number of the next life, of whichever node."""
        self.num_workers = num_workers
        self.nodes: dict[str, Node] = {}
        self._by_inc: dict[Inc, Node] = {}
        #: See `num_wanted`; None: to be counted.
        self._num_wanted: int | None = None
        #: Which servers are to join and to leave; None: none.
        self.change: ServersChanging | None = None
        for index in range(num_servers):
            self.add("server", index)
        for index in range(num_workers):
            self.add("worker", index)

    def add(self, role: str, index: int) -> Node:
        """Add a node that has no life yet."""
        node = Node(f"{role}-{index}", role, index)
        if role == "worker" and self._rounds is not None and self._rounds.machines > 1:
            node.by_itself = self.machine_of(node) > 0
        self.nodes[node.name] = node
        self._num_wanted = None
        return node

    def machine_of(self, worker: Node) -> int:
        """The number of the machine of a worker, in a job of so many; others join."""
        machines = self._rounds.machines if self._rounds is not None else 1
        return worker.rank * machines // self.num_workers

    def rank_of(self, worker: Node) -> int:
        """The rank of a worker in this round: its number, unless ranks go by machines."""
        ranks = self._rounds.ranks.get(worker.name) if self._rounds is not None else None
        return worker.rank if ranks is None else ranks.rank

    # ------------------------------------------------------------------ records

    def apply(self, record: MemberRecords) -> None:
        """The only way durable state changes."""
        node = self.nodes.get(record.node) if isinstance(record, NodeStarted) else None
        if node is None or not node.fate.lives_on:
            self._num_wanted = None  # a further life of a wanted node changes nothing
        self._apply(record)

    def _apply(self, record: MemberRecords) -> None:  # noqa: C901
        match record:
            case NodeStarted():
                node = self._known(record.node)
                self._by_inc.pop(node.life.inc, None)
                self.next_inc = max(self.next_inc, Inc(record.inc + 1))
                node.life = NodeLife(record.inc, record.round_no, LifePhase.PRESUMED)
                node.fate = node.fate if node.fate is Fate.LEAVES else Fate.STAYS
                node.past.restarts, node.past.decided = record.restarts, record.decided
                node.past.previous, node.past.repeats = record.previous, record.repeats
                self._by_inc[record.inc] = node
            case NodeFinished():
                node = self.nodes[record.node]
                node.settle(Fate.FINISHED)
                node.past.joined |= record.joined
            case NodeRefused():
                node = self.nodes[record.node]
                node.settle(Fate.FAILED)
                node.life.note = record.reason
            case NodeRecalled():
                node = self.nodes[record.node]
                node.fate, node.life.phase = Fate.STAYS, LifePhase.NONE
            case WorkersWanted():
                self.next_inc = max(self.next_inc, record.next_inc)
                self._resize(record.count)
            case ServersWanted():
                self._resize_servers(record.count)
            case NodeJoined():
                self._apply_joined(record.node)
            case NodeDropped():
                self._apply_drop(record)
            case RestartOrdered():
                life = self.nodes[record.node].life
                life.end, life.end_grace_s = EndOrder.MOVE, record.grace_s
            case ServerAdded():
                self._known(record.node)
            case ServersChanging() | ServersChanged() | ServersNotChanged():
                self._apply_change(record)
            case RoundSet():
                self._apply_round(record)
            case JobEnded():
                self._apply_end()
            case _:
                assert_never(record)

    def _known(self, name: str) -> Node:
        """The node of this name, which is added if there is none."""
        return self.nodes.get(name) or self.add(*_role_and_index(name))

    def _apply_joined(self, name: str) -> None:
        if name in self.nodes and not self._stays(name):
            self.forget(self.nodes[name])  # the worker that had this name is gone
        node = self._known(name)
        node.by_itself = True
        self.num_workers = max(self.num_workers, node.rank + 1)

    def _apply_drop(self, record: NodeDropped) -> None:
        if record.node in self.nodes:
            self.forget(self.nodes[record.node])
        staying = (n.rank for n in self.of_role("worker") if n.fate is not Fate.LEAVES)
        self.num_workers = max(staying, default=-1) + 1

    def _apply_end(self) -> None:
        for node in self.nodes.values():
            node.past.restarts, node.past.previous = 0, None
            node.life.finish()
            node.fate = Fate.STAYS if node.fate is Fate.FAILED else node.fate
        self._apply_change(ServersNotChanged())
        if self._rounds is not None and not self.all_finished():
            self._apply_round(RoundSet(number=self._rounds.number + 1))

    def _apply_round(self, record: RoundSet) -> None:
        if self._rounds is None:
            return
        if record.number > self._rounds.number:
            for node in self.of_role("worker"):
                if node.fate is Fate.FINISHED:
                    node.fate, node.life.phase = Fate.STAYS, LifePhase.NONE
                    # The agent of another machine has stayed; that of this one has left.
                    node.next.in_new_agent = not node.by_itself
        self._rounds.set(record.number, record.port, record.host, record.groups)

    def _apply_change(self, record: ServersChanging | ServersChanged | ServersNotChanged) -> None:
        change = self.change
        if isinstance(record, ServersChanging):
            self.change = change = record
            for name in record.joining:
                if name in self.nodes and not self._stays(name):
                    self.forget(self.nodes[name])  # the server that had this name is gone
                node = self._known(name)
                node.joins = True
                if record.replaced in self.nodes:
                    # Being replaced did not help if this one is slow, too.
                    node.past.decided = self.nodes[record.replaced].past.decided + 1
            return
        self.change = None
        if change is not None and isinstance(record, ServersChanged):
            self._take_places(change)
        elif change is not None and isinstance(record, ServersNotChanged):
            self._give_up_places(change, futile=record.futile)

    def _take_places(self, change: ServersChanging) -> None:
        for name in change.joining:
            self.nodes[name].joins = False
        for name in change.leaving:
            self.nodes[name].fate = Fate.LEAVES

    def _give_up_places(self, change: ServersChanging, *, futile: bool) -> None:
        for name in change.joining:
            self.forget(self.nodes[name])
        if futile and change.replaced:
            self.nodes[change.replaced].past.decided += 1

    def _resize(self, count: int) -> None:
        for index in range(self.num_workers, count):
            name = f"worker-{index}"
            if name in self.nodes and self.nodes[name].fate is Fate.LEAVES:
                self.forget(self.nodes[name])
            if name not in self.nodes:
                self.add("worker", index)
        for node in self.of_role("worker"):
            node.fate = Fate.LEAVES if node.rank >= count else node.fate
        self.num_workers = count

    def reach(self, count: int) -> int:
        """Return the rank below which just so many workers are, of those that are to come, too.

        Workers that joined and have left leave gaps: nobody has their ranks any more.
        """
        rank = found = 0
        while found < count:
            node = self.nodes.get(f"worker-{rank}")
            if node is None:
                found += rank >= self.num_workers
            else:
                found += not (node.fate is Fate.FAILED and node.by_itself)
            rank += 1
        return rank

    def _resize_servers(self, count: int) -> None:
        self._apply_change(ServersNotChanged())
        servers = list(self.in_place())
        for node in servers[count:]:
            self.forget(node)
        free = (index for index in itertools.count() if f"server-{index}" not in self.nodes)
        for index in list(itertools.islice(free, max(0, count - len(servers)))):
            self.add("server", index)

    def forget(self, node: Node) -> None:
        """Remove a node."""
        self._by_inc.pop(node.life.inc, None)
        del self.nodes[node.name]
        self._num_wanted = None

    def fail(self, name: str) -> None:
        """Take in that the job fails by this node; since its life ended it may be gone."""
        if name in self.nodes:
            self.nodes[name].fate = Fate.FAILED
            self._num_wanted = None

    def snapshot(self) -> list[MemberRecords]:
        """Records that stand for all that were applied."""
        kept: list[MemberRecords] = [WorkersWanted(count=self.num_workers, next_inc=self.next_inc)]
        names = (f"worker-{rank}" for rank in range(self.num_workers))
        absent = [NodeDropped(node=name) for name in names if name not in self.nodes]
        if self._rounds is not None:
            kept.append(self.round_now())
        first = (f"server-{rank}" for rank in range(self._num_servers))
        kept += [NodeDropped(node=name) for name in first if not self._stays(name)]
        kept += [ServerAdded(node=node.name) for node in self.in_place()]
        kept += [self.change] if self.change is not None else []
        for node in self.nodes.values():
            if node.by_itself:
                kept.append(NodeJoined(node=node.name))
            life = node.life
            if life.inc and (node.role == "worker" or self._stays(node.name)):
                kept.append(started(node, life.inc, life.round_no))
            if life.end is EndOrder.MOVE:
                kept.append(RestartOrdered(node=node.name, grace_s=life.end_grace_s))
            if node.fate is Fate.FINISHED:
                kept.append(NodeFinished(node=node.name, joined=node.past.joined))
            if node.fate is Fate.FAILED:
                kept.append(NodeRefused(node=node.name, reason=life.note))
        # WorkersWanted comes after the lives: a NodeStarted would make a leaving worker stay. It
        # comes before the NodeDropped of absent workers, which it would create again.
        return [*kept, WorkersWanted(count=self.num_workers), *absent]

    def round_now(self) -> RoundSet:
        """The record of the present round."""
        assert self._rounds is not None
        rounds, groups = self._rounds, dict[int, list[str]]()
        for name, ranks in rounds.ranks.items():
            groups.setdefault(ranks.machine, []).append(name)
        return RoundSet(
            number=rounds.number,
            port=rounds.port,
            host=rounds.host,
            groups=tuple(map(tuple, groups.values())),
        )

    def _stays(self, name: str) -> bool:
        return name in self.nodes and self.nodes[name].fate is not Fate.LEAVES

    def keep(self, record: MemberRecords) -> KeepRecord:
        """Apply a record and have it journalled."""
        self.apply(record)
        return KeepRecord(record)

    # ------------------------------------------------------------------ what is there

    def of_role(self, role: str) -> Iterator[Node]:
        """All nodes of a role, those on their way out included."""
        return (node for node in self.nodes.values() if node.role == role)

    def wanted_workers(self) -> Iterator[Node]:
        """Those that are to train: alive, or expected back."""
        return (node for node in self.of_role("worker") if node.fate.lives_on)

    def num_wanted(self) -> int:
        """Count `wanted_workers`: once for many questions, as each worker that joins asks."""
        if self._num_wanted is None:
            self._num_wanted = sum(1 for _ in self.wanted_workers())
        return self._num_wanted

    def node_of(self, inc: Inc) -> Node | None:
        """The node that ``inc`` is the newest life of; None: old, or never given."""
        return self._by_inc.get(inc)

    def servers(self) -> tuple[Server, ...] | None:
        """All servers with their addresses; None: some are not up.

        One that is to join counts from when it has its place.
        """
        nodes = list(self.in_place())
        ups = [node.life.up for node in nodes if node.life.up and node.life.up.address]
        if len(ups) < len(nodes):
            return None
        return tuple(Server(up.inc, up.node, up.address) for up in ups)

    def in_place(self) -> Iterator[Node]:
        """Servers that are to have a share of the model: neither leaving nor yet to take it."""
        servers = self.of_role("server")
        return (n for n in servers if not n.joins and n.fate is not Fate.LEAVES)

    @property
    def being_replaced(self) -> str:
        """The server whose place another is to take; empty: none."""
        return self.change.replaced if self.change is not None else ""

    def change_due(self) -> tuple[tuple[Server, ...], tuple[Inc, ...]] | None:
        """Servers that are up to join, and lives that are to leave; None: not all are there."""
        if self.change is None:
            return None
        joining = [self.nodes[name].life.up for name in self.change.joining]
        leaving = [self.nodes[name].life for name in self.change.leaving]
        ups = [up for up in joining if up is not None and up.address]
        if len(ups) < len(joining) or not all(life.is_alive for life in leaving):
            return None
        servers = tuple(Server(up.inc, up.node, up.address) for up in ups)
        return servers, tuple(life.inc for life in leaving)

    def all_finished(self) -> bool:
        """Whether the scripts of all workers that count have returned."""
        return all(node.fate is Fate.FINISHED for node in self.counting())

    def counting(self) -> Iterator[Node]:
        """Workers without which the job does not end well."""
        without = (Fate.LEAVES, Fate.FAILED)
        workers = (node for node in self.of_role("worker") if node.fate not in without)
        return (node for node in workers if node.life.is_alive or not node.life.went_away)

    @property
    def joined(self) -> bool:
        """Whether the script of some worker called ``pl.init`` before it returned."""
        return any(node.past.joined for node in self.nodes.values())

    def num_restarts(self) -> int:
        """Relaunches so far, of the whole job."""
        return sum(node.past.restarts for node in self.nodes.values())

    @property
    def spreads(self) -> bool:
        """Whether some agent is on another machine than the master."""
        return any(node.by_itself or node.agent.is_remote for node in self.nodes.values())


def started(node: Node, inc: Inc, round_no: int) -> NodeStarted:
    """The record of a life of the node, with what it brings along from those before."""
    return NodeStarted(
        node=node.name,
        inc=inc,
        restarts=node.past.restarts,
        decided=node.past.decided,
        previous=node.past.previous,
        repeats=node.past.repeats,
        round_no=round_no,
    )


def _role_and_index(name: str) -> tuple[str, int]:
    role, _, index = name.rpartition("-")
    return role, int(index)

"""Sizes of the nodes of a running job: changed by order, one node after the other.

The spec in the job's directory is the word that counts, since an agent reads it when it starts. So
a change is written there first. Then the master orders the limits of one agent after the other, the
next when the one before has answered. An agent that says hello with other limits gets the order
again, also from a later master. What was ordered is journalled as well: a master on another machine
begins without that spec (`paceline.agent.take_over`).

Where a place keeps its size, nodes move instead (`paceline.master.size_moves`). What they had
before is journalled, so a later master goes on, and a change that fails can be taken back.
"""

from collections import deque
from typing import assert_never

from msgspec.structs import replace

from paceline.base.disk import describe
from paceline.base.errors import ConfigError
from paceline.base.jobdir import number_of, role_of
from paceline.jobs.wording import size
from paceline.master.orders import check_moves
from paceline.master.parts import MasterParts
from paceline.protocol.nodes.resizing import (
    FormerSize,
    NodesResized,
    NodesResizing,
    NodesSized,
    OrderedSize,
)
from paceline.wire.client import ResizeNodes
from paceline.wire.events.nodes import (
    NodeResizedEvent,
    NoLimitsEvent,
    NotResizedEvent,
    ResizeDeferredEvent,
)
from paceline.wire.messages.agent import AgentHello, LimitNode, NodeLimited
from paceline.wire.places import AskedPlace, CannotResize, Deferred, Resized, place_of
from paceline.wire.spec import NodeSize, NodeSpec, load, save


class NodeSizes:
    """The limits of all nodes, as ordered and as in force."""

    def __init__(self, parts: MasterParts) -> None:
        self._job, self._outbox, self._backend = parts.job, parts.outbox, parts.backend
        self._spec = parts.spec
        self._monitor, self._roster = parts.monitor, parts.members.roster
        self._sizes = {"worker": parts.spec.workers, "server": parts.spec.servers}
        self._due: deque[str] = deque()
        """Nodes whose limits must change; the first one has been told."""
        self.change: NodesResizing | None = None
        """Change that is under way where a place keeps its size; None: nothing moves."""
        self._ordered: NodesSized | None = None
        """Sizes by the journal; None: it says nothing of them."""
        self.num_orders = 0
        """Number of orders by which nodes have to move."""
        self._granted: dict[str, NodeSize] = {}
        """Sizes that nodes were started with, as their agents have said."""
        self._given_up: set[str] = set()
        """Roles whose nodes have found no place of another size."""
        self._before: dict[str, FormerSize] = {}
        """Sizes that nodes of a role had before the newest order."""
        self._deferred = ""
        """Why the first of the nodes that are due has not got its size yet; empty: it is not so."""
        parts.outbox.place_of = self.place_of

    def of(self, role: str) -> NodeSpec:
        """Return what the nodes of a role may use, as ordered last."""
        return self._sizes[role]

    @property
    def is_changing(self) -> bool:
        """Whether a node has not answered yet, or is still to move."""
        return bool(self._due) or (self.change is not None and bool(self.change.former))

    def place_of(self, node: str) -> AskedPlace:
        """Return what a node asks of the platform now."""
        return place_of(self._spec, node)

    def order(self, wanted: ResizeNodes, *, by_itself: bool = False) -> None:
        """Give the nodes of a role other limits, those that come included.

        Args:
            wanted: which. Nodes that move get the sizes of the newest order.
            by_itself: no person orders it. What found no place is not tried again then.

        Raises:
            ConfigError: there are none, they use more memory, nobody can change it, or the disk
                refuses it.
        """
        role, before = wanted.role, self._sizes[wanted.role]
        sizes = replace(before, **_changed(wanted))
        fixed = self._check(role, sizes)
        if by_itself and role in self._given_up:
            raise ConfigError(f"{role}s found no place of another size before")
        if sizes == before:
            return
        self._save({role: sizes})
        self._before[role] = FormerSize(cpu=before.cpu, memory_bytes=before.memory_bytes)
        if fixed:
            self._have_move(role)
            return
        for node in self._roster.of_role(role):
            if node.name in self._outbox.streams:
                self._tell_in_turn(node.name)

    def _save(self, sizes: dict[str, NodeSpec]) -> None:
        """Have the spec, and what is launched from now on, say these sizes."""
        fields = {f"{role}s": one for role, one in sizes.items()}
        try:
            save(replace(load(self._job.spec), **fields), self._job.spec)
        except OSError as error:
            raise ConfigError(describe(error, self._job.spec)) from error
        self._sizes |= sizes
        self._spec = replace(self._spec, **fields)
        self._journal()

    def begin(self) -> None:
        """Go on with the sizes of the spec, which a resume may have changed since an order."""
        if self._ordered is not None:
            self._journal()

    def _journal(self) -> None:
        sizes = {
            role: OrderedSize(cpu=one.cpu, memory_bytes=one.memory_bytes)
            for role, one in self._sizes.items()
        }
        if (record := NodesSized(sizes=sizes)) != self._ordered:
            self.keep(record)

    def _have_move(self, role: str) -> None:
        """Have the nodes of a role move, one after the other, to places of their new size."""
        change = self.change or NodesResizing()
        self.num_orders += 1
        self.keep(replace(change, former={role: self._before[role], **change.former}))

    def _check(self, role: str, sizes: NodeSpec) -> bool:
        """Tell whether places keep their sizes, so that the nodes have to move.

        Raises:
            ConfigError: see `order`.
        """
        nodes = list(self._roster.of_role(role))
        if not nodes:
            raise ConfigError(f"cannot resize: the job has no {role}s")
        asked = place_of(replace(self._spec, **{f"{role}s": sizes}), nodes[0].name)
        fixed = isinstance(self._backend.resize(nodes[0].name, asked), CannotResize)
        if fixed:
            check_moves(self._spec, role)
        self._check_memory(role, sizes)
        return fixed

    def _check_memory(self, role: str, sizes: NodeSpec) -> None:
        if (wanted := sizes.memory_bytes) is None:
            return
        before = self._sizes[role].memory_bytes
        for node in self._roster.of_role(role):
            seen = self._monitor.nodes.get(node.name)
            used = seen.facts.rss_bytes if seen is not None else 0
            refused = f"cannot give {node.name} {size(wanted)} of memory: "
            if used > wanted:
                raise ConfigError(f"{refused}it uses {size(used)}; ask for more than that")
            is_less = before is None or wanted < before
            if not used and is_less and node.life.is_alive:  # its agent has not said so far
                raise ConfigError(
                    f"{refused}what it uses is not known yet; ask again in some seconds"
                )

    def hello(self, hello: AgentHello) -> None:
        """Take in the limits of a node, and change them if they are not those ordered last."""
        self._monitor.hardware(hello.node, hello.hardware)
        if hello.note:
            self._outbox.tell(NoLimitsEvent(node=hello.node, reason=hello.note))
        wanted, has = self._wanted(hello.node), hello.hardware
        self._started(hello)
        if self._is_to_fit(hello.node):
            return
        if hello.node in self._due:
            self._forget(hello.node)
        if not hello.note and (wanted.cpu, wanted.memory_bytes) != (has.cores, has.memory_bytes):
            self._tell_in_turn(hello.node)

    def limited(self, message: NodeLimited) -> None:
        """Take in what a node may use now, and go on with the next one."""
        name, has = message.node, message.hardware
        self._monitor.hardware(name, has)
        if name not in self._due:
            return
        if message.note:
            self._outbox.tell(NoLimitsEvent(node=name, reason=message.note))
        else:
            self._outbox.tell(
                NodeResizedEvent(node=name, cores=has.cores, memory_bytes=has.memory_bytes)
            )
        self._forget(name)

    def gone(self, node: str) -> None:
        """Go on without a node whose agent is not connected; a later hello tells its limits."""
        if node in self._due:
            self._forget(node)

    # ------------------------------------------------------------------ by moving

    def apply(self, record: NodesResizing | NodesResized | NodesSized) -> None:
        """Take in what moves, and what the journal says of sizes; the only way that it changes."""
        if isinstance(record, NodesSized):
            self._ordered = record
            return
        self.change = record if isinstance(record, NodesResizing) else None

    @property
    def records(self) -> list[NodesResizing | NodesSized]:
        """Records that a journal needs which begins again."""
        return [one for one in (self._ordered, self.change) if one is not None]

    def check_may_scale(self) -> None:
        """Refuse another number of nodes while some move to places of another size."""
        if self.change is not None and self.change.former:
            raise ConfigError(
                "cannot scale yet: nodes move to places of another size, one after the other; "
                "`paceline status` shows them"
            )

    def scaled(self) -> None:
        """The number of workers is ordered: the one that stands in for others is one of them."""
        if self.change is not None and self.change.spared:
            change = replace(self.change, spared=0)
            self.keep(change if change.former else NodesResized())

    def keep(self, record: NodesResizing | NodesResized | NodesSized) -> None:
        """Apply a record and have it journalled."""
        self.apply(record)
        self._outbox.record(record)

    def fits(self, node: str) -> bool | None:
        """Tell whether a node has what it should have; None: its agent has not said what it has.

        Where no nodes of its role have to move, it does. So it does where agents change limits: the
        job was resumed on another backend.
        """
        if not self._is_to_fit(node):
            return True
        granted = self._granted.get(node)
        wanted = self._sizes[role_of(node)].size_of(number_of(node))
        return None if granted is None else granted == wanted

    def _is_to_fit(self, node: str) -> bool:
        return self.change is not None and role_of(node) in self.change.former

    def take_back(self, change: NodesResizing) -> None:
        """Give nodes that are launched from now on what they could use before this change.

        Raises:
            ConfigError: the disk refuses it.
        """
        former = change.former
        self._save(
            {
                role: replace(self._sizes[role], cpu=had.cpu, memory_bytes=had.memory_bytes)
                for role, had in former.items()
            }
        )
        self._given_up |= former.keys()
        self.keep(replace(change, former={}) if change.spared else NodesResized())

    def _started(self, hello: AgentHello) -> None:
        """Take in what an agent was started with: that is news if its node has moved."""
        node, has = hello.node, hello.size
        before, self._granted[node] = self._granted.get(node), has
        if self._is_to_fit(node) and has != before and self.fits(node):
            self._outbox.tell(
                NodeResizedEvent(node=node, cores=has.cpu, memory_bytes=has.memory_bytes)
            )

    # ------------------------------------------------------------------ one after the other

    def _tell_in_turn(self, node: str) -> None:
        if node not in self._due:
            self._due.append(node)
        if self._due[0] == node:
            self._resize_first()

    def _forget(self, node: str) -> None:
        was_first = self._due[0] == node
        self._due.remove(node)
        if was_first:
            self._resize_first()

    def try_again(self) -> None:
        """Ask again for a size that the platform could not give yet."""
        if self._deferred:
            self._resize_first()

    def _resize_first(self) -> None:
        """Have the platform change the place of the node whose turn it is, then tell its agent."""
        told, self._deferred = self._deferred, ""
        while self._due:
            node = self._due[0]
            match self._backend.resize(node, self.place_of(node)):
                case Resized():
                    self._outbox.to_agent(node, self._wanted(node))
                    return
                case Deferred(why=why):
                    self._deferred = f"{node}: {why}"
                    if self._deferred != told:
                        self._outbox.tell(ResizeDeferredEvent(node=node, reason=why))
                    return
                case CannotResize(why=why):
                    self._due.popleft()
                    self._cannot(node, why)
                case answer:
                    assert_never(answer)

    def _cannot(self, node: str, why: str) -> None:
        """Have a node whose place cannot have its size move; where it cannot, say so."""
        role = role_of(node)
        if role not in self._before or self._is_to_fit(node):
            return  # nobody has ordered anything of this master
        try:
            check_moves(self._spec, role)
        except ConfigError as refused:
            self._outbox.tell(NotResizedEvent(reason=f"{node}: {why}; {refused}"))
            return
        self._due = deque(one for one in self._due if role_of(one) != role)
        self._have_move(role)

    def _wanted(self, node: str) -> LimitNode:
        sizes = self._sizes[role_of(node)]
        return LimitNode(cpu=sizes.cpu_of(number_of(node)), memory_bytes=sizes.memory_bytes)


def _changed(wanted: ResizeNodes) -> dict[str, object]:
    named = {"cpu": wanted.cpu, "memory_bytes": wanted.memory_bytes}
    return {name: value for name, value in named.items() if value is not None}

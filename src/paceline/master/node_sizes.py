"""What each node of a running job may use: changed by order, one node after the other.

The spec in the job's directory is the word that counts, since an agent reads it when it starts. So
a change is written there first. Then the master orders the limits of one agent after the other, the
next when the one before has answered. An agent that says hello with other limits gets the order
again, also from a later master.
"""

from collections import deque

from msgspec.structs import replace

from paceline.base.disk import describe
from paceline.base.errors import ConfigError
from paceline.base.jobdir import number_of, role_of
from paceline.jobs.wording import size
from paceline.master.parts import MasterParts
from paceline.wire.client import ResizeNodes
from paceline.wire.events.nodes import NodeResizedEvent, NoLimitsEvent
from paceline.wire.messages.agent import AgentHello, LimitNode, NodeLimited
from paceline.wire.spec import NodeSpec, load, save


class NodeSizes:
    """The limits of all nodes, as ordered and as in force."""

    def __init__(self, parts: MasterParts) -> None:
        self._job, self._outbox, self._backend = parts.job, parts.outbox, parts.backend
        self._monitor, self._members = parts.monitor, parts.members
        self._sizes = {"worker": parts.spec.workers, "server": parts.spec.servers}
        self._due: deque[str] = deque()
        """Nodes whose limits are to change; the first one has been told."""

    def of(self, role: str) -> NodeSpec:
        """What the nodes of a role may use, as ordered last."""
        return self._sizes[role]

    @property
    def is_changing(self) -> bool:
        """Whether a node has not answered yet."""
        return bool(self._due)

    def order(self, wanted: ResizeNodes) -> None:
        """Give the nodes of a role other limits, those that come included.

        Raises:
            ConfigError: there are none, they use more memory, nobody can change it, or the disk
                refuses it.
        """
        sizes = replace(self._sizes[wanted.role], **_changed(wanted))
        self._check(wanted.role, sizes)
        if sizes == self._sizes[wanted.role]:
            return
        field = f"{wanted.role}s"
        try:
            save(replace(load(self._job.spec), **{field: sizes}), self._job.spec)
        except OSError as error:
            raise ConfigError(describe(error, self._job.spec)) from error
        self._sizes[wanted.role] = sizes
        for node in self._members.of_role(wanted.role):
            if node.name in self._outbox.streams:
                self._tell_in_turn(node.name)

    def _check(self, role: str, sizes: NodeSpec) -> None:
        if not any(True for _ in self._members.of_role(role)):
            raise ConfigError(f"cannot resize: the job has no {role}s")
        if why := self._backend.fixed_sizes:
            raise ConfigError(f"cannot resize: {why}")
        for node in self._members.of_role(role):
            seen = self._monitor.nodes.get(node.name)
            used = seen.facts.rss_bytes if seen is not None else 0
            if sizes.memory_bytes is not None and used > sizes.memory_bytes:
                raise ConfigError(
                    f"cannot give {node.name} {size(sizes.memory_bytes)} of memory: it uses "
                    f"{size(used)}; ask for more than that"
                )

    def hello(self, hello: AgentHello) -> None:
        """Take in the limits of a node, and change them if they are not those ordered last."""
        self._monitor.hardware(hello.node, hello.hardware)
        if hello.note:
            self._outbox.tell(NoLimitsEvent(node=hello.node, reason=hello.note))
        wanted, has = self._wanted(hello.node), hello.hardware
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
        """Its agent is not connected: the next one goes on; a later hello tells its limits."""
        if node in self._due:
            self._forget(node)

    # ------------------------------------------------------------------ one after the other

    def _tell_in_turn(self, node: str) -> None:
        if node not in self._due:
            self._due.append(node)
        if self._due[0] == node:
            self._outbox.to_agent(node, self._wanted(node))

    def _forget(self, node: str) -> None:
        was_first = self._due[0] == node
        self._due.remove(node)
        if was_first and self._due:
            self._outbox.to_agent(self._due[0], self._wanted(self._due[0]))

    def _wanted(self, node: str) -> LimitNode:
        sizes = self._sizes[role_of(node)]
        return LimitNode(cpu=sizes.cpu_of(number_of(node)), memory_bytes=sizes.memory_bytes)


def _changed(wanted: ResizeNodes) -> dict[str, object]:
    named = {"cpu": wanted.cpu, "memory_bytes": wanted.memory_bytes}
    return {name: value for name, value in named.items() if value is not None}

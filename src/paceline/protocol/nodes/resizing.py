"""Nodes get other cores and memory where a place keeps its size: one after the other moves.

A server is replaced by a fresh one. For workers one more worker stands in, with the new size, from
before the first of them gives up its place until the last one works again. Where the job can have
no further worker, each gives up its place first. Facts in, the next move out.
"""

from typing import Literal

import msgspec
from msgspec.structs import replace

from paceline.protocol.records import Record
from paceline.wire.spec import JobSpec

STARTS = 5
"""Factor on the patience with a node that has its place, until it works."""

Condition = Literal["works", "starts", "ended", "waits", "refused"]
"""Condition of a node. Ended: its next life is due, at the same place. Waits, refused: it has no
place."""

# --------------------------------------------------------------------------- records


class FormerSize(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes of the nodes of a role before a change, node by node, in turn."""

    cpu: tuple[float, ...] | None = None
    memory_bytes: int | None = None


class NodesResizing(Record, frozen=True, kw_only=True):
    """Nodes move, one after the other, to places of the sizes that the spec has now."""

    former: dict[str, FormerSize] = {}
    """Former sizes of the roles whose nodes have to move, by role; empty: none moves any more."""
    spared: int = 0
    """The number of workers without the one that stands in; 0: none does."""


class NodesResized(Record, frozen=True):
    """No node is to move, and none stands in."""


class OrderedSize(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes of the nodes of a role as ordered last, node by node, in turn."""

    cpu: tuple[float, ...] | None = None
    memory_bytes: int | None = None


class NodesSized(Record, frozen=True, kw_only=True):
    """Sizes are not those that the job was launched with; what is newest counts.

    The spec beside the master has them, too. A master on another machine begins with the spec of a
    node that has joined, which may have done so before the order.
    """

    sizes: dict[str, OrderedSize]
    """Sizes by role."""

    def put_into(self, spec: JobSpec) -> JobSpec:
        """Return the spec with these sizes."""
        sized = {
            f"{role}s": replace(spec.of_role(role), cpu=one.cpu, memory_bytes=one.memory_bytes)
            for role, one in self.sizes.items()
        }
        return replace(spec, **sized)


# --------------------------------------------------------------------------- facts


class SizedNode(msgspec.Struct, frozen=True, kw_only=True):
    """One node that takes part in the job, or is to."""

    name: str
    role: str
    condition: Condition
    fits: bool | None = True
    """Whether the node has the size that it should have; None: its agent has not said."""


class SizesSeen(msgspec.Struct, frozen=True, kw_only=True):
    """The nodes of a job in the course of a change."""

    nodes: tuple[SizedNode, ...]
    spare: str = ""
    """The worker that stands in; empty: none does."""
    may_add: bool = True
    """The job may have one more worker."""
    buckets_move: bool = False
    tried: frozenset[str] = frozenset()
    """Nodes that have been told to move in this change."""
    waited_s: float = 0.0
    """Seconds for which the same node has been awaited."""
    patience_s: float
    """Seconds that a node may wait for its place."""
    ends: bool = False
    """A script has returned: a worker that is awaited would hold up the end of the job."""


# --------------------------------------------------------------------------- moves


class Await(msgspec.Struct, frozen=True):
    """Nothing moves until this is over."""

    what: str


class AddSpare(msgspec.Struct, frozen=True):
    """Have one more worker stand in."""


class DropSpare(msgspec.Struct, frozen=True):
    """The worker that stands in leaves."""


class MoveNode(msgspec.Struct, frozen=True):
    """Have this node go on at a place of its new size."""

    node: str


class GiveUpResize(msgspec.Struct, frozen=True):
    """Nodes that have not moved stay as they are."""

    why: str


class ResizeOver(msgspec.Struct, frozen=True):
    """All is as ordered."""


ResizeMove = Await | AddSpare | DropSpare | MoveNode | GiveUpResize | ResizeOver


def next_move(seen: SizesSeen) -> ResizeMove:
    """Decide what comes next; called again after each move, and while something is awaited."""
    if seen.ends:
        return GiveUpResize("the job is about to end")
    awaited = next((node for node in seen.nodes if node.condition != "works"), None)
    due = [node for node in seen.nodes if node.fits is False and node.name != seen.spare]
    if awaited is not None:
        if awaited.condition == "ended" and awaited in due and awaited.name not in seen.tried:
            return MoveNode(awaited.name)
        return _patience_with(awaited, seen)
    if seen.buckets_move:
        return Await("buckets move")
    if any(node.fits is None for node in seen.nodes):
        return Await("an agent has not said what its node has")
    if due:
        return _next_due(due, seen)
    return DropSpare() if seen.spare else ResizeOver()


def _patience_with(node: SizedNode, seen: SizesSeen) -> Await | GiveUpResize:
    has_place = node.condition != "waits"
    limit_s = seen.patience_s * (STARTS if has_place else 1)
    if node.condition == "refused":
        return GiveUpResize(f"the platform refuses {node.name}")
    if seen.waited_s <= limit_s:
        return Await(node.name)
    lacks = "does not work" if has_place else "has no place"
    return GiveUpResize(f"{node.name} {lacks} after {limit_s:.0f} s")


def _next_due(due: list[SizedNode], seen: SizesSeen) -> AddSpare | MoveNode | GiveUpResize:
    servers = [node for node in due if node.role == "server"]
    node = (servers or due)[0]
    if node.name in seen.tried:
        return GiveUpResize(f"{node.name} moved, or was to move, and has its former size")
    if node.role == "worker" and not seen.spare and seen.may_add:
        return AddSpare()
    return MoveNode(node.name)

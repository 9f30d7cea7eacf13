"""Messages between the master's backend and the job's gateway to Ray.

Lines of JSON through the gateway's standard input and output. The backend sends its whole wish
again to each new gateway, so that neither has to remember what the other has missed.
"""

import msgspec

from paceline.protocol.nodes.platform import AnyWord
from paceline.wire.spec import NodeSize


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """Shape of a place: the limits of the node, one core where it has none, and GPUs."""

    size: NodeSize = NodeSize()
    gpus: float = 0.0

    @property
    def cpus(self) -> float:
        """Cores that Ray reserves."""
        return 1.0 if self.size.cpu is None else self.size.cpu

    @property
    def resources(self) -> dict[str, float]:
        """The shape in Ray's words."""
        memory = float(self.size.memory_bytes or 0)
        found = {"CPU": self.cpus, "GPU": self.gpus, "memory": memory}
        return {name: amount for name, amount in found.items() if amount}


class Want(msgspec.Struct, frozen=True, kw_only=True):
    """A node that must run."""

    node: str
    launch: str
    """Names one launch of the node; empty: watch what runs, and start nothing."""
    shape: Shape
    bundle: int | None = None
    """Its place among those that are reserved together; None: a place of its own."""
    may_move: bool = False
    """True: nothing of it runs, so a place of another size is given back, and another taken."""


class Begin(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The first line: all that is wanted, and what no longer is. The rest stays as it is."""

    gang: tuple[Shape, ...]
    """Places that the job needs at least, which are reserved together."""
    roles: dict[str, Shape]
    """Shape of the place that a further node of a role asks for."""
    wants: tuple[Want, ...]
    drops: tuple[str, ...] = ()
    """Nodes that must go."""


class RunNode(msgspec.Struct, frozen=True, tag=True):
    """Run this node, in place of what ran of it."""

    want: Want


class SetRoles(msgspec.Struct, frozen=True, tag=True):
    """A further node of a role asks for something else from now on."""

    roles: dict[str, Shape]


class DropNode(msgspec.Struct, frozen=True, tag=True):
    """End all that runs of the node."""

    node: str


class Close(msgspec.Struct, frozen=True, tag=True):
    """End everything, give all places back, and exit."""


Order = Begin | RunNode | SetRoles | DropNode | Close


class Said(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The gateway's word about a launch."""

    launch: str
    word: AnyWord


class Room(msgspec.Struct, frozen=True, tag=True):
    """Places that are free now."""

    by_role: dict[str, int]


Line = Said | Room
"""Lines that the gateway writes."""

"""Messages between the master's backend and the job's gateway to Ray.

Lines of JSON through the gateway's standard input and output. The backend sends its whole wish
again to each new gateway, so that neither has to remember what the other has missed.
"""

from collections.abc import Iterable

import msgspec

from paceline.protocol.nodes.platform import AnyWord
from paceline.wire.places import AskedPlace


def resources_of(place: AskedPlace) -> dict[str, float]:
    """Return what Ray reserves for a node: one core where it has no limit."""
    cpus = 1.0 if place.size.cpu is None else place.size.cpu
    memory = float(place.size.memory_bytes or 0)
    found = {"CPU": cpus, "GPU": place.gpus, "memory": memory}
    return {name: amount for name, amount in found.items() if amount}


def fits(place: AskedPlace, machines: Iterable[dict[str, float]]) -> int:
    """Count the further nodes of a shape for which machines have room."""
    asked = resources_of(place).items()
    return sum(
        min(int(free.get(name, 0.0) / amount) for name, amount in asked) for free in machines
    )


class Want(msgspec.Struct, frozen=True, kw_only=True):
    """A node that must run."""

    node: str
    launch: str
    """Names one launch of the node; empty: watch what runs, and start nothing."""
    place: AskedPlace
    bundle: int | None = None
    """Its place among those that are reserved together; None: a place of its own."""
    may_move: bool = False
    """True: nothing of it runs, so a place of another size is given back, and another taken."""


class DropNode(msgspec.Struct, frozen=True, tag=True):
    """End all that runs of the node."""

    node: str
    launch: str = ""
    """The launch that is ended; empty: it is not known."""
    grace_s: float = 0.0
    """Seconds for the agent to end in order."""


class Begin(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The first line: all that is wanted, and what no longer is. The rest stays as it is."""

    gang: tuple[AskedPlace, ...]
    """Places that the job needs at least, which are reserved together."""
    wants: tuple[Want, ...]
    drops: tuple[DropNode, ...] = ()
    """Nodes that must go."""


class RunNode(msgspec.Struct, frozen=True, tag=True):
    """Run this node, in place of what ran of it."""

    want: Want


class Close(msgspec.Struct, frozen=True, tag=True):
    """End everything, give all places back, and exit."""


Order = Begin | RunNode | DropNode | Close


class Said(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The gateway's word about a launch."""

    launch: str
    word: AnyWord


class FreeOnMachines(msgspec.Struct, frozen=True, tag=True):
    """Free resources of each machine, by Ray's names."""

    machines: tuple[dict[str, float], ...]


Line = Said | FreeOnMachines
"""Lines that the gateway writes."""

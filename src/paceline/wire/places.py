"""What a node asks of its platform, and what a platform says of its room. Pure."""

from enum import StrEnum

from msgspec import Struct

from paceline.base.jobdir import number_of, role_of
from paceline.wire.spec import JobSpec, NodeSize


class AskedPlace(Struct, frozen=True, kw_only=True):
    """What one node asks of its platform, and how much the job needs it."""

    size: NodeSize = NodeSize()
    """Its cores and memory, which are also the limits of the node; None: no limit."""
    gpus: float = 0.0
    core: bool = False
    """Whether the job cannot train without the node. The others may be preempted first."""
    group: str = ""
    """Name of the places that are of use only together; empty: it is of use alone."""


def core_nodes(spec: JobSpec) -> list[str]:
    """Name the nodes without which nothing trains: the servers, and the least number of workers."""
    together = spec.traits.lives == "in_rounds"
    workers = spec.workers.count if together else min(spec.min_workers, spec.workers.count)
    counts = {"server": spec.num_servers, "worker": workers}
    return [f"{role}-{number}" for role, count in counts.items() for number in range(count)]


def place_of(spec: JobSpec, node: str) -> AskedPlace:
    """Return what a node of a job asks for."""
    nodes, core = spec.of_role(role_of(node)), core_nodes(spec)
    is_core = node in core
    return AskedPlace(
        size=nodes.size_of(number_of(node)),
        gpus=nodes.gpus,
        core=is_core,
        group="core" if is_core and len(core) > 1 else "",
    )


class Lack(StrEnum):
    """Reason why a platform has no room."""

    QUOTA = "quota"
    """It lets this job, or its owner, have no more."""
    NO_NODE = "no_node"
    """No machine has so much free."""
    GATED = "gated"
    """A queue holds the job back."""
    IMAGE = "image"
    """What nodes are to run cannot be had."""


LACKS = {
    Lack.QUOTA: "the quota allows no more",
    Lack.NO_NODE: "no machine has so much free",
    Lack.GATED: "the platform's queue holds them back",
    Lack.IMAGE: "their image cannot be had",
}
"""The reasons in words."""


class Room(Struct, frozen=True, kw_only=True):
    """Room of a platform for nodes of one shape, as it was known a moment ago."""

    count: int | None = None
    """Further nodes that would get a place at once; None: nobody counts that."""
    why: Lack | None = None
    """Reason why there are no more; None: it is not known."""
    pending_s: float | None = None
    """Seconds a launch of now would wait for its place; None: the platform does not say."""


class Resized(Struct, frozen=True):
    """The place has the size: the agent may use it from now on."""


class Deferred(Struct, frozen=True):
    """The place does not have the size yet: ask again."""

    why: str


class CannotResize(Struct, frozen=True):
    """The place cannot have the size: the node must move to another one, or keep what it has."""

    why: str
    """Reason, and what can be done about it."""


Resizing = Resized | Deferred | CannotResize

"""How large a job is: the number of its nodes, and what each of them is granted.

Memory is bytes; cores are those that a quota grants, so 0.1 is a tenth of a core.
"""

from typing import Literal

import msgspec

from paceline.wire.spec import JobSpec, NodeSpec

Dimension = Literal[
    "workers", "servers", "worker_cpu", "server_cpu", "worker_memory", "server_memory"
]
ChangeKind = Literal["workers", "servers", "worker_size", "server_size"]
"""Parts of a change of size, each with its own transition time."""

GIB = 1 << 30
_FAR = 1.5
"""Times a count or a quota from which on two sizes are not close."""
CLOSE = 1e-6
"""Cores closer than this, relative, are the same."""


class ResourcePrices(msgspec.Struct, frozen=True, kw_only=True):
    """Prices of resources per hour, in one currency."""

    core: float = 1.0
    gib: float = 0.1


class JobSize(msgspec.Struct, frozen=True, kw_only=True):
    """How many nodes of each role a job has, and what each of a role is granted."""

    workers: int
    servers: int = 0
    worker_cpu: float = 0.0
    """Cores of one worker; 0: no limit."""
    server_cpu: float = 0.0
    """Cores of one server; 0: no limit."""
    worker_memory: int = 0
    """Bytes of one worker; 0: no limit."""
    server_memory: int = 0
    """Bytes of one server; 0: no limit."""

    @property
    def cores(self) -> float:
        """Cores of all nodes; a node without a quota counts as one core."""
        return self.workers * (self.worker_cpu or 1.0) + self.servers * (self.server_cpu or 1.0)

    @property
    def memory_bytes(self) -> int:
        """Memory of all nodes."""
        return self.workers * self.worker_memory + self.servers * self.server_memory

    def cost(self, prices: ResourcePrices) -> float:
        """Return the price of an hour of it."""
        return self.cores * prices.core + self.memory_bytes / GIB * prices.gib

    def differing(self, other: "JobSize") -> tuple[Dimension, ...]:
        """The dimensions in which two sizes differ."""
        return tuple(
            each for each in DIMENSIONS if not _same(getattr(self, each), getattr(other, each))
        )

    def is_close(self, other: "JobSize") -> bool:
        """Whether no dimension of the other size is far from this one's."""
        pairs = [(getattr(self, each), getattr(other, each)) for each in DIMENSIONS]
        return all(min(pair) * _FAR > max(pair) if min(pair) else not max(pair) for pair in pairs)

    def kinds(self, other: "JobSize") -> tuple[ChangeKind, ...]:
        """The parts of a change from one size to the other, servers first."""
        found = self.differing(other)
        kinds: dict[ChangeKind, bool] = {
            "servers": "servers" in found,
            "server_size": "server_cpu" in found or "server_memory" in found,
            "workers": "workers" in found,
            "worker_size": "worker_cpu" in found or "worker_memory" in found,
        }
        return tuple(kind for kind, is_part in kinds.items() if is_part)


DIMENSIONS: tuple[Dimension, ...] = (
    "workers",
    "servers",
    "worker_cpu",
    "server_cpu",
    "worker_memory",
    "server_memory",
)


def _same(one: float, other: float) -> bool:
    return abs(one - other) <= CLOSE * max(abs(one), abs(other))


def size_of(spec: JobSpec) -> JobSize:
    """Return the size at launch; of nodes with different quotas it has their mean."""
    workers, servers = spec.workers, spec.servers if spec.num_servers else NodeSpec()
    return JobSize(
        workers=workers.count,
        servers=spec.num_servers,
        worker_cpu=_mean_cores(workers),
        server_cpu=_mean_cores(servers),
        worker_memory=workers.memory_bytes or 0,
        server_memory=servers.memory_bytes or 0,
    )


def _mean_cores(nodes: NodeSpec) -> float:
    cores = [nodes.cpu_of(number) or 0.0 for number in range(nodes.count)]
    return sum(cores) / len(cores)

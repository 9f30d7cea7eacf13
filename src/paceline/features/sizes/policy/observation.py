"""Observation of a job for a resource policy: one frozen value per decision.

Reference: DLRover section 4.2, DLRover-RM sections 4.1 and 4.3. Times are seconds, memory is bytes,
cores are those that a quota grants, so 0.1 is a tenth of a core. Costs are of the user's prices.
"""

from typing import Literal

import msgspec

from paceline.policy.job_size import CLOSE, GIB, ChangeKind, JobSize, ResourcePrices

Role = Literal["worker", "server"]


class ResourceBounds(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds on what a job may have; None: no limit."""

    cores: float | None = None
    """Most cores of all nodes together (the paper's C_total)."""
    memory_bytes: int | None = None
    """Most memory of all nodes together."""
    cost: float | None = None
    """Highest cost of all nodes together, per hour."""
    min_workers: int = 1
    max_workers: int | None = None
    min_servers: int = 1
    max_servers: int | None = None
    min_node_cores: float = 0.1
    max_node_cores: float | None = None
    """Most cores of one node (the paper's C_max)."""
    max_node_bytes: int | None = None
    """Memory of one node."""
    max_server_bytes: int | None = None
    """Memory of one server."""
    has_other_machines: bool = False
    """Whether a new node may come to another machine than the one in whose place it comes."""
    core_step: float = 0.1
    """Smallest step of a node's cores."""

    def excess(self, size: JobSize, prices: ResourcePrices, extra_cores: float = 0.0) -> str:
        """Say what a size has too much or too little of; empty: it is allowed.

        Args:
            size: of the job.
            prices: for the bound on cost.
            extra_cores: that single nodes have beyond the size of their role.
        """
        counts = (
            ("workers", size.workers, self.min_workers, self.max_workers),
            ("servers", size.servers, self.min_servers, self.max_servers),
        )
        for what, count, least, most in counts:
            if count < least:
                return f"{count} {what}, and at least {least} must be"
            if most is not None and count > most:
                return f"{count} {what}, and at most {most} may be"
        slack, largest = 1.0 + CLOSE, max(size.worker_memory, size.server_memory)
        amounts = (
            ("cores", size.cores + extra_cores, self.cores),
            ("GiB of memory", size.memory_bytes / GIB, _gib(self.memory_bytes)),
            ("cost per hour", size.cost(prices) + extra_cores * prices.core, self.cost),
            ("cores of one node", self._largest_cores(size), self.max_node_cores),
            ("GiB of one node", largest / GIB, _gib(self.max_node_bytes)),
            ("GiB of one server", size.server_memory / GIB, _gib(self.max_server_bytes)),
        )
        for what, amount, limit in amounts:
            if limit is not None and amount > limit * slack:
                return f"{what}: {amount:g}, and the limit is {limit:g}"
        if self._smallest_cores(size) * slack < self.min_node_cores:
            least_cores = self._smallest_cores(size)
            return f"cores of one node: {least_cores:g}, and the least is {self.min_node_cores:g}"
        return ""

    @property
    def largest_server_bytes(self) -> int | None:
        """The most memory that a server may have; None: no limit."""
        limits = (self.max_node_bytes, self.max_server_bytes)
        return min((limit for limit in limits if limit is not None), default=None)

    @staticmethod
    def _largest_cores(size: JobSize) -> float:
        return max(size.worker_cpu, size.server_cpu if size.servers else 0.0)

    def _smallest_cores(self, size: JobSize) -> float:
        """The least quota that is set; without any it is `min_node_cores`."""
        granted = (size.worker_cpu, size.server_cpu if size.servers else 0.0)
        return min((cores for cores in granted if cores), default=self.min_node_cores)


def _gib(num_bytes: int | None) -> float | None:
    return None if num_bytes is None else num_bytes / GIB


class NodeUse(msgspec.Struct, frozen=True, kw_only=True):
    """Grant and use of one living node, over the newest windows."""

    node: str
    role: Role
    granted_cores: float = 0.0
    """0: no quota."""
    used_cores: float | None = None
    """None: not measured."""
    granted_bytes: int = 0
    """0: no limit."""
    used_bytes: int | None = None
    """Largest use among the newest looks."""
    base_bytes: int | None = None
    """Bytes that a server used before its tables had rows."""
    samples_per_s: float | None = None
    """Samples per second of a worker."""
    batch_s: float | None = None
    """Wall time of a worker's batch, waits included."""
    service_s: float | None = None
    """A server's own work for one iteration (a step; without steps: a pull of each worker)."""
    oom_kills: int = 0
    """Number of kills for want of memory in this job so far."""

    @property
    def use(self) -> float | None:
        """Used cores for each granted one; None: not measured, or without a quota."""
        if self.used_cores is None or not self.granted_cores:
            return None
        return self.used_cores / self.granted_cores


class StepParts(msgspec.Struct, frozen=True, kw_only=True):
    """Mean parts of a worker's step, as far as they are measured; None: not measured."""

    compute_s: float | None = None
    """T^w: from the batch ready to the gradients ready, without any wait."""
    server_s: float | None = None
    """T^s: the slowest server's work for the request."""
    message_s: float | None = None
    """T^m: the round trip of dense parameters and gradients, without T^s."""
    lookup_s: float | None = None
    """The lookup of embedding rows, without T^s; where it is not measured apart, T^m has it."""
    data_s: float | None = None
    """T^d: the wait for the batch."""


class RowsSeen(msgspec.Struct, frozen=True, array_like=True):
    """Rows that a table had when so many samples were done."""

    samples: int
    rows: int


class TableRows(msgspec.Struct, frozen=True, kw_only=True):
    """The growth of one dynamic table, over all servers."""

    table: str
    row_bytes: int
    """Bytes of a row, with the optimiser's state."""
    seen: tuple[RowsSeen, ...]
    """Oldest first."""


class ModelFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Size of a job's model."""

    dense_bytes: int = 0
    """M: parameters that each worker pulls whole."""
    embedding_dim: int = 0
    """D: values of one row, over all tables that a sample looks up; 0: not known."""
    tables: tuple[TableRows, ...] = ()
    """Tables that grow."""
    last_new: int | None = None
    """The number of the last sample that can bring a new row; None: as the job's last one."""


class PendingTime(msgspec.Struct, frozen=True, kw_only=True):
    """How long nodes of one size waited for a place."""

    cores: float
    seconds: float
    launches: int = 1
    """Number of launches of which it is the mean; 0: the platform's expectation for the next
    one."""


class TransitionTime(msgspec.Struct, frozen=True, kw_only=True):
    """Time that changes of one kind took, as a mean over those that took effect."""

    kind: ChangeKind
    seconds: float
    """Mean time from the order until all nodes did their share."""
    stall_s: float = 0.0
    """Part of ``seconds`` in which the job lost its work, as seconds of standing still."""
    changes: int = 1
    """Number of changes behind the mean; 0: a guess from before the first."""


class RateWindow(msgspec.Struct, frozen=True, kw_only=True):
    """Samples that came into the model in one stretch of time."""

    end_s: float
    seconds: float
    samples: float
    disturbed: bool = False
    """A death, a change of size, a restore or an evaluation lay in it: it does not count."""

    @property
    def begin_s(self) -> float:
        """When it began."""
        return self.end_s - self.seconds


class ResourceObservation(msgspec.Struct, frozen=True, kw_only=True):
    """The job at one moment."""

    now_s: float
    mode: str
    """``bsp``, ``ssp``, ``asp`` or ``allreduce``."""
    batch_size: int
    """m: samples of one worker's batch at the present number of workers."""
    global_batch: int = 0
    """Samples of a step, which all workers divide; 0: each worker has its own batch."""
    samples_done: int
    samples_total: int | None = None
    """None: not known."""
    size: JobSize
    """Size as granted; nodes that are absent for the moment count."""
    absent: int = 0
    """Nodes of the size that are not living: lost, pending, or under restart."""
    bounds: ResourceBounds = ResourceBounds()
    prices: ResourcePrices = ResourcePrices()
    nodes: tuple[NodeUse, ...] = ()
    """The living ones, workers first."""
    parts: StepParts = StepParts()
    """Over the same windows as `nodes`."""
    model: ModelFacts = ModelFacts()
    windows: tuple[RateWindow, ...] = ()
    """The newest, oldest first."""
    pending: tuple[PendingTime, ...] = ()
    transitions: tuple[TransitionTime, ...] = ()

    @property
    def samples_left(self) -> int | None:
        """Samples until the end of the job; None: not known."""
        return None if self.samples_total is None else self.samples_total - self.samples_done

    def batch_at(self, workers: int) -> float:
        """Samples of one worker's batch with so many workers."""
        return self.global_batch / workers if self.global_batch else float(self.batch_size)

    def of_role(self, role: Role) -> tuple[NodeUse, ...]:
        """The living nodes of a role."""
        return tuple(each for each in self.nodes if each.role == role)

    def transition_s(self, target: JobSize) -> float:
        """Seconds until a change to another size is done, by what earlier ones took."""
        return sum(each.seconds for each in self._parts_of(target))

    def stall_s(self, target: JobSize) -> float:
        """Seconds of work that a change to another size costs, by what earlier ones cost."""
        return sum(each.stall_s for each in self._parts_of(target))

    def _parts_of(self, target: JobSize) -> list[TransitionTime]:
        kinds = self.size.kinds(target)
        return [each for each in self.transitions if each.kind in kinds]

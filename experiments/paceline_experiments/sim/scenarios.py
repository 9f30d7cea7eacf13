"""Scenarios to simulate: a job, its costs, and the stragglers it meets.

Pure data, the same for the simulator and for runs of real processes with emulated compute.
"""

import msgspec

from paceline.policy.observation import RestartCost
from paceline_experiments.sim.costs import Compute, Traffic
from paceline_experiments.sim.patterns import AnyPattern


class Recovery(msgspec.Struct, frozen=True, kw_only=True):
    """Costs of KILL_RESTART for a job.

    As ours: a worker loses what is not committed of its leases and the others go on; a server
    serves on while a fresh one takes over its buckets. Or from checkpoints, as jobs without a
    ledger do: all stop, go back to the last one, and wait for the new node.
    """

    worker: RestartCost
    """Cost of a worker's restart, without `redo_s`: that is simulated."""
    server: RestartCost
    switch_s: float = 0.0
    """Seconds that everybody waits when a fresh server takes over."""
    checkpoint_every_s: float | None = None
    """None: as ours."""
    checkpoint_s: float = 0.0
    """Seconds that everybody waits for a checkpoint."""


class PlannedKill(msgspec.Struct, frozen=True, array_like=True):
    """A node's process ends, by no decision of the job."""

    at_s: float
    node: str


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """One job, in trouble; together with a seed and a solution it determines a run."""

    name: str
    mode: str
    """``bsp``, ``ssp``, ``asp`` or ``allreduce``."""
    workers: int
    servers: int
    num_samples: int
    """Samples in one epoch."""
    epochs: int
    batch_size: int
    """The global batch."""
    staleness: int = 0
    speeds: tuple[float, ...] = ()
    """Relative speeds of the workers' hardware; empty: all 1."""
    kinds: tuple[str, ...] = ()
    """Hardware classes of the workers; empty: one."""
    batch_limit: int | None = None
    """Largest batch that a worker's memory holds; None: not known."""
    compute: Compute
    traffic: Traffic = Traffic()
    recovery: Recovery
    patterns: tuple[AnyPattern, ...] = ()
    kills: tuple[PlannedKill, ...] = ()
    time_scale: float = 1.0
    """Factor on the windows and periods that methods count in seconds: a job of a hundredth of the
    paper's length has windows of a hundredth."""
    report_every: int = 1
    """Iterations between a node's reports, at least; 10 in AntDT, section VII-A-5."""
    heartbeat_s: float = 0.5
    """Time between a node's reports, at least."""

    @property
    def num_steps(self) -> int:
        """Global batches of the whole job; the last of an epoch may be smaller."""
        return -(-self.num_samples // self.batch_size) * self.epochs

    @property
    def local_batch(self) -> int:
        """Samples of a worker's batch when all get the same."""
        return self.batch_size // self.workers

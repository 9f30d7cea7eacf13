"""Observation of a job for a solution: one frozen value per decision.

Reference: AntDT section V-D (application state, node state, third-party state). Times are seconds,
batch sizes samples. Workers are named by node: a plan outlives the incarnations of its workers.
"""

import msgspec

from paceline.base.numbering import Inc
from paceline.policy.stats.history import ProfiledTimes
from paceline.policy.stats.regimes import Regime
from paceline.policy.stats.spells import LifeTable
from paceline.policy.stats.windows import Pace

MAX_OUTCOMES = 50
"""Number of outcomes of restarts that are remembered, the newest."""
RESTART_PARTS = ("pending_s", "start_s", "rebuild_s", "restore_s", "redo_s")
"""Fields of a restart's cost (AntDT section V-E-2)."""


class JobProgress(msgspec.Struct, frozen=True):
    """How far the job is at a moment."""

    t_s: float
    committed: int
    """Samples in the model."""
    total: int | None = None


class WorkerSeen(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One living worker."""

    node: str
    batch_size: int
    """B_i of the plan in force; asynchronous: samples of one contribution."""
    accumulation: int = 1
    """C_i of the plan in force."""
    kind: str = ""
    """Hardware class; workers of one are taken to be alike. Empty: not known."""
    batch_limit: int | None = None
    """Largest batch that leaves 5 % of its memory free; None: not known."""
    profile: tuple[ProfiledTimes, ...] = ()
    """Times of batches that `Profile` asked for, by size, ascending."""
    short: Pace | None = None
    """Over L_trans; None: nothing measured in it, as after a restart."""
    long: Pace | None = None
    """Over L_per; None: not full yet."""
    regime: Regime | None = None
    restarts: int = 0
    """Lives that a KILL_RESTART of ours has ended."""


class ServerSeen(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One living server; ``server_s`` of its paces is its own work for an iteration.

    That is a step of all workers, or without steps one contribution of each.
    """

    node: str
    short: Pace | None = None
    long: Pace | None = None
    regime: Regime | None = None
    restarts: int = 0


class RestartOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """Outcome of a KILL_RESTART for a node."""

    role: str
    before: float
    """Times the usual that the node took when it was decided."""
    after: float
    """Times the usual that the node takes in its next life."""
    weight: float = 1.0
    """Probability that the node would have been slow that long without the restart: so much of a
    cure is the restart's."""

    @property
    def cured(self) -> bool:
        """Whether half of what was too much is gone."""
        return self.after - 1.0 <= 0.5 * (self.before - 1.0)


class RestartCost(msgspec.Struct, frozen=True, kw_only=True):
    """Five parts of a restart (AntDT section V-E-2), s; measured in this job, or its own start."""

    pending_s: float = 0.0
    """Seconds until the platform gives a place."""
    start_s: float = 0.0
    """Seconds from then until the process answers."""
    rebuild_s: float = 0.0
    """Seconds from then until its script has built what it needs."""
    restore_s: float = 0.0
    """Seconds from then until it has the model."""
    redo_s: float = 0.0
    """Work that was lost with it and is done again."""
    stall_s: float | None = None
    """The time of all this in which the whole job stood still; None: not known. The others do a
    worker's share meanwhile, and a server serves until its successor has its buckets."""

    @property
    def latency_s(self) -> float:
        """Seconds from the kill until the new process does its share."""
        return self.pending_s + self.start_s + self.rebuild_s + self.restore_s

    @property
    def total_s(self) -> float:
        """Seconds of all five parts."""
        return self.latency_s + self.redo_s


class LifeEnded(msgspec.Struct, frozen=True, kw_only=True):
    """A node's process is gone, or was given up; the log has the end of its output."""

    t_s: float
    """Time by the clock of ``now_s``."""
    node: str
    inc: Inc
    reason: str
    verdict: str = ""
    """Verdict on the evidence: finished, stopped, preempted, oom, retryable, unretryable, …"""
    exit_code: int | None = None
    signal: int | None = None
    oom_kills: int = 0


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """The job at one moment."""

    now_s: float
    step: int
    """Synchronous: last decided step; asynchronous: contributions in the model."""
    mode: str
    """``bsp``, ``ssp``, ``asp`` or ``allreduce``."""
    global_batch: int
    """B; asynchronous: samples of one contribution."""
    batch_per_worker: int = 0
    """Samples of B for each worker; 0: B does not follow the number of workers."""
    steps_left: int | None
    """Steps that are left of the feed; None: not known."""
    workers: tuple[WorkerSeen, ...]
    """Workers in the order of their ranks."""
    servers: tuple[ServerSeen, ...] = ()
    replacing: str = ""
    """The server that another is about to take the place of; no other can be replaced meanwhile."""
    short_steps: bool = True
    """Synchronous: whether steps can be decided without some of their samples."""
    backup: int = 0
    """BACKUP_WORKERS in force."""
    left_out: int = 0
    """`Partial` in force: samples."""
    chunks: int = 1
    """`Partial` in force: contributions of one worker to a step."""
    late: int = 0
    """`Partial` in force: samples that are waited for a little."""
    grace_s: float = 0.0
    """`Partial` in force: how long."""
    fixed: bool = False
    """Asynchronous: a fixed `AdjustBatch` is in force."""
    by_staleness: bool = False
    """Asynchronous: an `AdjustRate` by staleness is in force."""
    absent: int = 0
    """Workers of the job that are not living: lost, or under restart."""
    pending_s: float | None = 0.0
    """Seconds that a new node would wait, as the platform says; None: not known."""
    worker_restart: RestartCost = RestartCost()
    server_restart: RestartCost = RestartCost()
    worker_spells: LifeTable = LifeTable()
    """Durations for which workers of this job were slow, until they were as before."""
    server_spells: LifeTable = LifeTable()
    since_action_s: float | None = None
    """Seconds since the last action took effect; None: there was none."""
    changes_s: tuple[float, ...] = ()
    """Seconds since each change of the plan, newest first: `MAX_CHANGES` at most."""
    outcomes: tuple[RestartOutcome, ...] = ()
    """Outcomes of KILL_RESTART on this backend, in this job and before it."""
    ends: tuple[LifeEnded, ...] = ()
    """The newest ends of lives within L_per, oldest first: 100 at most."""

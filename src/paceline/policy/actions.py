"""Actions against stragglers.

Reference: AntDT section V-E, Table II. ``AdjustBatch``, ``BackupWorkers``, ``Partial`` and
``AdjustRate`` are global actions: they take effect on all workers at the same step.
``KillRestart`` and ``Profile`` are node actions.
"""

import msgspec


class Action(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Base of all actions."""

    reason: str = ""
    """The rule that fired, with the numbers it looked at."""
    gain_s: float = 0.0
    """Expected, until the end of the job or of the straggler; 0: not estimated."""
    cost_s: float = 0.0
    """Expected."""


class Share(msgspec.Struct, frozen=True, array_like=True):
    """A worker's share: B_i, samples of a batch, and C_i, batches of a step."""

    batch_size: int
    accumulation: int = 1

    @property
    def num_samples(self) -> int:
        """Samples of its part of a step."""
        return self.batch_size * self.accumulation


class AdjustBatch(Action, frozen=True):
    """ADJUST_BS: who computes how much of a step; asynchronous: at which rate leases are granted.

    ``shares``: by node; synchronous: the sum of B_i * C_i is the global batch.
    """

    shares: dict[str, Share]
    fixed: bool = False
    """Asynchronous: nobody is granted more of an epoch than its share, however fast it is."""


class BackupWorkers(Action, frozen=True):
    """BACKUP_WORKERS: a step is decided without its ``count`` slowest workers; 0 ends it."""

    count: int


class Partial(Action, frozen=True):
    """A step is decided while samples of it are missing; 0 and 0 end it.

    Not in the paper. Workers hand in their share in ``chunks`` contributions, so that a straggler's
    finished chunks count.
    """

    left_out: int
    """Most samples that a step may lack at once; nobody waits for them."""
    chunks: int = 1
    late: int = 0
    """Most samples that a step may lack after a short wait, ``grace_s``."""
    grace_s: float = 0.0
    """Seconds of that wait, from when no more than ``late`` samples were missing."""


class AdjustRate(Action, frozen=True):
    """ADJUST_LR: a factor on the learning rate of each worker's contributions (asynchronous modes).

    ``factors``: by node.
    """

    factors: dict[str, float]
    by_staleness: bool = True
    """A worker without a factor gets 1 / (1 + staleness): the updates since it pulled parameters.
    False: it gets 1; without factors that ends the action."""


class KillRestart(Action, frozen=True):
    """KILL_RESTART of a worker or a server."""

    node: str


class Profile(Action, frozen=True):
    """Let workers compute ``steps`` batches of a size that are timed and not applied (all-reduce).

    Short ones are more, so that each worker computes for half a second.
    They come before a worker's part of a step; the others wait in it, and the samples still count
    in their own steps. The paper's DD (section VI-B) varies the batch size at the start without
    saying how.
    """

    sizes: dict[str, int]
    """Batch size, by node."""
    steps: int


AnyAction = AdjustBatch | BackupWorkers | Partial | AdjustRate | KillRestart | Profile
"""NONE is the empty list."""

"""Solutions that do not look at how fast anyone is: the baselines of AntDT section VII-A-3."""

import math
from typing import Annotated, ClassVar

from msgspec import Meta

from paceline.features.stragglers.policy.solution import SYNCHRONOUS, Part, Solution, adjusted, even
from paceline.policy.actions import (
    AdjustBatch,
    AdjustRate,
    AnyAction,
    BackupWorkers,
    Partial,
    Share,
)
from paceline.policy.observation import Observation


class Nothing(Solution, frozen=True):
    """``none``: plain BSP, SSP or ASP. In ASP leases are drawn on demand (the paper's ASP-DDS)."""

    def decide(self, seen: Observation) -> list[AnyAction]:
        """NONE."""
        del seen
        return []


class Even(Solution, frozen=True):
    """``even``: everyone computes the same, from start to end.

    In ASP and SSP this is the paper's ASP with an even data partition: nobody is granted more of an
    epoch than its share.
    """

    def decide(self, seen: Observation) -> list[AnyAction]:
        """Even shares, unless they are in force."""
        reason = "everyone computes the same"
        if seen.mode in SYNCHRONOUS:
            return adjusted(seen.workers, even(seen.global_batch, len(seen.workers)), reason)
        if seen.fixed:
            return []
        shares = {worker.node: Share(worker.batch_size) for worker in seen.workers}
        return [AdjustBatch(shares=shares, fixed=True, reason=reason)]


class Backup(Solution, frozen=True):
    """``backup_workers``: every step is decided without its slowest workers (Sync-OPT).

    Reference: AntDT section VII-A-3; Chen et al. 2016, arXiv:1604.00981.
    Differs: the dropped samples go back to the ledger (as AntDT has it, too), and ``count`` may be
    left open: a tenth of the workers, rounded up.
    """

    modes: ClassVar[tuple[str, ...]] = SYNCHRONOUS
    count: Annotated[int, Meta(ge=0)] | None = None

    def decide(self, seen: Observation) -> list[AnyAction]:
        """BACKUP_WORKERS once."""
        all_workers = len(seen.workers) + seen.absent
        count = math.ceil(0.1 * all_workers) if self.count is None else self.count
        count = min(count, all_workers - 1)
        if seen.mode not in SYNCHRONOUS or seen.backup == count:
            return []
        return [BackupWorkers(count=count, reason=f"{count} of {all_workers} workers")]


class LeaveOut(Solution, frozen=True):
    """``partial``: a step is decided when all but a part of its samples are in.

    Not in the paper. As with backup workers nobody waits for the slowest, but what a slow worker
    has finished by then counts, and only the rest comes back later.
    """

    modes: ClassVar[tuple[str, ...]] = SYNCHRONOUS
    left_out: Part = 0.1
    """Largest part of the global batch that a step may lack."""
    chunks: Annotated[int, Meta(ge=1)] = 4
    """Contributions that a worker hands its share in."""

    def decide(self, seen: Observation) -> list[AnyAction]:
        """Partial steps once."""
        samples = int(self.left_out * seen.global_batch)
        in_force = seen.left_out, seen.late, seen.chunks
        if seen.mode not in SYNCHRONOUS or in_force == (samples, 0, self.chunks):
            return []
        reason = f"a step may lack {samples} of {seen.global_batch} samples"
        return [Partial(left_out=samples, chunks=self.chunks, reason=reason)]


class Rates(Solution, frozen=True):
    """``adjust_lr``: the staler the parameters a contribution was computed on, the less it moves.

    Reference: AntDT Table II (ADJUST_LR), which leaves the factor open. Here 1 / (1 + staleness),
    in updates by others; it is refused where nothing is stale.
    """

    modes: ClassVar[tuple[str, ...]] = ("asp", "ssp")

    def decide(self, seen: Observation) -> list[AnyAction]:
        """ADJUST_LR once."""
        if seen.mode in SYNCHRONOUS or seen.by_staleness:
            return []
        return [AdjustRate(factors={}, by_staleness=True, reason="1 / (1 + staleness)")]

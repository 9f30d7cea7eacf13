"""LB-BSP: batch sizes follow predicted speed, always.

Reference: AntDT section VII-A-3; Chen et al. 2020, "Semi-dynamic load balancing" (SoCC).
Differs: of that paper's predictors the exponential average is used. Sizes come from an exact
solver, so this is a stronger baseline than the published one. There is no threshold: it adjusts
whether or not anyone is a straggler.
"""

import numpy as np

from paceline.features.stragglers.policy import solvers
from paceline.features.stragglers.policy.solution import SYNCHRONOUS, Compared, Solution, adjusted
from paceline.policy.actions import AnyAction
from paceline.policy.observation import Observation


class LbBsp(Solution, frozen=True):
    """``lb_bsp``: every 10 iterations B_i in proportion to the smoothed speed."""

    def decide(self, seen: Observation) -> list[AnyAction]:
        """ADJUST_BS as soon as every worker was measured, as far as memory reaches."""
        speeds = [worker.short.smoothed if worker.short else 0.0 for worker in seen.workers]
        if seen.mode not in SYNCHRONOUS or not all(speeds):
            return []
        slopes_s = 1.0 / np.array(speeds)
        most = [
            seen.global_batch if worker.batch_limit is None else worker.batch_limit
            for worker in seen.workers
        ]
        try:
            sizes = solvers.level(
                np.zeros(len(speeds)), slopes_s, seen.global_batch, upper=np.array(most)
            )
        except solvers.Infeasible:
            return []
        return adjusted(seen.workers, sizes.tolist(), "in proportion to the smoothed speeds")

    def compared(self, seen: Observation, action: AnyAction) -> Compared:
        """Compare each worker's batch at its smoothed speed; see `Solution.compared`."""
        paces = [(worker.node, worker.short) for worker in seen.workers]
        times_s = {
            node: pace.samples / pace.smoothed for node, pace in paces if pace and pace.smoothed
        }
        return Compared(times_s=times_s, verb="takes, smoothed,")

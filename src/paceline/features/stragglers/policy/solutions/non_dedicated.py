"""AntDT-ND: the paper's solution for clusters that are shared, to the letter.

Reference: AntDT section VI-A, equations 2 and 3; hyperparameters of section VII-A-5.
Differs: equation 3 is solved exactly in whole samples. Kept as published: a relieved worker gets
its samples back only when somebody else is a straggler; the time of a batch is taken for
proportional to its size; and a straggler below lambda times the mean is not seen.
"""

from collections.abc import Callable, Sequence
from typing import Annotated

import numpy as np
from msgspec import Meta

from paceline.features.stragglers.policy import solvers
from paceline.features.stragglers.policy.solution import (
    SYNCHRONOUS,
    Seconds,
    Solution,
    Steps,
    adjusted,
)
from paceline.policy.actions import AnyAction, KillRestart
from paceline.policy.observation import Observation, ServerSeen, WorkerSeen
from paceline.policy.stats.windows import Pace


class NonDedicated(Solution, frozen=True):
    """``nd``: ADJUST_BS against transient, KILL_RESTART against persistent stragglers.

    In ASP and SSP it takes KILL_RESTART only.
    """

    every_steps: Steps = 100
    every_s: Seconds = 30.0
    slowness: Annotated[float, Meta(gt=1)] = 1.5
    """Lambda: a straggler takes at least so many times the mean."""
    max_pending_s: Seconds = 120.0
    """The cluster is busy, and nothing is restarted, where a new node would wait for longer."""

    def decide(self, seen: Observation) -> list[AnyAction]:
        """Rules 3 to 5 for workers, 2 and 3 for servers."""
        actions = self._against_transient(seen) if seen.mode in SYNCHRONOUS else []
        if seen.pending_s is None or seen.pending_s <= self.max_pending_s:
            actions += self._against_persistent(seen.workers, lambda pace: pace.compute_s)
            if not seen.replacing:
                actions += self._against_persistent(seen.servers, lambda pace: pace.server_s)[:1]
        return actions

    def _against_transient(self, seen: Observation) -> list[AnyAction]:
        paces = [worker.short for worker in seen.workers]
        mean_s = _mean([pace.compute_s for pace in paces if pace])
        slow = [
            worker.node
            for worker in seen.workers
            if worker.short and worker.short.compute_s >= self.slowness * mean_s
        ]
        if not slow:
            return []
        speeds = [pace.throughput for pace in paces if pace]
        # A worker that was just started is taken for one like the others.
        known = np.array([pace.throughput if pace else _mean(speeds) for pace in paces])
        sizes = solvers.level(np.zeros(len(known)), 1.0 / known, seen.global_batch)
        reason = f"T^w over L_trans >= {self.slowness:g} * {mean_s:.3g} s: {', '.join(slow)}"
        return adjusted(seen.workers, sizes.tolist(), reason)

    def _against_persistent(
        self, nodes: Sequence[WorkerSeen | ServerSeen], time_s: Callable[[Pace], float]
    ) -> list[AnyAction]:
        times_s = {node.node: time_s(node.long) for node in nodes if node.long}
        mean_s = _mean(list(times_s.values()))
        return [
            KillRestart(
                node=node,
                reason=f"{each_s:.3g} s over L_per >= {self.slowness:g} * {mean_s:.3g} s",
            )
            for node, each_s in times_s.items()
            if each_s >= self.slowness * mean_s > 0.0
        ]


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0

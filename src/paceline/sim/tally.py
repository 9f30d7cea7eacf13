"""What nodes have done since they last reported, as their agents would count it."""

import numpy as np

from paceline.sim.costs import Floats, Ints
from paceline.wire.messages import NodeFacts


class Tally:
    """Sums over the steps of each node of one role since its last report; nodes are rows.

    A step of a worker is one batch, a step of a server one answered pull.
    """

    def __init__(self, incs: Ints) -> None:
        """``incs``: of the nodes' first lives."""
        count = len(incs)
        self.incs = incs
        self.steps: Ints = np.zeros(count, dtype=np.int64)
        self.samples: Floats = np.zeros(count)
        self.compute_s: Floats = np.zeros(count)
        self.server_s: Floats = np.zeros(count)
        self.message_s: Floats = np.zeros(count)
        self._handed: Ints = np.zeros(count, dtype=np.int64)
        """Samples of the present life."""
        self._since_s: Floats = np.zeros(count)
        """When the last report was made, or the life began."""

    def due(self, every: int, now_s: float, heartbeat_s: float) -> list[int]:
        """Rows that have a report to make: after so many steps, and not too often."""
        due = (self.steps >= every) & (now_s - self._since_s >= heartbeat_s)
        rows: list[int] = np.flatnonzero(due).tolist()
        return rows

    def report(self, row: int, step: int, now_s: float) -> NodeFacts:
        """What a row has to say at this step of the job; its sums start over."""
        count = int(self.steps[row])
        self._handed[row] += round(float(self.samples[row]))
        facts = NodeFacts(
            inc=int(self.incs[row]),
            step=step,
            samples=int(self._handed[row]),
            steps=count,
            step_samples=float(self.samples[row]) / count,
            compute_s=float(self.compute_s[row]) / count,
            server_s=float(self.server_s[row]) / count,
            message_s=float(self.message_s[row]) / count,
            bpt_s=(now_s - float(self._since_s[row])) / count,
        )
        self._clear(row, now_s)
        return facts

    def begin(self, row: int, inc: int, now_s: float) -> None:
        """Its node begins another life."""
        self.incs[row], self._handed[row] = inc, 0
        self._clear(row, now_s)

    def _clear(self, row: int, now_s: float) -> None:
        self.steps[row] = 0
        for sums in (self.samples, self.compute_s, self.server_s, self.message_s):
            sums[row] = 0.0
        self._since_s[row] = now_s

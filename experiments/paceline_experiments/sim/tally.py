"""Tally of what nodes have done since they last reported, as their agents would count it."""

import numpy as np
from numpy.typing import NDArray

from paceline.agent.facts import ALIKE
from paceline.base.numbering import Inc
from paceline.wire.messages.agent import NodeFacts
from paceline_experiments.sim.costs import Floats, Ints


class Tally:
    """Sums over the steps of each node of one role since its last report; nodes are rows.

    A step of a worker is one batch, a step of a server one of the job, or without steps one
    answered pull.
    """

    def __init__(self, incs: Ints) -> None:
        """``incs``: of the nodes' first lives."""
        count = len(incs)
        self.incs = incs
        self.steps: Ints = np.zeros(count, dtype=np.int64)
        self.samples: Floats = np.zeros(count)
        self.compute_s: Floats = np.zeros(count)
        self._largest_s: Floats = np.zeros(count)
        """T^w of single batches."""
        self._least: Floats = np.full(count, np.inf)
        self._most: Floats = np.zeros(count)
        """Samples of single batches."""
        self.server_s: Floats = np.zeros(count)
        self.message_s: Floats = np.zeros(count)
        self._handed: Ints = np.zeros(count, dtype=np.int64)
        """Samples of the present life."""
        self._since_s: Floats = np.zeros(count)
        """Times at which the last report was made, or the life began."""

    def add(
        self, batches: Ints | NDArray[np.bool_], samples: Ints | Floats, batch_s: Floats
    ) -> None:
        """Workers have computed so many batches, of so many samples together, in so long each."""
        self.steps += batches
        self.samples += samples
        self.compute_s += batches * batch_s
        self._largest_s = np.maximum(self._largest_s, np.where(batches > 0, batch_s, 0.0))
        each = samples / np.maximum(batches, 1)
        self._least = np.where(batches > 0, np.minimum(self._least, each), self._least)
        self._most = np.where(batches > 0, np.maximum(self._most, each), self._most)

    def add_one(self, row: int, samples: int, batch_s: float) -> None:
        """Note that one worker has computed a batch."""
        self.steps[row] += 1
        self.samples[row] += samples
        self.compute_s[row] += batch_s
        self._largest_s[row] = max(float(self._largest_s[row]), batch_s)
        self._least[row] = min(float(self._least[row]), samples)
        self._most[row] = max(float(self._most[row]), samples)

    def due(self, every: int, now_s: float, heartbeat_s: float) -> list[int]:
        """Rows that have a report to make: after so many steps, and not too often."""
        due = (self.steps >= every) & (now_s - self._since_s >= heartbeat_s)
        rows: list[int] = np.flatnonzero(due).tolist()
        return rows

    def report(self, row: int, step: int, now_s: float) -> NodeFacts:
        """Return what a row has to say at this step of the job; its sums start over."""
        count = int(self.steps[row])
        self._handed[row] += round(float(self.samples[row]))
        facts = NodeFacts(
            inc=Inc(int(self.incs[row])),
            step=step,
            samples=int(self._handed[row]),
            steps=count,
            step_samples=float(self.samples[row]) / count,
            compute_s=float(self.compute_s[row]) / count,
            compute_max_s=float(self._largest_s[row]) if self._are_alike(row) else 0.0,
            server_s=float(self.server_s[row]) / count,
            message_s=float(self.message_s[row]) / count,
            bpt_s=(now_s - float(self._since_s[row])) / count,
        )
        self._clear(row, now_s)
        return facts

    def begin(self, row: int, inc: int, now_s: float) -> None:
        """Begin another life of its node."""
        self.incs[row], self._handed[row] = inc, 0
        self._clear(row, now_s)

    def _are_alike(self, row: int) -> bool:
        return bool(self._most[row] <= ALIKE * self._least[row])

    def _clear(self, row: int, now_s: float) -> None:
        self.steps[row] = 0
        for each in (
            self.samples,
            self.compute_s,
            self._largest_s,
            self._most,
            self.server_s,
            self.message_s,
        ):
            each[row] = 0.0
        self._least[row] = np.inf
        self._since_s[row] = now_s

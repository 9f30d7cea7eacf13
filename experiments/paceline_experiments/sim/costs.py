"""Costs of a step of a simulated job: affine in what is computed, sent and handled.

A worker computes its share in ``(fixed + samples * per_sample) * slowdown * noise + delay`` per
batch. It then sends every server its part. A server is one thread, as ours is: it handles parts one
after the other, and applies an update alone; what delays a server delays each update it applies.
So in synchronous modes a server's delay is paid once per step, and in asynchronous ones once per
contribution of each worker: with a slow server ASP is slower than BSP (AntDT section VII-B-1 finds
the same and gives the same reason: more updates).
"""

import msgspec
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Compute(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's computation."""

    per_sample_s: float
    """Seconds per sample of a worker of speed 1."""
    fixed_s: float = 0.0
    """Seconds per batch, whatever its size."""
    saturation: int = 0
    """Smaller batches take as long as one of this size (AntDT Fig. 8)."""
    noise: float = 0.0
    """Standard deviation of the logarithm of a factor drawn for each worker and iteration."""

    def batch_s(self, batch_size: Ints | Floats | int, speed: Floats | float = 1.0) -> Floats:
        """Undisturbed seconds of one batch; 0 for an empty one."""
        size = np.asarray(batch_size, dtype=np.float64)
        busy_s = self.fixed_s + np.maximum(size, self.saturation) * self.per_sample_s / speed
        return np.where(size > 0, busy_s, 0.0)


class Traffic(msgspec.Struct, frozen=True, kw_only=True):
    """Messages and servers, per step or contribution."""

    message_s: float = 0.0
    """A worker's round trip, without what servers do."""
    pair_s: float = 0.0
    """Seconds per pair of worker and server, one after the other, where nodes share a processor."""
    part_s: float = 0.0
    """A server's time for one worker's part and pull."""
    update_s: float = 0.0
    """A server's time for applying one update."""
    reduce_s: float = 0.0
    """Seconds of the all-reduce of a step, without servers."""

    def round_trip_s(self, workers: int, servers: int) -> float:
        """Messages of one step of the group."""
        return self.message_s + self.pair_s * workers * servers


def served_s(arrivals_s: Floats, part_s: float) -> float:
    """Return when a server that handles parts one by one has the last of those that arrive so."""
    if part_s == 0.0 or len(arrivals_s) == 0:
        return float(arrivals_s.max(initial=0.0))
    behind = np.arange(len(arrivals_s), 0, -1)
    return float((np.sort(arrivals_s) + behind * part_s).max())

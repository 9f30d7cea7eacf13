"""Affine costs: what a batch costs a worker as a function of its size.

Reference: none. AntDT (section VI-A, Fig. 7) takes the time of a batch for proportional to its
size. A worker that shares its machine also loses a constant per batch, which a smaller batch does
not cure.
"""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_PRIOR_WEIGHT = 0.1
"""Iterations, seen at twice the mean batch size, that the prior slope counts for: what follows if
single iterations scatter by a tenth and slopes are foreseen to a third."""
_MOST_WEIGHT = 10.0
"""Iterations that a point counts for at most: from then on not scatter, but that nobody stays quite
the same is what makes it wrong."""
_LEAST_SLOPE = 0.5
"""Least slope, as a part of the prior: contention makes a sample dearer, hardly cheaper. If a slope
is too large, the step towards the right size is too small; if it is too small, we overshoot."""


def fit(
    owners: Ints,
    sizes: Floats,
    times_s: Floats,
    iterations: Floats,
    recent: Floats,
    priors: Floats,
) -> tuple[Floats, Floats]:
    """Fit one affine cost, delay + slope * size, per owner.

    With one size the data do not tell delay from slope, and with sizes close to each other hardly:
    the slope is drawn towards the prior, by as much as the sizes leave it open. The cost passes
    through the centre of the recent points.

    Args:
        owners: whose point each is, 0 to ``len(priors)`` - 1; every owner has at least one.
        sizes: batch size, samples.
        times_s: time of a batch.
        iterations: behind each point.
        recent: weight of each point for the present level, above 0.
        priors: expected slope per owner, s per sample; NaN: time over size, so no delay.

    Returns:
        Delays in s, slopes in s per sample; neither is below 0.
    """
    count = len(priors)

    def centre(weights: Floats, values: Floats) -> Floats:
        return np.asarray(
            np.bincount(owners, weights * values, count) / np.bincount(owners, weights, count)
        )

    size, time_s = centre(recent, sizes), centre(recent, times_s)
    steepest = time_s / np.maximum(size, 1.0)
    prior = np.minimum(np.where(np.isnan(priors), steepest, priors), steepest)
    weights = iterations / (1.0 + iterations / _MOST_WEIGHT)
    mean_size, mean_s = centre(weights, sizes), centre(weights, times_s)
    off = sizes - mean_size[owners]
    varied = np.bincount(owners, weights * off * off, count)
    joint = np.bincount(owners, weights * off * (times_s - mean_s[owners]), count)
    strength = _PRIOR_WEIGHT * np.maximum(mean_size, 1.0) ** 2
    slopes = (joint + strength * prior) / (varied + strength)
    slopes = np.clip(slopes, _LEAST_SLOPE * prior, steepest)
    return np.maximum(time_s - slopes * size, 0.0), slopes

"""Affine costs: what a batch costs a worker as a function of its size.

Reference: none. AntDT (section VI-A, Fig. 7) takes the time of a batch for proportional to its
size. A worker that shares its machine also loses a constant per batch, which a smaller batch does
not cure.
"""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

PRIOR_WEIGHT = 0.1
"""Iterations, seen at twice the mean batch size, that the prior slope counts for: what follows if
single iterations scatter by a tenth and slopes are foreseen to a third."""


def fit(
    owners: Ints, sizes: Floats, times_s: Floats, weights: Floats, priors: Floats
) -> tuple[Floats, Floats]:
    """Fit one affine cost, delay + slope * size, per owner.

    With one size the data do not tell delay from slope, and with sizes close to each other hardly:
    the slope is drawn towards the prior, by as much as the sizes leave it open.

    Args:
        owners: whose point each is, 0 to ``len(priors)`` - 1; every owner has at least one.
        sizes: batch size, samples.
        times_s: mean time of a batch.
        weights: iterations behind each point.
        priors: expected slope per owner, s per sample; NaN: time over size, so no delay.

    Returns:
        Delays in s, slopes in s per sample; neither is below 0.
    """
    count = len(priors)
    total = np.bincount(owners, weights, count)
    mean_size = np.bincount(owners, weights * sizes, count) / total
    mean_s = np.bincount(owners, weights * times_s, count) / total
    off = sizes - mean_size[owners]
    varied = np.bincount(owners, weights * off * off, count)
    joint = np.bincount(owners, weights * off * (times_s - mean_s[owners]), count)
    steepest = mean_s / np.maximum(mean_size, 1.0)
    prior = np.minimum(np.where(np.isnan(priors), steepest, priors), steepest)
    strength = PRIOR_WEIGHT * np.maximum(mean_size, 1.0) ** 2
    slopes = (joint + strength * prior) / (varied + strength)
    slopes = np.clip(slopes, 0.0, steepest)
    return np.maximum(mean_s - slopes * mean_size, 0.0), slopes

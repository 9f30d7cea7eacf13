"""When two trained models count as equal: for `equality.py`, and for the oracle of chaos.

Two orders of summation differ in the last bits, and training carries that on. How far is known of
float64; of float32 the yardstick is one process that sums its own batches in several parts.
"""

from collections.abc import Mapping

import numpy as np

FLOAT64_LIMIT, FLOAT32_LIMIT, DRIFT_FACTOR = 1e-10, 1e-5, 3.0
"""Relative deviations: allowed in float64, and in float32 under SGD; of others in float32 so many
times what the yardstick deviates."""

Model = Mapping[str, "np.ndarray"]


def limit(kind: str, dtype: str, drift: float) -> float:
    """The largest relative deviation that a model may show.

    Args:
        kind: of its optimizer: ``sgd``, ``adagrad``, ``adam``.
        dtype: of its values.
        drift: what the yardstick deviates.
    """
    if dtype == "float64":
        return FLOAT64_LIMIT
    return FLOAT32_LIMIT if kind == "sgd" else DRIFT_FACTOR * drift


def apart(ours: "np.ndarray", theirs: "np.ndarray") -> float:
    """The largest deviation of a value, relative to the largest value of the tensor."""
    if ours.shape != theirs.shape:
        return float("inf")
    largest = np.abs(theirs).max(initial=0.0)
    deviation = np.abs(ours.astype(np.float64) - theirs).max(initial=0.0)
    if not deviation:
        return 0.0
    return float(deviation / largest) if largest else float("inf")


def farthest(ours: Model, theirs: Model) -> tuple[str, float]:
    """The tensor of ``theirs`` that ours is farthest from, and how far that is."""
    distances = {name: apart(ours[name], value) for name, value in theirs.items()}
    # A value that is no number is as far away as can be.
    name = max(distances, key=lambda key: np.nan_to_num(distances[key], nan=np.inf))
    return name, distances[name]

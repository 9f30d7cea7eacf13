"""When what a holder trained counts as equal to plain torch; the rule of ``experiments/benchmarks/equality.py``.

The yardstick of what is not float64 is one process that sums each of its batches in four parts.
"""

from collections.abc import Mapping
from typing import Any

import closeness
import numpy as np
import torch
from torch import Tensor

from tests.parity.cases import Case, reference

PARTS = 4
ROUNDING = 1e-12
"""Of the yardstick itself, relative: three times a deviation of one bit is no whole number of it."""


def distance(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> float:
    """The largest deviation of a weight, relative to the largest of its tensor."""
    assert ours.keys() == theirs.keys()
    apart = [closeness.apart(*_known(ours[name], theirs[name])) for name in theirs]
    return float(np.nan_to_num(apart, nan=np.inf).max())


def allowed(case: Case, plain: Mapping[str, Any]) -> float:
    """The largest deviation from ``plain``, what torch makes of the case, that it may show."""
    dtype = str(case.dtype).removeprefix("torch.")
    kind = case.kind.name.split("-")[0].lower()
    if case.dtype == torch.float64 or (kind, case.dtype) == ("sgd", torch.float32):
        return closeness.limit(kind, dtype, 0.0)
    drift = distance(reference(case, PARTS)["model"], plain["model"])
    # With a limit of infinity the case could not fail.
    assert np.isfinite(drift), f"{case}: torch itself is finite in one division of a batch only"
    return (1.0 + ROUNDING) * closeness.limit("", dtype, drift)


def _known(ours: Tensor, theirs: Tensor) -> "tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]":
    """The values of both, 0 where both are NaN, or the same infinity: there they are equal."""
    mine, other = _plain(ours), _plain(theirs)
    same = (np.isnan(mine) & np.isnan(other)) | (np.isinf(other) & (mine == other))
    return np.where(same, 0.0, mine), np.where(same, 0.0, other)


def _plain(value: Tensor) -> "np.ndarray[Any, Any]":
    return np.asarray(value.detach().double().numpy())

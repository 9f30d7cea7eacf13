"""When what a holder trained counts as equal to plain torch; the rule of ``benchmarks/equality.py``.

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
    apart = [closeness.apart(_plain(ours[name]), _plain(theirs[name])) for name in theirs]
    return float(np.nan_to_num(apart, nan=np.inf).max())


def allowed(case: Case, plain: Mapping[str, Any]) -> float:
    """The largest deviation from ``plain``, what torch makes of the case, that it may show."""
    dtype = str(case.dtype).removeprefix("torch.")
    kind = case.kind.name.split("-")[0].lower()
    if case.dtype == torch.float64 or (kind, case.dtype) == ("sgd", torch.float32):
        return closeness.limit(kind, dtype, 0.0)
    drift = distance(reference(case, PARTS)["model"], plain["model"])
    return (1.0 + ROUNDING) * closeness.limit("", dtype, drift)


def _plain(value: Tensor) -> "np.ndarray[Any, Any]":
    return np.asarray(value.detach().double().numpy())

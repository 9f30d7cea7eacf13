"""Values that the script gives to ``job.log``, checked."""

import math
import re
from collections.abc import Mapping
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paceline.base.errors import ConfigError
from paceline.runtime.process.feature_port import Number

PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_.\-]*(/[A-Za-z0-9_.\-]+)*")
MAX_NAME = 100


def checked_log(values: Mapping[str, Any]) -> dict[str, Number]:
    """Return the values that were given to ``job.log``, as numbers of one element.

    Raises:
        ConfigError: a name that is not plain, or something that is not a number.
    """
    if not isinstance(values, Mapping):
        raise ConfigError(
            f"job.log: got {_called(values)}, expected names with their values; write "
            'job.log(loss=loss), or job.log({"val/loss": loss})'
        )
    for name in map(str, values):
        if len(name) > MAX_NAME or not PLAIN.fullmatch(name):
            raise ConfigError(
                f"job.log: got the name {name[: 2 * MAX_NAME]!r}, expected letters, digits and "
                f"_ . - with / between parts, up to {MAX_NAME} of them, as loss or val/auc; "
                "rename it"
            )
    return {str(name): _number(name, value) for name, value in values.items()}


def _number(name: str, value: Any) -> Number:
    if type(value) is float:
        return value
    if isinstance(value, Tensor):
        return _of_tensor(name, value)
    if isinstance(value, np.ndarray) and value.ndim == 0 and value.dtype.kind in "fiub":
        return float(value)
    if isinstance(value, Real | np.bool_):
        return _finite_or_not(value)
    what = f"an array of shape {value.shape}" if isinstance(value, np.ndarray) else _called(value)
    raise ConfigError(
        f"job.log: got {what} for {name}, expected a number or a tensor of no dimensions; log what "
        "sums it up, as its mean()"
    )


def _finite_or_not(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:  # of a large integer
        return math.inf if value > 0 else -math.inf


def _called(value: Any) -> str:
    return f"{type(value).__name__} {str(value)[:40]!r}"


def _of_tensor(name: str, value: Tensor) -> Number:
    if value.ndim or value.is_complex():
        what = "complex numbers" if value.is_complex() else f"a tensor of shape {[*value.shape]}"
        raise ConfigError(
            f"job.log: got {what} for {name}, expected a tensor of no dimensions; log what sums it "
            "up, as its mean()"
        )
    if hasattr(value, "full_tensor"):  # a DTensor, which every rank would have to put together
        raise ConfigError(
            f"job.log: got a DTensor for {name}, which all ranks hold together; log its "
            "full_tensor(), or the value of this rank, its to_local()"
        )
    if value.device.type in ("cpu", "meta"):
        return float(value.item())
    # A copy: the script may change it in place, and a compiled graph writes over its outputs.
    kind = value.dtype if value.dtype == torch.float64 else torch.float32
    return value.detach().to(kind, copy=True)

"""Compiled sums of dense gradients."""

from paceline.runtime.state.arrays import Array
from paceline.runtime.state.kernels import compiled


@compiled
def scale_into(out: Array, grads: Array, factor: float) -> None:
    """``out = factor * grads``."""
    scale = out.dtype.type(factor)
    for i in range(out.size):
        out[i] = scale * grads[i]


@compiled
def add_scaled(out: Array, grads: Array, factor: float) -> None:
    """``out += factor * grads``."""
    scale = out.dtype.type(factor)
    for i in range(out.size):
        out[i] += scale * grads[i]

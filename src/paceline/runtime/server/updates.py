"""Compiled optimizer steps, in place: on flat dense values, and on rows of a slab.

All dense kernels are called ``(values, grads, states, hyper)``, all row kernels
``(values, states, rows, grads, hyper)``: ``states`` the optimizer's arrays in the order that
`rules` lists them, ``hyper`` a tuple of floats, ``grads[u]`` the merged gradient of slab row
``rows[u]``. No row occurs twice; negative ones (keys that have no row yet) are skipped.

Formulas are torch's, to its rounding: constants that torch computes in double come ready, the rest
runs in the dtype of the values, and each operation rounds.
"""

from typing import Any

import numpy as np

from paceline.runtime.state.arrays import Array, Int64s
from paceline.runtime.state.kernels import AHEAD, compiled, prefetch

# ---------------------------------------------------------------------------------------- dense


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


@compiled
def sgd_dense(values: Array, grads: Array, states: Any, hyper: Any) -> None:
    """SGD without momentum. hyper: lr, weight_decay."""
    kind = values.dtype.type
    rate, decay = kind(hyper[0]), kind(hyper[1])
    for i in range(values.size):
        values[i] -= rate * (grads[i] + decay * values[i])


@compiled
def momentum_dense(values: Array, grads: Array, states: Any, hyper: Any) -> None:
    """SGD with momentum: buffer = keep * buffer + take * grad; step = own * grad + of * buffer.

    states: buffer. hyper: lr, weight_decay, keep, take, own, of.
    """
    kind = values.dtype.type
    rate, decay, keep, take = kind(hyper[0]), kind(hyper[1]), kind(hyper[2]), kind(hyper[3])
    own, of = kind(hyper[4]), kind(hyper[5])
    buffer = states[0]
    for i in range(values.size):
        grad = grads[i] + decay * values[i]
        buffer[i] = keep * buffer[i] + take * grad
        values[i] -= rate * (own * grad + of * buffer[i])


@compiled
def adagrad_dense(values: Array, grads: Array, states: Any, hyper: Any) -> None:
    """Adagrad. states: sum. hyper: lr (with lr_decay in it), eps, weight_decay."""
    kind = values.dtype.type
    rate, eps, decay = kind(hyper[0]), kind(hyper[1]), kind(hyper[2])
    total = states[0]
    for i in range(values.size):
        grad = grads[i] + decay * values[i]
        total[i] += grad * grad
        values[i] -= rate * (grad / (np.sqrt(total[i]) + eps))


@compiled
def adam_dense(values: Array, grads: Array, states: Any, hyper: Any) -> None:
    """Adam and AdamW.

    states: exp_avg, exp_avg_sq. hyper: lr / (1 - beta1^t), 1 / sqrt(1 - beta2^t), eps, 1 - beta1,
    beta2, 1 - beta2, weight_decay, 1 - lr * decoupled weight decay.
    """
    kind = values.dtype.type
    rate, scale, eps, take = kind(hyper[0]), kind(hyper[1]), kind(hyper[2]), kind(hyper[3])
    beta, rest, decay, shrink = kind(hyper[4]), kind(hyper[5]), kind(hyper[6]), kind(hyper[7])
    mean, square = states
    for i in range(values.size):
        value = shrink * values[i]
        grad = grads[i] + decay * value
        mean[i] += take * (grad - mean[i])
        square[i] = beta * square[i] + rest * grad * grad
        values[i] = value - rate * (mean[i] / (np.sqrt(square[i]) * scale + eps))


@compiled
def ftrl_dense(values: Array, grads: Array, states: Any, hyper: Any) -> None:
    """FTRL-Proximal. states: z, n. hyper: lr, beta, l1, l2.

    Reference: McMahan et al. 2013, "Ad click prediction", algorithm 1.
    """
    kind = values.dtype.type
    rate, beta, l1, l2 = kind(hyper[0]), kind(hyper[1]), kind(hyper[2]), kind(hyper[3])
    z, n = states
    for i in range(values.size):
        grad = grads[i]
        before = np.sqrt(n[i])
        n[i] += grad * grad
        root = np.sqrt(n[i])
        z[i] += grad - (root - before) / rate * values[i]
        small = abs(z[i]) <= l1
        full = -(z[i] - np.copysign(l1, z[i])) / ((beta + root) / rate + l2)
        values[i] = kind(0) if small else full


# --------------------------------------------------------------------------------- embedding rows


@compiled
def sgd_rows(values: Array, states: Any, rows: Int64s, grads: Array, hyper: Any) -> None:
    """SGD. hyper: lr."""
    rate = values.dtype.type(hyper[0])
    for u in range(rows.size):
        if u + AHEAD < rows.size:
            prefetch(values, max(rows[u + AHEAD], 0))
        row = rows[u]
        if row < 0:
            continue
        for d in range(values.shape[1]):
            values[row, d] -= rate * grads[u, d]


@compiled
def adagrad_rows(values: Array, states: Any, rows: Int64s, grads: Array, hyper: Any) -> None:
    """Adagrad. states: sum. hyper: lr (with lr_decay in it), eps."""
    sums = states[0]
    rate, eps = values.dtype.type(hyper[0]), values.dtype.type(hyper[1])
    for u in range(rows.size):
        if u + AHEAD < rows.size:
            ahead = max(rows[u + AHEAD], 0)
            prefetch(values, ahead)
            prefetch(sums, ahead)
        row = rows[u]
        if row < 0:
            continue
        for d in range(values.shape[1]):
            grad = grads[u, d]
            square = sums[row, d] + grad * grad
            sums[row, d] = square
            values[row, d] -= rate * (grad / (np.sqrt(square) + eps))


@compiled
def rowwise_adagrad_rows(
    values: Array, states: Any, rows: Int64s, grads: Array, hyper: Any
) -> None:
    """Adagrad with one sum per row, of its gradients' mean squares. states: sum. hyper: lr, eps."""
    sums = states[0]
    kind = values.dtype.type
    rate, eps = kind(hyper[0]), kind(hyper[1])
    for u in range(rows.size):
        if u + AHEAD < rows.size:
            ahead = max(rows[u + AHEAD], 0)
            prefetch(values, ahead)
            prefetch(sums, ahead)
        row = rows[u]
        if row < 0:
            continue
        square = kind(0)
        for d in range(values.shape[1]):
            square += grads[u, d] * grads[u, d]
        sums[row, 0] += square / kind(values.shape[1])
        step = rate / (np.sqrt(sums[row, 0]) + eps)
        for d in range(values.shape[1]):
            values[row, d] -= step * grads[u, d]


@compiled
def adam_rows(values: Array, states: Any, rows: Int64s, grads: Array, hyper: Any) -> None:
    """Lazy Adam as torch's SparseAdam, but every row counts its own steps.

    states: exp_avg, exp_avg_sq, step, and ``corrections[t] = sqrt(1 - beta2^t) / (1 - beta1^t)``
    (float64), whose last entry is its limit. hyper: lr, eps, 1 - beta1, 1 - beta2.
    """
    mean, square, steps, corrections = states
    kind = values.dtype.type
    eps, take, rest = kind(hyper[1]), kind(hyper[2]), kind(hyper[3])
    for u in range(rows.size):
        if u + AHEAD < rows.size:
            ahead = max(rows[u + AHEAD], 0)
            prefetch(values, ahead)
            prefetch(mean, ahead)
            prefetch(square, ahead)
            prefetch(steps, ahead)
        row = rows[u]
        if row < 0:
            continue
        steps[row, 0] += 1
        rate = kind(hyper[0] * corrections[min(np.int64(steps[row, 0]), corrections.size - 1)])
        for d in range(values.shape[1]):
            grad = grads[u, d]
            mean[row, d] += take * (grad - mean[row, d])
            square[row, d] += rest * (grad * grad - square[row, d])
            values[row, d] -= rate * (mean[row, d] / (np.sqrt(square[row, d]) + eps))


@compiled
def ftrl_rows(values: Array, states: Any, rows: Int64s, grads: Array, hyper: Any) -> None:
    """FTRL-Proximal on the touched rows. states: z, n. hyper: lr, beta, l1, l2."""
    z, n = states
    for u in range(rows.size):
        if u + AHEAD < rows.size:
            ahead = max(rows[u + AHEAD], 0)
            prefetch(values, ahead)
            prefetch(z, ahead)
            prefetch(n, ahead)
        row = rows[u]
        if row < 0:
            continue
        ftrl_dense(values[row], grads[u], (z[row], n[row]), hyper)

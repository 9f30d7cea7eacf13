"""The optimizers that servers run: the kernels of each, and its row in `KINDS`.

To add one, write its kernels and its row here, and its torch numbers or its formula in
``tests/unit/holding/servers/test_ps_rules.py``: everything else asks the row.

All dense kernels are called ``(values, grads, states, hyper)``, all row kernels
``(values, states, rows, grads, hyper)``: ``states`` the optimizer's arrays in the order of its row,
``hyper`` a tuple of floats, ``grads[u]`` the merged gradient of slab row ``rows[u]``. No row occurs
twice; negative ones (keys that have no row yet) are skipped. Kernels update in place.

Formulas are torch's, to its rounding: constants that torch computes in double come ready, the rest
runs in the dtype of the values, and each operation rounds.
"""

from functools import lru_cache
from typing import Any

import numpy as np

from paceline.runtime.server.optimizer_kind import Hyper, KernelCall, OptimizerKind, State
from paceline.runtime.state.arrays import Array, Int64s
from paceline.runtime.state.kernels import AHEAD, compiled, prefetch

# ---------------------------------------------------------------------------------------------- SGD


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


def _sgd_dense(lr: float, hyper: Hyper, step: int) -> KernelCall:
    momentum, decay = hyper["momentum"], hyper["weight_decay"]
    if not momentum:
        return KernelCall(sgd_dense, (lr, decay))
    # torch starts the buffer with the first gradient, undampened.
    keep, take = (0.0, 1.0) if step == 1 else (momentum, 1 - hyper["dampening"])
    own, of = (1.0, momentum) if hyper["nesterov"] else (0.0, 1.0)
    return KernelCall(momentum_dense, (lr, decay, keep, take, own, of))


def _sgd_rows(lr: float, hyper: Hyper, step: int) -> KernelCall:
    return KernelCall(sgd_rows, (lr,))


_SGD = OptimizerKind(
    name="sgd",
    torch="SGD",
    defaults={"momentum": 0.0, "dampening": 0.0, "nesterov": 0.0, "weight_decay": 0.0},
    dense_only=("momentum", "dampening", "nesterov", "weight_decay"),
    states=(State("momentum", needs="momentum"),),
    counts_if="momentum",  # what matters is whether the buffer has begun
    dense=_sgd_dense,
    rows=_sgd_rows,
)


# ------------------------------------------------------------------------------------------ Adagrad


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


def _adagrad_dense(lr: float, hyper: Hyper, step: int) -> KernelCall:
    numbers = _decayed(lr, hyper, step), hyper["eps"], hyper["weight_decay"]
    return KernelCall(adagrad_dense, numbers)


def _adagrad_rows(lr: float, hyper: Hyper, step: int) -> KernelCall:
    return KernelCall(adagrad_rows, (_decayed(lr, hyper, step), hyper["eps"]))


def _decayed(lr: float, hyper: Hyper, step: int) -> float:
    return lr / (1 + (step - 1) * hyper["lr_decay"])


_ADAGRAD = OptimizerKind(
    name="adagrad",
    torch="Adagrad",
    defaults={"lr_decay": 0.0, "weight_decay": 0.0, "initial_accumulator_value": 0.0, "eps": 1e-10},
    dense_only=("weight_decay",),
    states=(State("sum", begins_at="initial_accumulator_value"),),
    dense=_adagrad_dense,
    rows=_adagrad_rows,
)


# --------------------------------------------------------------------------------- row-wise Adagrad


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


def _rowwise_adagrad_rows(lr: float, hyper: Hyper, step: int) -> KernelCall:
    return KernelCall(rowwise_adagrad_rows, (lr, hyper["eps"]))


_ROWWISE_ADAGRAD = OptimizerKind(
    name="rowwise_adagrad",
    defaults={"initial_accumulator_value": 0.0, "eps": 1e-10},
    states=(State("row_sum", begins_at="initial_accumulator_value", per_row=True),),
    rows=_rowwise_adagrad_rows,
)


# --------------------------------------------------------------------------------------------- Adam


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


MAX_CORRECTIONS = 1 << 20
"""Steps of a row after which Adam's bias correction counts as complete (8 MB per group at most)."""


def _adam_numbers(
    lr: float, hyper: Hyper, step: int, *, coupled: float, shrink: float
) -> KernelCall:
    beta1, beta2 = hyper["beta1"], hyper["beta2"]
    size, root = lr / (1 - beta1**step), (1 - beta2**step) ** -0.5
    numbers = size, root, hyper["eps"], 1 - beta1, beta2, 1 - beta2, coupled, shrink
    return KernelCall(adam_dense, numbers)


def _adam_dense(lr: float, hyper: Hyper, step: int) -> KernelCall:
    return _adam_numbers(lr, hyper, step, coupled=hyper["weight_decay"], shrink=1.0)


def _adamw_dense(lr: float, hyper: Hyper, step: int) -> KernelCall:
    return _adam_numbers(lr, hyper, step, coupled=0.0, shrink=1 - lr * hyper["weight_decay"])


def _adam_rows(lr: float, hyper: Hyper, step: int) -> KernelCall:
    """Correct the bias of each row by the row's own steps; torch's SparseAdam has the table's."""
    beta1, beta2 = hyper["beta1"], hyper["beta2"]
    numbers = lr, hyper["eps"], 1 - beta1, 1 - beta2
    return KernelCall(adam_rows, numbers, (_corrections(beta1, beta2),))


def _sparse_adam_rows(lr: float, hyper: Hyper, step: int) -> KernelCall:
    beta1, beta2 = hyper["beta1"], hyper["beta2"]
    numbers = lr, hyper["eps"], 1 - beta1, 1 - beta2
    # All rows are at the table's step, whatever they count themselves.
    correction = np.array([np.sqrt(1 - beta2**step) / (1 - beta1**step)])
    return KernelCall(adam_rows, numbers, (correction,))


@lru_cache(maxsize=16)
def _corrections(beta1: float, beta2: float) -> Array:
    """Adam's bias corrections by step, up to where double precision sees no more change."""
    slowest = max(beta1, beta2)
    num = min(MAX_CORRECTIONS, int(-38 / np.log(slowest)) + 3 if slowest > 0 else 3)
    steps = np.arange(1.0, num)
    table = np.ones(num + 1)
    table[1:num] = np.sqrt(1 - beta2**steps) / (1 - beta1**steps)
    return table


_MOMENTS = (
    State("exp_avg"),
    State("exp_avg_sq"),
    State("row_step", per_row=True, dtype="int32", rows_only=True),
)

_ADAM = OptimizerKind(
    name="adam",
    torch="Adam",
    defaults={"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0},
    dense_only=("weight_decay",),
    states=_MOMENTS,
    decoupled="adamw",
    dense=_adam_dense,
    rows=_adam_rows,
)

_ADAMW = OptimizerKind(
    name="adamw",
    torch="AdamW",
    defaults={"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 1e-2},
    states=_MOMENTS,
    like="adam",
    decoupled="adamw",
    dense=_adamw_dense,
)

_SPARSE_ADAM = OptimizerKind(
    name="sparse_adam",
    torch="SparseAdam",
    defaults={"beta1": 0.9, "beta2": 0.999, "eps": 1e-8},
    states=_MOMENTS,
    like="adam",
    per_table=True,
    rows=_sparse_adam_rows,
)


# --------------------------------------------------------------------------------------------- FTRL


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


def _ftrl_numbers(lr: float, hyper: Hyper) -> tuple[float, ...]:
    return lr, hyper["beta"], hyper["l1"], hyper["l2"]


def _ftrl_dense(lr: float, hyper: Hyper, step: int) -> KernelCall:
    return KernelCall(ftrl_dense, _ftrl_numbers(lr, hyper))


def _ftrl_rows(lr: float, hyper: Hyper, step: int) -> KernelCall:
    return KernelCall(ftrl_rows, _ftrl_numbers(lr, hyper))


_FTRL = OptimizerKind(
    name="ftrl",
    defaults={"beta": 1.0, "l1": 0.0, "l2": 0.0},
    states=(State("z"), State("n")),
    dense=_ftrl_dense,
    rows=_ftrl_rows,
)


# ----------------------------------------------------------------------------------------- RMSprop


@compiled
def rmsprop_dense(values: Array, grads: Array, states: Any, hyper: Any) -> None:
    """RMSprop.

    states: square_avg; with ``centered`` grad_avg next; with momentum the buffer last. hyper: lr,
    alpha, 1 - alpha, eps, weight_decay, momentum, centered.
    """
    kind = values.dtype.type
    rate, keep, take = kind(hyper[0]), kind(hyper[1]), kind(hyper[2])
    eps, decay, momentum = kind(hyper[3]), kind(hyper[4]), kind(hyper[5])
    is_centered, is_kept = hyper[6] != 0.0, hyper[5] != 0.0
    square, mean, buffer = states[0], states[1 if is_centered else 0], states[-1]
    for i in range(values.size):
        grad = grads[i] + decay * values[i]
        square[i] = keep * square[i] + take * grad * grad
        spread = square[i]
        if is_centered:
            mean[i] += take * (grad - mean[i])
            spread -= mean[i] * mean[i]
        step = grad / (np.sqrt(spread) + eps)
        if is_kept:
            step += momentum * buffer[i]
            buffer[i] = step
        values[i] -= rate * step


def _rmsprop_dense(lr: float, hyper: Hyper, step: int) -> KernelCall:
    alpha, names = hyper["alpha"], ("eps", "weight_decay", "momentum", "centered")
    return KernelCall(rmsprop_dense, (lr, alpha, 1 - alpha, *(hyper[name] for name in names)))


_RMSPROP = OptimizerKind(
    name="rmsprop",
    torch="RMSprop",
    defaults={"alpha": 0.99, "eps": 1e-8, "weight_decay": 0.0, "momentum": 0.0, "centered": 0.0},
    states=(
        State("square_avg"),
        State("grad_avg", needs="centered"),
        State("momentum", needs="momentum"),
    ),
    dense=_rmsprop_dense,
)


KINDS = {
    kind.name: kind
    for kind in (_SGD, _ADAGRAD, _ROWWISE_ADAGRAD, _ADAM, _ADAMW, _FTRL, _SPARSE_ADAM, _RMSPROP)
}
"""The optimizers by name, in the order in which messages list them."""

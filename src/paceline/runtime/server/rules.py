"""Which optimizers the servers run, what state each keeps, and how their kernels are called.

A kind serves dense parameters, embedding rows, or both. Hyper-parameters go by torch's names.
"""

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from paceline.base.errors import ConfigError, InternalError
from paceline.runtime.server import updates
from paceline.runtime.state.arrays import Array, Int64s
from paceline.wire.schema import FROZEN, OptimizerGroup

INSTEAD = (
    "A script with sparse tables (sparse=True, pl.Embedding) trains so alone, too; without them it "
    "trains as torch does, without `paceline run` or with --strategy allreduce"
)
"""Ends what is said of anything that servers cannot do, but torch can."""

MAX_CORRECTIONS = 1 << 20
"""Steps of a row after which Adam's bias correction counts as complete (8 MB per group at most)."""


class State(NamedTuple):
    """One array of optimizer state beside the values."""

    name: str
    initial: float = 0.0
    per_row: bool = False
    """One number per row instead of one per element."""
    dtype: str | None = None
    """None: that of the values."""


Hyper = Mapping[str, float]

_DEFAULTS: dict[tuple[str, bool], dict[str, float]] = {
    ("sgd", False): {"momentum": 0.0, "dampening": 0.0, "nesterov": 0.0, "weight_decay": 0.0},
    ("sgd", True): {},
    ("adagrad", False): {
        "lr_decay": 0.0,
        "weight_decay": 0.0,
        "initial_accumulator_value": 0.0,
        "eps": 1e-10,
    },
    ("adagrad", True): {"lr_decay": 0.0, "initial_accumulator_value": 0.0, "eps": 1e-10},
    ("rowwise_adagrad", True): {"initial_accumulator_value": 0.0, "eps": 1e-10},
    ("adam", False): {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0},
    ("adam", True): {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8},
    ("adamw", False): {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 1e-2},
    ("ftrl", False): {"beta": 1.0, "l1": 0.0, "l2": 0.0},
    ("ftrl", True): {"beta": 1.0, "l1": 0.0, "l2": 0.0},
    ("sparse_adam", True): {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8},
}
"""(kind, for embedding rows) -> its hyper-parameters beside lr, with torch's defaults."""

NEVER_READ = {"initial_accumulator_value"}
"""Read when state is made, and never again: torch ignores a change, too."""


def check_group(kind: str, hyper: Hyper, sparse: bool) -> None:
    """Refuse an optimizer that the servers cannot run exactly.

    Args:
        kind: see `OptimizerGroup`.
        hyper: its hyper-parameters; unknown ones that are 0 or False are switched off, and pass.
        sparse: whether the group holds embedding tables (sparse gradients) or dense parameters.

    Raises:
        ConfigError: with the list of what is supported.
    """
    if kind == FROZEN:
        return
    what = "embedding tables (sparse gradients)" if sparse else "dense parameters"
    known = {
        name: sorted(rest) for (name, for_rows), rest in _DEFAULTS.items() if for_rows is sparse
    }
    supported = "; ".join(f"{name} (lr{''.join(', ' + h for h in known[name])})" for name in known)
    if kind not in known:
        raise ConfigError(
            f"optimizer {kind!r} cannot update {what} on servers; supported: {supported}. {INSTEAD}"
        )
    for name, value in hyper.items():
        if value and name not in known[kind]:
            raise ConfigError(
                f"optimizer {kind!r}: {name}={value!r} is not supported for {what} on servers; "
                f"leave it out or set it to 0. Supported: {supported}. {INSTEAD}"
            )


def row_options(kind: str) -> list[str]:
    """Names of the hyper-parameters of embedding rows, beside lr.

    Raises:
        ConfigError: this kind cannot update them (`check_group`).
    """
    check_group(kind, {}, sparse=True)
    return list(_DEFAULTS[kind, True])


def changeable(group: OptimizerGroup, *, sparse: bool) -> list[str]:
    """Hyper-parameters that may change while the model is trained."""
    names = [name for name in _DEFAULTS.get((group.kind, sparse), ()) if name not in NEVER_READ]
    # Without momentum nothing is kept for it.
    fixed = "momentum" if group.kind == "sgd" and not group.hyper.get("momentum") else ""
    return [name for name in names if name != fixed]


class Rule:
    """One optimizer group as servers run it, on dense parameters or on embedding rows."""

    def __init__(self, group: OptimizerGroup, *, sparse: bool) -> None:
        """Fill in defaults.

        Raises:
            ConfigError: the servers cannot run it (`check_group`).
        """
        check_group(group.kind, group.hyper, sparse)
        defaults = _DEFAULTS.get((group.kind, sparse), {})
        self.kind = group.kind
        self.hyper = {name: float(group.hyper.get(name, value)) for name, value in defaults.items()}
        self.states = _states(group.kind, self.hyper, sparse=sparse)
        """The arrays kept beside the values, in the kernels' order."""

    def changed(self, values: Mapping[str, float]) -> "Rule":
        """The same with other hyper-parameters, on the same states."""
        other = copy(self)
        other.hyper = {**self.hyper, **values}
        return other

    @property
    def trains(self) -> bool:
        """Whether there is anything to update."""
        return self.kind != FROZEN

    @property
    def counts(self) -> bool:
        """Whether an update now is one of the steps that a parameter counts.

        SGD counts those with momentum: what matters is whether its buffer has begun.
        """
        return self.trains and (self.kind != "sgd" or bool(self.hyper.get("momentum")))

    def step_dense(
        self, values: Array, grads: Array, states: Sequence[Array], lr: float, step: int
    ) -> None:
        """Update a flat range of dense values in place; ``step`` counts from 1."""
        hyper = self.hyper
        kernel: Callable[..., None]
        match self.kind:
            case "sgd":
                kernel = updates.momentum_dense if hyper["momentum"] else updates.sgd_dense
                numbers = _sgd_dense(lr, hyper, step)
            case "adagrad":
                kernel = updates.adagrad_dense
                numbers = _decayed(lr, hyper, step), hyper["eps"], hyper["weight_decay"]
            case "ftrl":
                kernel, numbers = updates.ftrl_dense, (lr, hyper["beta"], hyper["l1"], hyper["l2"])
            case "adam" | "adamw":
                kernel = updates.adam_dense
                numbers = _adam_dense(lr, hyper, step, decoupled=self.kind == "adamw")
            case _:
                raise InternalError(f"nobody updates dense parameters by {self.kind!r}")
        kernel(values, grads, tuple(states), tuple(map(float, numbers)))

    def step_rows(
        self,
        values: Array,
        states: Sequence[Array],
        rows: Int64s,
        grads: Array,
        lr: float,
        step: int,
    ) -> None:
        """Update slab rows in place by their merged gradients; ``step`` counts from 1.

        Adam corrects its bias by the steps of each row, but torch's SparseAdam by the table's.
        """
        hyper = self.hyper
        kernel: Callable[..., None]
        numbers: tuple[float, ...]
        match self.kind:
            case "sgd":
                kernel, numbers = updates.sgd_rows, (lr,)
            case "adagrad":
                kernel, numbers = updates.adagrad_rows, (_decayed(lr, hyper, step), hyper["eps"])
            case "rowwise_adagrad":
                kernel, numbers = updates.rowwise_adagrad_rows, (lr, hyper["eps"])
            case "ftrl":
                kernel, numbers = updates.ftrl_rows, (lr, hyper["beta"], hyper["l1"], hyper["l2"])
            case "adam":
                beta1, beta2 = hyper["beta1"], hyper["beta2"]
                kernel, numbers = updates.adam_rows, (lr, hyper["eps"], 1 - beta1, 1 - beta2)
                states = (*states, _corrections(beta1, beta2))
            case "sparse_adam":
                beta1, beta2 = hyper["beta1"], hyper["beta2"]
                kernel, numbers = updates.adam_rows, (lr, hyper["eps"], 1 - beta1, 1 - beta2)
                # All rows are at the table's step, whatever they count themselves.
                states = (*states, np.array([np.sqrt(1 - beta2**step) / (1 - beta1**step)]))
            case _:
                raise InternalError(f"nobody updates rows by {self.kind!r}")
        kernel(values, tuple(states), rows, grads, tuple(map(float, numbers)))


def _states(kind: str, hyper: Hyper, *, sparse: bool) -> tuple[State, ...]:
    match kind:
        case "sgd":
            return (State("momentum"),) if hyper.get("momentum") else ()
        case "adagrad":
            return (State("sum", hyper["initial_accumulator_value"]),)
        case "rowwise_adagrad":
            return (State("row_sum", hyper["initial_accumulator_value"], per_row=True),)
        case "ftrl":
            return (State("z"), State("n"))
        case "adam" | "adamw" | "sparse_adam":
            row_step = (State("row_step", per_row=True, dtype="int32"),) if sparse else ()
            return (State("exp_avg"), State("exp_avg_sq"), *row_step)
        case _:
            if kind != FROZEN:
                raise InternalError(f"no optimizer of servers is called {kind!r}")
            return ()


def _decayed(lr: float, hyper: Hyper, step: int) -> float:
    return lr / (1 + (step - 1) * hyper["lr_decay"])


def _adam_dense(lr: float, hyper: Hyper, step: int, *, decoupled: bool) -> tuple[float, ...]:
    beta1, beta2, decay = hyper["beta1"], hyper["beta2"], hyper["weight_decay"]
    size, root = lr / (1 - beta1**step), (1 - beta2**step) ** -0.5
    coupled, shrink = (0.0, 1 - lr * decay) if decoupled else (decay, 1.0)
    return size, root, hyper["eps"], 1 - beta1, beta2, 1 - beta2, coupled, shrink


def _sgd_dense(lr: float, hyper: Hyper, step: int) -> tuple[float, ...]:
    momentum, decay = hyper["momentum"], hyper["weight_decay"]
    if not momentum:
        return lr, decay
    # torch starts the buffer with the first gradient, undampened.
    keep, take = (0.0, 1.0) if step == 1 else (momentum, 1 - hyper["dampening"])
    own, of = (1.0, momentum) if hyper["nesterov"] else (0.0, 1.0)
    return lr, decay, keep, take, own, of


@lru_cache(maxsize=16)
def _corrections(beta1: float, beta2: float) -> Array:
    """Adam's bias corrections by step, up to where double precision sees no more change."""
    slowest = max(beta1, beta2)
    num = min(MAX_CORRECTIONS, int(-38 / np.log(slowest)) + 3 if slowest > 0 else 3)
    steps = np.arange(1.0, num)
    table = np.ones(num + 1)
    table[1:num] = np.sqrt(1 - beta2**steps) / (1 - beta1**steps)
    return table

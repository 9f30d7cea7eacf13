"""One optimizer group as servers run it, and what they refuse.

A rule asks the row of its optimizer (`OptimizerKind`), and knows none by name.
"""

from collections.abc import Mapping, Sequence
from copy import copy

from paceline.base.errors import ConfigError, InternalError
from paceline.runtime.server.optimizer_kind import Hyper, KernelCall, OptimizerKind, Plan
from paceline.runtime.server.optimizers import KINDS
from paceline.runtime.state.arrays import Array, Int64s
from paceline.wire.schema import FROZEN, OptimizerGroup

INSTEAD = (
    "A script with sparse tables (sparse=True, pl.Embedding) trains so alone, too; without them it "
    "trains as torch does, without `paceline run` or with --strategy allreduce"
)
"""Ends what is said of anything that servers cannot do, but torch can."""


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
        name: sorted(one.defaults_of(sparse=sparse))
        for name, one in KINDS.items()
        if one.updates(sparse=sparse)
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
    return list(KINDS[kind].defaults_of(sparse=True))


def changeable(group: OptimizerGroup, *, sparse: bool) -> list[str]:
    """Hyper-parameters that may change while the model is trained."""
    kind = KINDS.get(group.kind, NOT_TRAINED)
    return kind.changeable(group.hyper, sparse=sparse) if kind.updates(sparse=sparse) else []


NOT_TRAINED = OptimizerKind(name=FROZEN)
"""Row of the parameters that nobody trains."""


class Rule:
    """One optimizer group as servers run it, on dense parameters or on embedding rows."""

    def __init__(self, group: OptimizerGroup, *, sparse: bool) -> None:
        """Fill in defaults.

        Raises:
            ConfigError: the servers cannot run it (`check_group`).
        """
        check_group(group.kind, group.hyper, sparse)
        self._kind = kind = KINDS.get(group.kind, NOT_TRAINED)
        self.hyper = {
            name: float(group.hyper.get(name, value))
            for name, value in kind.defaults_of(sparse=sparse).items()
        }
        self.states = kind.kept(self.hyper, sparse=sparse)
        """The arrays kept beside the values, in the kernels' order."""

    def changed(self, values: Mapping[str, float]) -> "Rule":
        """Return the same rule with other hyper-parameters, on the same states."""
        other = copy(self)
        other.hyper = {**self.hyper, **values}
        return other

    @property
    def trains(self) -> bool:
        """Whether there is anything to update."""
        return self._kind is not NOT_TRAINED

    @property
    def counts(self) -> bool:
        """Whether an update now is one of the steps that a parameter counts."""
        needed = self._kind.counts_if
        return self.trains and (not needed or bool(self.hyper.get(needed)))

    def step_dense(
        self, values: Array, grads: Array, states: Sequence[Array], lr: float, step: int
    ) -> None:
        """Update a flat range of dense values in place; ``step`` counts from 1."""
        call = self._planned(self._kind.dense, lr, step)
        call.kernel(values, grads, (*states, *call.tables), tuple(map(float, call.numbers)))

    def step_rows(
        self,
        values: Array,
        states: Sequence[Array],
        rows: Int64s,
        grads: Array,
        lr: float,
        step: int,
    ) -> None:
        """Update slab rows in place by their merged gradients; ``step`` counts from 1."""
        call = self._planned(self._kind.rows, lr, step)
        call.kernel(values, (*states, *call.tables), rows, grads, tuple(map(float, call.numbers)))

    def _planned(self, plan: Plan | None, lr: float, step: int) -> KernelCall:
        if plan is None:
            raise InternalError(f"an update was asked of {self._kind.name!r}, which has none")
        return plan(lr, self.hyper, step)

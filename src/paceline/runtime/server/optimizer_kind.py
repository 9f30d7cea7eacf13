"""Knowledge of servers about an optimizer: the row `OptimizerKind`, nothing elsewhere by its name.

A row says which hyper-parameters the optimizer has, what it keeps beside the values, and which
kernel makes a step from which numbers. The rows are in `paceline.runtime.server.optimizers`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from paceline.runtime.state.arrays import Array

Hyper = Mapping[str, float]
"""Hyper-parameters by torch's names; ``betas`` are ``beta1`` and ``beta2``, True is 1."""


class State(NamedTuple):
    """One array of optimizer state beside the values."""

    name: str
    initial: float = 0.0
    per_row: bool = False
    """Whether there is one number per row instead of one per element."""
    dtype: str | None = None
    """None: that of the values."""
    rows_only: bool = False
    """Dense parameters need none: their steps are counted elsewhere, for example."""
    begins_at: str = ""
    """Hyper-parameter whose value is ``initial``, read when the state is made and never again:
    torch ignores a later change, too. Empty: none."""
    needs: str = ""
    """Hyper-parameter without which (it is 0) this array is not kept; empty: it always is. Such a
    hyper-parameter may become 0 while the model is trained, but never begin."""


class KernelCall(NamedTuple):
    """A step as its kernel is called."""

    kernel: Callable[..., None]
    numbers: Sequence[float]
    """Hyper-parameters that the kernel calls ``hyper``."""
    tables: tuple[Array, ...] = ()
    """Arrays to follow the state's."""


Plan = Callable[[float, Hyper, int], KernelCall]
"""Turn a learning rate, all hyper-parameters and the step's number (from 1) into a call."""


class OptimizerKind(msgspec.Struct, frozen=True, kw_only=True):
    """One optimizer as servers run it: on dense parameters, on embedding rows, or on both."""

    name: str
    """Name in the schema and in cuts."""
    defaults: dict[str, float] = {}
    """Hyper-parameters beside lr, with torch's defaults."""
    states: tuple[State, ...] = ()
    """Arrays in the kernels' order."""
    dense: Plan | None = None
    """Plan to update dense parameters; None: they are not updated."""
    rows: Plan | None = None
    """Plan to update embedding rows; None: they are not updated."""
    dense_only: tuple[str, ...] = ()
    """Hyper-parameters that embedding rows do not have."""
    torch: str = ""
    """Class of `torch.optim` whose numbers this gives; empty: there is none."""
    like: str = ""
    """Kind of which this is a variant, with the same hyper-parameters; empty: none. It stands in
    where this one cannot be."""
    decoupled: str = ""
    """Kind that torch's option ``decoupled_weight_decay`` chooses; empty: torch has no such option
    here. Without the option the kind is ``like``, or this one."""
    per_table: bool = False
    """Rows are corrected by the steps of their table, so a table whose rows come and go cannot have
    it."""
    counts_if: str = ""
    """Hyper-parameter without which (it is 0) an update is none of the steps that a parameter
    counts; empty: each is."""

    def updates(self, *, sparse: bool) -> bool:
        """Tell whether it updates embedding rows (``sparse``), or dense parameters."""
        return (self.rows if sparse else self.dense) is not None

    def defaults_of(self, *, sparse: bool) -> dict[str, float]:
        """The hyper-parameters, beside lr, that embedding rows or dense parameters have."""
        left_out = self.dense_only if sparse else ()
        return {name: value for name, value in self.defaults.items() if name not in left_out}

    def kept(self, hyper: Hyper, *, sparse: bool) -> tuple[State, ...]:
        """The states that are kept with these hyper-parameters, with their initial values."""
        return tuple(
            state._replace(initial=hyper[state.begins_at]) if state.begins_at else state
            for state in self.states
            if (sparse or not state.rows_only) and (not state.needs or hyper.get(state.needs))
        )

    def changeable(self, hyper: Hyper, *, sparse: bool) -> list[str]:
        """Hyper-parameters that may change while the model is trained, which began with these."""
        known = self.defaults_of(sparse=sparse)
        fixed = {s.needs for s in self.states if s.needs and not (known | dict(hyper)).get(s.needs)}
        return [name for name in known if name not in fixed | self.read_once]

    @property
    def read_once(self) -> set[str]:
        """Hyper-parameters that are read when the state is made, and never again."""
        return {state.begins_at for state in self.states if state.begins_at}

    @property
    def family(self) -> str:
        """Name of the kind that gives the hyper-parameters their meaning."""
        return self.like or self.name

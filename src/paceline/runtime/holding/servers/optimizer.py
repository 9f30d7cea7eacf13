"""Torch's optimizers as groups that servers run, and the user's optimizer as the trigger of a push.

The user's optimizer object stays what it is: schedulers, ``zero_grad`` and ``param_groups`` work on
it as usual. Only its ``step`` is replaced, since the state of the update lives with the servers.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import chain
from math import inf
from types import MethodType
from typing import Any, NoReturn

import numpy as np
import torch
from torch.optim import SGD, Optimizer
from torch.optim.optimizer import (
    _global_optimizer_post_hooks,
    _global_optimizer_pre_hooks,
)

from paceline.base.errors import ConfigError
from paceline.runtime.script.stepping import BEGIN_LATER
from paceline.runtime.server.optimizers import KINDS
from paceline.runtime.server.rules import INSTEAD, changeable, row_options
from paceline.wire.schema import FROZEN, OptimizerGroup

_OF_TORCH = {getattr(torch.optim, kind.torch): kind for kind in KINDS.values() if kind.torch}
TABLE_KINDS = tuple(
    name for name, kind in KINDS.items() if kind.updates(sparse=True) and not kind.per_table
)
"""Optimizers that ``pl.Embedding(optimizer=...)`` may name."""

_HOW = {"foreach", "fused", "capturable", "differentiable"}
"""Options that say how torch runs an optimizer, not what it computes."""

FROZEN_GROUP = OptimizerGroup(kind=FROZEN)
"""Group of the parameters that nobody trains."""


def group_of(
    optimizer: Optimizer, settings: Mapping[str, Any], *, sparse: bool = False
) -> OptimizerGroup:
    """Return one parameter group of a torch optimizer, as servers run it.

    Args:
        optimizer: whose group it is.
        settings: the group. What the optimizer itself does not read (``initial_lr``, ``max_lr``,
            ``name``: schedulers' keys and the script's own) is left aside.
        sparse: whether it is for an embedding table.

    Raises:
        ConfigError: an optimizer that servers cannot run; names those they can.
    """
    kind = _OF_TORCH.get(type(optimizer))
    if kind is None:
        known = sorted(f"torch.optim.{one.__name__}" for one in _OF_TORCH)
        raise ConfigError(
            f"{type(optimizer).__name__} cannot be run on parameter servers; use one of "
            f"{', '.join(known)}. {INSTEAD}"
        )
    if kind.dense is None and not sparse:
        raise ConfigError(
            f"{kind.torch} takes sparse gradients only, in torch as on servers; give dense "
            f"parameters to torch.optim.{KINDS[kind.like].torch}"
        )
    hyper = {
        name: value
        for key in _read_by(optimizer)
        if key != "lr"
        for name, value in _numbers(key, settings[key]).items()
    }
    name = kind.name
    if kind.decoupled:
        is_decoupled = bool(hyper.pop("decoupled_weight_decay", 0.0))
        # Rows know no decay: without one the kind that updates them says so.
        is_decoupled &= bool(hyper["weight_decay"]) or not sparse
        name = kind.decoupled if is_decoupled else kind.family
    return OptimizerGroup(kind=name, hyper=hyper)


def _read_by(optimizer: Optimizer) -> list[str]:
    """The keys of a parameter group that change what the optimizer computes."""
    return [key for key in optimizer.defaults if key not in _HOW]


def _numbers(key: str, value: Any) -> dict[str, float]:
    """A torch option by the names of the servers' hyper-parameters.

    Raises:
        ConfigError: it is no number.
    """
    if key == "betas":
        first, second = value
        return {"beta1": float(first), "beta2": float(second)}
    if value is None:
        return {}
    if isinstance(value, bool | int | float) or (
        isinstance(value, torch.Tensor) and value.numel() == 1
    ):
        return {key: float(value)}
    raise ConfigError(
        f"optimizer option {key}={value!r} is no number; parameter servers take plain numbers. "
        f"{INSTEAD}"
    )


class Settings:
    """The hyper-parameters of a group of the servers, as the script has them at each step.

    Args:
        optimizer: whose group it is.
        settings: the torch group, read again and again.
        group: how the servers run it.
        sparse: whether it is for an embedding table.
        own: hyper-parameters that a table has for itself, whatever the torch group says.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        settings: dict[str, Any],
        group: OptimizerGroup,
        *,
        sparse: bool = False,
        own: Collection[str] = (),
    ) -> None:
        self.settings = settings
        self._what = type(optimizer).__name__
        self._group = group
        # Of a table with an optimizer of its own the torch group is the learning rate only.
        kind = _OF_TORCH[type(optimizer)]
        follows = not sparse or KINDS[group.kind].family == kind.family
        keys = [key for key in _read_by(optimizer) if key != "lr"] if follows else []
        self._keys = [key for key in keys if key not in kind.read_once]
        self._may_change = set(changeable(group, sparse=sparse)) - set(own)
        self._own = set(own)
        self._first = self._last = self._values()
        self._changed: tuple[tuple[str, float], ...] = ()

    def _values(self) -> list[Any]:
        return [_plain(self.settings[key]) for key in self._keys]

    @property
    def rate(self) -> float:
        """The learning rate now.

        Raises:
            ConfigError: it is no number.
        """
        try:
            return float(self.settings["lr"])
        except (TypeError, ValueError, RuntimeError) as error:
            raise ConfigError(
                f"{self._what}: lr={self.settings['lr']!r} is no number; set it to one"
            ) from error

    def changed(self) -> tuple[tuple[str, float], ...]:
        """Return what is not as it was when this was made: hyper-parameters of the servers.

        Raises:
            ConfigError: something changed that the servers cannot follow.
        """
        values = self._values()
        if values != self._last:
            self._changed, self._last = tuple(self._look(values)), values
        return self._changed

    def _look(self, values: list[Any]) -> list[tuple[str, float]]:
        found = []
        for key, first, value in zip(self._keys, self._first, values, strict=True):
            before = _numbers(key, first)
            for name, number in _numbers(key, value).items():
                if number == before.get(name) or name in self._own:
                    continue
                if name not in self._may_change:
                    raise ConfigError(
                        f"{self._what}: {key} was {first!r} at job.prepare and is {value!r} now, "
                        f"which parameter servers ({self._group.kind}) cannot follow; set it "
                        f"before job.prepare. {INSTEAD}"
                    )
                found.append((name, number))
        return found


def _plain(value: Any) -> Any:
    """A value that does not change with the script's tensors."""
    if isinstance(value, torch.Tensor):
        return value.item() if value.numel() == 1 else value.tolist()
    if isinstance(value, np.ndarray | np.generic):
        return value.item() if value.size == 1 else value.tolist()
    return tuple(map(_plain, value)) if isinstance(value, list | tuple) else value


def check_fresh(optimizer: Optimizer, number: int) -> None:
    """Refuse an optimizer that has moved already: servers begin with fresh state.

    Raises:
        ConfigError: it has taken steps, or loaded state.
    """
    for state in optimizer.state.values():
        step = state.get("step", 0) if isinstance(state, Mapping) else 0
        if float(step) > 0 or "momentum_buffer" in state:
            raise ConfigError(
                f"optimizer {number} ({type(optimizer).__name__}) has state already, of steps "
                "before job.prepare or by load_state_dict, which parameter servers do not take "
                f"over; prepare it without. {INSTEAD}"
            )


def check_rate(optimizer: Optimizer, settings: Mapping[str, Any], dtype: torch.dtype) -> None:
    """Refuse a learning rate in a tensor that is narrower than the parameters.

    Raises:
        ConfigError: torch's updates would be rounded to it, those of the servers not.
    """
    rate = settings["lr"]
    if not isinstance(rate, torch.Tensor) or isinstance(optimizer, SGD):
        return
    if rate.dtype.itemsize < dtype.itemsize:
        raise ConfigError(
            f"{type(optimizer).__name__}: lr is a tensor of {rate.dtype}, to which torch rounds "
            f"updates of parameters of {dtype} and parameter servers do not; make it a number, or "
            f"a tensor of {dtype}. {INSTEAD}"
        )


def table_group(
    name: str, kind: str | None, args: Mapping[str, float], base: OptimizerGroup
) -> OptimizerGroup:
    """The group of a table that asked for an optimizer of its own beside the rate of ``base``.

    Raises:
        ConfigError: no such optimizer, or it has no such hyper-parameters.
    """
    if kind is not None and kind not in TABLE_KINDS:
        raise ConfigError(
            f"pl.Embedding {name!r}: optimizer={kind!r}; expected one of {', '.join(TABLE_KINDS)}"
        )
    if KINDS[base.kind].per_table:  # rows that come and go count their own steps
        base = OptimizerGroup(kind=KINDS[base.kind].like, hyper=base.hyper)
    group = base if kind in (None, base.kind) else OptimizerGroup(kind=str(kind))
    if not args:
        return group
    known = row_options(group.kind)
    for option, value in args.items():
        if option not in known:
            raise ConfigError(
                f"pl.Embedding {name!r}: optimizer_args has {option}={value!r}; {group.kind} takes "
                f"{', '.join(known) or 'none'} (the learning rate is that of the optimizer of the "
                "table's weight)"
            )
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < inf:
            raise ConfigError(
                f"pl.Embedding {name!r}: optimizer_args has {option}={value!r}; give a number of "
                "at least 0"
            )
    hyper = group.hyper | {option: float(value) for option, value in args.items()}
    return OptimizerGroup(kind=group.kind, hyper=hyper)


def replace_step(optimizer: Optimizer, on_step: Callable[[], None]) -> None:
    """Make ``optimizer.step()`` hand over gradients instead of changing parameters.

    What would change the optimizer itself, ``add_param_group`` and ``load_state_dict``, is refused
    from here on.
    """

    # A bound method, since schedulers made later wrap the function behind it.
    def step(self: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
        given = () if closure is None else (closure,)
        elsewhere.check()
        for hook in chain(
            _global_optimizer_pre_hooks.values(), self._optimizer_step_pre_hooks.values()
        ):
            hook(self, given, {})
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        # Schedulers look at this to see whether `step` was called before theirs.
        self._opt_called = True  # type: ignore[attr-defined]
        on_step()
        for after in chain(
            self._optimizer_step_post_hooks.values(), _global_optimizer_post_hooks.values()
        ):
            after(self, given, {})
        return loss

    # Schedulers made before look for this, to see whether somebody took `step` from them.
    step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
    optimizer.step = MethodType(step, optimizer)  # type: ignore[method-assign]
    for name, remedy in _REMEDIES.items():
        setattr(optimizer, name, MethodType(_refused(name, remedy), optimizer))
    elsewhere = optimizer.state = Elsewhere(type(optimizer).__name__, optimizer.state)


_NO_STATE = "leave it as it is"
_REMEDIES = {"add_param_group": BEGIN_LATER, "load_state_dict": "prepare it without state"}


def _refused(name: str, remedy: str) -> Callable[..., None]:
    def refuse(self: Optimizer, *_: Any) -> None:
        raise ConfigError(_gone(f"{type(self).__name__}.{name} was called", remedy))

    return refuse


def _gone(what: str, remedy: str) -> str:
    return (
        f"{what} after job.prepare, which gave its parameters and their state to parameter "
        f"servers; {remedy}. {INSTEAD}"
    )


def _version(value: Any) -> int:
    """Return how often a tensor was written to."""
    return value._version if isinstance(value, torch.Tensor) else 0


class Elsewhere(defaultdict[Any, Any]):
    """The ``state`` of an optimizer whose state servers hold: an edit of it would be lost."""

    def __init__(self, whose: str, before: Mapping[Any, Any]) -> None:
        super().__init__(None, before)
        self.whose = whose
        #: What is there before the first step, as Adagrad's sums, and how often it was written to.
        self._seen = [(held, key, value, _version(value)) for held, key, value in self._all()]

    def _all(self) -> Iterator[tuple[Any, Any, Any]]:
        entries = (held for held in self.values() if isinstance(held, Mapping))
        return ((held, key, value) for held in entries for key, value in held.items())

    def check(self) -> None:
        """Refuse an edit in place of the state that is there.

        Raises:
            ConfigError: there was one.
        """
        same = all(
            held.get(key) is value and _version(value) == version
            for held, key, value, version in self._seen
        )
        if not same or sum(1 for _ in self._all()) != len(self._seen):
            self.refuse()

    def refuse(self, *_: Any, **__: Any) -> NoReturn:
        """Raises ConfigError: the script would change or read something that is not here."""
        raise ConfigError(
            _gone(f"{self.whose}.state was changed, or asked for what is not there,", _NO_STATE)
        )

    __setitem__ = __delitem__ = __missing__ = refuse
    clear = pop = popitem = setdefault = update = refuse

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies, and what is pickled, are as torch has them."""
        return defaultdict, (dict,), None, None, iter(self.items())

"""Solutions by name: paceline's own, and those that installed packages declare.

A package declares one by an entry point::

    [project.entry-points."paceline.solutions"]
    mine = "my_package.solutions:Mine"
"""

import difflib
import importlib.metadata
from collections.abc import Mapping
from typing import Any

import msgspec

from paceline.base.errors import ConfigError
from paceline.policy.straggler.solution import MODES, Solution
from paceline.policy.straggler.solutions.auto import Auto
from paceline.policy.straggler.solutions.dedicated import Dedicated
from paceline.policy.straggler.solutions.falcon import Falcon
from paceline.policy.straggler.solutions.lb_bsp import LbBsp
from paceline.policy.straggler.solutions.non_dedicated import NonDedicated
from paceline.policy.straggler.solutions.static import Backup, Even, LeaveOut, Nothing, Rates

GROUP = "paceline.solutions"

BUILT_IN: Mapping[str, type[Solution]] = {
    "adjust_lr": Rates,
    "auto": Auto,
    "backup_workers": Backup,
    "dd": Dedicated,
    "even": Even,
    "falcon": Falcon,
    "lb_bsp": LbBsp,
    "nd": NonDedicated,
    "none": Nothing,
    "partial": LeaveOut,
}


def names() -> list[str]:
    """Return the names of all solutions."""
    return sorted({*BUILT_IN, *importlib.metadata.entry_points(group=GROUP).names})


def kind_of(name: str) -> type[Solution]:
    """The class of the solution of this name.

    Raises:
        ConfigError: no such solution, or it cannot be loaded.
    """
    return BUILT_IN.get(name) or _installed(name)


def solution(name: str, parameters: Mapping[str, object] | None = None) -> Solution:
    """The solution of this name, with its parameters set.

    Args:
        name: one of `names`; a built-in one comes before an entry point of the same name.
        parameters: by field of the solution; numbers may be given as text.

    Raises:
        ConfigError: no such solution, or parameters that it does not have or take.
    """
    kind = kind_of(name)
    known = {field.encode_name: field for field in msgspec.structs.fields(kind)}
    values: dict[str, Any] = {}
    for key, value in (parameters or {}).items():
        if key not in known:
            raise ConfigError(
                f"solution {name} has no parameter {key}; it has {', '.join(sorted(known))}"
            )
        try:
            values[key] = msgspec.convert(value, known[key].type, strict=False)
        except msgspec.ValidationError as refused:
            default = known[key].default
            raise ConfigError(
                f"solution {name}: {key}: {value!r}: {refused}; leave it out for {default!r}"
            ) from refused
    try:
        return kind(**values)
    except Exception as refused:  # the class may be a user's, and its ``__post_init__`` runs here
        raise ConfigError(
            f"solution {name}: {kind.__name__} cannot be made of its parameters: {refused}; set "
            "others, or mend the package that declares it"
        ) from refused


def _installed(name: str) -> type[Solution]:
    for entry in importlib.metadata.entry_points(group=GROUP, name=name):
        try:
            kind = entry.load()
        except Exception as failed:  # of any kind: the module's code runs here
            raise ConfigError(
                f"solution {name}: {entry.value} cannot be loaded: {failed}; install or mend the "
                "package that declares it"
            ) from failed
        if isinstance(kind, type) and issubclass(kind, Solution):
            _check_modes(name, kind)
            return kind
        raise ConfigError(
            f"solution {name}: {entry.value} is {kind!r}; declare a class that derives from "
            f"{Solution.__module__}.{Solution.__name__}"
        )
    near = difflib.get_close_matches(name, names(), n=1)
    meant = f"; did you mean {near[0]}?" if near else ""
    raise ConfigError(f"no solution {name!r}; there are {', '.join(names())}{meant}")


def _check_modes(name: str, kind: type[Solution]) -> None:
    modes: object = kind.modes
    if not isinstance(modes, tuple) or not modes or any(mode not in MODES for mode in modes):
        raise ConfigError(
            f"solution {name}: {kind.__name__}.modes is {modes!r}; write a tuple of some of "
            f'{", ".join(MODES)} and no type, as in modes = ("bsp",)'
        )

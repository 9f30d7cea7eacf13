"""Settings of prepared modules, beside their weights: variables of the script, like others.

    if epoch >= 3:
        model.body.requires_grad_(True)      # or body.eval(), or dropout.p = 0.1

A life that goes on in the loop of its peers does not run these lines. So what they have set is a
variable of the script: which parameters are trained, which modules are in training mode, and each
module's plain attributes. Hooks of the script, functions and kinds of modules (a loss) cannot be
made from what arrives: they are compared, and what differs is refused.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch
from torch import nn

from paceline.runtime.variables import frames
from paceline.runtime.variables.kinds import Kind
from paceline.runtime.variables.plain import ATOMS
from paceline.runtime.variables.spelled import found_in

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_OF_MODULES = frozenset(vars(nn.Module())) | {"training"}


class NotAlikeError(ValueError):
    """A value is not what it is in the other workers, and cannot be made so."""


def name_of(value: Any) -> str:
    """Return the name of a function or class, or that of an object's class."""
    if isinstance(value, BuiltinFunctionType):
        name: str = value.__name__
        return f"{'torch' if vars(torch).get(name) is value else value.__module__}:{name}"
    named = isinstance(value, FunctionType | type)
    kind = value if named else type(value)
    return f"{kind.__module__}:{kind.__qualname__}"


def _itself(value: Any) -> Any:
    return value


def _new(_own: Any, taken: Any) -> Any:
    return taken


def _put_named(own: Any, name: str) -> Any:
    """Return the function or class of this name, if the script or torch has it."""
    if name_of(own) == name:
        return own
    module, _, inner = name.partition(":")
    if frames.is_scripts_module(module) or module.partition(".")[0] == "torch":
        found = found_in(module, inner)
        is_named = isinstance(found, FunctionType | BuiltinFunctionType | type)
        if is_named and name_of(found) == name:
            return found
    raise NotAlikeError(f"it is {name_of(own)} here and {name} there")


def _check_class(own: Any, name: str) -> Any:
    if name_of(own) != name:
        raise NotAlikeError(f"it is a {name_of(own)} here and a {name} there")
    return own


def _check_hooks(own: dict[str, list[str]], taken: dict[str, list[str]]) -> Any:
    if own != taken:
        one = next(name for name in (own | taken) if own.get(name) != taken.get(name))
        here, there = (", ".join(held.get(one, [])) or "none" for held in (own, taken))
        raise NotAlikeError(f"of {one or 'the whole'} they are {here} here and {there} there")
    return own


SETTING = Kind("setting", lambda _: False, _itself, _itself, _new)
NAMED = Kind("named", lambda _: False, name_of, name_of, _put_named)
CLASS = Kind("class", lambda _: False, name_of, name_of, _check_class)
HOOKS = Kind("hooks", lambda _: False, _itself, _itself, _check_hooks)
COMPARED = frozenset([NAMED.name, CLASS.name, HOOKS.name])
"""Names of the kinds that nobody makes: where they differ, a life cannot go on."""


def settings_of(
    modules: Sequence[nn.Module], is_own: Callable[[type], bool]
) -> Iterator[tuple[str, Kind, Any, Callable[[Any], None]]]:
    """Yield a path, a kind, a value and what sets it, for each setting of prepared modules.

    Args:
        modules: as they were prepared.
        is_own: tells classes of the script, whose attributes are its variables anyway.
    """
    for number, module in enumerate(modules):
        path = f"model[{number}]" if len(modules) > 1 else "model"
        params, parts = dict(module.named_parameters()), dict(module.named_modules())
        yield (
            f"{path}.requires_grad",
            SETTING,
            {name: one.requires_grad for name, one in params.items()},
            _for_each(params, lambda one, new: one.requires_grad_(new)),
        )
        yield (
            f"{path}.training",
            SETTING,
            {name: one.training for name, one in parts.items()},
            _for_each(parts, lambda one, new: setattr(one, "training", new)),
        )
        for name, one in parts.items():
            if not is_own(type(one)) and (found := _plain(one)):
                where = f"{path}.{name}" if name else path
                yield f"{where}.attributes", SETTING, found, partial(_set_all, one)
        hooks = {name: named for name, one in parts.items() if (named := _hooks_of(one))}
        yield f"{path}.hooks", HOOKS, hooks, _itself


def _for_each(
    held: dict[str, Any], put: Callable[[Any, Any], object]
) -> Callable[[dict[str, Any]], None]:
    def bind(new: dict[str, Any]) -> None:
        for name, one in new.items():
            if name in held:
                put(held[name], one)

    return bind


def _plain(module: nn.Module) -> dict[str, Any]:
    """Return a module's own attributes of plain data."""
    return {
        key: one
        for key, one in vars(module).items()
        if key not in _OF_MODULES and not key.startswith("_") and _is_plain(one)
    }


def _is_plain(value: Any) -> bool:
    if type(value) is tuple:
        return all(type(one) in ATOMS for one in value)
    return type(value) in ATOMS


def _set_all(module: nn.Module, values: dict[str, Any]) -> None:
    own = vars(module)
    for key, value in values.items():
        if key in own and _is_plain(own[key]):
            new = tuple(value) if type(own[key]) is tuple else value
            if own[key] != new:
                setattr(module, key, new)


def _hooks_of(module: nn.Module) -> list[str]:
    """Return the names of functions of the script that are hooks of a module."""
    hooks = (one for name in _HOOKS for one in getattr(module, name, {}).values())
    return [
        name_of(one)
        for one in hooks
        if isinstance(one, FunctionType) and frames.is_scripts_module(one.__module__ or "")
    ]

"""Options and arguments that are not given, or are plain text: their values are taken as they are.

typer has pydantic check each value. There is nothing to check of one that is not there, or may be
any text, and importing pydantic takes a fifth of the time of a short command. How typer keeps its
checks is no promise of its own: with a version that keeps them otherwise, all values are checked.
"""

from typing import Any

_CHECK = "_runtime_param"
"""Attribute in which typer keeps the check of a parameter, once it was made; None until then."""


class _LateCheck:
    """Stands for typer's check of a parameter until there is something to check."""

    def __init__(self, param: Any) -> None:
        self._param = param
        kind = param.type_descriptor
        self._is_text = kind.annotation is str and kind.parameter_info.parser is None

    def coerce(self, value: Any, **given: Any) -> Any:
        """Return the value, checked if it has to be."""
        if value is None or (self._is_text and type(value) is str):
            return value
        setattr(self._param, _CHECK, None)
        return self._param.get_runtime_param().coerce(value, **given)


def check_late(command: Any, context: Any) -> None:
    """Have a command of typer's check the values of its parameters only where it is necessary."""
    for param in command.get_params(context):
        is_one = getattr(param, "nargs", 0) == 1 and not getattr(param, "multiple", False)
        if is_one and hasattr(param, "type_descriptor") and getattr(param, _CHECK, 0) is None:
            setattr(param, _CHECK, _LateCheck(param))

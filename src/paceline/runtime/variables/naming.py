"""The line at which a script sets a variable: a message names it."""

import ast
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from types import ModuleType

_CHANGES = frozenset(("append", "update", "add", "extend", "insert"))
"""Methods that change a container."""


def line_of(path: str, modules: Sequence[ModuleType]) -> str:
    """``train.py:31`` for the path of a variable; empty: no line of these modules sets it.

    Args:
        path: as of `paceline.runtime.variables.look.ScriptLook`.
        modules: of the script.
    """
    name = path.split("[")[0].replace(":", ".").rpartition(".")[2]
    is_attribute = "." in path.split(":")[-1] and not path.startswith(":")
    function = path.split(".")[0].rpartition(":")[2]
    files = [file for one in modules if isinstance(file := getattr(one, "__file__", None), str)]
    # First those that have a function of the name with which the path begins.
    for file in sorted(files, key=lambda one: function not in _functions_of(one)):
        lines = _lines_of(file)
        found = lines.get(f".{name}" if is_attribute else name) or lines.get(name)
        if found:
            return f"{Path(file).name}:{found}"
    return ""


@lru_cache(maxsize=64)
def _lines_of(file: str) -> dict[str, int]:
    """Name, or attribute with a dot before it -> the last line that sets it."""
    return {name: line for one in ast.walk(_tree_of(file)) for name, line in _set_by(one)}


@lru_cache(maxsize=64)
def _functions_of(file: str) -> frozenset[str]:
    found = (one for one in ast.walk(_tree_of(file)) if isinstance(one, ast.FunctionDef))
    return frozenset(one.name for one in found)


def _tree_of(file: str) -> ast.Module:
    try:
        return ast.parse(Path(file).read_text())
    except (OSError, SyntaxError, ValueError):
        return ast.Module([], [])


def _set_by(node: ast.AST) -> Iterator[tuple[str, int]]:
    match node:
        case ast.Name(ctx=ast.Store(), id=name):
            yield name, node.lineno
        case ast.Attribute(ctx=ast.Store(), attr=name):
            yield f".{name}", node.lineno
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=method)):
            if method in _CHANGES:
                yield name, node.lineno
        case _:
            return

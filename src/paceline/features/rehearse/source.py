"""Search of a script's source for where a variable gets its value, and how. Pure.

A person who reads that ``steps`` differs wants the line. The remedy for a counter is not that for a
list.
"""

import ast
import re
from typing import Literal, NamedTuple

How = Literal["counts", "loops", "appends", "draws", "sets"]
"""Ways in which a variable changes: by ``+=``, as the target of a loop, by ``append`` and its like,
from a generator of random numbers, by any other assignment."""

_GROWS = {"append", "extend", "update", "add", "insert", "pop", "setdefault"}


class Changed(NamedTuple):
    """Line in which a variable is changed last, and how it is changed there."""

    line: int
    how: How


class Source:
    """The source of one file.

    Args:
        file: its name, for people.
        text: what it holds.
    """

    def __init__(self, file: str, text: str) -> None:
        self.file = file
        try:
            self._tree: ast.Module = ast.parse(text)
        except SyntaxError:
            self._tree = ast.Module([], [])
        self._places: dict[str, Changed] = {}
        for node in ast.walk(self._tree):
            for name, how in _changes(node):
                line = getattr(node, "lineno", 0)
                known = self._places.get(name)
                if known is None or _rank(how, line) > _rank(known.how, known.line):
                    self._places[name] = Changed(line, how)

    def place_of(self, path: str) -> Changed | None:
        """Find where the variable of a path, ``meter.total[2]``, is changed."""
        names = re.findall(r"(?:^|\.)([A-Za-z_]\w*)", path)
        for name in reversed(names):
            for spelled in (f".{name}", name) if name != names[0] else (name,):
                if spelled in self._places:
                    return self._places[spelled]
        return None

    def names_at(self, line: int) -> set[str]:
        """Names that the smallest statement around a line uses."""
        around = [
            one
            for one in ast.walk(self._tree)
            if isinstance(one, ast.stmt) and one.lineno <= line <= (one.end_lineno or 0)
        ]
        if not around:
            return set()
        smallest = min(around, key=lambda one: (one.end_lineno or 0) - one.lineno)
        return {one.id for one in ast.walk(smallest) if isinstance(one, ast.Name)}

    def calls(self, name: str) -> int:
        """The line of the first call of a function or method of that name; 0: there is none."""
        lines = [
            one.lineno
            for one in ast.walk(self._tree)
            if isinstance(one, ast.Call)
            and (getattr(one.func, "attr", "") == name or getattr(one.func, "id", "") == name)
        ]
        return min(lines, default=0)


def _rank(how: How, line: int) -> tuple[bool, int]:
    # `steps += 1` says more of a counter than `steps = 0`, wherever the two stand.
    return how != "sets", line


def _changes(node: ast.AST) -> list[tuple[str, How]]:
    match node:
        case ast.AugAssign(target=target):
            return [(name, "counts") for name in _names(target)]
        case ast.Assign(targets=targets, value=value):
            how = _how(value, {name for one in targets for name in _names(one)})
            return [(name, how) for one in targets for name in _names(one)]
        case (
            ast.AnnAssign(target=target, value=ast.expr() as value)
            | ast.NamedExpr(target=target, value=value)
        ):
            return [(name, _how(value, {*_names(target)})) for name in _names(target)]
        case ast.For(target=target):
            return [(name, "loops") for name in _names(target)]
        case ast.Call(func=ast.Attribute(attr=attr, value=value)) if attr in _GROWS:
            return [(name, "appends") for name in _names(value)]
        case _:
            pass
    return []


def _how(value: ast.expr, names: set[str]) -> How:
    used = {one.id for one in ast.walk(value) if isinstance(one, ast.Name)}
    if isinstance(value, ast.BinOp) and names & used:
        return "counts"
    called = {getattr(one, "attr", getattr(one, "id", "")) for one in ast.walk(value)}
    drawn = ("rand", "Generator", "default_rng", "shuffle", "sample", "choice")
    return "draws" if any(str(one).startswith(drawn) for one in called) else "sets"


def _names(target: ast.expr) -> list[str]:
    match target:
        case ast.Name(id=name):
            return [name]
        case ast.Attribute(attr=attr):
            return [f".{attr}"]
        case ast.Subscript(value=value) | ast.Starred(value=value):
            return _names(value)
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            return [name for part in parts for name in _names(part)]
        case _:
            pass
    return []

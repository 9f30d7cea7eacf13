"""House rules that ruff does not know: lengths of functions, one meaning for a name, real bases.

The lists below are today's exceptions. They may only shrink: an entry that is no longer needed fails.
"""

import ast
import builtins
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import paceline

SOURCE = Path(paceline.__file__).parent
MAX_FUNCTION_LINES = 80

LONG_FUNCTIONS: set[str] = set()

BASES_OF_ONE: dict[str, str] = {
    "backends.ray.launcher.Launcher": "its child is an actor, and a class only where Ray is there",
}
"""Base classes of which there is nothing but one child, by reason."""


@cache
def sources() -> dict[str, tuple[int, ast.Module]]:
    """Lines and tree of each file, by its path in the package."""
    files = sorted(SOURCE.rglob("*.py"))
    texts = {path.relative_to(SOURCE).as_posix(): path.read_text() for path in files}
    return {name: (len(text.splitlines()), ast.parse(text)) for name, text in texts.items()}


def check(found: set[str], listed: set[str], what: str) -> None:
    """Assert that the exceptions are those of the list."""
    assert not found - listed, f"{what}: {sorted(found - listed)}"
    assert not listed - found, f"no longer needed, remove from the list: {sorted(listed - found)}"


def test_no_function_is_longer_than_80_lines() -> None:
    found = set[str]()
    for name, (_, tree) in sources().items():
        for one in ast.walk(tree):
            if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef):
                num_lines = (one.end_lineno or 0) - one.lineno + 1
                if num_lines > MAX_FUNCTION_LINES:
                    found.add(f"{name}: {one.name}")
    check(found, LONG_FUNCTIONS, f"longer than {MAX_FUNCTION_LINES} lines")


def public_classes() -> Iterator[str]:
    """The names of all of them, as often as they are defined."""
    for _, tree in sources().values():
        for one in tree.body:
            if isinstance(one, ast.ClassDef) and not one.name.startswith("_"):
                yield one.name


def test_no_public_class_name_is_defined_twice() -> None:
    counts = Counter(public_classes())
    assert len(counts) > 400
    found = sorted(name for name, count in counts.items() if count > 1)
    assert not found, f"defined more than once, find each a name of its own: {found}"


# ----------------------------------------------------------------------------- base classes
#
# A class that is made itself, and which another one specializes, is an idea. So is a port, and an
# exception, which is raised and caught by its name. A base that has one child and is nothing by
# itself is half of a class: cut where it became long, to be read together with its other half.

PACKAGE = paceline.__name__


class Bases:
    """The classes of the source by full name: what each derives from, and which are made."""

    def __init__(self, trees: dict[str, ast.Module]) -> None:
        self.bases: dict[str, list[str]] = {}
        self.made: set[str] = set()
        for module, tree in trees.items():
            self._names = names_of(module, tree)
            for node in ast.walk(tree):
                self._note(module, node)

    def _note(self, module: str, node: ast.AST) -> None:
        match node:
            case ast.ClassDef():
                bases = [self._full(base) for base in node.bases]
                self.bases[f"{module}.{node.name}"] = bases
            case ast.Call(func=ast.BoolOp(values=ways)):  # (kind or Usual)()
                self.made |= {self._full(way) for way in ways}
            case ast.Call(func=made) | ast.Assign(value=made):
                self.made.add(self._full(made))
            case _:
                pass

    def _full(self, expression: ast.expr) -> str:
        """The full name of a class; of what is none of ours, some other name."""
        match expression:
            case ast.Subscript(value=generic):
                return self._full(generic)
            case ast.Attribute(value=owner, attr=name):
                return f"{self._full(owner)}.{name}"
            case ast.Name(id=name):
                return self._names.get(name, name)
            case _:
                return ""

    def is_exception(self, name: str) -> bool:
        kind = getattr(builtins, name, None)
        if isinstance(kind, type) and issubclass(kind, BaseException):
            return True
        return any(self.is_exception(base) for base in self.bases.get(name, ()))

    def of_one(self) -> set[str]:
        """Those that are nothing but the half of one child."""
        children = defaultdict[str, set[str]](set)
        for child, bases in self.bases.items():
            for base in bases:
                children[base].add(child)
        return {
            name
            for name, bases in self.bases.items()
            if len(children[name]) == 1
            and name not in self.made
            and "typing.Protocol" not in bases
            and not self.is_exception(name)
        }


def dotted(file: str) -> str:
    """The name of the module that is in a file of the package."""
    parts = file.removesuffix(".py").removesuffix("__init__").strip("/").split("/")
    return ".".join([PACKAGE, *filter(None, parts)])


def names_of(module: str, tree: ast.Module) -> dict[str, str]:
    """What the names of a module's classes and imports stand for, in full."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=str(origin)):
                names |= {one.asname or one.name: f"{origin}.{one.name}" for one in node.names}
            case ast.Import():
                names |= {one.asname: one.name for one in node.names if one.asname}
            case _:
                pass
    return names | {
        node.name: f"{module}.{node.name}" for node in tree.body if isinstance(node, ast.ClassDef)
    }


def test_no_base_class_is_there_for_one_child() -> None:
    trees = {dotted(name): tree for name, (_, tree) in sources().items()}
    found = {name.removeprefix(f"{PACKAGE}.") for name in Bases(trees).of_one()}
    check(found, set(BASES_OF_ONE), "bases with one child, that are nothing by themselves")


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("class A: ...\nclass B(A): ...", {"m.A"}),
        ("class A(Generic[T]): ...\nclass B(A[int]): ...", {"m.A"}),
        ("class A: ...\nclass B(A): ...\nclass C(A): ...", set()),
        ("class A: ...\nclass B(A): ...\none = A()", set()),
        ("class A: ...\nclass B(A): ...\none = (kind or A)()", set()),
        ("class A: ...\nclass B(A): ...\nclass C(B): ...\none = A(), C()", {"m.B"}),
        ("from typing import Protocol\nclass A(Protocol): ...\nclass B(A): ...", set()),
        ("class A(ValueError): ...\nclass B(A): ...", set()),
        ("from torch import A\nclass B(A): ...", set()),
    ],
)
def test_half_of_a_class_is_found(source: str, found: set[str]) -> None:
    assert Bases({"m": ast.parse(source)}).of_one() == found

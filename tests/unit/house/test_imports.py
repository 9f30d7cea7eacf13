"""Imports inside functions: for the cost of what they load, said there, and never to hide a circle.

The verbs of the command line are not asked why: each imports what it alone needs.
"""

import ast
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import paceline

PACKAGE = paceline.__name__
SOURCE = Path(paceline.__file__).parent
VERBS = ("cli/", "terminal/")

FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
IMPORTS = ast.Import | ast.ImportFrom


@cache
def files() -> dict[str, str]:
    """The text of each file, by its path in the package."""
    paths = sorted(SOURCE.rglob("*.py"))
    return {path.relative_to(SOURCE).as_posix(): path.read_text() for path in paths}


def imports_in(tree: ast.AST, *, within: bool = False) -> Iterator[tuple[ast.stmt, bool]]:
    """What is imported when the code runs, and whether that is inside a function."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, IMPORTS):
            yield node, within
        elif not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)):
            yield from imports_in(node, within=within or isinstance(node, FUNCTIONS))


def unexplained(text: str) -> list[str]:
    """Imports inside functions that have no comment: beside them, or above the first of some."""
    lines = text.splitlines()
    explained, found = set[int](), []
    for node, within in imports_in(ast.parse(text)):
        if not within:
            continue
        last = node.end_lineno or node.lineno
        said = any("#" in line for line in lines[node.lineno - 2 : last])
        if said or node.lineno - 1 in explained:
            explained.add(last)
        else:
            found.append(ast.unparse(node))
    return found


def test_an_import_inside_a_function_says_what_it_costs() -> None:
    found = [
        f"{name}: {what}"
        for name, text in files().items()
        if not name.startswith(VERBS) and Path(name).name != "verbs.py"
        for what in unexplained(text)
    ]
    assert not found, f"say what it costs, or import it at the top: {found}"


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("import torch  # slow", []),
        ("# slow\n    import torch\n    import numba", []),
        ("import torch", ["import torch"]),
        ("# slow\n    import torch\n    x = 1\n    import numba", ["import numba"]),
    ],
)
def test_an_import_without_a_comment_is_found(body: str, found: list[str]) -> None:
    assert unexplained(f"def f():\n    {body}\n") == found


def dotted(name: str) -> str:
    """The name of the module that is in a file of the package."""
    parts = name.removesuffix(".py").removesuffix("__init__").split("/")
    return ".".join([PACKAGE, *filter(None, parts)])


def modules_of(node: ast.stmt, modules: set[str]) -> Iterator[str]:
    """The modules of ours that are imported."""
    match node:
        case ast.ImportFrom(module=str(origin)):
            full = (f"{origin}.{one.name}" for one in node.names)
            yield from ({name if name in modules else origin for name in full} & modules)
        case ast.Import():
            yield from ({one.name for one in node.names} & modules)
        case _:
            pass


def circle(graph: dict[str, set[str]]) -> list[str]:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_circle_is_hidden_in_a_function() -> None:
    texts = {dotted(name): text for name, text in files().items()}
    modules = set(texts)
    graph = {
        name: {
            origin
            for node, _ in imports_in(ast.parse(text))
            for origin in modules_of(node, modules)
            if origin != name
        }
        for name, text in texts.items()
    }
    assert sum(map(len, graph.values())) > 1000
    assert not circle(graph), "take what both sides need into a module below them"


def test_a_circle_is_found() -> None:
    assert set(circle({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}})) == {"a", "b", "c"}
    assert circle({"a": {"b", "c"}, "b": {"c"}}) == []

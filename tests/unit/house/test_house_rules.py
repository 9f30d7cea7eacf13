"""House rules that ruff does not know: lengths of files and functions, one meaning for a name.

The lists below are today's exceptions. They may only shrink: an entry that is no longer needed fails.
"""

import ast
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import paceline

SOURCE = Path(paceline.__file__).parent
MAX_FILE_LINES = 600
MAX_FUNCTION_LINES = 80

MAX_IMPORTS = 15

LONG_FILES: set[str] = set()
LONG_FUNCTIONS: set[str] = set()
BUSY_FILES: set[str] = set()


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


def test_no_file_is_longer_than_600_lines() -> None:
    lines = {name: num_lines for name, (num_lines, _) in sources().items()}
    assert len(lines) > 300
    found = {name for name, num_lines in lines.items() if num_lines > MAX_FILE_LINES}
    check(found, LONG_FILES, f"longer than {MAX_FILE_LINES} lines, divide by idea")


def test_no_function_is_longer_than_80_lines() -> None:
    found = set[str]()
    for name, (_, tree) in sources().items():
        for one in ast.walk(tree):
            if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef):
                num_lines = (one.end_lineno or 0) - one.lineno + 1
                if num_lines > MAX_FUNCTION_LINES:
                    found.add(f"{name}: {one.name}")
    check(found, LONG_FUNCTIONS, f"longer than {MAX_FUNCTION_LINES} lines")


@cache
def modules() -> frozenset[str]:
    """The dotted names of all modules and folders of the package."""
    paths = (name.removesuffix(".py").removesuffix("/__init__") for name in sources())
    return frozenset("paceline." + path.replace("/", ".") for path in paths)


def imported(tree: ast.Module) -> set[str]:
    """The modules of the package that a file imports from, wherever in it that is."""
    found = set[str]()
    for one in ast.walk(tree):
        if isinstance(one, ast.Import):
            found |= {alias.name for alias in one.names}
        elif isinstance(one, ast.ImportFrom) and one.module:
            inner = {f"{one.module}.{alias.name}" for alias in one.names}
            found |= (inner & modules()) | ({one.module} if inner - modules() else set())
    return found & modules()


def test_no_module_imports_more_than_15_others() -> None:
    counts = {name: len(imported(tree)) for name, (_, tree) in sources().items()}
    assert counts["master/service.py"] > 5
    found = {name for name, count in counts.items() if count > MAX_IMPORTS}
    check(found, BUSY_FILES, f"imports from more than {MAX_IMPORTS} modules, divide by idea")


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

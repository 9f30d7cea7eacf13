"""House rules that ruff does not know: lengths of functions, one meaning for a name.

The lists below are today's exceptions. They may only shrink: an entry that is no longer needed fails.
"""

import ast
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import paceline

SOURCE = Path(paceline.__file__).parent
MAX_FUNCTION_LINES = 80

LONG_FUNCTIONS: set[str] = set()


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

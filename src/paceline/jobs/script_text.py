"""The text of a script before it runs: its own file, and the modules of its folder.

What is installed elsewhere is not read, and nothing is executed.
"""

import re
from collections.abc import Iterator
from pathlib import Path

_IMPORT = re.compile(
    r"^\s*(?:from\s+(\.*)([\w.]*)\s+import\s+\(?([\w, \t]*)|import\s+()([\w.]+)())", re.MULTILINE
)
"""Dots, the module, and names in it, which may be modules as well."""


def sources_of(script: str, folder: Path = Path()) -> Iterator[tuple[Path, str]]:
    """Yield the files of a script and their text.

    Args:
        script: a file, or a module that is found from ``folder``.
        folder: where the script runs.
    """
    path = Path(script)
    if path.suffix == ".py":
        yield from _read(path, path.parent, set())
        return
    named = folder.joinpath(*script.split("."))
    for one in (named.parent / f"{named.name}.py", named / "__main__.py"):
        yield from _read(one, folder, set())


def _read(script: Path, root: Path, seen: set[Path]) -> Iterator[tuple[Path, str]]:
    if script in seen or not script.is_file():
        return
    seen.add(script)
    try:
        text = script.read_text(errors="replace")
    except OSError:  # said where the script itself is checked
        return
    yield script, text
    for found in _IMPORT.finditer(text):
        dots, module, names = [group for group in found.groups() if group is not None]
        base = script.parents[len(dots) - 1] if 0 < len(dots) <= len(script.parents) else root
        inner = base.joinpath(*module.split("."))
        for path in (inner, *(inner / name for name in re.findall(r"\w+", names))):
            yield from _read(path.parent / f"{path.name}.py", root, seen)
            yield from _read(path / "__init__.py", root, seen)

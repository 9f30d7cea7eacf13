"""Search for a module as ``python -m`` does, without running anything of it."""

import importlib.util
import sys
from collections.abc import Iterable
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path


def module_fault(name: str, folder: str) -> str:
    """Say why ``python -m name``, called in a folder, would find nothing to run.

    Packages are not imported, so one that changes its own ``__path__`` is taken at its word.

    Returns:
        A few words that follow the name; empty: it is found, or only running it can show.
    """
    first, *rest = name.split(".")
    odd = "no name of a module, which is like pkg.train"
    if not all(part and "/" not in part for part in (first, *rest)):
        return odd
    absent = odd if rest[-1:] == ["py"] else "no such module"
    found = PathFinder.find_spec(first, [folder, *sys.path]) or _known(first)
    for part in rest:
        if found is None or found.submodule_search_locations is None:
            return absent
        if _changes_path(found):
            return ""
        found = PathFinder.find_spec(part, _folders(found))
    if found is None:
        return absent
    if found.submodule_search_locations is None or _changes_path(found):
        return ""
    main = PathFinder.find_spec("__main__", _folders(found))
    return "" if main else "a package without __main__.py"


def _known(name: str) -> ModuleSpec | None:
    """A module that another finder than that of ``sys.path`` has, as of an editable install."""
    try:
        return importlib.util.find_spec(name)
    except ValueError:  # it is a program's ``__main__``
        return None


def _folders(package: ModuleSpec) -> list[str]:
    folders: Iterable[str] = package.submodule_search_locations or ()
    return list(folders)


def _changes_path(package: ModuleSpec) -> bool:
    if not (package.has_location and package.origin):
        return False
    try:
        return b"__path__" in Path(package.origin).read_bytes()
    except OSError:  # within an archive
        return True

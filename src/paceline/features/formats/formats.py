"""Formats of exported files: paceline's own, and those that installed packages declare.

A package declares one by an entry point, whose name is that of the format::

    [project.entry-points."paceline.formats"]
    onnx = "my_package.onnx:FORMAT"
"""

import importlib.metadata
from collections.abc import Mapping
from typing import NamedTuple

from paceline.base.errors import ConfigError

GROUP = "paceline.formats"
_WRITERS = "paceline.features.formats.process.writers"


class Format(NamedTuple):
    """A format, as a row: whose files it writes, and what these hold."""

    suffixes: tuple[str, ...]
    """Ends of files' names by which the format is chosen, as ``.pt``."""
    write: str
    """The function that writes a file, as ``module:function``. It takes the content, the path and a
    mapping of text about the cut, and raises OSError or RuntimeError. The content is the state dict
    of the model, of torch's tensors; with ``--optimizer`` a dict of state dicts. It is imported in
    the process that exports, which knows torch."""
    only_tensors: bool = False
    """True: a file holds tensors by name, so neither optimizers nor values of other types."""


BUILT_IN: Mapping[str, Format] = {
    "safetensors": Format((".safetensors",), f"{_WRITERS}:write_safetensors", only_tensors=True),
    "torch": Format((".pt", ".pth"), f"{_WRITERS}:write_torch"),
}


def formats() -> Mapping[str, Format]:
    """Return all formats by name; paceline's own come first, and before others of the same name.

    Raises:
        ConfigError: that of an installed package cannot be loaded.
    """
    entries = sorted(importlib.metadata.entry_points(group=GROUP), key=lambda one: one.name)
    others = {entry.name: _loaded(entry) for entry in entries if entry.name not in BUILT_IN}
    return {**BUILT_IN, **others}


def _loaded(entry: importlib.metadata.EntryPoint) -> Format:
    try:
        found = entry.load()
    except Exception as failed:  # another package's code runs here
        raise ConfigError(
            f"format {entry.name}: {entry.value} cannot be loaded: {failed}; mend or remove the "
            "package that declares it"
        ) from failed
    if not isinstance(found, Format):
        raise ConfigError(
            f"format {entry.name}: {entry.value} is {found!r}; declare a "
            f"{Format.__module__}.{Format.__name__}"
        )
    return found


def format_of(name: str) -> Format:
    """Return the format of this name.

    Raises:
        ConfigError: there is none.
    """
    known = formats()
    if name not in known:
        raise ConfigError(f"--format: got {name!r}, expected one of {', '.join(known)}")
    return known[name]


def format_for(file_name: str, suffix: str) -> str:
    """Return the name of the format of files that end so.

    Raises:
        ConfigError: there is none.
    """
    known: dict[str, str] = {}
    for name, one in formats().items():
        for ending in one.suffixes:
            known.setdefault(ending, name)
    if suffix not in known:
        named = " or ".join(f"--format {name}" for name in formats())
        raise ConfigError(
            f"export: {file_name} ends in none of {', '.join(known)}; name the file so, or give "
            f"{named}"
        )
    return known[suffix]

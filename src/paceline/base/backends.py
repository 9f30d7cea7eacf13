"""Backends: where nodes run. Each is a package's, and declares one `BackendKind`.

That is an entry point of the group ``paceline.backends``. What it brings is named as text, so that
a process imports only what it uses itself. The core names no backend but the default one.
"""

import importlib.metadata
import importlib.util
import pkgutil
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

from paceline.base.errors import ConfigError
from paceline.base.features import in_a_line, say_left_out

GROUP = "paceline.backends"
OURS = "paceline."
"""Begins the names of our own modules: a name that one of our commands has stays."""
DEFAULT = "local"
"""Name of the backend that a spec has by default: its nodes are on the machine of the master."""


class BackendKind(NamedTuple):
    """A backend, and where its parts are, as ``module:object``."""

    name: str
    """Name of the entry point, and of the value of ``backend`` in a spec."""
    about: str
    """Where its nodes run, in one line for users."""
    opened: str
    """Takes a `JobDir` and its `JobSpec`, and returns a `paceline.master.ports.Backend`. Called in
    the event loop of the master."""
    prepared: str = ""
    """Takes the `JobSpec` of a job that is about to start, and returns it with what the platform
    finds out on the machine that starts it; raises ConfigError where the platform is not there."""
    keys: tuple[str, ...] = ()
    """Keys of the spec, dotted, that no other backend reads."""
    unread: tuple[str, ...] = ()
    """Keys of the spec, dotted, that this backend does not read."""
    transports: tuple[str, ...] = ("auto", "tcp")
    """Values of ``data_plane.transport`` that its nodes can use."""
    needs: str = ""
    """Module of another package without which it does nothing; empty: none."""
    remedy: str = ""
    """Command that installs that package."""
    verbs: str = ""
    """Adds its commands to a `typer.Typer`, whether that package is there or not; empty: it has
    none."""

    @property
    def lacks(self) -> str:
        """Command to run before the backend can be used; empty: none."""
        if not self.needs or importlib.util.find_spec(self.needs) is not None:
            return ""
        return f"run `{self.remedy}`"


def installed() -> Mapping[str, BackendKind]:
    """Return the backends that can be loaded, by name. Of one name, paceline's own counts."""
    return {name: kind for name, kind in _loaded().items() if isinstance(kind, BackendKind)}


@cache
def _loaded() -> Mapping[str, BackendKind | str]:
    """Return each backend that a package declares, by name, or why it cannot be loaded."""
    entries = importlib.metadata.entry_points(group=GROUP)
    found = dict[str, BackendKind | str]()
    for entry in sorted(entries, key=lambda one: (one.name, not _is_own(one))):
        if entry.name in found:
            continue
        try:
            kind = entry.load()
        except Exception as error:  # noqa: BLE001 - another package's code runs here
            found[entry.name] = in_a_line(error)
            continue
        is_kind = isinstance(kind, BackendKind)
        found[entry.name] = kind if is_kind else f"{entry.value} is {kind!r}, and no BackendKind"
    return found


def _is_own(entry: importlib.metadata.EntryPoint) -> bool:
    return entry.dist is not None and entry.dist.name == "paceline"


def call_verbs(call: Callable[[str, Any], object]) -> None:
    """Call this for each backend that has commands: with its name, and with what adds them."""
    kinds = [(name, kind) for name, kind in installed().items() if kind.verbs]
    for name, kind in sorted(kinds, key=lambda one: not one[1].verbs.startswith(OURS)):
        try:
            call(name, pkgutil.resolve_name(kind.verbs))
        except Exception as error:  # noqa: BLE001 - another package's code runs here
            say_left_out(f"what backend {name} adds to the commands", error)


def backend_kind(name: str) -> BackendKind:
    """Return the backend of this name.

    Raises:
        ConfigError: none is installed; names those that are.
    """
    kind = _loaded().get(name)
    if isinstance(kind, str):
        why = f"which cannot be loaded ({kind})"
        raise ConfigError(f"backend: got {name!r}, {why}; install its package again")
    if kind is None:
        raise ConfigError(f"backend: got {name!r}, expected {choices()}; install its package")
    return kind


def choices() -> str:
    """Name the backends that are there, where their nodes run, and what each lacks."""
    listed = [
        f"{one.name} ({', '.join(filter(None, (one.about, one.lacks)))})"
        for one in installed().values()
    ]
    return f"{', '.join(listed[:-1])} or {listed[-1]}" if listed[1:] else "".join(listed)


def part_of(name: str, part: str) -> Any:
    """Load a part of a backend: ``opened`` or ``prepared``; None: it has none.

    Raises:
        ConfigError: no backend of this name is installed, or it lacks a package.
    """
    kind = backend_kind(name)
    if kind.lacks:
        raise ConfigError(f"backend: got {name}, which is not installed here; {kind.lacks}")
    place = getattr(kind, part)
    return pkgutil.resolve_name(place) if place else None

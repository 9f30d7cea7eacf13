"""Features: parts of paceline that the core does not name, and packages of others.

Each declares one `Feature` under an entry point of the group ``paceline.features``. What it brings
is named as text, so that a process imports only what it uses itself.
"""

import importlib.metadata
import pkgutil
import sys
from functools import cache
from typing import Any, NamedTuple

GROUP = "paceline.features"


class Feature(NamedTuple):
    """A feature, and where its parts are.

    ``about`` is one line for users. ``verbs``, as ``module:function``, adds the feature's commands
    to the command line: it takes the ``typer.Typer`` of ``paceline``.
    """

    name: str
    about: str
    verbs: str = ""


class InstalledFeature(NamedTuple):
    """A feature and the distribution that declares it; without a feature, why there is none."""

    name: str
    package: str
    feature: Feature | None
    fault: str = ""


@cache
def installed() -> tuple[InstalledFeature, ...]:
    """Return the declared features, by name; one that cannot be loaded says why."""
    entries = sorted(importlib.metadata.entry_points(group=GROUP), key=lambda one: one.name)
    found = dict[str, InstalledFeature]()
    for entry in entries:
        package = entry.dist.name if entry.dist is not None else ""
        try:
            feature = entry.load()
        except Exception as error:  # noqa: BLE001 - another package's code runs here
            found[entry.name] = InstalledFeature(entry.name, package, None, f"{error}")
            continue
        if isinstance(feature, Feature):
            found[entry.name] = InstalledFeature(entry.name, package, feature)
        else:
            fault = f"{entry.value} is {feature!r}, and no paceline.base.features.Feature"
            found[entry.name] = InstalledFeature(entry.name, package, None, fault)
    return tuple(found.values())


def call_parts(kind: str, *given: Any) -> None:
    """Load one kind of part of each feature that has one (``verbs``), and call it.

    A feature whose part cannot be loaded, or raises, is named on stderr; the others go on.
    """
    for name, _, feature, fault in installed():
        try:
            if place := getattr(feature, kind, ""):
                pkgutil.resolve_name(place)(*given)
        except Exception as error:  # noqa: BLE001 - another package's code runs here
            fault = f"{error}"
        if fault:
            sys.stderr.write(f"paceline: feature {name} is left out, since it fails: {fault}\n")

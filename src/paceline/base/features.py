"""Features: parts of paceline that the core does not name, and packages of others.

Each declares one `Feature` under an entry point of the group ``paceline.features``. What it brings
is named as text, so that a process imports only what it uses itself.
"""

import importlib.metadata
import pkgutil
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any, NamedTuple

GROUP = "paceline.features"
NONSENSE = (ArithmeticError, LookupError, TypeError, ValueError)
"""Errors of a part about a well-formed message with impossible values: the message is dropped.

`msgspec.MsgspecError`, of a message that is not well-formed, is a ValueError. InternalError stays
the alarm.
"""
OWN = "paceline"
"""Name of paceline's distribution."""


class Feature(NamedTuple):
    """A feature, and where its parts are.

    Parts are named as ``module:object``; a feature has those that it needs.
    """

    name: str
    """Name of the entry point."""
    about: str
    """Purpose of the feature, in one line for users."""
    switch: str = ""
    """Keys and flags that switch it on in a job; empty: it is on in every job, or in none."""
    verbs: str = ""
    """Takes a ``typer.Typer``, and adds the feature's commands to it. If a name is
    taken, the feature is left without commands."""
    hints: tuple[tuple[str, str], ...] = ()
    """Words that people try as commands, each with the feature's command to write instead:
    ``("export", "`paceline checkpoint export JOB OUT`")``."""
    keys: tuple[str, ...] = ()
    """Keys of the spec that the core gives to the feature."""
    only_with: str = ""
    """Key of the spec: the feature has parts in jobs that set it; empty: in all jobs."""
    lacks: str = ""
    """Takes a `JobSpec`, and yields what is missing for it before the job starts, with remedies."""
    checked: str = ""
    """Takes the `paceline.jobs.spec_draft.SpecDraft` of a job, and complains about values that the
    feature cannot follow."""
    completed: str = ""
    """Takes a `JobSpec`, and returns it with the values that the feature chooses; raises
    ConfigError where it finds none."""
    prepared: str = ""
    """Takes the `JobSpec` of a job that is about to start, and returns it with the values that are
    only known then, and lines that a person is told; raises ConfigError where the job cannot start.
    """
    master: str = ""
    """Takes a `paceline.master.feature_port.Core`, and returns a ``MasterPart`` or None."""
    agent: str = ""
    """Takes a `paceline.agent.feature_port.AgentHere`, and returns an ``AgentPart`` or None."""
    process: str = ""
    """Takes a `paceline.runtime.process.feature_port.Here`, and returns a ``ProcessPart`` or
    None."""
    shown: str = ""
    """Takes the `JobDir` of a job without a master, and returns a `paceline.wire.client.Shown`."""
    explained: str = ""
    """Tells of decisions in ``paceline explain``: takes the `JobDir` of a job, and a function to
    which it gives a heading and what follows. That is lines of text, or pairs: the name of a part,
    and its text. Raises ConfigError where decisions were written that cannot be read."""
    replayed: str = ""
    """A `paceline.jobs.replayed.ReplayedLog`: decisions that ``paceline replay`` makes again."""
    web: str = ""
    """Shows a job in a browser while ``paceline run --web`` watches it: takes the `JobDir`, and
    returns a `paceline.jobs.web.WebPage`. Raises ConfigError where it cannot."""
    overview: str = ""
    """Tells of more than one job on the page of all jobs: takes a function to which it gives each
    `paceline.jobs.overview.OverviewTable`."""
    ended: str = ""
    """Called when a job ended that a person has watched: takes a `paceline.jobs.ended.EndedJob`."""
    reasons: str = ""
    """Answers why a job is slow, waits, has its size, or ended: takes a
    `paceline.jobs.why.AskedWhy`, and a function to which it gives each
    `paceline.jobs.why.Reason`."""
    sections: str = ""
    """Tells of a job in its report: takes the job's `paceline.jobs.facts.Facts`, and a function to
    which it gives each `paceline.jobs.sections.Section`."""


class InstalledFeature(NamedTuple):
    """A feature and the distribution that declares it; without a feature, why there is none."""

    name: str
    package: str
    feature: Feature | None
    fault: str = ""


def _with_packages(
    entries: Iterable[importlib.metadata.EntryPoint],
) -> list[tuple[str, bool, str, importlib.metadata.EntryPoint]]:
    """Sort entry points by name; of one name, paceline's own come first.

    Each has the name of its package, which is read once: a package's file of metadata is parsed
    for each look at its name.
    """
    names = dict[int, str]()
    found = []
    for entry in entries:
        package = ""
        if entry.dist is not None:
            package = names.get(id(entry.dist)) or entry.dist.name
            names[id(entry.dist)] = package
        found.append((entry.name, package != OWN, package, entry))
    return sorted(found, key=lambda one: one[:3])


@cache
def installed() -> tuple[InstalledFeature, ...]:
    """Return the declared features, by name; one that cannot be loaded says why."""
    entries = importlib.metadata.entry_points(group=GROUP)
    found = dict[str, InstalledFeature]()
    for _, _, package, entry in _with_packages(entries):
        if entry.name in found:
            say_failed(
                f"{entry.name} of {package}",
                ValueError(f"{found[entry.name].package} has a feature of this name"),
            )
            continue
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


def is_installed(name: str) -> bool:
    """Tell whether a feature is there, for another one that can do less without it."""
    return any(one.name == name and one.feature is not None for one in installed())


def is_set(value: object) -> bool:
    """Tell whether a key of a spec has a value; 0 and False are values."""
    return value is not None and value not in ("", (), {})


def parts_of(
    kind: str, failed: Callable[[str, Exception], None], spec: object = None
) -> Iterator[tuple[str, Any]]:
    """Load one kind of part (``master``) of each feature that has one, mostly a callable.

    Args:
        kind: a field of `Feature`.
        failed: takes the name of a feature whose part cannot be loaded, and the error.
        spec: of the job that the parts are for. A feature without a part in it is left out.

    Yields:
        The name of a feature, and its part.
    """
    for one in installed():
        place = getattr(one.feature, kind, "")
        key = one.feature.only_with if one.feature is not None else ""
        if not place or (spec is not None and key and not is_set(getattr(spec, key, None))):
            continue
        try:
            part = pkgutil.resolve_name(place)
        except Exception as error:  # noqa: BLE001 - another package's code runs here
            failed(one.name, error)
        else:
            yield one.name, part


def in_a_line(error: Exception) -> str:
    """Write the class and the text of an error in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def say_failed(name: str, error: Exception) -> None:
    """Name a feature whose part fails, on stderr."""
    say_left_out(f"feature {name}", error)


def say_left_out(what: str, error: Exception) -> None:
    """Name what paceline does without, and why, on stderr."""
    _say_left_out(what, " ".join(str(error).split()))


@cache  # each fault once, though several kinds of parts are called
def _say_left_out(who: str, fault: str) -> None:
    sys.stderr.write(f"paceline: {who} is left out: {fault}\n")


def call_parts(kind: str, *given: Any) -> None:
    """Load one kind of part of each feature that has one (``sections``), and call it.

    A feature whose part cannot be loaded, or raises, is named on stderr; the others go on. So is
    one that cannot be loaded at all.
    """
    call_each(kind, lambda _name, part: part(*given))


def call_each(kind: str, call: Callable[[str, Any], object]) -> None:
    """Do the same with a call that knows the feature's name.

    Args:
        kind: a field of `Feature`.
        call: takes the name of a feature, and its part.
    """
    for one in installed():
        if one.fault:
            say_failed(one.name, RuntimeError(one.fault))
    for name, part in parts_of(kind, say_failed):
        try:
            call(name, part)
        except Exception as error:  # noqa: BLE001 - another package's code runs here
            say_failed(name, error)

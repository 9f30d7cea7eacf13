"""A job spec as it is being read: its values, where they were set, and all complaints."""

import difflib
from collections.abc import Sequence
from pathlib import Path

from yaml.nodes import Node, ScalarNode

from paceline.jobs.flags import choices_of, flag_of
from paceline.jobs.near_values import is_torchs_backend, value_meant
from paceline.jobs.spec_values import (
    FREE_SECTIONS,
    LEAVES,
    Wrong,
    find_leaf,
    read_value,
)
from paceline.wire.strategies import STRATEGIES, Traits

COMMAND_LINE = "command line"


def complaint(place: str, key: str, got: str, expected: str, remedy: str) -> str:
    """Word one complaint."""
    return f"{where(place, key)}: got {got}, expected {expected}; {remedy}"


def where(place: str, key: str) -> str:
    """A flag is its own place and key."""
    return place if place.startswith("--") else f"{place}: {key}"


def how_to_write(place: str, key: str, value: str) -> str:
    """Say how to set ``key`` where ``place`` is, ready to be copied."""
    if not place.startswith("--"):
        return f"write e.g. {key.rpartition('.')[2]}: {value}"
    flag = flag_of(key)
    return f"write e.g. {flag}{'=' if ' ' in flag else ' '}{value}"


class SpecDraft:
    """Draft of what was read so far: values and their places by dotted key, and all complaints."""

    def __init__(self) -> None:
        self.values: dict[str, object] = {}
        self.places: dict[str, str] = {}
        self.complaints: list[str] = []
        self._refused: set[str] = set()

    def get(self, key: str) -> object:
        """Return the value of ``key`` as it stands, by default if it was not set."""
        return self.values.get(key, LEAVES[key].default)

    def is_sound(self, keys: Sequence[str]) -> bool:
        """Tell whether none of ``keys`` was refused: only then can they be compared."""
        return self._refused.isdisjoint(keys)

    def put(self, key: str, place: str, node: Node, folder: Path, label: str = "") -> None:
        """Read ``node`` as the value of ``key``; a later call wins over an earlier one."""
        leaf = find_leaf(key)
        if leaf is None:
            self.complaints.append(_unknown_key(place, key))
            return
        self.places[key] = place
        try:
            self.values[key] = read_value(leaf, node, folder)
            self._refused.discard(key)
        except Wrong as wrong:
            self._refused.add(key)
            label = label or key
            expected = wrong.expected or leaf.expected
            remedy = _remedy(place, key, label, node, leaf.example)
            self.complaints.append(complaint(place, label, wrong.got, expected, remedy))

    def complain(self, key: str, got: str, expected: str, remedy: str) -> None:
        """Complain about a value that was read, at its place."""
        self._refused.add(key)
        place = self.places.get(key, COMMAND_LINE)
        self.complaints.append(complaint(place, key, got, expected, remedy))


def _remedy(place: str, key: str, label: str, node: Node, example: str) -> str:
    """Say how to write a value that was refused: as it was meant, if that can be seen."""
    if not (isinstance(node, ScalarNode) and key in LEAVES and (choices := choices_of(key))):
        return how_to_write(place, label, example)
    if is_torchs_backend(key, node.value):
        return "leave it out: how workers communicate is chosen by their devices"
    if meant := value_meant(key, node.value, choices):
        return how_to_write(place, label, meant).replace("write e.g.", "write")
    return how_to_write(place, label, example)


def _unknown_key(place: str, key: str) -> str:
    section, _, name = key.rpartition(".")
    if not keys_of(section):
        section = ""  # there is no such one
    known = keys_of(section)
    close = difflib.get_close_matches(name, known, 1)
    meant = [f"{section}.{close[0]}".lstrip(".")] if close else _elsewhere(name)
    if meant:
        got = "got an unknown key"
        return f"{where(place, key)}: {got}; did you mean {' or '.join(meant)}?"
    if section:
        return complaint(place, key, "an unknown key", f"one of {', '.join(known)}", "remove it")
    remedy = "`paceline run SCRIPT --dry-run` lists them"
    if place.startswith("--"):
        remedy += f"; the script's own arguments follow --: paceline run SCRIPT -- --{key} VALUE"
    return complaint(place, key, "an unknown key", "a key of a job spec", remedy)


def keys_of(section: str) -> list[str]:
    """Name what a section may hold; of the root: the sections, too."""
    prefix = f"{section}." if section else ""
    inside = (key.removeprefix(prefix) for key in LEAVES if key.startswith(prefix))
    free = [] if section else [*FREE_SECTIONS]
    return list(dict.fromkeys([key.partition(".")[0] for key in inside] + free))


def _elsewhere(name: str) -> list[str]:
    return [key for key in LEAVES if key.rpartition(".")[2] == name]


def traits_of(draft: SpecDraft) -> Traits:
    """Look up what the strategy of a draft can do; it must not have been refused."""
    return STRATEGIES[str(draft.get("strategy"))]

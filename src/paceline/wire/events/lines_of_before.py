"""Lines of versions whose events had words and no fields: what a report needs of them.

The only place that reads words. A new event, or a new field, needs nothing here.

Events that are a feature's now had no sentence beside their fields: it is made here.
"""

import contextlib
import re
from collections.abc import Mapping

_MEMBERS = r"(?P<members>worker-\d+(?:, worker-\d+)*)"
_AGAIN = r"(?P<cause>.*); again in (?P<wait_s>[\d.]+) s"
_PARTS = ("pending", "start", "rebuild", "restore", "redo")
_TOOK = "".join(rf"(?:(?:, )?{part} (?P<{part}_s>[\d.]+) s)?" for part in _PARTS)
_WORDS = {
    "agent_joined": r"pid (?P<pid>\d+)",
    "cut_stored": r"cut (?P<cut_no>\d+)",
    "cut_uploaded": r"cut (?P<cut_no>\d+)",
    "cut_valid": r"cut (?P<cut_no>\d+) at step (?P<step>\d+)",
    "epoch": r"epoch (?P<epoch_no>\d+) from cut \d+(?P<in_memory> in memory)?",
    "feed_complete": r"feed (?P<feed>\d+)",
    "feed_opened": r"feed (?P<feed>\d+) \((?P<purpose>\w+)\)",
    "group_forms": rf"group (?P<group>\d+) of {_MEMBERS}",
    "group_runs": rf"{_MEMBERS} trains? from (?:the start|step (?P<next_step>\d+) on)",
    "left_loop": r"at step (?P<step>\d+)",
    "master_started": r"(?P<restarted>from the journal)?",
    "not_uploaded": r"cut (?P<cut_no>\d+)",
    "plan": r"plan (?P<plan_no>\d+) from step (?P<step>\d+) on",
    "process_up": r"pid (?P<pid>\d+)(?: at (?P<address>.+))?",
    "relaunch": _AGAIN,
    "replaced": r"by (?P<successor>.+)",
    "restart_all": _AGAIN,
    "restored": r"epoch (?P<epoch_no>\d+)",
    "stopped": r"(?P<by>.*)",
    "works": rf"[\d.]+ s(?: \({_TOOK}\))?",
}
_SIGNALS = {"Ctrl-C": 2, "SIGTERM": 15}
USUAL = frozenset({"checked", "relieved"})
"""Events of features whose lines did not say that every healthy job has them."""
_SENTENCES = {
    "history_unusable": "{reason}",
    "machine_short": "{reason}",
    "memory_raised": "{reason}",
    "memory_short": "{reason}",
    "size_changed": "the job has another size: {reason} (after {took_s:.1f} s)",
    "size_judged": "the change of size made the job {reason}",
    "size_kept": "the job keeps its size: {reason}",
    "size_planned": "the job is to change its size: {reason}",
}
"""Events of features whose lines had fields and a reason, but no sentence."""


def fields_of(name: str, reason: str) -> dict[str, object]:
    """Read the fields of an event out of its words; empty: they are not known."""
    found = re.fullmatch(_WORDS[name], reason) if name in _WORDS else None
    if found is None:
        return {}
    groups = found.groupdict()
    fields: dict[str, object] = {key: value for key, value in groups.items() if value is not None}
    match name:
        case "epoch":
            fields["in_memory"] = groups["in_memory"] is not None
        case "group_forms":
            fields["members"] = groups["members"].split(", ")
        case "group_runs":
            fields["members"] = groups["members"].split(", ")
            fields["step"] = int(groups["next_step"] or 1) - 1
        case "master_started":
            fields["restarted"] = groups["restarted"] is not None
        case "stopped":
            fields["signal"] = _SIGNALS.get(groups["by"], 0)
        case "works":
            fields = {f"{part}_s": groups[f"{part}_s"] or 0.0 for part in _PARTS}
        case _:
            pass
    return fields


def sentence_of(name: str, fields: Mapping[str, object]) -> str:
    """Make the sentence of a line that had none; empty: it is not known."""
    with contextlib.suppress(KeyError, TypeError, ValueError):  # a line without one of the fields
        return _SENTENCES.get(name, "").format_map(fields)
    return ""

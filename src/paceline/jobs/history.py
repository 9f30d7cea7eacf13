"""The files a job leaves behind as facts: events and metrics, whole or as they grow.

The master writes them, and may be killed in the middle of a line; a reader sees whole lines only.
"""

import contextlib
import os
from pathlib import Path
from typing import TypeVar

import msgspec

from paceline.jobs.jsonl import before, last_line
from paceline.wire.messages.checks import NodeSpeed

T = TypeVar("T")


class Event(msgspec.Struct, frozen=True):
    """One line of ``events.jsonl``: something has changed."""

    t: float
    """Unix time."""
    event: str
    node: str = ""
    inc: int = 0
    reason: str = ""
    verdict: str = ""
    """Of the end of a life."""
    signal: int | None = None
    """That ended it."""
    speed: NodeSpeed | None = None
    """Of a node that was checked."""
    pid: int = 0
    """Of a supervisor that has started."""
    traceback: str = ""
    """Of the script, whose error has ended a life."""
    cut_no: int = 0
    """The cut that an epoch begins from; 0: what the script has built."""
    undone: int = 0
    """Samples that an epoch's beginning takes out of the model, to be trained again."""


class NodePoint(msgspec.Struct, frozen=True):
    """One node in one line of ``metrics.jsonl``; counters go over all its lives."""

    step: int = 0
    samples: int = 0
    """Handed to its training loop."""
    bpt_s: float = 0.0
    compute_s: float = 0.0
    server_s: float = 0.0
    message_s: float = 0.0
    data_s: float = 0.0
    rss_bytes: int = 0
    cpu_s: float = 0.0


class Point(msgspec.Struct, frozen=True):
    """One line of ``metrics.jsonl``: the job as measured, once per second."""

    t: float
    """Unix time."""
    committed: int
    """Samples in the model."""
    samples_per_s: float
    """Mean over the last ten seconds."""
    nodes: dict[str, NodePoint] = {}


class Tail:
    """New whole lines of a growing file; one that is not there yet has none."""

    def __init__(self, path: Path, *, from_end: bool = False, start: int = 0) -> None:
        """``start``: the byte of the first line."""
        self._path = path
        self._read_bytes = path.stat().st_size if from_end and path.exists() else start

    def lines(self) -> list[bytes]:
        """What was added since the last call, without the ends of lines."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            if os.fstat(file.fileno()).st_size < self._read_bytes:
                self._read_bytes = 0  # it was cut, and begins again
            file.seek(self._read_bytes)
            whole, end, _ = file.read().rpartition(b"\n")
        self._read_bytes += len(whole) + len(end)
        return whole.split(b"\n") if end else []

    def rest(self) -> list[bytes]:
        """What was printed last and has no end of line: at most one. It is not to grow any more."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._read_bytes)
            text = file.read()
        self._read_bytes += len(text)
        return [text] if text else []


def read_events(path: Path) -> list[Event]:
    """All events of a job so far, in order."""
    return decode_events(Tail(path).lines())


def decode_events(lines: list[bytes]) -> list[Event]:
    """Events of whole lines."""
    return _decode(lines, Event)


def _decode(lines: list[bytes], kind: type[T]) -> list[T]:
    """Leave out what a disk that was full has torn."""
    found = []
    for line in lines:
        with contextlib.suppress(msgspec.DecodeError):
            found.append(msgspec.json.decode(line, type=kind))
    return found


def read_metrics(path: Path) -> list[Point]:
    """All measurements of a job that are kept, in order."""
    lines = [*Tail(before(path)).lines(), *Tail(path).lines()]
    return _decode(lines, Point)


def read_last_metrics(path: Path, tail_bytes: int = 1 << 16) -> Point | None:
    """The newest measurement; None: there is none."""
    line = last_line(path, tail_bytes)
    return None if line is None else msgspec.json.decode(line, type=Point)


_QUIET = frozenset(
    {
        "launched",
        "node_started",
        "process_up",
        "process_exited",
        "left_loop",
        "works",
        "agent_joined",
        "fenced",
        "cut_stored",
        "cut_valid",
        "cut_uploaded",
        "feed_opened",
        "feed_complete",
        "plan",
        "supervisor_started",
        "finished",
        "restored",
        "group_forms",
        "checked",
    }
)
"""What happens in every healthy job."""


def is_restore(event: Event) -> bool:
    """Whether the model goes back to a cut, or to what the script has built."""
    return event.event == "epoch" and (event.undone > 0 or event.cut_no > 0)


def is_news(event: Event) -> bool:
    """Whether a person who watches a job has to be told; a healthy job has no news."""
    if event.event == "master_started":
        return bool(event.reason)
    if event.event == "epoch":
        return is_restore(event)
    if event.event == "group_runs":
        return not event.reason.endswith("from the start")
    return event.event not in _QUIET


_SENTENCES = {
    "launched": "the job was launched",
    "killed": "{node} is killed by order",
    "slow_node": "{node} is slow: {reason}",
    "slow_link": "a link is slow: {reason}",
    "checked": "{node} was checked: {reason}",
    "check_failed": "the check of {node} failed, the job goes on without it: {reason}",
    "upload_failed": "cuts are not copied, the job goes on and tries again: {reason}",
    "upload_trouble": "copying cuts: {reason}",
    "not_kept": "{reason}",
    "disk_refuses": "{reason}",
    "disk_heals": "{reason}",
    "not_uploaded": "{reason} is not at checkpoint.dir: the storage is away",
    "hung": "{node} hangs: {reason}",
    "cuts_rarer": "{reason}",
    "left_out": "{node} is left out, the others go on: {reason}",
    "left_loop": "{node} left its loop over job.batches before the end, {reason}",
    "diverged": "{reason}",
    "group_stuck": "{reason}; they meet again",
    "group_broken": "{node} can no longer work with the others: {reason}",
    "kill_restart": "{node} is restarted by decision: {reason}",
    "works": "{node} works: its start took {reason}",
    "epoch": "a cut is loaded: {reason}",
    "restored": "training goes on: {reason}",
    "group_runs": "{reason}",
    "stopped": "the job is told to stop: {reason}",
    "no_limits": "{reason}",
    "node_started": "{node} starts (life {inc})",
    "process_up": "{node} is up ({reason})",
    "process_exited": "{node} ended: {reason}",
}


def sentence(event: Event) -> str:
    """The event in words."""
    node, reason = event.node, event.reason
    told = f": {reason}" if reason else ""
    match event.event:
        case "relaunch":
            why, _, again = reason.rpartition("; again in ")
            at_once = again.startswith("0.0")
            return f"{node} ended ({why}), started again{'' if at_once else f' in {again}'}"
        case "restart_all":
            why, _, again = reason.rpartition("; again in ")
            when = "" if again.startswith("0.0") else f" in {again}"
            return f"{node} ended ({why}), all workers start again{when}"
        case "node_lost" | "agent_lost" | "agent_joined":
            what, _, happened = event.event.partition("_")
            return f"{node if what == 'node' else f'the agent of {node}'} {happened}{told}"
        case "master_started":
            return "a new master goes on from the journal" if reason else "the master started"
        case known if known in _SENTENCES:
            return _SENTENCES[known].format(node=node, inc=event.inc, reason=reason)
        case _:
            return " ".join(filter(None, (event.event.replace("_", " "), node))) + told

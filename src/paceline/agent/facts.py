"""Report of an agent on its training process: from the step ledger and the kernel's counters."""

import itertools
import logging
import os
import time
from pathlib import Path

import msgspec

from paceline.base.cgroups import NodeGroup
from paceline.base.errors import ConfigError
from paceline.base.files import read_at_once
from paceline.base.numbering import NO_INC, Inc
from paceline.wire.messages.agent import NodeFacts, StepsTook
from paceline.wire.messages.node import ProcessUp
from paceline.wire.step_ledger import LedgerPage, StepLedgerReader, StepRecord

TAIL_LINES = 20
TAIL_BYTES = 16_384
FATAL = "Fatal Python error: "
"""Beginning of the line with which Python reports a crash."""
IDLE_SHARE = 0.005
IDLE_S = 0.02
"""CPU time that an idle process may use: this share of its silence plus these seconds. One of its
threads may look around now and then."""
LOOKED_S = 2.0
"""Longest time between two looks of which we know what happened: we may have been stopped, too."""
MOST_TOOK = 50
"""Times of steps in a report; of more steps, means of a few in a row."""
ALIKE = 1.1
"""Batches whose sizes differ by no more are of one size."""

_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

_log = logging.getLogger(__name__)


class Silence(msgspec.Struct, frozen=True):
    """Time for which a process has neither spoken nor worked; each message begins it again."""

    inc: Inc = NO_INC
    cpu_s: float = 0.0
    """CPU seconds that the process had used when the silence began."""
    looked_s: float = 0.0
    silent_s: float = 0.0

    def after(self, inc: Inc, cpu_s: float, now_s: float) -> "Silence":
        """The silence as of the next look at the process."""
        silent_s = self.silent_s + min(now_s - self.looked_s, LOOKED_S)
        if inc != self.inc or cpu_s - self.cpu_s > IDLE_S + IDLE_SHARE * silent_s:
            return Silence(inc, cpu_s, now_s)
        return Silence(inc, self.cpu_s, now_s, silent_s)


class FactsReader:
    """Reads one heartbeat's facts at a time."""

    def __init__(
        self, ledger: Path, group: NodeGroup | None = None, *, counts_samples: bool = True
    ) -> None:
        """Prepare to read.

        Args:
            ledger: of the node's steps.
            group: of the node; None: it has no quota.
            counts_samples: a step without any says nothing about a batch.
        """
        self._group = group or NodeGroup({})
        self._counts_samples = counts_samples
        self._ledger = StepLedgerReader(ledger)
        self._unreadable = ""
        self._silence = Silence()
        self._usage = (0, 0.0, 0)
        """Incarnation, cpu seconds, resident bytes: as seen last."""
        self._stolen = 0, 0.0, 0.0
        """Incarnation; until the last report its wait for processors, and for its group's quota."""

    def heard(self) -> None:
        """The process has said something."""
        self._silence = Silence()

    def read(self, up: ProcessUp) -> NodeFacts:
        """Facts of the running process; the means are over the steps since the last read.

        One that has just ended used what it was last seen to use.
        """
        cpu_s, rss_bytes = read_usage(up.pid)
        if rss_bytes == 0 and self._usage[0] == up.inc:
            _, cpu_s, rss_bytes = self._usage
        self._usage = (up.inc, cpu_s, rss_bytes)
        page = self._read_page()
        mine = page if page and page.inc == up.inc else None
        mark_s, now_s = mine.mark_s if mine else 0.0, time.monotonic()
        self._silence = self._silence.after(up.inc, cpu_s, now_s)
        if mine is None:
            facts = NodeFacts(inc=up.inc)
        elif up.role == "server":
            facts = _server_facts(up.inc, mine)
        else:
            facts = _worker_facts(up.inc, mine, counts_samples=self._counts_samples)
        stolen_s, throttled_s = self._waits_s(up, facts.steps)
        return msgspec.structs.replace(
            facts,
            stolen_s=stolen_s,
            throttled_s=throttled_s,
            computing_s=now_s - mark_s if mark_s > 0 else 0.0,
            waiting_s=now_s + mark_s if mark_s < 0 else 0.0,
            silent_s=self._silence.silent_s,
            cpu_s=cpu_s,
            rss_bytes=rss_bytes,
        )

    def _waits_s(self, up: ProcessUp, steps: int) -> tuple[float, float]:
        """Return how long each of the newest steps waited for a processor; of that, for a quota."""
        if not steps:
            return 0.0, 0.0
        inc, stolen_s, throttled_s = self._stolen
        self._stolen = up.inc, read_stolen_s(up.pid), self._group.throttled_s()
        if inc != up.inc:
            return 0.0, 0.0
        waited_s = max(self._stolen[1] - stolen_s, 0.0)
        held_back_s = max(self._stolen[2] - throttled_s, 0.0)
        if not held_back_s or not self._group.is_cut:
            return waited_s / steps, 0.0
        # A group is throttled on each processor that it uses, and the main thread waits for one.
        return waited_s / steps, min(held_back_s, waited_s) / steps

    def step_of(self, inc: int) -> int | None:
        """Return the step of a worker's life, the last one after its end; None: not known."""
        page = self._read_page()
        return page.step if page and page.inc == inc else None

    def skip_past(self) -> None:
        """Skip what a process did so far: another agent has reported it."""
        self._read_page()

    def _read_page(self) -> LedgerPage | None:
        try:
            return self._ledger.read()
        except ConfigError as error:
            if self._unreadable != str(error):
                self._unreadable = str(error)
                _log.warning("step_ledger_unreadable error=%s", error)
            return None


def _worker_facts(inc: Inc, page: LedgerPage, *, counts_samples: bool) -> NodeFacts:
    # A member without data takes part in a step; its time says nothing about a batch.
    records = tuple(record for record in page.records if record.samples or not counts_samples)
    return NodeFacts(
        inc=inc,
        step=page.newest.step if page.newest else 0,
        samples=page.newest.total_samples if page.newest else 0,
        steps=len(records),
        step_samples=_mean(records, "samples"),
        compute_s=_mean(records, "compute_s"),
        compute_max_s=_longest_s(records),
        server_s=_mean(records, "server_s"),
        message_s=_mean(records, "message_s"),
        data_s=_mean(records, "data_s"),
        bpt_s=_mean(records, "bpt_s"),
        took=() if counts_samples else steps_took(records),
    )


def steps_took(records: tuple[StepRecord, ...]) -> tuple[StepsTook, ...]:
    """Return what steps took, in `MOST_TOOK` parts of as many steps each.

    A change of their marks begins another part.
    """
    size = -(-len(records) // MOST_TOOK)
    found: list[StepsTook] = []
    for record in records:
        last = found[-1] if found else None
        if last is None or record.marks != last.marks or last.count == size:
            took = StepsTook(record.step, 1, record.bpt_s, record.marks, record.amount)
            found.append(took)
        else:
            count = last.count + 1
            mean_s = last.mean_s + (record.bpt_s - last.mean_s) / count
            known = last.amount and record.amount
            amount = last.amount + (record.amount - last.amount) / count if known else 0.0
            found[-1] = StepsTook(record.step, count, mean_s, record.marks, amount)
    return tuple(found)


def _longest_s(records: tuple[StepRecord, ...]) -> float:
    """The longest T^w; 0 where it may only be that of the largest batch."""
    sizes = [record.samples for record in records]
    if not sizes or max(sizes) > ALIKE * min(sizes):
        return 0.0
    return max(record.compute_s for record in records)


def _server_facts(inc: Inc, page: LedgerPage) -> NodeFacts:
    """Return a server's facts; its records count rounds where a worker's count samples."""
    rounds = sum(record.samples for record in page.records)
    busy_s = sum(record.server_s * record.samples for record in page.records)
    return NodeFacts(
        inc=inc,
        step=page.newest.step if page.newest else 0,
        steps=rounds,
        server_s=busy_s / rounds if rounds else 0.0,
    )


def _mean(records: tuple[StepRecord, ...], field: str) -> float:
    return sum(getattr(record, field) for record in records) / len(records) if records else 0.0


def read_usage(pid: int) -> tuple[float, int]:
    """Cpu seconds (with its dead children's) and resident bytes of a process; zeros: it is gone."""
    try:
        stat = read_at_once(f"/proc/{pid}/stat")
    except (FileNotFoundError, ProcessLookupError):
        return 0.0, 0
    # The second field is the command in parentheses and may itself contain spaces and those.
    fields = stat.rpartition(b")")[2].split()
    return sum(map(int, fields[11:15])) * _TICK_S, int(fields[21]) * _PAGE_BYTES


def end_last_line(log: Path) -> int:
    """End what a life before has left without an end of line; the bytes that the log then has."""
    if not log.exists():
        return 0
    # To append: children of the life before may still print.
    with log.open("ab+") as file:
        size = file.seek(0, os.SEEK_END)
        if size:
            file.seek(size - 1)
            if file.read(1) != b"\n":
                size += file.write(b"\n")
    return size


def read_stolen_s(pid: int) -> float:
    """Seconds in which a process's main thread waited for a processor; 0: not known."""
    try:
        return int(read_at_once(f"/proc/{pid}/schedstat").split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


def read_log_tail(log: Path, start: int) -> str:
    """The last lines of a log, nothing before byte ``start`` (where this life began)."""
    try:
        with log.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            start = start if start <= end else 0  # it was cut meanwhile
            file.seek(max(start, end - TAIL_BYTES))
            text = file.read(TAIL_BYTES).decode("utf-8", "replace")
    except FileNotFoundError:
        return ""
    lines = text.splitlines()
    return "\n".join(_crash_in(lines) or lines[-TAIL_LINES:])


def _crash_in(lines: list[str]) -> list[str]:
    """Return what Python's faulthandler has said of the thread that crashed; empty: nothing.

    The other threads, which it names as well, are no cause, and there are many.
    """
    fatal = [number for number, line in enumerate(lines) if line.startswith(FATAL)]
    if not fatal:
        return []
    said = lines[fatal[-1] :]
    start = next((n for n, line in enumerate(said) if line.startswith("Current thread")), 1)
    return [said[0], "", *itertools.takewhile(bool, said[start : start + TAIL_LINES])]

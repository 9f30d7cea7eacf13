"""The clock of one job: Unix time when its first master started, counted on by a steady clock.

What a person, or NTP, does to the machine's clock changes no time between two events of a job.
"""

import time
from collections.abc import Callable
from pathlib import Path

from paceline.protocol.records import Record


class MasterStarted(Record, frozen=True):
    """A master has begun its work on this journal."""

    started_s: float
    """Unix time at which the job's first master started."""
    steady_s: float = 0.0
    """Seconds of the steady clock at the same moment."""
    boot: str = ""
    """Id of the machine's boot, with which the steady clock begins."""


def since_boot_s() -> float:
    """Seconds since the machine was started, also those that it slept."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def boot_id() -> str:
    """Return the kernel's name for this run of the machine; empty: it does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


class JobClock:
    """Unix time in seconds when it is called; see the module."""

    def __init__(
        self,
        wall: Callable[[], float] = time.time,
        steady: Callable[[], float] = since_boot_s,
        boot: str | None = None,
    ) -> None:
        """The job starts now; a journal may say otherwise (`go_on`)."""
        self._steady = steady
        here = boot_id() if boot is None else boot
        self.started = MasterStarted(started_s=wall(), steady_s=steady(), boot=here)
        self._boot, self._ahead_s = here, self.started.started_s - self.started.steady_s

    def __call__(self) -> float:
        """Return the time now."""
        return self._ahead_s + self._steady()

    def go_on(self, started: MasterStarted) -> None:
        """Count on from the first master's start; on another run of the machine as its clock is."""
        self.started = started
        if self._boot and started.boot == self._boot:
            self._ahead_s = started.started_s - started.steady_s

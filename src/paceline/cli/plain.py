"""A job as lines of text, for logs and pipes: a healthy job says little."""

import math
from collections.abc import Callable

from paceline.base.node_files import CHIEF
from paceline.cli.watch import Look
from paceline.jobs.slowness import headline
from paceline.jobs.wording import clock, lasting, logged, percent, progress, speed
from paceline.wire.client import JobStatus

EVERY_S = 10.0
EVERY_SHARE = 0.1
PATIENCE = 3
"""Progress is printed when both have passed, else when we have watched 1 + PATIENCE times as long
as at the line before. A healthy job of any length so stays below 20 lines."""
MAX_NAMED = 8
LOGGED_WIDTH = 60
"""Room for what the script has logged."""
UP_S = 10.0
"""Seconds after the first worker for which the other nodes are awaited, before any are named."""


class PlainView:
    """Prints lines."""

    def __init__(
        self,
        started_s: float,
        out: Callable[[str], None],
        err: Callable[[str], None] | None = None,
    ) -> None:
        """``started_s``: Unix time from which the clock counts.

        ``out`` takes a line, ``err`` a traceback; None: ``out`` does that, too.
        """
        self._started_s, self._out, self._err = started_s, out, err or out
        self._now_s = self._told_s = started_s
        #: Unix time of the first look: of a job that was resumed, or is joined late, long after.
        self._watched_from_s = math.inf
        #: Unix time of the first look that shows a worker that is up.
        self._up_from_s = math.inf
        self._told_share = 0.0
        self._was_slow = False
        self._mapped = False

    def show(self, look: Look) -> None:
        """Print what is new."""
        self._now_s = look.now_s
        self._watched_from_s = min(self._watched_from_s, look.now_s)
        for traceback in look.tracebacks:
            self._err(traceback.rstrip())
        for event in look.events:
            if event.is_news:
                self._tell(event.sentence(), event.t)
        for line in look.said:
            self._out(f"{CHIEF} | {line}")
        if look.status and look.status.state in ("training", "running"):
            self._training(look.status)

    def say(self, text: str) -> None:
        """Print a line of ours."""
        self._tell(text, self._now_s)

    def close(self) -> None:
        """Do nothing: nothing is left to print."""

    def _tell(self, text: str, t: float) -> None:
        self._out(f"{clock(t - self._started_s):>7}  {text}")

    def _training(self, status: JobStatus) -> None:
        if not self._mapped:
            # The master of a resumed job may speak of training before any node is up.
            if any(node.pid and node.role == "worker" for node in status.nodes):
                self._up_from_s = min(self._up_from_s, self._now_s)
            if not _all_up(status) and self._now_s < self._up_from_s + UP_S:
                return
            self._mapped = True
            self.say(f"{status.state}: {_map(status)}")
            self._told_s = self._now_s
        if status.state == "running":
            self._script(status)  # how far it is only the script knows
            return
        share = status.committed / status.total if status.total else 0.0
        if share < 1 and self._is_due(share):
            self._told_s, self._told_share = self._now_s, share
            self.say(progress_line(status))

    def _script(self, status: JobStatus) -> None:
        """Say now and then that the script is slow, and once that nothing is known to be."""
        if bool(status.slow) != self._was_slow:
            self._was_slow, self._told_s = bool(status.slow), self._now_s
            if not status.slow:  # an event has told of the begin
                self.say("nothing in the job is known to be slow any more")
        elif status.slow and self._is_due(0.0):
            self._told_s = self._now_s
            self.say(headline(status.slow, status.started_s))

    def _is_due(self, share: float) -> bool:
        silent_s = self._now_s - self._told_s
        advanced = share >= self._told_share + EVERY_SHARE
        watched_s = self._told_s - self._watched_from_s
        return silent_s >= EVERY_S and (advanced or silent_s >= PATIENCE * watched_s)


def _all_up(status: JobStatus) -> bool:
    """Tell whether every node runs whose process will come, or has ended for good."""
    return all(node.pid or node.state in ("finished", "failed") for node in status.nodes)


def _map(status: JobStatus) -> str:
    up = [f"{node.node} (pid {node.pid})" for node in status.nodes if node.pid]
    named, more = up[:MAX_NAMED], len(up) - MAX_NAMED
    return ", ".join(named) + (f" and {more} more" if more > 0 else "")


def progress_line(status: JobStatus) -> str:
    """Say how far the job is."""
    left = f", {lasting(status.eta_s)} left" if status.eta_s is not None else ""
    done = f"{percent(status.committed, status.total or 0):>5}  " if status.total else ""
    text = progress(status.committed, status.total)
    values = logged(status.logged, LOGGED_WIDTH)
    shown = f"  ({values})" if values else ""
    rate = f", {speed(status.samples_per_s)}" if status.samples_per_s is not None else ""
    return f"{done}{text}{rate}{left}{shown}"

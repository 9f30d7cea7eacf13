"""What features' parts take of the master's time, and the end of a part that takes too much.

A part must not wait, since the master does nothing else meanwhile. One that does is named; one that
takes most of the time is left out. While a part does not return at all, no code of the master runs:
a thread sees it, notes the feature in the job's folder, and ends the process. The next master
leaves that feature out.
"""

import contextlib
import faulthandler
import logging
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

HELD_UP_S, HELD_UP_TIMES = 0.5, 3
"""Seconds of a call, and number of such calls, from which on a part is said to hold the master up.

A machine that stands still for a moment looks like one such call.
"""
WINDOW_S, MOST = 20.0, 0.5
"""Seconds over which a part's share of the master's time is taken, and the most that it may be.

A machine that stands still hits all of the master alike, and so makes no part's share that large.
"""
NEVER_S = 60.0
"""A call that lasts so long is taken to last for ever."""
LOOK_S = 1.0
ENDED = 70
"""Exit code of a master that ends itself, so that the next one leaves a feature out."""

T = TypeVar("T")

_log = logging.getLogger(__name__)


class FeatureTime:
    """Times of the calls of one master's parts.

    Args:
        left_out: file of the features that the next master leaves out.
        end: ends the process.
    """

    def __init__(self, left_out: Path, end: Callable[[int], object] = os._exit) -> None:
        self._file, self._end = left_out, end
        self._held_up = Counter[str]()
        self._spent_s = dict[str, float]()
        self._window_s = time.perf_counter()
        #: The call that has not returned, and a number that no other call has.
        self._open: tuple[str, int] | None = None
        self._calls = 0
        self._is_watched = False
        self._closed = threading.Event()

    def take_left_out(self) -> set[str]:
        """Return the features whose parts have held up the master before this one for ever.

        They are forgotten then: a disk that stood still may have been the cause, so a later master
        tries them again.
        """
        names = set[str]()
        with contextlib.suppress(OSError):
            names = {*self._file.read_text().split()}
            self._file.unlink()
        return names

    def timed(self, name: str, call: Callable[[], T]) -> tuple[T, float | None]:
        """Call a part.

        Args:
            name: of the feature.
            call: calls it.

        Returns:
            What it returns, and the call's seconds if they show for the first time that the part
            holds the master up.
        """
        self._watch()
        self._calls += 1
        self._open = name, self._calls
        begun_s = time.perf_counter()
        try:
            found = call()
        finally:
            self._open = None
            took_s = time.perf_counter() - begun_s
            self._spent_s[name] = self._spent_s.get(name, 0.0) + took_s
        if took_s <= HELD_UP_S:
            return found, None
        self._held_up[name] += 1
        return found, took_s if self._held_up[name] == HELD_UP_TIMES else None

    def took_most(self) -> dict[str, str]:
        """Return parts that took most of a window that has ended, each with why it must go."""
        lasted_s = time.perf_counter() - self._window_s
        if lasted_s < WINDOW_S:
            return {}
        spent_s, self._spent_s = self._spent_s, {}
        self._window_s += lasted_s
        return {
            name: f"it took {took_s:.0f} s of {lasted_s:.0f} s of the master's time, and must not "
            "wait"
            for name, took_s in spent_s.items()
            if took_s > MOST * lasted_s
        }

    def close(self) -> None:
        """Look at no more calls."""
        self._closed.set()

    # ------------------------------------------------------------------ a call that never returns

    def _watch(self) -> None:
        if not self._is_watched:
            self._is_watched = True
            threading.Thread(target=self._look, name="feature-time", daemon=True).start()

    def _look(self) -> None:
        seen, for_s = self._open, 0.0
        while not self._closed.wait(LOOK_S):  # counted as asked for: a machine may stand still
            if self._open is None or self._open != seen:
                seen, for_s = self._open, 0.0
                continue
            for_s += LOOK_S
            if for_s >= NEVER_S:
                self._leave_out(self._open[0])
                return

    def _leave_out(self, name: str) -> None:
        _log.error("feature_hangs feature=%s: the next master leaves it out", name)
        faulthandler.dump_traceback(sys.stderr)
        with contextlib.suppress(OSError), self._file.open("a") as file:
            file.write(f"{name}\n")
        self._end(ENDED)

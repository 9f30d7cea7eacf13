"""Steps of a script that steps no optimizer of torch: by the period of its collective calls."""

import threading
import time
from collections.abc import Callable

from paceline.features.failslow.policy.period import CallKind, PeriodFinder

AFTER_S = 30.0
"""Seconds from the first call until calls are looked at. An optimizer may take so long to its first
step, with all that it compiles and accumulates."""


class CallPeriods:
    """Says when a step is over; may be called from any thread.

    Args:
        on_step: called with what the step took (s), before the call that begins the next one.
        after_s: see `AFTER_S`.
    """

    def __init__(self, on_step: Callable[[float], None], after_s: float = AFTER_S) -> None:
        self._on_step, self._after_s = on_step, after_s
        self._finder = PeriodFinder()
        self._lock = threading.Lock()
        self._first_s: float | None = None
        self._is_over = False

    def end(self) -> None:
        """An optimizer steps: nothing is to be inferred any more."""
        self._is_over = True

    def called(self, op: str, group: int, num_bytes: int) -> None:
        """A call is about to be made."""
        if self._is_over:
            return
        now_s = time.monotonic()
        if self._first_s is None:
            self._first_s = now_s
        if now_s - self._first_s < self._after_s:
            return
        with self._lock:
            took_s = self._finder.add(CallKind(op, group, num_bytes), now_s)
            if took_s is not None:
                self._on_step(took_s)

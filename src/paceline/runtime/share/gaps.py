"""A guaranteed job says when it waits for its input: then the device is free for others."""

import os
from collections import deque
from statistics import median
from time import monotonic
from types import TracebackType

from paceline.wire.gate_page import GatePage

LEAST_GAP_S = 1e-3
"""Jobs whose waits are shorter say nothing: to wake others would cost more than it gives."""
NUM_WAITS = 9


class InputGaps:
    """The job is idle within ``with gaps:``; entered by its training thread alone."""

    def __init__(self, page: GatePage) -> None:
        self._page = page
        self._waits_s: deque[float] = deque(maxlen=NUM_WAITS)
        self._start_s = 0.0
        self._tells = self._is_fork = False
        os.register_at_fork(after_in_child=self._leave_to_fork)

    def __enter__(self) -> None:
        self._start_s = monotonic()
        if self._tells and not self._is_fork:
            self._page.say_idle()

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        if self._is_fork:
            return
        if self._tells:
            self._page.say_busy()
        self._waits_s.append(monotonic() - self._start_s)
        tells = median(self._waits_s) >= LEAST_GAP_S
        if self._tells and not tells:
            self._page.say_no_gaps()
        self._tells = tells

    def _leave_to_fork(self) -> None:
        self._is_fork = True

"""A job waits for its input: then the device is free for others, once its work there is done."""

import os
import threading
from collections import deque
from collections.abc import Callable
from statistics import median
from time import monotonic
from types import TracebackType

from paceline.features.sharing.gate_page import GatePage
from paceline.features.sharing.process.device import Device

LEAST_GAP_S = 1e-3
"""Seconds of a wait below which a job says nothing: to wake others would cost more."""
NUM_WAITS = 9
POLL_S = 1e-4
"""Seconds between looks at work that a device has not done yet."""


class InputGaps:
    """The job waits within ``with gaps:``; entered by its training thread alone.

    Args:
        page: where the job says that it is idle; None: it does not say so.
        device: that it shares.
    """

    def __init__(self, page: GatePage | None, device: Device) -> None:
        self._page, self._device = page, device
        self._waits_s: deque[float] = deque(maxlen=NUM_WAITS)
        self._idle_since_s: float | None = None
        """Time since which the job is idle; None: it is busy."""
        self._number = 0
        """Number of the wait, odd within it."""
        self._work: tuple[int, Callable[[], bool]] = (0, bool)
        """Number of a wait, and a function that says whether the device has done the job's work."""
        self._asked = threading.Event()
        self._lock = threading.Lock()
        self._follower: threading.Thread | None = None
        self._tells = self._is_fork = False
        os.register_at_fork(after_in_child=self._leave_to_fork)

    def __enter__(self) -> None:
        if self._is_fork:
            return
        self._device.leave()
        if self._page is None:
            return
        self._number += 1
        work = self._device.work()
        if work is None:
            self._be_idle(self._page)
        else:
            self._follow(work)

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        if self._is_fork:
            return
        if self._page is not None:
            with self._lock:
                self._number += 1
                self._be_busy(self._page)
        self._device.enter()

    def _be_idle(self, page: GatePage) -> None:
        self._idle_since_s = monotonic()
        if self._tells:
            page.say_idle()

    def _be_busy(self, page: GatePage) -> None:
        since_s, self._idle_since_s = self._idle_since_s, None
        if self._tells:
            page.say_busy()
        self._waits_s.append(0.0 if since_s is None else monotonic() - since_s)
        tells = median(self._waits_s) >= LEAST_GAP_S
        if self._tells and not tells:
            page.say_no_gaps()
        self._tells = tells

    def _follow(self, work: Callable[[], bool]) -> None:
        """Have a thread say that the job is idle, when its work is done within this wait."""
        self._work = self._number, work
        if self._follower is None:
            self._follower = threading.Thread(target=self._run, name="paceline-gaps", daemon=True)
            self._follower.start()
        self._asked.set()

    def _run(self) -> None:
        page, never = self._page, threading.Event()
        assert page is not None
        while self._asked.wait():
            self._asked.clear()
            number, work = self._work
            while number == self._number and not work():
                never.wait(POLL_S)
            with self._lock:
                # Else the wait has ended: the training thread has said, or says now, "busy".
                if number == self._number:
                    self._be_idle(page)

    def _leave_to_fork(self) -> None:
        self._is_fork = True

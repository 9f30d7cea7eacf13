"""Signals as numbers that a thread without an event loop waits for."""

import os
import select
import signal
from collections.abc import Sequence

MAX_READ = 4096


class Signals:
    """Catches signals from its creation on, one byte each in a pipe; for the main thread.

    Not ``signal.sigtimedwait``: when a process is stopped and continued in mid-wait and its time
    is over by then, Python returns what lay in memory as if it were a signal that has come.
    """

    def __init__(self, numbers: Sequence[int]) -> None:
        """Catch signals of these numbers instead of dying of them."""
        self._reader, self._writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        # A full pipe holds thousands of signals nobody has looked at: more of them say no more.
        signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        for number in numbers:
            signal.signal(number, _do_nothing)

    def wait(self, timeout_s: float) -> list[int]:
        """Wait for a signal, at most so long; the numbers of all that have come, in order."""
        if not select.select([self._reader], [], [], max(0.0, timeout_s))[0]:
            return []
        return list(os.read(self._reader, MAX_READ))


def _do_nothing(_number: int, _frame: object) -> None:
    """Let the wake-up descriptor say it."""

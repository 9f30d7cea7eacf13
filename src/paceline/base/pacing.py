"""Pace of repeated work: all of it takes a small part of the time, however long one round takes.

A look at all nodes takes a millisecond with ten nodes, and a tenth of a second with a thousand. A
master that looks at each tick would then do nothing else.
"""

import contextlib
import math
import time
from collections.abc import Iterator

MOST = 0.01
"""Most that it takes of a processor."""


class Pacing:
    """Tells when a thing may be done again.

    Args:
        every_s: least number of seconds from one time to the next.
    """

    def __init__(self, every_s: float = 0.0) -> None:
        self._every_s = every_s
        self._due_s = -math.inf

    def is_due(self, now_s: float) -> bool:
        """Whether it may be done now."""
        return now_s >= self._due_s

    @contextlib.contextmanager
    def doing(self, now_s: float) -> Iterator[None]:
        """Note what it takes, of this thread: a busy machine makes nothing longer.

        Args:
            now_s: of the clock that `is_due` is asked by.
        """
        begun_s = time.thread_time()
        try:
            yield
        finally:
            took_s = time.thread_time() - begun_s
            self._due_s = now_s + max(self._every_s, took_s / MOST)

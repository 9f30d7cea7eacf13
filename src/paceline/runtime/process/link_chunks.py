"""The chunks with which a link is measured, whatever carries them.

They begin small and grow as long as the link is quick, so that a slow link is measured too without
being held up; the rate is that of the last size, of which there are several. How chunks travel
(between two members of a group, or to a server and back) is the caller's part.
"""

import time
from itertools import pairwise

PINGS = 8
"""Round trips of which the shortest counts."""
FIRST_BYTES, CHUNK_BYTES, GROWTH = 4 << 10, 1 << 20, 4
MIN_CHUNKS = 4
LONGEST_S = 2.0
"""Seconds after which the chunk under way is the last one, also on a slow link."""


class LinkChunks:
    """The chunks over one link so far; ``size``: bytes of the next one.

    Args:
        quick_s: a chunk that took less is followed by larger ones.
        stream_s: seconds for which chunks of the last size are sent, `MIN_CHUNKS` at least.
    """

    def __init__(self, *, quick_s: float, stream_s: float) -> None:
        self._quick_s, self._stream_s = quick_s, stream_s
        self._start_s = time.monotonic()
        self._ends_s = [self._start_s]
        self.size = FIRST_BYTES

    @property
    def took_s(self) -> list[float]:
        """Seconds that each chunk of this size took."""
        return [after - before for before, after in pairwise(self._ends_s)]

    def note(self) -> None:
        """Take in that a chunk has arrived."""
        self._ends_s.append(time.monotonic())

    def grow(self) -> None:
        """Go on with larger ones."""
        self.size, self._ends_s = self.size * GROWTH, self._ends_s[-1:]

    @property
    def may_grow(self) -> bool:
        """Whether the link is quick enough for larger ones."""
        # The quickest: that a chunk waits for a busy processor says nothing about the link.
        return self.size < CHUNK_BYTES and min(self.took_s, default=self._quick_s) < self._quick_s

    @property
    def is_long(self) -> bool:
        """Whether the link was measured for `LONGEST_S`."""
        return self._ends_s[-1] - self._start_s >= LONGEST_S

    def are_enough(self, *, coming: int = 0) -> bool:
        """Tell whether there are enough of this size, with those that are still ``coming``."""
        lasted_s = self._ends_s[-1] - self._ends_s[0]
        return len(self.took_s) + coming >= MIN_CHUNKS and lasted_s >= self._stream_s

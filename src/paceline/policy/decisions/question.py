"""The question that a loop has open to its policy: pure.

A policy may be anybody's code, so it may think for long, or for ever. One question is open at a
time, and nothing waits for its answer: an answer that comes late counts for nothing, and is the end
of the question all the same.
"""

from typing import Generic, TypeVar

Seen = TypeVar("Seen")


class Question(Generic[Seen]):
    """One question after the other.

    Args:
        late_s: seconds in which an answer counts.
    """

    def __init__(self, late_s: float) -> None:
        self.late_s = late_s
        self._open: tuple[int, Seen] | None = None
        self._asked_s = 0.0
        self._is_late = False

    @property
    def is_open(self) -> bool:
        """Whether an answer may still come, in time or not."""
        return self._open is not None

    def ask(self, no: int, seen: Seen, now_s: float) -> None:
        """Open a question; none is open."""
        self._open, self._asked_s, self._is_late = (no, seen), now_s, False

    def missed(self, now_s: float) -> int | None:
        """Number of a question that has become late; each is returned once."""
        if self._open is None or self._is_late or now_s - self._asked_s < self.late_s:
            return None
        self._is_late = True
        return self._open[0]

    def take(self, no: int) -> Seen | None:
        """What an answer in time answers; None: it was given up, or another question is open."""
        if self._open is None or self._open[0] != no:
            return None
        seen, self._open = self._open[1], None
        return None if self._is_late else seen

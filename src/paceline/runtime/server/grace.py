"""The leader's clock for a step that is decided without what is late."""


class Grace:
    """Time for which the undecided step still waits for what it lacks."""

    def __init__(self) -> None:
        self._step = 0
        self._ends_s: float | None = None

    def is_over(self, step: int, grace_s: float | None, now_s: float) -> bool:
        """Look at the clock; another look after it was over begins a new grace.

        Args:
            step: the undecided one.
            grace_s: how long it waits from the first look on; None: until all is there.
            now_s: on a clock that never goes back.
        """
        if grace_s is None:
            self._ends_s = None
            return False
        if self._ends_s is None or self._step != step:
            self._step, self._ends_s = step, now_s + grace_s
        over = now_s >= self._ends_s
        if over:
            self._ends_s = None
        return over

    def left_s(self, longest_s: float, now_s: float) -> float:
        """Return the seconds until the next look is due."""
        return longest_s if self._ends_s is None else min(longest_s, max(0.0, self._ends_s - now_s))

"""Times at which a dead master is started again: pure, the clock is an argument."""

FIRST_DELAY_S = 0.2
"""Seconds to wait after the second death in a row; the first one is answered at once."""
MAX_DELAY_S = 2.0
BUDGET = 20
"""Deaths in a row: with the delays above it gives up after about 40 s of trying."""
STEADY_S = 60.0
"""Seconds after which a master has died of something else than its predecessors."""
SAME_DELAYS_S = (0.0, 1.0, 5.0, 15.0)
"""Seconds to wait after deaths in a row for which the masters gave one and the same reason. After
one more the supervisor gives up, since only what changes on its own within these could help."""


class Backoff:
    """Waits after each of several deaths in a row."""

    def __init__(self) -> None:
        self.num_deaths = 0
        self._reason = ""
        self._num_same = 0

    def died(self, lived_s: float, reason: str = "") -> float | None:
        """Count a death.

        Args:
            lived_s: seconds since its start.
            reason: what the master has said that it died of; empty: it could not say.

        Returns:
            Seconds to wait before the next start; None: another start is of no use.
        """
        if lived_s >= STEADY_S:
            self.num_deaths = self._num_same = 0
        self.num_deaths += 1
        self._num_same = self._num_same + 1 if reason and reason == self._reason else 1
        self._reason = reason
        if self.num_deaths > BUDGET or self._num_same > len(SAME_DELAYS_S):
            return None
        if reason:
            return SAME_DELAYS_S[self._num_same - 1]
        if self.num_deaths == 1:
            return 0.0
        return min(FIRST_DELAY_S * 2.0 ** (self.num_deaths - 2), MAX_DELAY_S)

"""When a dead master is started again: pure, the clock is an argument."""

FIRST_DELAY_S = 0.2
"""After the second death in a row; the first one is answered at once."""
MAX_DELAY_S = 2.0
BUDGET = 20
"""Deaths in a row: with the delays above it gives up after about 40 s of trying."""
STEADY_S = 60.0
"""A master that lived this long died of something else than its predecessors."""


class Restarts:
    """Counts deaths in a row."""

    def __init__(self) -> None:
        self.num_deaths = 0

    def died(self, lived_s: float) -> float | None:
        """Seconds to wait before the next start; None: the budget is used up."""
        if lived_s >= STEADY_S:
            self.num_deaths = 0
        self.num_deaths += 1
        if self.num_deaths > BUDGET:
            return None
        if self.num_deaths == 1:
            return 0.0
        return min(FIRST_DELAY_S * 2.0 ** (self.num_deaths - 2), MAX_DELAY_S)

"""How many restarts a job may have, and how long each waits."""

from paceline.wire.spec import RestartSpec


class Budget:
    """The restarts of one job that count: within a window, or all."""

    def __init__(self, spec: RestartSpec) -> None:
        self._spec = spec
        #: When relaunches were made that count, as far as they still do.
        self._made_s: list[float] = []

    def is_spent(self, now_s: float, num_restarts: int) -> bool:
        """Whether one more restart would be more than the budget.

        Args:
            now_s: of the caller's clock.
            num_restarts: of the whole job, which count where there is no window.
        """
        window_s = self._spec.window_s
        if window_s is None:
            return num_restarts >= self._spec.budget
        self._made_s = [one_s for one_s in self._made_s if now_s - one_s < window_s]
        return len(self._made_s) >= self._spec.budget

    def count(self, now_s: float) -> None:
        """Count a restart."""
        self._made_s.append(now_s)

    @property
    def used_up(self) -> str:
        """Words for when no restart is left."""
        window_s = self._spec.window_s
        within = "" if window_s is None else f" within {window_s:g} s"
        budget = self._spec.budget
        restarts = "restart" if budget == 1 else "restarts"
        return f"the budget of {budget} {restarts}{within} is used up (restart.budget)"

    def backoff_s(self, streak: int) -> float:
        """How long the next restart waits after so many in a row."""
        if streak == 0:
            return 0.0
        return min(self._spec.backoff_s * 2.0 ** (streak - 1), self._spec.backoff_max_s)

"""Stops that a platform has not confirmed, and launches that wait for that. Pure.

A platform may free the name of a node while its process still runs. So a node that is stopped is
launched again when the platform says that nothing of it runs, or when that has taken too long: the
life that may still run was fenced before its stop was ordered, so nothing of it counts.
"""

CONFIRM_S = 30.0
"""Seconds for which a launch waits for the word that the node before it is gone."""


class Stops:
    """The unconfirmed stops of one job's nodes."""

    def __init__(self) -> None:
        self._since_s: dict[str, float] = {}
        self._waits: dict[str, bool] = {}
        """Launches that wait, by node: whether nothing of it runs."""

    def ordered(self, node: str, now_s: float) -> None:
        """A node whose life is fenced, or has ended, is stopped: what it waits for is withdrawn."""
        self._waits.pop(node, None)
        self._since_s.setdefault(node, now_s)

    def may_launch(self, node: str, *, may_move: bool) -> bool:
        """Tell whether a node may be launched now; else it waits."""
        if node in self._since_s:
            self._waits[node] = may_move
        return node not in self._since_s

    def confirmed(self, node: str) -> bool | None:
        """Nothing of a node runs any more: return how to launch it; None: nothing waits."""
        self._since_s.pop(node, None)
        return self._waits.pop(node, None)

    def overdue(self, now_s: float) -> list[tuple[str, bool]]:
        """Return launches that have waited too long, and how to launch each."""
        late = [node for node, since_s in self._since_s.items() if now_s >= since_s + CONFIRM_S]
        found = [(node, self.confirmed(node)) for node in late]
        return [(node, may_move) for node, may_move in found if may_move is not None]

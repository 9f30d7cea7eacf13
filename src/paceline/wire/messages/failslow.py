"""Looking for what is slow in a script that trains on its own."""

from paceline.wire.messages.base import LifeMessage
from paceline.wire.messages.checks import NodeSpeed


class MeetAt(LifeMessage, frozen=True):
    """master -> process: wait for `Measure` or `GoOn` when this step is done.

    Of a meeting that is over, or of a step that is past: the process says so, and does not wait.
    """

    meeting: int
    """No two meetings of a job have the same number."""
    step: int


class AtMeeting(LifeMessage, frozen=True):
    """process -> master: it has done this step, and waits; ``late``: it does not."""

    meeting: int
    step: int
    late: bool = False


class Measure(LifeMessage, frozen=True):
    """master -> process: all have come; measure what you compute, and the links of these pairs."""

    meeting: int
    names: tuple[str, ...]
    """Rank -> node."""
    passes: tuple[tuple[tuple[int, int], ...], ...]
    """Pairs of ranks, no rank twice in a pass; the lower one first."""


class RankMeasured(LifeMessage, frozen=True):
    """process -> master: what it has measured, or why nothing; then it waits for `GoOn`."""

    meeting: int
    speed: NodeSpeed | None = None
    error: str = ""


class GoOn(LifeMessage, frozen=True):
    """master -> process: train on."""

    meeting: int

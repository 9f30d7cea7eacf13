"""Looking for what is slow in a script that trains on its own."""

from paceline.base.numbering import Inc
from paceline.wire.messages.base import Message
from paceline.wire.messages.checks import NodeSpeed


class MeetAt(Message, frozen=True):
    """master -> process: wait for `Measure` or `GoOn` when this step is done.

    Of a meeting that is over, or of a step that is past: the process says so, and does not wait.
    """

    inc: Inc
    meeting: int
    """No two meetings of a job have the same number."""
    step: int


class AtMeeting(Message, frozen=True):
    """process -> master: it has done this step, and waits; ``late``: it does not."""

    inc: Inc
    meeting: int
    step: int
    late: bool = False


class Measure(Message, frozen=True):
    """master -> process: all have come; measure what you compute, and the links of these pairs."""

    inc: Inc
    meeting: int
    names: tuple[str, ...]
    """Rank -> node."""
    passes: tuple[tuple[tuple[int, int], ...], ...]
    """Pairs of ranks, no rank twice in a pass; the lower one first."""


class RankMeasured(Message, frozen=True):
    """process -> master: what it has measured, or why nothing; then it waits for `GoOn`."""

    inc: Inc
    meeting: int
    speed: NodeSpeed | None = None
    error: str = ""


class GoOn(Message, frozen=True):
    """master -> process: train on."""

    inc: Inc
    meeting: int

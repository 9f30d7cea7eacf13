"""Workers that begin together, and after a failure end and begin again together.

Strategies script and fsdp. A *round* is one life of every worker, as torchrun's worker group is.
What the membership needs for it beside the nodes: which round it is, where its workers meet, who
ended it, and how. Pure; `paceline.protocol.nodes.membership` decides by it.
"""

import msgspec

from paceline.base.numbering import Inc
from paceline.protocol.nodes.exits import Judged, is_echo
from paceline.wire.events.nodes import Verdict
from paceline.wire.messages.node import ScriptError


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """How a worker's life in a round ended, on its own or by an order of the user."""

    node: str
    inc: Inc
    judged: Judged
    error: ScriptError | None = None
    ordered: bool = False
    """True: the user ordered the end, and it costs no budget."""

    @property
    def is_echo(self) -> bool:
        """Whether it only reports that a peer was gone."""
        return self.error is not None and is_echo(self.error)

    @property
    def is_final(self) -> bool:
        """Whether to begin again cannot help."""
        return self.judged.verdict is Verdict.UNRETRYABLE


class Rounds:
    """The rounds of one job: which is current, where its workers meet, why the last one ended."""

    def __init__(self, *, grace_s: float, by_itself: bool = True) -> None:
        """``grace_s``: for a script to end in order.

        ``by_itself``: the scripts train by themselves, so no more than their ends is known of them.
        """
        self.grace_s, self.by_itself = grace_s, by_itself
        # Durable: changed by `RoundSet` only.
        self.number = 0
        self.port = 0
        # Volatile.
        #: Of the round that is over, in the order in which they were told.
        self.ends: list[Ended] = []
        self.began_s = 0.0
        #: Short rounds in a row.
        self.streak = 0

    def take_cause(self) -> Ended | None:
        """Why the round is over; None: a former master knew, or nobody.

        Whose peer has died fails as well, and may be heard first.
        """
        ends, self.ends = self.ends, []
        return min(ends, key=lambda end: end.is_echo, default=None)

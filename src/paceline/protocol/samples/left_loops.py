"""Loops over batches that workers of servers have left before their end (`break`): who decides.

A worker that began later has counted less, so it would leave its loop later, or never. The end of a
loop is decided by the worker that has seen most: of what that one leaves, those that have seen less
get no more. While it is between two places nobody knows why it left: an error may be on its way.
So the others wait, until it opens its next loop, its script returns, or its life ends.

How much a worker has seen is how little was in the model when it opened its first loop.
"""

from paceline.base.numbering import Inc
from paceline.protocol.records import LoopEnded
from paceline.wire.messages.node import LeaseRequest, LoopLeft


class LeftLoops:
    """Those of one job. Durable: ``ended``, which records change."""

    def __init__(self) -> None:
        self.ended: dict[int, LoopEnded] = {}
        #: Workers that are out of a loop, and have not come to another place so far.
        self._out: dict[Inc, LoopLeft] = {}

    def apply(self, record: LoopEnded) -> None:
        self.ended[record.feed] = record

    def left(self, message: LoopLeft) -> None:
        """A worker has left its loop; again: the same."""
        self._out[message.inc] = message

    def elsewhere(self, inc: Inc) -> None:
        """It has come to another place of its script, or is gone."""
        self._out.pop(inc, None)

    def returned(self, inc: Inc) -> LoopEnded | None:
        """Its script has returned behind a loop that it left; what is to be journalled."""
        left = self._out.pop(inc, None)
        if left is None or left.feed in self.ended:
            return None
        return LoopEnded(feed=left.feed, step=left.step, since=left.since)

    def holds(self, request: LeaseRequest) -> bool:
        """Whether a worker is to wait: one that has seen more is out of its loop.

        The step in which that one left may lack what this one computes.
        """
        return any(
            left.feed == request.feed and left.since < request.since
            for left in self._out.values()
            if not request.step or request.step > left.step
        )

    def is_over(self, feed: int, since: int) -> bool:
        """Whether a loop has ended for a worker that has seen so little."""
        ended = self.ended.get(feed)
        return ended is not None and ended.since < since

    def go_back(self, *, whole: bool) -> None:
        """The model was restored; ``whole``: to all that it had."""
        if not whole:
            self.ended.clear()

"""Loops over batches that workers of servers have left before their end (`break`): who decides.

A worker that began later has counted less, so it would leave its loop later, or never. The end of a
loop is decided by the worker that has seen most: of what that one leaves, those that have seen less
get no more. While it is between two places nobody knows why it left: an error may be on its way.
So the others wait, until it opens its next loop, its script returns, or its life ends.

A worker has seen the more, the fewer samples were in the model when it opened its first loop.
"""

from paceline.base.numbering import Inc
from paceline.protocol.records import LoopEnded
from paceline.wire.messages.node import LeaseRequest, LoopLeft


class LeftLoops:
    """The loops of one job that workers have left. Durable: ``ended``, which records change."""

    def __init__(self) -> None:
        self.ended: dict[int, LoopEnded] = {}
        #: Workers that are out of a loop, and have not come to another place so far.
        self._out: dict[Inc, LoopLeft] = {}
        #: The loop that each has left, while it has begun no other one.
        self._behind: dict[Inc, LoopLeft] = {}

    def apply(self, record: LoopEnded) -> None:
        self.ended[record.feed] = record

    def left(self, message: LoopLeft) -> None:
        """A worker has left its loop; again: the same."""
        if self._behind.get(message.inc) != message:
            self._out[message.inc] = self._behind[message.inc] = message

    def elsewhere(self, inc: Inc, *, trains: bool) -> bool:
        """A worker has come to another place; ``trains``: it begins a loop. Whether it was out."""
        if trains:
            self._behind.pop(inc, None)
        return self._out.pop(inc, None) is not None

    def gone(self, inc: Inc, *, samples: int | None = None) -> LoopEnded | None:
        """A worker has ended; what is to be journalled if its script returned behind a loop.

        Args:
            inc: of the worker.
            samples: in the model, if its script has returned.
        """
        self._out.pop(inc, None)
        left = self._behind.pop(inc, None)
        if left is None or samples is None or left.feed in self.ended:
            return None
        return LoopEnded(feed=left.feed, step=left.step, since=left.since, samples=samples)

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

    def go_back(self, samples: int) -> None:
        """The model was restored to so many samples."""
        self.ended = {feed: one for feed, one in self.ended.items() if one.samples <= samples}

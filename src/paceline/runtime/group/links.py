"""What the links between the members of a group carry: measured in pairs, over gloo's own sockets.

All members of a group do it at once; who is paired with whom says `policy.failslow`. A pair that is
done goes on to its next peers, who may be late: nothing is timed before both are there.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from itertools import pairwise
from statistics import median
from typing import Any

import torch
from torch import Tensor

from paceline.runtime.group.store import GroupOver
from paceline.wire.messages.checks import Link

PATIENCE_S = 24 * 3600.0
"""Seconds that a message may take: the master finds members that hang (`master.hangs`), as it does
in a step."""
PINGS = 8
FIRST_BYTES, CHUNK_BYTES, GROWTH = 4 << 10, 1 << 20, 4
"""Chunks grow from the first size to the last one, as long as the link is quick."""
QUICK_S = 0.03
STREAM_S = 0.02
"""Seconds for which a pair exchanges chunks of one size; it exchanges `MIN_CHUNKS` at least."""
MIN_CHUNKS = 4
LONGEST_S = 2.0
"""Seconds after which the chunk under way is the last one, also on a slow link."""
_ON, _LARGER, _LAST = 1, 2, 3
_TAG = 0


def measure_links(
    torch_group: Any,
    rank: int,
    names: Sequence[str],
    passes: Iterable[Iterable[tuple[int, int]]],
    patience_s: float = PATIENCE_S,
) -> tuple[Link, ...]:
    """The links to the members that this one is paired with.

    Args:
        torch_group: connected.
        rank: of this member.
        names: rank -> node.
        passes: pairs of ranks that are measured at once, the lower one first.
        patience_s: for one message.

    Raises:
        GroupOver: a peer is gone, or the group was dropped.
    """
    links = []
    for pairs in passes:
        for low, high in pairs:
            if rank in (low, high):
                pair = _Pair(
                    torch_group, low + high - rank, leads=rank == low, patience_s=patience_s
                )
                rtt_s = pair.round_trip_s()
                links.append(Link(names[pair.peer], pair.bytes_per_s(), rtt_s))
    return tuple(links)


class _Pair:
    """This member and one other; ``leads``: it decides when they are done."""

    def __init__(self, torch_group: Any, peer: int, *, leads: bool, patience_s: float) -> None:
        self._torch, self.peer, self._leads = torch_group, peer, leads
        self._patience = timedelta(seconds=patience_s)

    def round_trip_s(self) -> float:
        """The shortest of a few; the first, for which the peer may not be there, does not count."""
        word = torch.zeros(8, dtype=torch.uint8)
        times = list(self._ping_pong(word))
        return min(times[1:])

    def _ping_pong(self, word: Tensor) -> Iterator[float]:
        if not self._leads:
            self._receive(word)
        for _ in range(1 + PINGS):
            start_s = time.monotonic()
            self._send(word)
            self._receive(word)
            yield time.monotonic() - start_s
        if self._leads:
            self._send(word)  # the answer to the peer's last

    def bytes_per_s(self) -> float:
        """Each way, while both send: by the middle one of the times of the largest chunks."""
        mine = torch.zeros(CHUNK_BYTES, dtype=torch.uint8)
        theirs = torch.zeros_like(mine)
        size, start_s = FIRST_BYTES, time.monotonic()
        times = [start_s]
        while True:
            mine[0] = _following(times, start_s, size)
            sent = self._begin(self._torch.send, mine[:size])
            self._receive(theirs[:size])
            self._finish(sent)
            times.append(time.monotonic())
            follows = int((mine if self._leads else theirs)[0])
            if follows == _LAST:
                return size / median(after - before for before, after in pairwise(times))
            if follows == _LARGER:
                size, times = size * GROWTH, times[-1:]

    def _send(self, tensor: Tensor) -> None:
        self._finish(self._begin(self._torch.send, tensor))

    def _receive(self, tensor: Tensor) -> None:
        self._finish(self._begin(self._torch.recv, tensor))

    def _begin(self, act: Callable[..., Any], tensor: Tensor) -> Any:
        try:
            return act([tensor], self.peer, _TAG)
        except RuntimeError as error:
            raise GroupOver(str(error)) from error

    def _finish(self, work: Any) -> None:
        try:
            work.wait(self._patience)
        except RuntimeError as error:
            raise GroupOver(str(error)) from error


def _following(times: list[float], start_s: float, size: int) -> int:
    """What follows the chunk that is about to be sent, by the times of those of its size."""
    now_s = times[-1]
    if now_s - start_s >= LONGEST_S:
        return _LAST
    # The quickest: that a chunk waits for a busy processor says nothing about the link.
    quickest_s = min((after - before for before, after in pairwise(times)), default=math.inf)
    if size < CHUNK_BYTES and quickest_s < QUICK_S:
        return _LARGER
    enough = len(times) >= MIN_CHUNKS and now_s - times[0] >= STREAM_S
    return _LAST if enough else _ON

"""What the links between the members of a group carry: measured in pairs, over gloo's own sockets.

All members of a group do it at once; `pair_up` says who is paired with whom. A pair that is
done goes on to its next peers, who may be late: nothing is timed before both are there.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from statistics import median
from typing import Any

import torch
from torch import Tensor

from paceline.runtime.group.store import GroupOver
from paceline.runtime.process.link_chunks import CHUNK_BYTES, PINGS, LinkChunks
from paceline.wire.messages.base import Link

PATIENCE_S = 24 * 3600.0
"""Seconds that a message may take: the master finds members that hang (`master.hangs`), as it does
in a step."""
QUICK_S = 0.03
STREAM_S = 0.02
_ON, _LARGER, _LAST = 1, 2, 3
_TAG = 0


def pair_up(size: int) -> list[list[tuple[int, int]]]:
    """Return rounds of pairs, the lower rank first, all pairs different.

    There are so many rounds that each rank meets all others in a group of up to four, and
    1 + log2(size) others in a larger one. Of an odd number, a rank that is left over in a round
    meets one less.
    """
    if size < 2:
        return []
    seats: list[int | None] = [*range(size), *([None] if size % 2 else [])]
    count = min(len(seats) - 1, 1 + math.ceil(math.log2(size)))
    rounds = []
    for turn in range(count):
        ring = [seats[0], *seats[1 + turn :], *seats[1 : 1 + turn]]
        across = zip(ring[: len(ring) // 2], reversed(ring[len(ring) // 2 :]), strict=True)
        rounds.append(
            [(min(a, b), max(a, b)) for a, b in across if a is not None and b is not None]
        )
    return rounds


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
        chunks = LinkChunks(quick_s=QUICK_S, stream_s=STREAM_S)
        while True:
            mine[0] = _following(chunks)
            sent = self._begin(self._torch.send, mine[: chunks.size])
            self._receive(theirs[: chunks.size])
            self._finish(sent)
            chunks.note()
            follows = int((mine if self._leads else theirs)[0])
            if follows == _LAST:
                return chunks.size / median(chunks.took_s)
            if follows == _LARGER:
                chunks.grow()

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


def _following(chunks: LinkChunks) -> int:
    """What follows the chunk that is about to be sent, which carries this to the peer."""
    if chunks.is_long:
        return _LAST
    if chunks.may_grow:
        return _LARGER
    return _LAST if chunks.are_enough(coming=1) else _ON

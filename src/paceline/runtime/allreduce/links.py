"""What the links between the members of a group carry: measured in pairs, over gloo's own sockets.

All members of a group do it at once, before their first step; who is paired with whom says
`policy.failslow.preflight.pair_up`. A pair that is done goes on to its next peers, who may be late:
nothing is timed before both are there.
"""

import time
from collections.abc import Iterator
from datetime import timedelta
from itertools import pairwise
from statistics import median
from typing import Any

import torch
from torch import Tensor

from paceline.policy.failslow.preflight import pair_up
from paceline.wire.messages.checks import Link

PATIENCE_S = 10.0
"""For one message: with a peer that does not answer no step could be done either."""
PINGS = 8
CHUNK_BYTES = 1 << 20
STREAM_S = 0.02
"""So long, at least `MIN_CHUNKS`, a pair sends to each other."""
MIN_CHUNKS = 4
_ON, _LAST = 1, 2
_TAG = 0


def measure_links(torch_group: Any, rank: int, names: list[str]) -> tuple[Link, ...]:
    """The links to the members that this one is paired with.

    Args:
        torch_group: connected.
        rank: of this member.
        names: rank -> node.

    Raises:
        RuntimeError: a peer is gone, or did not answer.
    """
    links = []
    for pairs in pair_up(len(names)):
        for low, high in pairs:
            if rank in (low, high):
                pair = _Pair(torch_group, low + high - rank, leads=rank == low)
                rtt_s = pair.round_trip_s()
                links.append(Link(names[pair.peer], pair.bytes_per_s(), rtt_s))
    return tuple(links)


class _Pair:
    """This member and one other; ``leads``: it decides when they are done."""

    def __init__(self, torch_group: Any, peer: int, *, leads: bool) -> None:
        self._torch, self.peer, self._leads = torch_group, peer, leads

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
        """Each way, while both send: by the middle one of the chunks' times."""
        mine = torch.zeros(CHUNK_BYTES, dtype=torch.uint8)
        theirs = torch.zeros_like(mine)
        times = [time.monotonic()]
        while True:
            enough = len(times) >= MIN_CHUNKS and times[-1] - times[0] >= STREAM_S
            mine[0] = _LAST if enough else _ON
            sent = self._torch.send([mine], self.peer, _TAG)
            self._receive(theirs)
            sent.wait(timedelta(seconds=PATIENCE_S))
            times.append(time.monotonic())
            if (mine if self._leads else theirs)[0] == _LAST:
                return CHUNK_BYTES / median(after - before for before, after in pairwise(times))

    def _send(self, tensor: Tensor) -> None:
        self._torch.send([tensor], self.peer, _TAG).wait(timedelta(seconds=PATIENCE_S))

    def _receive(self, tensor: Tensor) -> None:
        self._torch.recv([tensor], self.peer, _TAG).wait(timedelta(seconds=PATIENCE_S))

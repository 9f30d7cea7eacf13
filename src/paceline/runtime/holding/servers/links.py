"""Speed of the links from a worker to its servers: measured over the data plane, before training.

Each worker does it on its own, beginning with another server than the others, in connections of its
own. Servers send back what they get. Only links over tcp are measured: the others are memory.
"""

import time
from collections.abc import Sequence

from paceline.base.numbering import NO_EPOCH, Inc
from paceline.runtime.process.link_chunks import PINGS, LinkChunks
from paceline.runtime.process.process import Process
from paceline.runtime.process.reaching import Unreachable, place_of, refusal
from paceline.wire.data_plane import DataClient
from paceline.wire.messages.base import Link, Server
from paceline.wire.messages.data import Echo, Echoed

ANSWER_S = 10.0
"""Seconds without an answer after which a server is left out, if it can be reached at all."""
QUICK_S = 0.1
STREAM_S = 0.05
"""Both are longer than in a group: a chunk goes there and back."""


def measure_links(process: Process, servers: Sequence[Server]) -> tuple[Link, ...]:
    """Measure the links to all servers on the network.

    Raises:
        Unreachable: a server takes no connection.
    """
    distant = [one for one in servers if one.address.startswith(("tcp://", "curve://"))]
    first = process.rank % len(distant) if distant else 0
    links = []
    for server in (*distant[first:], *distant[:first]):
        link = _Link(process, server)
        try:
            links.append(link.measured())
        except _SilentError:
            if why := refusal(server.address):
                place = place_of(server.address)
                raise Unreachable(f"{server.node} at {place} ({why})") from None
        finally:
            link.close()
    return tuple(links)


ProbeTakes = Echoed


class _SilentError(Exception):
    """The server does not answer."""


class _Link:
    """A connection to one server."""

    def __init__(self, process: Process, server: Server) -> None:
        self._inc: Inc = process.inc
        self._server, self._number = server, 0
        ident = f"{process.node}-probe-{process.inc}"
        self._data = DataClient({0: server.address}, process.job.secret(), ident, arena_bytes=0)

    def close(self) -> None:
        """Close the connection."""
        self._data.close()

    def measured(self) -> Link:
        """Measure: the quickest of a few, since other workers use the server at the same time."""
        self._echo(b"")  # the first one connects
        rtt_s = min(self._echo(b"") for _ in range(PINGS))
        return Link(self._server.node, self._bytes_per_s(), rtt_s)

    def _bytes_per_s(self) -> float:
        """Measure the bytes per second of each way, by the quickest of the largest chunks."""
        chunks = LinkChunks(quick_s=QUICK_S, stream_s=STREAM_S)
        while True:
            self._echo(bytes(chunks.size))
            chunks.note()
            if chunks.may_grow:
                chunks.grow()
            elif chunks.is_long or chunks.are_enough():
                return 2 * chunks.size / min(chunks.took_s)

    def _echo(self, payload: bytes) -> float:
        """Send, and wait until it is back; the seconds that took.

        Raises:
            _SilentError: nothing came.
        """
        self._number += 1
        start_s = time.monotonic()
        self._data.send(0, Echo(epoch_no=NO_EPOCH, inc=self._inc, number=self._number), [payload])
        while (left_s := start_s + ANSWER_S - time.monotonic()) > 0:
            for _, message, _frames in self._data.poll(left_s):
                if isinstance(message, ProbeTakes) and message.number == self._number:
                    return time.monotonic() - start_s
        raise _SilentError

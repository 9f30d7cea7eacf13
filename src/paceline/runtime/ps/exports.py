"""A whole table read from the servers, piece by piece, since a message has a largest size."""

from collections.abc import Iterable

import numpy as np

from paceline.runtime.data.work import Array
from paceline.runtime.ps.port import Ids
from paceline.wire.messages.data import Export, Exported


class Exporting:
    """One reading of one table under one epoch; ``ticket`` tells it from others."""

    def __init__(self, table: int, ticket: int, servers: Iterable[int]) -> None:
        self.table, self.ticket = table, ticket
        self._pieces: dict[int, list[tuple[Ids, Array]]] = {server: [] for server in servers}
        #: Server -> where its next piece starts; gone when it has sent its last.
        self._offsets = dict.fromkeys(self._pieces, 0)

    @property
    def done(self) -> bool:
        """Whether every server has sent all."""
        return not self._offsets

    def missing(self, epoch_no: int, inc: int) -> list[tuple[int, Export]]:
        """What to ask of whom now."""
        return [
            (
                server,
                Export(
                    epoch_no=epoch_no,
                    inc=inc,
                    ticket=self.ticket,
                    table=self.table,
                    offset=offset,
                ),
            )
            for server, offset in self._offsets.items()
        ]

    def take(self, server: int, message: Exported, keys: Ids, rows: Array) -> bool:
        """Add a piece; False: it is not the one that comes next (a repetition)."""
        if (message.ticket, message.offset) != (self.ticket, self._offsets.get(server)):
            return False
        self._pieces[server].append((keys, rows))
        if message.next_offset is None:
            del self._offsets[server]
        else:
            self._offsets[server] = message.next_offset
        return True

    def whole(self, dim: int) -> tuple[Ids, Array]:
        """All keys, and their rows ``[n, dim]``."""
        keys, rows = zip(*(piece for its in self._pieces.values() for piece in its), strict=True)
        return np.concatenate(keys), np.concatenate(rows).reshape(-1, dim)

"""A whole table read from the servers, piece by piece, since a message has a largest size."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from paceline.base.numbering import EpochNo, Inc
from paceline.protocol.holding.servers.worker import WorkerState
from paceline.runtime.data.work import Array
from paceline.runtime.holding.servers.port import Ids
from paceline.runtime.script.evaluation_results import Until
from paceline.wire.messages.data import Export, Exported
from paceline.wire.messages.node import NodeUp
from paceline.wire.schema import ModelSchema


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

    def missing(self, epoch_no: EpochNo, inc: Inc, map_version: int) -> list[tuple[int, Export]]:
        """Return what to ask of whom now."""
        return [
            (
                server,
                Export(
                    epoch_no=epoch_no,
                    inc=inc,
                    ticket=self.ticket,
                    table=self.table,
                    offset=offset,
                    map_version=map_version,
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
        """Return all keys, and their rows ``[n, dim]``."""
        keys, rows = zip(*(piece for its in self._pieces.values() for piece in its), strict=True)
        return np.concatenate(keys), np.concatenate(rows).reshape(-1, dim)


class Exports:
    """One worker's readings; ``send`` has a message sent to a server."""

    def __init__(
        self, state: WorkerState, until: Until, send: Callable[[int, Export], None]
    ) -> None:
        self._state, self._until, self._send = state, until, send
        self._exporting: Exporting | None = None
        self._count = 0

    def read(self, table: int, dim: int) -> tuple[Ids, Array]:
        """Read all keys of a table and their rows; begin again when other servers hold it."""
        while True:
            self._until(lambda: self._state.map is not None)
            ownership = self._state.ownership
            self._count += 1
            self._exporting = exporting = Exporting(table, self._count, self._state.owners)
            self._until(
                lambda: self._state.ownership != ownership or exporting.done,  # noqa: B023
                ask=self._ask,
            )
            self._exporting = None
            if self._state.ownership == ownership:
                return exporting.whole(dim)

    def _ask(self, only: int | None = None) -> Iterable[NodeUp]:
        """Ask servers for what is missing; there is nothing to tell the master."""
        if self._exporting is not None:
            state = self._state
            version = state.map.version if state.map is not None else 0
            for server, message in self._exporting.missing(state.epoch_no, state.inc, version):
                if only in (None, server):
                    self._send(server, message)
        return ()

    def take(
        self, server: int, message: Exported, frames: Sequence[memoryview], schema: ModelSchema
    ) -> None:
        """Take a piece that has come."""
        if self._exporting is None:
            return
        keys, rows = (np.array(frame.cast("B")) for frame in frames)
        dtype = schema.tables[message.table].dtype
        if self._exporting.take(server, message, keys.view("int64"), rows.view(dtype)):
            self._ask(server)

"""Division of one worker's tensors among the servers of a map, and its reverse."""

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from paceline.base.numbering import Inc
from paceline.runtime.data.work import Array
from paceline.runtime.holding.servers.port import Ids
from paceline.runtime.server.store import Gradients
from paceline.runtime.state import kernels, layout
from paceline.wire.messages.base import ServerMap
from paceline.wire.messages.data import Part
from paceline.wire.schema import ModelSchema


class Spread:
    """The division of a model among the servers of a map, as it is or will be."""

    def __init__(self, schema: ModelSchema, owners: Sequence[int], num_servers: int) -> None:
        """``owners``: by bucket, the place of a server in the map; -1: of none."""
        #: The only server that has anything.
        self.sole = owners[0] if len(set(owners)) == 1 else None
        #: Buckets that no server has go to one behind them.
        self._owners = np.array([o if o >= 0 else num_servers for o in owners], np.int32)
        self._num_places = num_servers + 1
        self._holders = set(owners)
        self._schema = schema
        self.spans = [layout.dense_spans(schema, owners, me) for me in range(num_servers)]

    def has(self, server: int) -> bool:
        """Tell whether a server has any buckets."""
        return server in self._holders

    def places(self, table: int, ids: Ids) -> tuple[Ids, Ids]:
        dynamic = self._schema.tables[table].num_rows is None
        return kernels.split(ids, self._owners, self._num_places, dynamic=dynamic)


class Split:
    """The ids of a pull or a push, grouped by server (when first asked)."""

    def __init__(self, spread: Spread, ids: Mapping[int, Ids]) -> None:
        self.ids = ids
        self._spread = spread
        self._places: dict[int, tuple[Ids, Ids]] = {}

    def place(self, table: int, server: int) -> Ids | slice:
        """Return where a server's rows stand among the table's."""
        if self._spread.sole == server:
            return slice(None)
        if table not in self._places:
            self._places[table] = self._spread.places(table, self.ids[table])
        order, bounds = self._places[table]
        return order[bounds[server] : bounds[server + 1]]

    def ids_of(self, server: int) -> list[Array]:
        """Return the ids of a server's rows: one array per table."""
        return [ids[self.place(table, server)] for table, ids in self.ids.items()]


class Partition:
    """One map of one model: who owns what, and what is being copied to whom."""

    def __init__(self, schema: ModelSchema, server_map: ServerMap) -> None:
        self.schema = schema
        self._map = server_map
        num_servers = len(server_map.servers)
        self.owned = Spread(schema, server_map.owners, num_servers)
        self.copied = Spread(schema, server_map.copies, num_servers) if server_map.copies else None
        self._sizes = layout.dense_sizes(schema)

    def place_of(self, server: int) -> int:
        """Return where a server, by its incarnation, stands in the map."""
        return self._map.index(Inc(server))

    def split(self, ids: Mapping[int, Ids]) -> Split:
        """Group ids by the owners of their rows."""
        return Split(self.owned, ids)

    def part(
        self, gradients: Gradients, splits: Mapping[Spread, Split], server: int
    ) -> list[Array]:
        """The frames of a `Part` for one server: of what it owns, then of what it will hold.

        Of each, dense by dtype, then ids and rows by table.

        Args:
            gradients: of all.
            splits: of their ids, by what is owned and by what is copied.
            server: its place in the map.
        """
        spreads = [spread for spread in splits if spread.has(server)]
        return [
            frame
            for spread in spreads
            for frame in _frames(gradients, spread, splits[spread], server)
        ]

    def join_dense(self, dtype: str, shares: Sequence[Array]) -> Array:
        """The flat vector of the servers' shares of it; a single share is not copied."""
        if self.owned.sole is not None:
            return shares[0]
        whole = np.empty(self._sizes[dtype], dtype)
        for spans, share in zip(self.owned.spans, shares, strict=False):
            at = 0
            for start, stop in spans[dtype]:
                whole[start:stop] = share[at : at + stop - start]
                at += stop - start
        return whole

    def join_rows(self, split: Split, table: int, shares: Sequence[Array]) -> Array:
        """``[n, dim]`` in the order of the ids; a single server's share is not copied."""
        spec = self.schema.tables[table]
        if self.owned.sole is not None:
            return shares[0].reshape(-1, spec.dim)
        rows = np.empty((split.ids[table].size, spec.dim), spec.dtype)
        for server, share in enumerate(shares):
            rows[split.place(table, server)] = share.reshape(-1, spec.dim)
        return rows


def _frames(gradients: Gradients, spread: Spread, split: Split, server: int) -> list[Array]:
    frames: list[Array] = []
    for dtype, flat in gradients.dense.items():
        pieces = [flat[start:stop] for start, stop in spread.spans[server][dtype]]
        frames.append(pieces[0] if len(pieces) == 1 else np.concatenate([flat[:0], *pieces]))
    for table, (ids, rows) in gradients.sparse.items():
        place = split.place(table, server)
        frames += [ids[place], rows[place]]
    return frames


class Contribution:
    """Parts of a contribution that are kept, to be sent again if need be."""

    def __init__(self, part: Part, gradients: Gradients, partition: Partition) -> None:
        self._part, self._gradients, self._partition = part, gradients, partition
        ids = {table: ids for table, (ids, _) in gradients.sparse.items()}
        spreads = [spread for spread in (partition.owned, partition.copied) if spread is not None]
        self._splits = {spread: Split(spread, ids) for spread in spreads}

    def renumbered(self, part: Part, partition: Partition) -> "Contribution":
        """Return the same gradients under another seq, for the servers of another map."""
        return Contribution(part, self._gradients, partition)

    def header(self) -> Part:
        """The part, with what its frames are."""
        gradients = self._gradients
        return msgspec.structs.replace(
            self._part,
            dense=tuple(gradients.dense),
            tables=tuple(gradients.sparse),
            changed=gradients.changed,
            lacking=gradients.lacking,
            position=gradients.position,
        )

    def frames(self, server: int) -> list[Array]:
        """The tensors for a server of the map under which it is offered, by its incarnation."""
        place = self._partition.place_of(server)
        return self._partition.part(self._gradients, self._splits, place)

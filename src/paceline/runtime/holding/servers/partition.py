"""How one worker's tensors are cut to the servers of a map, and put together again."""

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from paceline.runtime import kernels, layout
from paceline.runtime.data.work import Array
from paceline.runtime.holding.servers.port import Ids
from paceline.runtime.server.store import Gradients
from paceline.wire.messages.base import ServerMap
from paceline.wire.messages.data import Part
from paceline.wire.schema import ModelSchema


class Split:
    """The ids of a pull or a push, grouped by server (when first asked)."""

    def __init__(self, partition: "Partition", ids: Mapping[int, Ids]) -> None:
        self.ids = ids
        self._partition = partition
        self._places: dict[int, tuple[Ids, Ids]] = {}

    def place(self, table: int, server: int) -> Ids | slice:
        """Where a server's rows stand among the table's."""
        if self._partition.num_owners == 1:
            return slice(None)
        if table not in self._places:
            self._places[table] = self._partition.places(table, self.ids[table])
        order, bounds = self._places[table]
        return order[bounds[server] : bounds[server + 1]]

    def ids_of(self, server: int) -> list[Array]:
        """One id array per table."""
        return [ids[self.place(table, server)] for table, ids in self.ids.items()]


class Partition:
    """One map of one model."""

    def __init__(self, schema: ModelSchema, server_map: ServerMap) -> None:
        self.schema = schema
        #: Servers that own nothing and are copied to stand behind the owners.
        self.num_owners = len(server_map.sharers)
        self._copies_of = [
            me if me < self.num_owners else server_map.owners[server_map.copies.index(me)]
            for me in range(len(server_map.servers))
        ]
        self._owners = np.array(server_map.owners, np.int32)
        self._sizes = layout.dense_sizes(schema)
        self._spans = [
            layout.dense_spans(schema, server_map.owners, me) for me in range(self.num_owners)
        ]

    def places(self, table: int, ids: Ids) -> tuple[Ids, Ids]:
        dynamic = self.schema.tables[table].num_rows is None
        return kernels.split(ids, self._owners, self.num_owners, dynamic=dynamic)

    def part(self, gradients: Gradients, split: Split, server: int) -> list[Array]:
        """The frames of a `Part` for one server: dense by dtype, then ids and rows by table.

        One that an owner's buckets are being copied to gets what the owner gets.
        """
        server = self._copies_of[server]
        frames: list[Array] = []
        for dtype, flat in gradients.dense.items():
            spans = self._spans[server][dtype]
            pieces = [flat[start:stop] for start, stop in spans]
            frames.append(pieces[0] if len(pieces) == 1 else np.concatenate([flat[:0], *pieces]))
        for table, (ids, rows) in gradients.sparse.items():
            place = split.place(table, server)
            frames += [ids[place], rows[place]]
        return frames

    def join_dense(self, dtype: str, shares: Sequence[Array]) -> Array:
        """The flat vector of the servers' shares of it; a single share is not copied."""
        if self.num_owners == 1:
            return shares[0]
        whole = np.empty(self._sizes[dtype], dtype)
        for spans, share in zip(self._spans, shares, strict=True):
            at = 0
            for start, stop in spans[dtype]:
                whole[start:stop] = share[at : at + stop - start]
                at += stop - start
        return whole

    def join_rows(self, split: Split, table: int, shares: Sequence[Array]) -> Array:
        """``[n, dim]`` in the order of the ids; a single server's share is not copied."""
        spec = self.schema.tables[table]
        if self.num_owners == 1:
            return shares[0].reshape(-1, spec.dim)
        rows = np.empty((split.ids[table].size, spec.dim), spec.dtype)
        for server, share in enumerate(shares):
            rows[split.place(table, server)] = share.reshape(-1, spec.dim)
        return rows


class Contribution:
    """What is kept of a contribution, to be sent again if need be."""

    def __init__(self, part: Part, gradients: Gradients, partition: Partition) -> None:
        self._part, self._gradients, self._partition = part, gradients, partition
        self._split = Split(partition, {t: ids for t, (ids, _) in gradients.sparse.items()})

    def renumbered(self, part: Part, partition: Partition) -> "Contribution":
        """The same gradients under another seq, for the servers of another map."""
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
        """The tensors for a server of the map, by its place there."""
        return self._partition.part(self._gradients, self._split, server)

"""Whether a message of a peer that has the job's secret can be handled at all.

Such a peer may be confused: a process of an older build, a script that talks to the wrong server.
What is not refused here has spans, tables, ids and frames that fit this server's share, so that
the store never sees what it could only die of. A message that fits and yet breaks the protocol is
no matter of this module: the state machine raises InternalError on it.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from math import inf, isfinite
from typing import NamedTuple, assert_never

import numpy as np

from paceline.base.samples import SampleSet, Span
from paceline.protocol.holding.servers.server import ServerState
from paceline.runtime.server.moving import PIECE_BYTES
from paceline.runtime.server.rules import changeable
from paceline.runtime.server.store import Gradients
from paceline.runtime.state.layout import dense_spans, owned_buckets
from paceline.wire.messages.base import ServerMap
from paceline.wire.messages.data import (
    AskMap,
    Data,
    Echo,
    Export,
    Order,
    Part,
    Piece,
    Pull,
    Ready,
    ScriptPart,
)
from paceline.wire.schema import NUM_BUCKETS, ModelSchema

ServiceTakes = Part | Ready | ScriptPart | Pull | Order | Export | AskMap | Piece | Echo
"""Messages to a server: of workers, of other servers, and of those who measure the link to it."""

_ID_BYTES = 8
MAX_SCRIPT_BYTES = 64 << 20


class Parted(NamedTuple):
    """Gradients that a contribution brings for a server's share, and for one that is arriving."""

    own: Gradients | None
    arriving: Gradients | None = None


class _Room:
    """Sizes of what a server has, or will have."""

    def __init__(self, schema: ModelSchema, owners: Sequence[int], me: int) -> None:
        self.dense_bytes = {
            dtype: sum(stop - start for start, stop in spans) * np.dtype(dtype).itemsize
            for dtype, spans in dense_spans(schema, owners, me).items()
        }
        self.owned = np.zeros(NUM_BUCKETS, np.bool_)
        self.owned[list(owned_buckets(owners, me))] = True


class Admission:
    """Looks at messages of one epoch.

    Args:
        state: the server's protocol state, in that epoch.
        schema: the model.
        now: the map that this server knows first.
    """

    def __init__(self, state: ServerState, schema: ModelSchema, now: ServerMap) -> None:
        self._state, self.schema = state, schema
        #: Rooms by version of the map: what a part brings, of which share.
        self._rooms: dict[int, tuple[_Room | None, _Room | None]] = {}
        self._newest = now.version
        self.meet(now)

    def meet(self, now: ServerMap) -> None:
        """Accept parts by this map from here on, too; those before the barrier do not count."""
        me, state = now.index(self._state.inc), self._state
        own, arriving = (
            _Room(self.schema, places, me) if me >= 0 and me in places else None
            for places in (now.owners, now.copies)
        )
        kept = {
            version: rooms for version, rooms in self._rooms.items() if version >= state.barrier
        }
        self._rooms = {**kept, now.version: (own, arriving)}
        self._newest = now.version

    def misfit(self, message: Data, frames: Sequence[memoryview]) -> str:
        """Say why the message must not be handled; empty: it may."""
        if not isinstance(message, ServiceTakes) or isinstance(message, Echo):
            return "a server has no use for it"
        match message:
            case Part():
                return self._bad_part(message) or self._bad_frames(message, frames)
            case Pull():
                return self._bad_pull(message, frames)
            case Ready():
                return self._bad_ready(message)
            case Export():
                wrong = f"offset {message.offset}" if message.offset < 0 else ""
                return wrong or self._bad_tables((message.table,))
            case Piece():
                return self._bad_piece(message, frames)
            case ScriptPart(script=script):
                size = len(script.state)
                return f"{size} bytes of a script's state" if size > MAX_SCRIPT_BYTES else ""
            case Order() | AskMap():
                return ""
            case _:
                assert_never(message)

    def gradients(self, part: Part, frames: Sequence[memoryview]) -> Parted:
        """Return what a part that fits brings: views of its frames."""
        own, arriving = self._rooms[part.map_version]
        each = len(part.dense) + 2 * len(part.tables)
        return Parted(
            self._of_share(part, frames[:each]) if own else None,
            self._of_share(part, frames[-each:]) if arriving else None,
        )

    def _of_share(self, part: Part, frames: Sequence[memoryview]) -> Gradients:
        num_dense = len(part.dense)
        dense = {
            dtype: np.frombuffer(frame, dtype)
            for dtype, frame in zip(part.dense, frames[:num_dense], strict=True)
        }
        sparse = {}
        for table, ids, rows in zip(
            part.tables, frames[num_dense::2], frames[num_dense + 1 :: 2], strict=True
        ):
            spec = self.schema.tables[table]
            values = np.frombuffer(rows, spec.dtype).reshape(-1, spec.dim)
            sparse[table] = (np.frombuffer(ids, np.int64), values)
        return Gradients(
            dense=dense,
            sparse=sparse,
            weight=part.weight,
            rates=part.rates,
            distinct=True,
            changed=part.changed,
            lacking=part.lacking,
        )

    def _bad_part(self, part: Part) -> str:
        if part.seq < 1 or part.weight < 0:
            return f"seq {part.seq} and weight {part.weight}, expected at least 1 and 0"
        if not 0 < part.factor < inf:
            return f"a factor of {part.factor}, expected one above 0"
        if part.position < 0:
            return f"position {part.position} of a schedule"
        if len(part.rates) != len(self.schema.groups):
            return f"{len(part.rates)} learning rates for {len(self.schema.groups)} groups"
        if bad := self._bad_changes(part):
            return bad
        synchronous = self._state.mode == "bsp"
        if (part.step > 0) != synchronous or bool(part.slice) != synchronous:
            return f"step {part.step} and slice {part.slice} in mode {self._state.mode}"
        return _bad_spans(part.spans, part.slice) or self._bad_tables(part.tables)

    def _bad_changes(self, part: Part) -> str:
        """Say what is wrong with hyper-parameters or lacking gradients; empty: nothing."""
        groups = self.schema.groups
        for group, name, value in part.changed:
            if not 0 <= group < len(groups) or not isfinite(value):
                return f"{name}={value} in group {group} of {len(groups)}"
            known = (changeable(groups[group], sparse=sparse) for sparse in (False, True))
            if not any(name in names for names in known):
                return f"{name}={value}, which {groups[group].kind} cannot follow"
        if not all(0 <= tensor < len(self.schema.dense) for tensor in part.lacking):
            return f"no gradients of {part.lacking}, of {len(self.schema.dense)} parameters"
        return ""

    def _bad_pull(self, pull: Pull, frames: Sequence[memoryview]) -> str:
        feed = pull.feed
        if feed is not None and min(feed.num_samples or 0, feed.batch_size, feed.epochs) < 1:
            return f"a feed of {feed.num_samples} samples in slices of {feed.batch_size}"
        if bad := self._bad_tables(pull.tables):
            return bad
        if len(frames) != len(pull.tables):
            return f"{len(frames)} frames for {len(pull.tables)} tables"
        own, _ = self._rooms[self._newest]
        if own is None or pull.map_version < self._state.owned_since:
            return ""  # it is not answered: the worker has to ask by another map
        return _first(self._bad_ids(own, *pair) for pair in zip(pull.tables, frames, strict=True))

    def _bad_ready(self, ready: Ready) -> str:
        """Say what the leader lacks of what it would order; empty: nothing (with steps: always)."""
        state = self._state
        first = max(state.contents.last_seq.get(ready.inc, 0) + 1, ready.first)
        sent = all((ready.inc, seq) in state.contents.parts for seq in range(first, ready.seq + 1))
        void = ready.map_version < state.barrier
        if state.leads and not ready.step and not void and not sent:
            return f"ready up to {ready.seq}, but not all from {first} on were sent"
        return ""

    def _bad_piece(self, piece: Piece, frames: Sequence[memoryview]) -> str:
        at, size = piece.offset, piece.num_bytes
        if piece.inc != self._state.inc:
            return f"a piece for incarnation {piece.inc}"
        if not 0 <= at < size or at % PIECE_BYTES:
            return f"a piece from byte {at} of {size} on"
        expected = min(PIECE_BYTES, size - at)
        sizes = [frame.nbytes for frame in frames]
        return "" if sizes == [expected] else f"a piece of {sizes} bytes, expected {expected}"

    def _bad_tables(self, tables: Sequence[int]) -> str:
        known = range(len(self.schema.tables))
        if len(set(tables)) < len(tables) or any(table not in known for table in tables):
            return f"tables {tables}, expected different ones of {len(known)}"
        return ""

    def _bad_frames(self, part: Part, frames: Sequence[memoryview]) -> str:
        if part.map_version < self._state.barrier:
            return ""  # it is not kept
        if part.map_version not in self._rooms:
            return f"a map of version {part.map_version}, which is not known here"
        rooms = [room for room in self._rooms[part.map_version] if room is not None]
        num_dense, num_sparse = len(part.dense), 2 * len(part.tables)
        each = num_dense + num_sparse
        if len(frames) != each * len(rooms):
            return (
                f"{len(frames)} frames, expected {num_dense} dense and {num_sparse} sparse ones "
                f"for each of {len(rooms)} shares"
            )
        return _first(
            self._bad_share(part, frames[each * number : each * (number + 1)], room)
            for number, room in enumerate(rooms)
        )

    def _bad_share(self, part: Part, frames: Sequence[memoryview], room: _Room) -> str:
        num_dense = len(part.dense)
        for dtype, frame in zip(part.dense, frames[:num_dense], strict=True):
            if frame.nbytes != room.dense_bytes.get(dtype, -1):
                return f"{frame.nbytes} bytes of {dtype} gradients, expected {room.dense_bytes}"
        ids, rows = frames[num_dense::2], frames[num_dense + 1 :: 2]
        given = zip(part.tables, ids, rows, strict=True)
        return _first(self._bad_rows(room, *one) for one in given)

    def _bad_rows(self, room: _Room, table: int, ids: memoryview, rows: memoryview) -> str:
        spec = self.schema.tables[table]
        row_bytes = spec.dim * np.dtype(spec.dtype).itemsize
        if rows.nbytes * _ID_BYTES != ids.nbytes * row_bytes:
            return f"table {spec.name!r}: {rows.nbytes} bytes for {ids.nbytes // _ID_BYTES} rows"
        return self._bad_ids(room, table, ids)

    def _bad_ids(self, room: _Room, table: int, frame: memoryview) -> str:
        """Looks at each id once; those of a dynamic table are all good."""
        spec = self.schema.tables[table]
        if frame.nbytes % _ID_BYTES:
            return f"table {spec.name!r}: {frame.nbytes} bytes of ids, expected whole int64"
        if spec.num_rows is None or not frame.nbytes:
            return ""
        ids = np.frombuffer(frame, np.int64)
        # As unsigned numbers, negative ones are the largest: one pass finds both ends.
        if int(ids.view(np.uint64).max()) >= spec.num_rows:
            return f"table {spec.name!r}: ids beyond its {spec.num_rows} rows"
        if not room.owned.all() and not room.owned[ids % NUM_BUCKETS].all():
            return f"table {spec.name!r}: rows of another server"
        return ""


def _bad_spans(spans: Sequence[Span], within: Sequence[Span]) -> str:
    ordered = sorted(spans)
    if any(min(span.line, span.start) < 0 or span.start >= span.stop for span in ordered):
        return f"{spans} are no samples"
    if any(a.line == b.line and b.start < a.stop for a, b in pairwise(ordered)):
        return f"{spans} overlap"
    if within and any(map(SampleSet(within).missing, spans)):
        return f"{spans} are not all of the slice {within}"
    return ""


def _first(reasons: Iterable[str]) -> str:
    return next((reason for reason in reasons if reason), "")

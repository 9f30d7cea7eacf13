"""Answers of a server to pulls and exports: tensors, written where they are sent from."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paceline.base.copying import copy
from paceline.base.samples import SampleSet
from paceline.protocol.holding.servers.server import ServerState
from paceline.runtime.server.store import Store
from paceline.runtime.state.arrays import Array
from paceline.wire.data_plane import DataServer
from paceline.wire.messages.data import Export, Exported, Pull, Pulled
from paceline.wire.messages.feeds import feed_of

EXPORT_BYTES = 32 << 20
"""Values in one piece of an export."""


@dataclass(frozen=True, slots=True)
class WaitingPull:
    """A pull that is not answered."""

    ticket: int
    ids: Sequence[memoryview]
    """Ids per table; they may lie in memory of the worker."""
    since_s: float


def pull_frames(
    data: DataServer, peer: bytes, store: Store, pull: Pull, ids: Sequence[memoryview]
) -> tuple[tuple[str, ...], list[memoryview]]:
    """The dtypes and the frames of what a pull asks for."""
    dense = store.dense() if pull.dense else {}
    frames = [_copied(data, peer, values) for values in dense.values()]
    for table, of_table in zip(pull.tables, ids, strict=True):
        frames.append(_rows(data, peer, store, table, np.frombuffer(of_table, np.int64)))
    return tuple(dense), frames


def pulled(
    state: ServerState,
    store: Store,
    pull: Pull,
    dense: tuple[str, ...],
    times_s: tuple[float, float],
) -> Pulled:
    """The answer to a pull; ``times_s``: of its worker's messages, and of its wait."""
    handler_s, waited_s = times_s
    return Pulled(
        epoch_no=state.epoch_no,
        server=state.inc,
        inc=pull.inc,
        ticket=pull.ticket,
        step=state.contents.step,
        last_seq=state.contents.last_seq.get(pull.inc, 0),
        applied=state.contents.applied,
        slice=state.next_slice(pull.feed),
        handler_s=handler_s,
        waited_s=waited_s,
        dense=dense,
        counted=_count(state.contents.committed, pull.also.counting),
        script=store.scripts.at(pull.also.script),
    )


def exported(state: ServerState, store: Store, message: Export) -> tuple[Exported, list[Array]]:
    """A piece of a table, with its frames."""
    table = store.schema.tables[message.table]
    count = max(1, EXPORT_BYTES // (table.dim * np.dtype(table.dtype).itemsize))
    keys, rows, more = store.piece(message.table, message.offset, count)
    answer = Exported(
        epoch_no=message.epoch_no,
        server=state.inc,
        inc=message.inc,
        ticket=message.ticket,
        table=message.table,
        offset=message.offset,
        next_offset=more,
    )
    return answer, [keys, rows]


def _copied(data: DataServer, peer: bytes, values: Array) -> memoryview:
    """A copy, made where it is sent from: the next update may change the original."""
    frame = data.allocate(peer, values.nbytes)
    copy(np.frombuffer(frame, np.uint8), values.view(np.uint8))
    return frame


def _rows(data: DataServer, peer: bytes, store: Store, table: int, ids: Array) -> memoryview:
    spec = store.schema.tables[table]
    frame = data.allocate(peer, ids.size * spec.dim * np.dtype(spec.dtype).itemsize)
    store.rows(table, ids, np.frombuffer(frame, spec.dtype).reshape(-1, spec.dim))
    return frame


def _count(committed: SampleSet, feed: int) -> int:
    """Samples of a feed; of feed -1 none."""
    lines = committed.lines if feed >= 0 else {}
    return sum(len(found) for line, found in lines.items() if feed_of(line) == feed)

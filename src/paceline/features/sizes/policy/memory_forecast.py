"""Servers whose tables grow: what they will need, and whether more is due before they run out.

Rows follow Heaps' law, rows = K * samples^b, with b of the newest half of what was seen. That tells
the need at the job's last sample. Streams drift and have bursts, which no fit of their beginning
can tell. So a cure is due as late as it is still safe: when the limit would be reached before half
as many samples again are done, or, at three times the fastest growth of the newest samples, before
the cure takes effect, or when little is left of it.

Reference: DLRover-RM section 5.3 (memory until the job completes, scaled first). The paper does not
say how it forecasts.
"""

import math
from collections.abc import Iterator, Sequence

import msgspec
from msgspec.structs import replace

from paceline.features.sizes.policy.history import SizingHistory
from paceline.features.sizes.policy.observation import ResourceObservation, RowsSeen, TableRows
from paceline.features.sizes.policy.plan import ResourcePlan
from paceline.policy.job_size import JobSize

AHEAD = 0.5
"""Samples, as a part of those done, for which the limit must still do."""
PEAK = 3.0
"""Times the fastest growth seen recently, for the time that a cure takes."""
RECENT = (0.0, 0.02, 0.05)
"""Parts of the samples done over which growth is measured; 0: since the last look."""
RESERVE = 0.06
"""Part of a limit that is never planned with."""
MARGIN = 0.25
"""Part of what a server will need at its end that it gets on top."""
LEADS = 2.0
"""Times the lead of a cure that is kept free."""
LEAD_S = 5.0
"""Least seconds that a cure takes, as long as none was measured."""
STEP_BYTES = 1 << 20
"""Limits are whole multiples of it."""
KEY_BYTES = 64
"""Bytes for the key of a row: up to 47 of the hash table, 8 for the key, 8 for its last use."""
MOVE_BYTES, MOVE_COPIES = 96 << 20, 2.0
"""Memory that a server takes on top while its rows are divided among more servers: bytes at least,
and bytes for each byte of its share. A child process sends rows that it has collected, and what
stays is built once more."""
FIRST_ROWS = 1024
"""A table has room for so many rows at first, and then for twice as many each time."""
MOST_COPIES = 4.0
UNKNOWN_COPIES = 1.5
"""Bytes that a server takes for each byte of its tables, cuts in memory included: at most, and as
long as its tables are too small to tell."""


class ServerMemory(msgspec.Struct, frozen=True, kw_only=True):
    """Memory that one server has, and uses."""

    node: str
    limit_bytes: int
    used_bytes: int
    """The most of the newest looks."""
    base_bytes: int
    """Used before its tables had rows."""


class JobAhead(msgspec.Struct, frozen=True, kw_only=True):
    """Rest of a job, as far as memory is concerned."""

    done: int
    """Samples."""
    last: int | None
    """The number of the last sample that can bring new rows; None: not known."""
    lead: float
    """Samples that are done until a cure takes effect."""
    servers: int
    tables: tuple[TableRows, ...]
    """Tables that grow, over all servers."""


class MemoryForecast(msgspec.Struct, frozen=True, kw_only=True):
    """Memory that one server will need."""

    node: str
    limit_bytes: int
    used_bytes: int
    near_bytes: int
    """Bytes needed with `AHEAD` as many samples again, or, at the fastest growth, until a cure
    works."""
    end_bytes: int | None
    """Bytes needed at the job's last sample; None: not known."""
    moving_bytes: int = 0
    """Bytes needed on top while the server's rows are divided among more servers."""

    @property
    def is_due(self) -> bool:
        """Whether it needs a cure now."""
        return self._is_due(0)

    @property
    def is_due_by_moving(self) -> bool:
        """The same where no limit can be raised: buckets must move as long as there is room.

        Not where the limit will do until the job's last sample.
        """
        will_do = self.end_bytes is not None and self.end_bytes <= self.limit_bytes
        return self.is_due or (not will_do and self._is_due(self.moving_bytes))

    def _is_due(self, more_bytes: int) -> bool:
        need = max(self.near_bytes, self.used_bytes / (1.0 - RESERVE))
        return need + more_bytes > self.limit_bytes

    @property
    def wanted_bytes(self) -> int:
        """The limit with which it has enough, for long if the end is not known."""
        need = self.end_bytes if self.end_bytes is not None else 2 * self.near_bytes
        return math.ceil(max(need, self.near_bytes) * (1.0 + MARGIN))


# --------------------------------------------------------------------------- rows


def rows_at(seen: Sequence[RowsSeen], samples: float) -> float:
    """Return the rows of a table at a later sample, by Heaps' law through the newest point."""
    newest = seen[-1]
    if not newest.rows or samples <= newest.samples:
        return float(newest.rows)
    half = [one for one in seen if one.samples >= newest.samples / 2 and one.rows and one.samples]
    times = [math.log(one.samples / newest.samples) for one in half]
    grown = [math.log(one.rows / newest.rows) for one in half]
    square = sum(time * time for time in times)
    slope = sum(time * rows for time, rows in zip(times, grown, strict=True)) / (square or 1.0)
    # With one point alone nothing is known of the slope: then each sample brings as much again.
    slope = min(max(slope, 0.0), 1.0) if square else 1.0
    return newest.rows * math.pow(samples / newest.samples, slope)


def rows_soon(seen: Sequence[RowsSeen], samples: float) -> float:
    """Return the most rows that a table is expected to gain in so many further samples."""
    newest = seen[-1]
    fastest = 0.0
    for part in RECENT:
        before = [one for one in seen[:-1] if one.samples <= newest.samples * (1.0 - part)]
        if before and before[-1].samples < newest.samples:
            since = newest.samples - before[-1].samples
            fastest = max(fastest, (newest.rows - before[-1].rows) / since)
    return PEAK * fastest * samples


# --------------------------------------------------------------------------- bytes


def forecast(server: ServerMemory, ahead: JobAhead) -> MemoryForecast:
    """Say what a server will need; each has its even share of all rows."""
    copies = _copies(server, ahead)
    left = math.inf if ahead.last is None else max(0, ahead.last - ahead.done)
    near = ahead.done + min(AHEAD * ahead.done, left)
    soon = min(LEADS * ahead.lead, left)
    grows = sum(_growth_bytes(table, near, ahead.servers) for table in ahead.tables)
    bursts = sum(
        rows_soon(table.seen, soon) / ahead.servers * _row_bytes(table)
        for table in ahead.tables
        if table.seen
    )
    end = None
    if ahead.last is not None:
        to_end = sum(_growth_bytes(table, ahead.last, ahead.servers) for table in ahead.tables)
        end = math.ceil(server.used_bytes + copies * to_end)
    return MemoryForecast(
        node=server.node,
        limit_bytes=server.limit_bytes,
        used_bytes=server.used_bytes,
        near_bytes=math.ceil(server.used_bytes + copies * max(grows, bursts)),
        end_bytes=end,
        moving_bytes=math.ceil(MOVE_BYTES + MOVE_COPIES * _held_bytes(ahead)),
    )


def _row_bytes(table: TableRows) -> int:
    return table.row_bytes + KEY_BYTES


def _copies(server: ServerMemory, ahead: JobAhead) -> float:
    """Return what a server takes for each byte of its tables."""
    held = _held_bytes(ahead)
    if held <= server.base_bytes / 8:
        return UNKNOWN_COPIES
    return min(max((server.used_bytes - server.base_bytes) / held, 1.0), MOST_COPIES)


def _held_bytes(ahead: JobAhead) -> float:
    """Return what one server's share of all rows takes, without copies."""
    return sum(
        table.seen[-1].rows / ahead.servers * _row_bytes(table)
        for table in ahead.tables
        if table.seen
    )


def _growth_bytes(table: TableRows, samples: float, servers: int) -> float:
    """Return what a table takes more at a later sample, while it is copied to a larger place."""
    if not table.seen:
        return 0.0
    now = table.seen[-1].rows / servers
    then = rows_at(table.seen, samples) / servers
    room = FIRST_ROWS * 2.0 ** max(0, math.ceil(math.log2(max(now, 1.0) / FIRST_ROWS)))
    if then <= room:
        return (then - now) * _row_bytes(table)
    # It doubles, the last time with so many rows, of which there are two copies at that moment.
    last_full = room * 2.0 ** math.floor(math.log2(then / room))
    return (max(then, 2.0 * last_full) - now) * _row_bytes(table)


# --------------------------------------------------------------------------- the cure


def memory_plan(seen: ResourceObservation, history: SizingHistory) -> ResourcePlan | None:
    """Plan more memory for the servers of a job, or more servers, before one of them runs out.

    Args:
        seen: the job.
        history: of its sizes; what did not work out recently is not planned again.

    Returns:
        The plan; None: nothing is due, or nothing more is within the bounds.
    """
    most, has = seen.bounds.largest_server_bytes, seen.size.server_memory
    may_grow = most is None or has < most
    found = forecasts(seen)
    due = [one for one in found if (one.is_due if may_grow else one.is_due_by_moving)]
    if not due:
        return None
    rate = _rate(seen)
    wanted = max(one.wanted_bytes for one in due)
    for target in _cures(seen, wanted):
        if seen.bounds.excess(target, seen.prices) or target == seen.size:
            continue
        if history.avoids(target, seen.now_s) is None:
            return ResourcePlan(
                target=target,
                aim="safe",
                relieves="memory",
                present_per_s=rate,
                expected_per_s=rate,
                cost_s=seen.stall_s(target),
                cost_per_hour=target.cost(seen.prices) - seen.size.cost(seen.prices),
            )
    return None


def forecasts(seen: ResourceObservation) -> list[MemoryForecast]:
    """Forecast the memory of each server that has a limit."""
    most = seen.bounds.largest_server_bytes
    cures = [replace(seen.size, server_memory=0)]
    if most is not None and seen.size.server_memory >= most:
        cures.append(replace(seen.size, servers=seen.size.servers + 1))
    lead_s = max(LEAD_S, *(seen.transition_s(cure) for cure in cures))
    ahead = JobAhead(
        done=seen.samples_done,
        last=seen.samples_total if seen.model.last_new is None else seen.model.last_new,
        lead=lead_s * _rate(seen),
        servers=max(1, seen.size.servers),
        tables=seen.model.tables,
    )
    return [
        forecast(
            ServerMemory(
                node=node.node,
                limit_bytes=node.granted_bytes,
                used_bytes=node.used_bytes,
                base_bytes=node.base_bytes or 0,
            ),
            ahead,
        )
        for node in seen.of_role("server")
        if node.granted_bytes and node.used_bytes is not None
    ]


def _cures(seen: ResourceObservation, wanted: int) -> Iterator[JobSize]:
    """Yield sizes that would do, the one that moves least first; then those that help a while."""
    size, most = seen.size, seen.bounds.largest_server_bytes
    if wanted > size.server_memory and (most is None or wanted <= most):
        yield replace(size, server_memory=_whole(wanted))
    spread = math.ceil(size.servers * wanted / (most or size.server_memory))
    yield replace(
        size, servers=max(spread, size.servers + 1), server_memory=most or size.server_memory
    )
    yield replace(size, servers=size.servers + 1)
    if most is not None and most > size.server_memory:
        yield replace(size, server_memory=most)


def _whole(num_bytes: int) -> int:
    return -(-num_bytes // STEP_BYTES) * STEP_BYTES


def _rate(seen: ResourceObservation) -> float:
    return sum(one.samples_per_s or 0.0 for one in seen.of_role("worker"))

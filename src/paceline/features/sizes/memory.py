"""Memory of nodes before it runs out, and after: raised as far as the spec allows.

Servers say what their tables hold, agents what their nodes use. Where `max_memory` of a role is
above `memory`, a forecast that the limit will not do raises it while the nodes run, and an end out
of memory doubles it for the next life.

A forecast may be wrong, so a need that cannot be met ends no job alone. Once the kernel has proven
it by a kill, the job ends: each further life would come to the same end.
"""

from collections import deque
from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from paceline.base.errors import ConfigError
from paceline.base.jobdir import role_of
from paceline.base.numbering import NO_INC, Inc
from paceline.cuts.memory import memory_left
from paceline.features.sizes.events import (
    MachineShortEvent,
    MemoryRaisedEvent,
    MemoryShortEvent,
)
from paceline.features.sizes.policy.memory_forecast import (
    LEAD_S,
    STEP_BYTES,
    JobAhead,
    MemoryForecast,
    ServerMemory,
    forecast,
)
from paceline.features.sizes.policy.observation import ResourceObservation, RowsSeen, TableRows
from paceline.master.feature_port import Core
from paceline.master.status import count_committed, count_total
from paceline.wire.client import ResizeNodes
from paceline.wire.events.base import Event
from paceline.wire.events.nodes import ProcessExitedEvent, ServersChangedEvent, Verdict
from paceline.wire.messages.agent import NodeFacts
from paceline.wire.messages.base import TableHeld

LOOPBACK = "127.0.0.1"
LOOK_S = 1.0
KEPT = 200
"""Looks at a table that are kept; of more every second one of the older half is dropped."""
NEWEST_S = 20.0
"""The most that a node used in so long counts: what it takes for a moment, it will take again."""
FREEING_S = 3.0
"""Seconds that servers have to give back what moving buckets took."""


class _Used:
    """What one life of a node uses."""

    def __init__(self, inc: Inc) -> None:
        self.inc = inc
        #: What it used before its tables had rows.
        self.base_bytes = 0
        self.looks: deque[tuple[float, int]] = deque()

    def add(self, num_bytes: int, now_s: float, *, has_rows: bool) -> None:
        if not has_rows:
            self.base_bytes = num_bytes
        while self.looks and self.looks[0][0] <= now_s - NEWEST_S:
            self.looks.popleft()
        self.looks.append((now_s, num_bytes))

    @property
    def most_bytes(self) -> int | None:
        """The most of the newest looks; None: there was none since servers have come or gone."""
        return max((num_bytes for _, num_bytes in self.looks), default=None)


class _MachineMemory:
    """What is left of the machine's memory, for one job whose nodes are all on it."""

    def __init__(self, core: Core) -> None:
        self._tell = core.tell
        #: No node can be on another machine than this one.
        self._is_alone = core.spec.is_on_one_machine and core.spec.listen == LOOPBACK
        self._is_told = False

    @property
    def matters(self) -> bool:
        """Whether the servers are on this machine, and nobody has said that it will not do."""
        return self._is_alone and not self._is_told

    def judge(self, found: Sequence[MemoryForecast]) -> None:
        """Tell once that the machine has less than the servers will soon need."""
        left = memory_left()
        if sum(one.near_bytes - one.used_bytes for one in found) > left:
            self._is_told = True
            need = sum((one.end_bytes or one.near_bytes) - one.used_bytes for one in found)
            self._tell(MachineShortEvent(need_bytes=need, left_bytes=left))


class MemoryWatch:
    """What the nodes of one job use and will use of their memory.

    Args:
        core: of the master.
    """

    def __init__(self, core: Core) -> None:
        self._roster, self._monitor = core.roster, core.monitor
        self._nodes, self._tell, self._fail = core.nodes, core.tell, core.fail
        self._state = core.scene.state
        #: A resource policy looks ahead for it.
        self._is_planned = core.spec.resources.policy != "none"
        self._used: dict[str, _Used] = {}
        self._seen: dict[str, list[RowsSeen]] = {}
        self._looked_s = 0.0
        #: From when on servers have given back what a move took; None: it has just ended.
        self._freed_s: float | None = 0.0
        #: When how many samples were in the model, at the last two looks.
        self._progress = ((0.0, 0), (0.0, 0))
        self._short: set[tuple[str, int]] = set()
        #: By role and limit, what was computed to be needed and may not be given.
        self._unmet: dict[tuple[str, int], MemoryShortEvent] = {}
        self._machine = _MachineMemory(core)

    # ------------------------------------------------------------------ what is told

    def heartbeat(self, node: str, facts: NodeFacts, now_s: float) -> None:
        """An agent has said what its node uses."""
        if self._freed_s is None:
            self._freed_s = now_s + FREEING_S
            for each in self._used.values():
                each.looks.clear()
        if facts.memory_bytes and now_s >= self._freed_s:
            used = self._used.get(node)
            if used is None or used.inc != facts.inc:
                used = self._used[node] = _Used(facts.inc)
            has_rows = any(table.rows for table in self._monitor.tables.get(node, ()))
            used.add(facts.memory_bytes, now_s, has_rows=has_rows)

    def note(self, event: Event) -> None:
        """Take in the end of a life; one out of memory has the next life get twice as much.

        Where servers have come or gone, what the others used before says nothing any more.
        """
        if isinstance(event, ServersChangedEvent):
            self._freed_s = None
            self._unmet.clear()  # of another number of servers
        if not isinstance(event, ProcessExitedEvent):
            return
        self._used.pop(event.node, None)
        if event.verdict is Verdict.OOM:
            role = role_of(event.node)
            limit = self._nodes.limits(role).memory_bytes
            if limit is not None:
                self._raise(event.node, limit, 2 * limit, after_oom=True)
                if (unmet := self._unmet.get((role, limit))) is not None:
                    self._fail(f"{event.node} ran out of memory, as was foreseen: {unmet.clause}")

    # ------------------------------------------------------------------ looking ahead

    def tick(self, now_s: float) -> None:
        """Look at the tables, and ahead, if it is time to."""
        if now_s - self._looked_s < LOOK_S:
            return
        self._looked_s = now_s
        servers = {node.name for node in self._roster.of_role("server")}
        if self._held.keys() != servers:
            return  # one is coming or going: the others' rows are not all
        committed = count_committed(self._state)
        self._progress = (self._progress[1], (now_s, committed))
        self._look(committed)
        limit = self._nodes.limits("server").memory_bytes
        if limit is None:
            self._look_at_machine(committed)
            return
        if self._nodes.is_resizing or self._is_planned:
            return
        due = [one for one in self._forecasts(committed, limit) if one.is_due]
        if due:
            worst = max(due, key=lambda one: one.near_bytes)
            self._raise(worst.node, limit, worst.wanted_bytes, forecast_=worst)

    @property
    def _held(self) -> dict[str, tuple[TableHeld, ...]]:
        """What the tables of each server hold, where the server has said so."""
        servers = (node.name for node in self._roster.of_role("server"))
        found = self._monitor.tables
        return {name: found[name] for name in servers if name in found}

    def _look(self, committed: int) -> None:
        tables = [table for held in self._held.values() for table in held]
        for name in {table.table for table in tables}:
            rows = sum(table.rows for table in tables if table.table == name)
            seen = self._seen.setdefault(name, [])
            while seen and seen[-1].samples >= committed:
                seen.pop()  # the same again, or before a restore
            seen.append(RowsSeen(committed, rows))
            if len(seen) > KEPT:
                older = KEPT // 2
                seen[:older] = seen[:older:2]

    def _tables(self, committed: int) -> tuple[tuple[TableRows, ...], int | None]:
        """Return the tables that grow, and the last sample that can bring new rows, if known."""
        row_bytes = {table.table: table.row_bytes for held in self._held.values() for table in held}
        epoch = self._epoch_samples()
        # Later epochs bring the keys of the first one again. Growth in spite of that counts alone.
        since = 0 if epoch is None or committed < epoch else epoch
        seen = {
            name: tuple(one for one in self._seen.get(name, ()) if one.samples >= since)
            for name in sorted(row_bytes)
        }
        tables = tuple(
            TableRows(table=name, row_bytes=row_bytes[name], seen=looks)
            for name, looks in seen.items()
            if len(looks) > (1 if since else 0)
        )
        return tables, count_total(self._state) if since or epoch is None else epoch

    def completed(self, seen: ResourceObservation) -> ResourceObservation:
        """Add to what a resource policy sees what the tables hold and servers use."""
        tables, last = self._tables(seen.samples_done)
        nodes = [
            replace(node, used_bytes=used.most_bytes, base_bytes=used.base_bytes)
            if (used := self._used.get(node.node)) is not None
            else node
            for node in seen.nodes
        ]
        model = replace(seen.model, tables=tables, last_new=last)
        return replace(seen, model=model, nodes=tuple(nodes))

    def _forecasts(self, committed: int, limit: int) -> list[MemoryForecast]:
        tables, last = self._tables(committed)
        held = self._held
        ahead = JobAhead(
            done=committed,
            last=last,
            lead=LEAD_S * max(self._monitor.samples_per_s, self._rate()),
            servers=len(held),
            tables=tables,
        )
        return [
            forecast(
                ServerMemory(
                    node=node,
                    limit_bytes=limit,
                    used_bytes=most_bytes,
                    base_bytes=used.base_bytes,
                ),
                ahead,
            )
            for node in held
            if (used := self._used.get(node)) is not None
            and (most_bytes := used.most_bytes) is not None
        ]

    def _look_at_machine(self, committed: int) -> None:
        """Look ahead for servers that nothing limits but the machine."""
        if self._held and self._machine.matters:
            self._machine.judge(self._forecasts(committed, 0))

    def _rate(self) -> float:
        """Samples per second since the last look: the mean of ten seconds lags at a start."""
        (before_s, before), (now_s, now) = self._progress
        return (now - before) / (now_s - before_s) if now_s > before_s else 0.0

    def _epoch_samples(self) -> int | None:
        """Samples after which all keys have come; None: not known."""
        feeds = [feed for feed in self._state.ledger.feeds.values() if feed.purpose == "train"]
        return feeds[0].num_samples if len(feeds) == 1 else None

    # ------------------------------------------------------------------ more of it

    def _raise(
        self,
        node: str,
        limit: int,
        wanted: int,
        *,
        forecast_: MemoryForecast | None = None,
        after_oom: bool = False,
    ) -> None:
        """Give all nodes of a role more memory, as far as the spec allows; say so, or why not."""
        role = role_of(node)
        allowed = self._nodes.limits(role).max_memory_bytes
        most = allowed or limit
        more = min(-(-wanted // STEP_BYTES) * STEP_BYTES, most)
        used = self._used.get(node)
        told = {
            "node": node,
            "inc": used.inc if used is not None else NO_INC,
            "limit_bytes": limit,
            "need_bytes": wanted,
            "used_bytes": forecast_.used_bytes if forecast_ is not None else 0,
            "after_oom": after_oom,
        }
        why = ""
        if allowed and more <= limit:
            why = f"the spec allows no more: raise {role}s.max_memory, or use more {role}s"
        elif more > limit:
            try:
                self._nodes.resize(ResizeNodes(role=role, memory_bytes=more), by_itself=True)
            except ConfigError as error:
                why = str(error)
            else:
                self._tell(msgspec.convert({**told, "given_bytes": more}, MemoryRaisedEvent))
                return
        short = msgspec.convert({**told, "why": why}, MemoryShortEvent)
        if forecast_ is not None:
            self._unmet[role, limit] = short
        if (role, limit) not in self._short:
            self._short.add((role, limit))
            self._tell(short)

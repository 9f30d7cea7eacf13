"""Costs of starting a node, in five parts, measured at every start of this job.

Pure: facts and the clock come in. One start goes through

    since  the life before has ended, or the first launch was asked for
           | pending: the platform had no place; what the launch has waited
           | start:   agent and process come up, a wait between two tries included
    up     the process answers (a server: with its address)
           | rebuild: a worker's script builds its model; a server waits for the others
    built  the model is prepared (a server: it gets the order to load)
           | restore: a worker gets servers, work and rows; servers load their share
    works  a worker's first batch begins (within one report); all servers are restored

``redo`` is what was lost: of a worker the samples whose steps it had finished, and which did not
come into the model; of servers those that a restore took out of it.

Reference: AntDT, section V-E-2 (pending, initialisation, rebuilding, restoring, recomputation).
Differs: measured in the job itself; the first starts stand for restarts until one was measured.
"""

from collections import deque
from collections.abc import Container, Iterable

import msgspec

from paceline.base.jobdir import role_of
from paceline.base.numbering import NO_INC, Inc
from paceline.policy.observation import RESTART_PARTS, RestartCost
from paceline.protocol.records import Record
from paceline.wire.events.nodes import WorksEvent

REMEMBERED = 8
"""Starts per role and kind: costs are means over the newest."""


class StartMeasured(Record, frozen=True):
    """A node works; kept, so that the next master knows as much."""

    node: str
    inc: Inc
    cost: RestartCost
    first: bool = False
    """The node's first start: the prior."""
    launched: bool = False
    """Whether the platform gave the node its place, as after a KILL_RESTART."""
    replaces: str = ""
    """The server whose place it has taken."""
    cores: float | None = None
    """Cores with which the place was asked for; None: no quota, or an agent of before has not
    said."""

    @property
    def role(self) -> str:
        """``worker`` or ``server``."""
        return role_of(self.node)

    @property
    def event(self) -> WorksEvent:
        """Event that tells that the node works."""
        cost = self.cost
        return WorksEvent(
            node=self.node,
            inc=self.inc,
            pending_s=cost.pending_s,
            start_s=cost.start_s,
            rebuild_s=cost.rebuild_s,
            restore_s=cost.restore_s,
            redo_s=cost.redo_s,
        )


class _Start(msgspec.Struct):
    """A start under way."""

    since_s: float
    first: bool
    launched: bool = False
    asked_s: float | None = None
    """Time of the launch, until it has its place."""
    pending_s: float = 0.0
    cores: float | None = None
    up_s: float | None = None
    built_s: float | None = None
    redo_s: float = 0.0
    inc: Inc = NO_INC


class Restarts:
    """The starts of all nodes under way; the caller that counts lives knows which is ``first``."""

    def __init__(self) -> None:
        self._under_way: dict[str, _Start] = {}
        self._measured: dict[tuple[str, bool], deque[StartMeasured]] = {}
        self._fresh: list[StartMeasured] = []

    # ------------------------------------------------------------------ facts

    def ended(self, node: str, now_s: float) -> None:
        """A life of the node is over."""
        self._under_way[node] = _Start(since_s=now_s, first=False)

    def launched(self, node: str, now_s: float, *, first: bool) -> None:
        """The platform is asked for a place."""
        start = self._under_way.setdefault(node, _Start(since_s=now_s, first=first))
        start.launched, start.asked_s, start.pending_s = True, now_s, 0.0

    def placed(self, node: str, now_s: float) -> None:
        """The platform has a place for it."""
        start = self._under_way.get(node)
        if start is not None and start.asked_s is not None and start.up_s is None:
            start.pending_s, start.asked_s = now_s - start.asked_s, None

    def keep(self, nodes: Container[str]) -> None:
        """Forget all other nodes: a later node of the same name is another one."""
        self._under_way = {name: one for name, one in self._under_way.items() if name in nodes}

    def joined(self, node: str, cores: float | None = None) -> None:
        """The node's agent is there, at a place with so many cores."""
        start = self._under_way.get(node)
        if start is not None and start.launched and start.up_s is None:
            start.cores = cores

    def up(self, node: str, inc: Inc, now_s: float) -> None:
        """The process answers."""
        start = self._under_way.get(node)
        if start is not None and start.up_s is None:
            start.up_s, start.inc = now_s, inc

    def built(self, node: str, now_s: float) -> None:
        """Note that what the node needs is built; repeated messages change nothing."""
        start = self._under_way.get(node)
        if start is not None and start.up_s is not None and start.built_s is None:
            start.built_s = now_s

    def redone(self, node: str, redo_s: float) -> None:
        """Work of so long was lost with the life before."""
        start = self._under_way.get(node)
        if start is not None:
            start.redo_s = redo_s

    def works(self, node: str, since_s: float, *, replaces: str = "") -> None:
        """Note that a node does what it is there for: with that its start is measured.

        ``replaces``: the node whose place it has taken.
        """
        start = self._under_way.get(node)
        if start is None or start.up_s is None:
            return
        del self._under_way[node]
        built_s = start.up_s if start.built_s is None else start.built_s
        cost = RestartCost(
            pending_s=start.pending_s,
            start_s=max(0.0, start.up_s - start.since_s - start.pending_s),
            rebuild_s=built_s - start.up_s,
            restore_s=max(0.0, since_s - built_s),
            redo_s=start.redo_s,
        )
        self._fresh.append(
            StartMeasured(
                node=node,
                inc=start.inc,
                cost=cost,
                first=start.first and not replaces,
                launched=start.launched,
                replaces=replaces,
                cores=start.cores,
            )
        )

    def take_fresh(self) -> list[StartMeasured]:
        """Return what was measured since the last call, to be kept and applied."""
        fresh, self._fresh = self._fresh, []
        return fresh

    def apply(self, record: StartMeasured) -> None:
        """The only way that a measurement is added."""
        kind = (record.role, record.first)
        self._measured.setdefault(kind, deque(maxlen=REMEMBERED)).append(record)

    # ------------------------------------------------------------------ what is known

    def measured(self) -> Iterable[StartMeasured]:
        """The newest of each role and kind."""
        return (record for kept in self._measured.values() for record in kept)

    def waits_s(self) -> dict[float, list[float]]:
        """Return the seconds that newest launches waited for a place, by cores of their quota."""
        found: dict[float, list[float]] = {}
        for one in self.measured():
            if one.launched and one.cores is not None:
                found.setdefault(one.cores, []).append(one.cost.pending_s)
        return found

    def is_starting(self, node: str) -> bool:
        """Tell whether the node has ended, or never begun, and does not work yet."""
        return node in self._under_way

    def cost(self, role: str) -> RestartCost:
        """Return the cost of a KILL_RESTART: mean of the placed restarts, else of first starts.

        A server serves until its successor has its buckets: hardly anybody waits meanwhile. (The
        pause, hundredths of a second, is measured by ``experiments/benchmarks/server_replace.py``.)
        """
        stall_s = 0.0 if role == "server" else None
        again = [one.cost for one in self._measured.get((role, False), ()) if one.launched]
        known = again or [one.cost for one in self._measured.get((role, True), ())]
        if not known:
            return RestartCost(stall_s=stall_s)
        means = {
            part: sum(getattr(cost, part) for cost in known) / len(known) for part in RESTART_PARTS
        }
        return RestartCost(**means, stall_s=stall_s)


class LostWork:
    """Counts, per life, the samples that it had finished and that did not come into the model."""

    def __init__(self) -> None:
        self._granted: dict[Inc, int] = {}
        #: Handed to the loop of a life before the present epoch.
        self._before: dict[Inc, int] = {}

    def granted(self, inc: Inc, num_samples: int) -> None:
        """A lease to train on."""
        self._granted[inc] = self._granted.get(inc, 0) + num_samples

    def epoch(self, handed: dict[Inc, int]) -> None:
        """A restore: leases are void; ``handed``: samples of each life's loop so far."""
        self._granted.clear()
        self._before = handed

    def lost(self, inc: Inc, *, handed: int, returned: int) -> int:
        """The life has ended: its loop had ``handed`` samples, and ``returned`` went back."""
        in_model = self._granted.pop(inc, 0) - returned
        return max(0, handed - self._before.pop(inc, 0) - in_model)

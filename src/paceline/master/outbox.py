"""What a batch of facts has led to: records first, in one transaction, then everything else.

The machines' answers are collected here and carried out by `flush`, so nothing leaves the master
before the journal has what it depends on (docs/protocols/integrity.md, section 2).
"""

import contextlib
import logging
import math
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import msgspec

from paceline.base.jobdir import JobDir
from paceline.base.numbering import Inc
from paceline.base.record_log import JournalRefused
from paceline.jobs.jsonl import LineFile
from paceline.master.journal import Journal, JournalRecord
from paceline.master.ports import Backend
from paceline.protocol.nodes.membership import Membership
from paceline.protocol.nodes.stops import Stops
from paceline.wire.codec import encode
from paceline.wire.control import AgentStream
from paceline.wire.events.base import Event
from paceline.wire.events.job import DiskHealsEvent, DiskRefusesEvent
from paceline.wire.messages.agent import AgentDown, Leave, ToProcess
from paceline.wire.messages.group import Member, RunGroup
from paceline.wire.messages.node import NodeDown
from paceline.wire.places import AskedPlace

EVENTS_RESERVE_BYTES = 64 << 10
"""Room for what is said while the disk is full."""

_log = logging.getLogger(__name__)


class KeptElsewhere(Protocol):
    """Who keeps the journal on other machines as well, see `paceline.master.keeping`."""

    def added(self, records: list[JournalRecord], encoded: list[bytes]) -> None:
        """Take in that these were journalled here."""

    def compacted(self, encoded: list[bytes]) -> None:
        """Take in that these stand for all that was journalled."""

    def beat(self) -> None:
        """Say that the master lives, where that is due."""

    @property
    def written(self) -> int:
        """Number of the newest record."""

    @property
    def safe(self) -> int:
        """Number of the newest record that no other master can lack."""


class SharedOrders:
    """Orders to run, whose list of members is encoded once for all members that it goes to."""

    def __init__(self) -> None:
        self._members: tuple[Member, ...] = ()
        self._packed = encode(())

    def packed(self, order: RunGroup) -> RunGroup:
        """Return the order with its list of members as bytes, which encoding copies."""
        if order.members is not self._members:
            self._members, self._packed = order.members, encode(order.members)
        members: Any = msgspec.Raw(self._packed)
        return msgspec.structs.replace(order, members=members)


class Outbox:
    """Journal, agents' streams, backend and events of one job."""

    def __init__(
        self,
        job: JobDir,
        members: Membership,
        backend: Backend,
        wall_clock: Callable[[], float] = time.time,
        journal: Journal | None = None,
    ) -> None:
        self.journal = journal or Journal(job.journal)
        self.refused = ""
        """Why the journal takes no records now; nothing leaves meanwhile."""
        self._refused_s = -math.inf
        self._given_up = False
        self.streams: dict[str, AgentStream] = {}
        """The newest stream of each node's agent."""
        self.events = LineFile(job.events, EVENTS_RESERVE_BYTES)
        self.told: list[Event] = []
        """Events that features have not heard of yet."""
        self._members = members
        self._backend = backend
        self._wall_clock = wall_clock
        self._orders, self._stops = SharedOrders(), Stops()
        self.place_of: Callable[[str], AskedPlace] = lambda _: AskedPlace()
        """Function that tells what a node asks for now; `NodeSizes` sets it."""
        self._records: list[JournalRecord] = []
        self._acts: list[Callable[[], None]] = []
        self.kept: KeptElsewhere | None = None
        """None: the journal is on this machine alone."""
        #: Acts that wait until the record of this number is safe.
        self._waiting: deque[tuple[int, list[Callable[[], None]]]] = deque()

    def record(self, record: JournalRecord) -> None:
        """Journal this before anything of the batch leaves."""
        self._records.append(record)

    def later(self, act: Callable[[], None]) -> None:
        """Do this once the records are written."""
        self._acts.append(act)

    def tell(self, event: Event) -> None:
        """Add a line to the events file and to the log."""
        event = event.at(self._wall_clock())
        self.told.append(event)
        self.events.add(event.line())
        _log.info("%s node=%s inc=%d reason=%s", event.name, event.node, event.inc, event.clause)

    def to_process(self, inc: Inc, body: NodeDown) -> None:
        """Send to the training process of this incarnation; dropped if its agent is not there."""
        if not self._given_up:  # it might depend on what is not journalled
            self._acts.append(lambda: self._deliver(inc, body))

    def _deliver(self, inc: Inc, body: NodeDown) -> None:
        node = self._members.roster.node_of(inc)
        stream = self.streams.get(node.name) if node else None
        if stream is not None:
            body = self._orders.packed(body) if isinstance(body, RunGroup) else body
            stream.send_nowait(ToProcess(inc=inc, body=body))

    def to_agent(self, node: str, message: AgentDown) -> None:
        """Send to the node's agent; dropped if it is not there."""
        self._acts.append(lambda: self._send(node, message))

    def _send(self, node: str, message: AgentDown) -> None:
        if stream := self.streams.get(node):
            stream.send_nowait(message)

    def launch(self, node: str, *, may_move: bool) -> None:
        """Have the backend start an agent; ``may_move``: nothing of the node runs."""
        self._acts.append(lambda: self._launch(node, may_move=may_move))

    def _launch(self, node: str, *, may_move: bool) -> None:
        if self._stops.may_launch(node, may_move=may_move):
            token = secrets.token_hex(8)
            self._backend.launch(node, self.place_of(node), token, may_move=may_move)

    def stopped(self, node: str) -> None:
        """Nothing of a node runs any more: launch it if that has waited for this word."""
        may_move = self._stops.confirmed(node)
        if may_move is not None:
            self.launch(node, may_move=may_move)

    def launch_overdue(self) -> None:
        """Launch nodes whose stop nobody confirms."""
        for node, may_move in self._stops.overdue(time.monotonic()):
            _log.warning("stop_unconfirmed node=%s: it is launched all the same", node)
            self.launch(node, may_move=may_move)

    def vacate(self, node: str) -> None:
        """Have the backend give back the place of a node that has left."""
        self._acts.append(lambda: self._stop(node))

    def _stop(self, node: str) -> None:
        self._stops.ordered(node, time.monotonic())
        self._backend.stop(node)

    def retire(self, node: str, why: str = "") -> None:
        """Tell the node's agent to leave; one that cannot be told is ended by the backend."""
        self._acts.append(lambda: self._retire(node, why))

    def _retire(self, node: str, why: str) -> None:
        if stream := self.streams.get(node):
            stream.send_nowait(Leave(why=why))
        else:
            self._stop(node)

    def hang_up(self, node: str) -> None:
        """End the connection of the node's agent, if there is one."""
        self._acts.append(lambda: self._hang_up(node))

    def _hang_up(self, node: str) -> None:
        if stream := self.streams.get(node):
            stream.end()

    def beat(self) -> None:
        """Have those that keep the journal elsewhere know that the master lives."""
        if self.kept is not None:
            self.kept.beat()

    def flush(self) -> None:
        """Journal, then let everything out; nothing of it while the journal refuses a record.

        If the journal is kept on other machines, too, all waits until enough of them have it.
        """
        while True:
            if self._records or self._acts:
                if not self._are_journalled():
                    break
                number = 0 if self.kept is None else self.kept.written
                self._waiting.append((number, self._acts))
                self._acts = []
            if not self._waiting or not self._may_leave(self._waiting[0][0]):
                break
            for act in self._waiting.popleft()[1]:
                act()
        self.events.flush()

    def _may_leave(self, number: int) -> bool:
        return self._given_up or self.kept is None or number <= self.kept.safe

    def _are_journalled(self) -> bool:
        if not self._given_up:
            try:
                self._append()
            except JournalRefused as error:
                if not self.refused:
                    self.tell(DiskRefusesEvent(error=str(error), waits="journal"))
                self.refused, self._refused_s = str(error), time.monotonic()
                return False
        if self.refused and not self._given_up:
            self.tell(DiskHealsEvent(waited="journal", error=self.refused))
        self.refused = ""
        self._records.clear()
        return True

    def _append(self) -> None:
        if self.kept is None:
            self.journal.append(self._records)
        elif self._records:
            encoded = [encode(record) for record in self._records]
            self.journal.adopt(encoded)
            self.kept.added(self._records, encoded)

    def has_healed_within(self, for_s: float) -> bool:
        """Whether the journal has refused something in the last so many seconds.

        Nodes waited for the master then: what they say of that time is nobody's hang.
        """
        return time.monotonic() - self._refused_s < for_s

    @property
    def has_given_up(self) -> bool:
        """Whether nothing is journalled any more, since the job is about to end."""
        return self._given_up

    def give_up(self) -> None:
        """Journal nothing any more, and forget what waits for it: the job is about to end.

        It is as if the master had died when the journal refused the first record, and all others
        with it: the job goes on from what was journalled before.
        """
        self._given_up = True
        self._records.clear()
        self._acts.clear()
        self._waiting.clear()
        self.refused = ""

    def compact(self, records: Callable[[], Iterable[JournalRecord]]) -> None:
        """Put these in the place of all that is journalled, where there is room for them."""
        if not self.refused and not self._given_up:
            with contextlib.suppress(JournalRefused):
                self.journal.compact(records())
                if self.kept is not None:
                    self.kept.compacted(self.journal.encoded())

    def close(self, last: JournalRecord) -> None:
        """Journal the last record of an orderly end, and close."""
        if not self._given_up:
            with contextlib.suppress(JournalRefused):
                self.journal.append([*self._records, last])
        self.journal.close()

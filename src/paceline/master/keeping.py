"""The master's journal on other machines, so that one of them can start the next master.

Agents on other machines keep it, beside the master: two or four of them, each on a machine of its
own. `paceline.protocol.nodes.journal_lead` decides what may leave the master, and who has seats.
With one other machine, or where the model lies on the master's machine alone, so does the journal.
"""

import contextlib
import logging
import math
import socket
from collections.abc import Callable, Collection, Coroutine
from urllib.parse import urlsplit

import msgspec

from paceline.base.errors import PermanentError, TransientError
from paceline.base.jobdir import JobDir
from paceline.jobs.handed_on import first_term, read_term
from paceline.jobs.tickets import write_ticket
from paceline.master.journal import JournalRecord
from paceline.master.kept_records import JournalEnd, JournalTerm, SeatsSet
from paceline.master.parts import MasterParts, Times
from paceline.master.term import goes_on
from paceline.protocol.nodes.journal_lead import (
    MAX_OTHERS,
    JournalLead,
    SeatCandidate,
    choose_seats,
)
from paceline.wire.control import AgentStream
from paceline.wire.events.job import JournalKeptEvent
from paceline.wire.keepers import Keepers
from paceline.wire.messages.agent import AgentHello
from paceline.wire.messages.keeping import (
    JournalAdd,
    JournalCopy,
    JournalHeld,
    KeeperGround,
    KeeperLeaves,
    KeepersAre,
    KeepingUp,
    MasterIs,
    Seat,
    Seats,
)
from paceline.wire.spec import JobSpec

BEAT_S = 0.5
"""Seconds between two words to keepers."""
AWAY_S = 1.5
"""Seconds for which the stream of a keeper may be gone until another one gets its seat."""
QUIET_S = 5.0
"""Seconds after which a keeper that answers nothing loses its seat; until then the others are a
majority."""
CLOSE = 200
"""Records that an agent may be behind when it gets a seat."""
PART_BYTES = 256 << 10
"""Size of a part of a copy."""
STANDS_S = 1.0
"""Seconds without an answer of enough keepers after which the master does nothing more."""
ASK_S = 1.0
"""Seconds between two questions of a master that stands still, whether there is a later one."""

_log = logging.getLogger(__name__)


class _Agent(msgspec.Struct):
    """An agent that may keep the journal."""

    node: str
    machine: str
    host: str
    seat: str
    stream: AgentStream
    copied: bool = False
    """Whether a copy was begun on this stream."""
    address: str = ""
    """Where it can be asked; empty: it has not answered so far."""
    heard_s: float = -math.inf
    gone_s: float | None = None
    """Since when its stream has ended; None: it has not."""


def why_alone(spec: JobSpec) -> str:
    """Why the journal of a job cannot be kept elsewhere; empty: it can."""
    if spec.backend != "local":
        return f"with the backend {spec.backend} no other machine can start the next master"
    if spec.traits.holder != "replicas":
        return f"with strategy {spec.strategy} no other machine holds the whole model"
    return ""


class Keeping:
    """Who keeps the journal of one job.

    Args:
        parts: of the master.
        times: its clocks.
        spawn: runs a question beside the master's task.
    """

    def __init__(
        self,
        parts: MasterParts,
        times: Times,
        spawn: Callable[[Coroutine[None, None, None]], None],
    ) -> None:
        self._job, self._spec, self._outbox = parts.job, parts.spec, parts.outbox
        self._times, self._spawn = times, spawn
        self._why = why_alone(parts.spec)
        self._end = JournalEnd()
        self._lead: JournalLead | None = None
        self._agents: dict[str, _Agent] = {}
        """Those that may keep the journal, by node."""
        self._streams: dict[str, AgentStream] = {}
        """Streams of all agents on joined machines, by node."""
        self._beside: set[str] = set()
        """Nodes that have joined from this machine."""
        self._machines: set[str] = set()
        """Other machines from which agents have come, as far as they could keep the journal."""
        self._told_alone = False
        self._told: tuple[str, ...] | None = None
        """Machines of which was last told that they keep it; None: nothing was told."""
        self._in_ticket: tuple[str, ...] | None = None
        """Addresses of keepers that the ticket has; None: it was not written here."""
        self._beaten_s = self._asked_s = -math.inf
        self._safe_s: float | None = None
        """Since when something has waited to be safe; None: nothing does."""
        self._later: MasterIs | None = None
        self._newer = 0

    # ------------------------------------------------------------------ the journal

    def apply(self, record: JournalRecord) -> None:
        """Take in the next record of what former masters have journalled."""
        self._end.apply(record)

    def begin(self) -> None:
        """Go on as the master of its term, if the journal was kept elsewhere before."""
        known = read_term(self._job)
        if known is not None:
            self._lead_from(known.seat)

    def _lead_from(self, seat: str) -> None:
        seats = self._end.seats
        if seat not in seats:
            seats = Seats(now=(self._own(seat),))
        self._lead = JournalLead(seat, self._end.place, seats)
        self._outbox.kept = self

    def _own(self, seat: str) -> Seat:
        return Seat(seat, socket.gethostname())

    @property
    def written(self) -> int:
        """Number of the newest record of this term."""
        return self._lead.place.index if self._lead is not None else 0

    @property
    def safe(self) -> int:
        """Number of the newest record of this term that no later master can lack."""
        return self._lead.safe if self._lead is not None else 0

    def added(self, records: list[JournalRecord], encoded: list[bytes]) -> None:
        """Send what was journalled here to all that keep the journal."""
        lead = self._lead
        if lead is None:
            return
        seats = next((one.seats for one in reversed(records) if isinstance(one, SeatsSet)), None)
        after = lead.place
        lead.add(len(records), seats)
        add = JournalAdd(after=after, leader=lead.seat, records=tuple(encoded), seats=seats)
        for agent in self._copied():
            agent.stream.send_nowait(add)

    def compacted(self, encoded: list[bytes]) -> None:
        """Send what stands for the journal now."""
        for agent in self._copied():
            self._send_copy(agent, encoded)

    def records(self) -> list[JournalRecord]:
        """Return what a snapshot of the journal ends with."""
        if self._lead is None:
            return []
        place = self._lead.place
        return [SeatsSet(seats=self._lead.seats), JournalTerm(term=place.term, index=place.index)]

    def _copied(self) -> list[_Agent]:
        return [one for one in self._agents.values() if one.copied and one.gone_s is None]

    def _send_copy(self, agent: _Agent, encoded: list[bytes]) -> None:
        lead = self._lead
        if lead is None:
            return
        agent.copied = True
        parts: list[list[bytes]] = [[]]
        size = 0
        for record in encoded:
            if size > PART_BYTES:
                parts.append([])
                size = 0
            parts[-1].append(record)
            size += len(record)
        for number, part in enumerate(parts):
            copy = JournalCopy(
                place=lead.place,
                seats=lead.seats,
                leader=lead.seat,
                records=tuple(part),
                part=number,
                is_last=number == len(parts) - 1,
                ground=self._ground() if number == 0 else None,
            )
            agent.stream.send_nowait(copy)

    def _ground(self) -> KeeperGround:
        def read(job: JobDir) -> tuple[bytes, bytes]:
            if self._spec.control_plane.encryption != "tls":
                return b"", b""
            return job.master_identity.read_bytes(), job.authority_key.read_bytes()

        identity, key = read(self._job)
        holder, life = b"", ""
        with contextlib.suppress(FileNotFoundError):
            holder = self._job.url_holder.read_bytes()
        with contextlib.suppress(FileNotFoundError):
            life = self._job.life_address.read_text().strip()
        return KeeperGround(
            job_id=self._job.job_id,
            launched_s=self._job.launched_s(),
            identity=identity,
            authority_key=key,
            host=socket.gethostname(),
            life=life,
            url_holder=holder,
        )

    # ------------------------------------------------------------------ agents

    def hello(self, stream: AgentStream, hello: AgentHello) -> None:
        """An agent is there."""
        machine = urlsplit(hello.machine).hostname or ""
        if not machine:
            return
        self._streams[hello.node] = stream
        if machine == self._spec.listen:
            self._beside.add(hello.node)
            self._tell_agents()
            return
        self._beside.discard(hello.node)
        self._tell_agents(stream)
        self._machines.add(machine)
        if not hello.may_keep or self._why:
            return
        before = self._agents.get(hello.node)
        agent = _Agent(hello.node, machine, hello.host, hello.agent, stream)
        if before is not None and before.seat == agent.seat:
            agent.address = before.address
        agent.heard_s = self._times.steady()
        self._agents[hello.node] = agent
        if self._lead is not None and agent.seat in self._lead.seats:
            self._send_copy(agent, self._outbox.journal.encoded())

    def _tell_agents(self, only: AgentStream | None = None, seats: Seats | None = None) -> None:
        """Tell agents on joined machines whom to ask, once this master is gone."""
        if self._lead is None:
            return
        told = KeepersAre(seats=seats or self._lead.seats, beside=tuple(sorted(self._beside)))
        for stream in self._streams.values() if only is None else (only,):
            stream.send_nowait(told)

    def gone(self, node: str) -> None:
        """The stream of a node's agent has ended."""
        self._streams.pop(node, None)
        if agent := self._agents.get(node):
            agent.gone_s = self._times.steady()

    def heard(self, message: KeepingUp) -> None:
        """Take in what a keeper holds, or that it leaves."""
        agent, lead = self._agents.get(message.node), self._lead
        if agent is None or lead is None:
            return
        agent.heard_s = self._times.steady()
        match message:
            case JournalHeld():
                agent.address = message.address
                if message.term > lead.place.term:
                    self._newer = max(self._newer, message.term)
                lead.held(agent.seat, message.place)
            case KeeperLeaves():
                lead.left(agent.seat, message.term)

    # ------------------------------------------------------------------ the clock

    @property
    def stands(self) -> bool:
        """Whether the master does nothing for now, since too few keepers have answered lately."""
        since_s = self._safe_s
        if self._outbox.has_given_up:
            return False
        return since_s is not None and self._times.steady() - since_s > STANDS_S

    @property
    def waits_for(self) -> str:
        """For whom a master waits that stands still."""
        lead = self._lead
        if lead is None or not self.stands:
            return ""
        hosts = " or ".join(seat.host for seat in lead.seats.others(lead.seat))
        return f"an answer of {hosts}, which keep the job's journal"

    @property
    def notes(self) -> tuple[str, ...]:
        """Say for people what the loss of this machine would mean; nothing if there is no other."""
        if not self._told_alone and self._told is None:
            return ()
        return (JournalKeptEvent(hosts=self.hosts, why=self._alone()).clause,)

    def _alone(self) -> str:
        few = "only with two other machines it can go on without any one of them"
        taken = (
            "other machines have the job's directory already, as on a shared PACELINE_HOME, so "
            "none of them can start the next master"
        )
        return self._why or (taken if len(self._machines) > 1 and not self._agents else few)

    @property
    def hosts(self) -> tuple[str, ...]:
        """Machines that keep the journal; empty: this one alone does."""
        return self._told or ()

    def tick(self, whole_at: Collection[str]) -> None:
        """Beat; give seats to those that should have them.

        Args:
            whole_at: nodes that hold the whole model: others could not go on with it.

        Raises:
            PermanentError: the job goes on with a later master.
            TransientError: there is a newer term: another master must be elected, maybe this one.
        """
        now_s = self._times.steady()
        self._begin_if_due(whole_at)
        lead = self._lead
        if lead is None:
            return
        if self._later is not None:
            raise PermanentError(goes_on(self._job, self._later))
        if self._newer > lead.place.term:
            raise TransientError(f"term {self._newer} has begun: this master was not heard")
        if lead.is_safe:
            self._safe_s = None
        elif self._safe_s is None:
            self._safe_s = now_s
        self.beat()
        if self.stands and now_s - self._asked_s >= ASK_S:
            self._asked_s = now_s
            self._spawn(self._ask_master(lead))
        self._seat(lead, whole_at, now_s)

    def beat(self) -> None:
        """Say that the master lives; also while its disk refuses the journal."""
        lead, now_s = self._lead, self._times.steady()
        if lead is not None and now_s - self._beaten_s >= BEAT_S:
            self._beaten_s = now_s
            beat = JournalAdd(after=lead.place, leader=lead.seat)
            for agent in self._copied():
                agent.stream.send_nowait(beat)

    async def _ask_master(self, lead: JournalLead) -> None:
        keepers = Keepers(self._job.secret(), self._job.authority_pem())
        found = await keepers.master(lead.seats.others(lead.seat))
        if found is not None and found.term > lead.place.term:
            self._later = found

    def _begin_if_due(self, whole_at: Collection[str]) -> None:
        """Begin when there are two other machines; say once what it means if there is one."""
        if self._machines and not self._told_alone and self._lead is None:
            self._told_alone = True
            self._outbox.tell(JournalKeptEvent(hosts=(), why=self._alone()))
        there = [one for one in self._agents.values() if one.gone_s is None]
        machines = {one.machine for one in there if one.node in whole_at}
        if self._lead is None and len(machines) > 1:
            fresh = first_term(self._job, self._end.place.term)
            # With the seats: a master that is started again would not know whose votes it needs.
            begun = (
                SeatsSet(seats=Seats(now=(self._own(fresh.seat),))),
                JournalTerm(term=fresh.term),
            )
            for record in begun:
                self._outbox.record(record)
            self._outbox.flush()
            if not self._outbox.refused:
                for record in begun:
                    self._end.apply(record)
                self._told = ()
                self._lead_from(fresh.seat)

    def _seat(self, lead: JournalLead, whole_at: Collection[str], now_s: float) -> None:
        for node, agent in list(self._agents.items()):
            if agent.gone_s is not None and now_s - agent.gone_s > AWAY_S:
                del self._agents[node]
        self._copy_to_some(lead)
        candidates = [
            SeatCandidate(Seat(one.seat, one.host, one.address), one.machine)
            for one in self._agents.values()
            if one.address
            and now_s - one.heard_s < QUIET_S
            and (
                one.seat in lead.seats or (one.node in whole_at and lead.is_close(one.seat, CLOSE))
            )
        ]
        wanted = choose_seats(self._own(lead.seat), lead.seats, candidates)
        fresh = lead.next_seats(wanted)
        if fresh is not None:
            self._outbox.record(SeatsSet(seats=fresh))
            self._tell_agents(seats=fresh)
        elif not lead.seats.before and lead.is_safe:
            self._tell_hosts(lead)

    def _tell_hosts(self, lead: JournalLead) -> None:
        """Tell who keeps the journal, once that is certain."""
        hosts = tuple(seat.host for seat in lead.seats.now)
        hosts = hosts if len(hosts) > 1 else ()
        others = tuple(seat.address for seat in lead.seats.others(lead.seat))
        if self._in_ticket != others:
            self._in_ticket = others
            with contextlib.suppress(OSError):  # the one that is there names the master
                write_ticket(self._job, others)
        if self._told != hosts:
            self._told = hosts
            why = "" if self._told else self._alone()
            self._outbox.tell(JournalKeptEvent(hosts=self._told, why=why))

    def _copy_to_some(self, lead: JournalLead) -> None:
        """Begin a copy at one agent of each of some machines."""
        machines = {one.machine for one in self._agents.values() if one.copied}
        for agent in self._agents.values():
            full = len(machines) >= MAX_OTHERS
            if not full and agent.gone_s is None and agent.machine not in machines:
                machines.add(agent.machine)
                self._send_copy(agent, self._outbox.journal.encoded())

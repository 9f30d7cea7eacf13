"""One worker of servers as a pure state machine: its leases, its contributions, its pulls.

Events are messages and the training loop's own acts (`offer`, `start_pull`); every method returns
the messages to send. Leases are the part of `StepLeases`, which the edge uses directly. Gradients
never come here: the edge (`client.py`) keeps them under the contribution's seq until all servers
hold them.

The protocol is that of docs/protocols/integrity.md, sections 2 and 3. The explorer in
``tests/model`` drives this very class.
"""

import msgspec

from paceline.base.numbering import START, EpochNo, Inc, StepNo, step_after
from paceline.base.samples import Span, num_samples
from paceline.protocol.holding.servers.worker_acts import (
    ConnectServer,
    DropWork,
    EndProcess,
    Instruction,
    OfferAgain,
    PullDone,
    Remapped,
    ToMaster,
    ToServer,
    Withdraw,
)
from paceline.protocol.samples.step_leases import StepLeases
from paceline.wire.messages.base import ServerMap
from paceline.wire.messages.data import (
    BARE,
    Also,
    AskMap,
    Held,
    MapIs,
    Ordered,
    Part,
    Pull,
    Pulled,
    Ready,
    Refused,
)
from paceline.wire.messages.feeds import Rate, Slice, feed_of
from paceline.wire.messages.node import Grant, NewEpoch, NewMap, NewRate


class Offer(msgspec.Struct):
    """A contribution that is not known to be in the order."""

    part: Part
    not_held_by: set[Inc]
    ready_sent: bool = False


class WorkerState:
    """The protocol state of one worker incarnation."""

    def __init__(self, inc: Inc, *, mode: str, samples: str, window: int = 2) -> None:
        self.inc = inc
        self.synchronous = mode == "bsp"
        self.bounded = mode == "ssp"
        self.exactly_once = samples == "exactly-once"
        #: Contributions that may be unready at a time.
        self.window = window
        self.leases = StepLeases(inc, synchronous=self.synchronous)
        self.map: ServerMap | None = None
        #: Incarnations of the map's servers, the leader first; of those that answer pulls.
        self.servers: list[Inc] = []
        self.owners: tuple[Inc, ...] = ()
        #: By bucket, who answers for it.
        self.ownership: tuple[Inc, ...] = ()
        self._reset()

    def _reset(self) -> None:
        self.next_seq = 1
        self.offers: dict[int, Offer] = {}
        #: On the learning rate of our contributions.
        self.rate = Rate()
        self.watching: Pull | None = None
        self.ticket = 0
        self.pulling: Pull | None = None
        #: SSP: the leader is not to wait for us.
        self.resting = False
        self.answers: dict[Inc, Pulled] = {}
        #: At-least-once: what each server has applied of this worker, contiguously.
        self.applied_by: dict[Inc, int] = {}

    @property
    def epoch_no(self) -> EpochNo:
        """The epoch that leases and contributions are of; 0: none yet."""
        return self.leases.epoch_no

    # ------------------------------------------------------------------ from the master

    def new_epoch(self, message: NewEpoch) -> list[Instruction]:
        """Drop everything; the same epoch again changes nothing."""
        if message.epoch_no <= self.epoch_no:
            return []
        self._reset()
        self._set_map(message.map)
        asked = self.leases.begin(message.epoch_no, message.step)
        return [DropWork(), *map(ToMaster, asked)]

    def _set_map(self, server_map: ServerMap) -> None:
        self.map = server_map
        self.servers = [server.inc for server in server_map.servers]
        self.owners, self.ownership = server_map.sharers, server_map.ownership
        self.leases.map_version = server_map.version

    def grant(self, message: Grant) -> list[Instruction]:
        """Take the answer to the open request, once."""
        if self.leases.grant(message):
            self._take_rate(message.rate)
        return []

    def new_rate(self, message: NewRate) -> list[Instruction]:
        """ADJUST_LR, from the next contribution on."""
        if message.epoch_no == self.epoch_no:
            self._take_rate(message.rate)
        return []

    def _take_rate(self, rate: Rate) -> None:
        if rate.plan > self.rate.plan:
            self.rate = rate

    # ------------------------------------------------------------------ work

    def may_offer(self) -> bool:
        """Whether fewer than ``window`` contributions are unready.

        BSP: those that all servers hold wait for the others' share, which may be granted to us.
        """
        if self.synchronous:
            held = sum(not offer.not_held_by for offer in self.offers.values())
            return len(self.offers) - held < self.window
        unready = 0
        for offer in reversed(self.offers.values()):
            if offer.ready_sent:  # and so all before it are
                break
            unready += 1
        return unready < self.window

    def offer(self, spans: tuple[Span, ...], rates: tuple[float, ...] = (), seen: int = -1) -> Part:
        """Number a computed contribution; the edge cuts its gradients to the servers.

        ``seen``: contributions in the model that it was computed on, as the leader said.
        """
        step, whole = self.leases.place_of(feed_of(spans[0].line))
        part = Part(
            epoch_no=self.epoch_no,
            inc=self.inc,
            seq=0,
            map_version=0,
            spans=spans,
            weight=num_samples(spans),
            step=step,
            slice=whole,
            rates=rates,
            factor=self.rate.factor,
            seen=seen if self.rate.by_staleness else -1,
        )
        self.leases.offered(spans)
        return self._number(part)

    def _number(self, part: Part) -> Part:
        """The next seq, under the present map."""
        version = self.map.version if self.map else 0
        part = msgspec.structs.replace(part, seq=self.next_seq, map_version=version)
        self.next_seq += 1
        self.offers[part.seq] = Offer(part, set(self.servers))
        return part

    # ------------------------------------------------------------------ from the servers

    def held(self, message: Held) -> list[Instruction]:
        """A server holds a part (unordered modes: has applied everything up to it)."""
        if message.epoch_no != self.epoch_no:
            return []
        if not self.exactly_once:
            return self._applied(message.server, message.seq)
        offer = self.offers.get(message.seq)
        if offer is None:
            return []
        offer.not_held_by.discard(message.server)
        return self._ready()

    def _ready(self) -> list[Instruction]:
        """Say `ready` up to the last contribution before which all are held by all."""
        newest: Offer | None = None
        for offer in self.offers.values():
            if offer.not_held_by:
                break
            newest = offer
        if newest is None or newest.ready_sent:
            return []
        newest.ready_sent = True
        return [self._ready_message(newest)]

    def _ready_message(self, offer: Offer) -> ToServer:
        part = offer.part
        ready = Ready(
            epoch_no=self.epoch_no,
            inc=self.inc,
            seq=part.seq,
            map_version=part.map_version,
            first=min(self.offers),
            step=part.step,
        )
        return ToServer(self.servers[0], ready)

    def ordered(self, message: Ordered) -> list[Instruction]:
        """The leader's word: everything up to seq is in the model or will be."""
        if message.epoch_no == self.epoch_no:
            for seq in [seq for seq in self.offers if seq <= message.seq]:
                del self.offers[seq]
        return []

    def _applied(self, server: Inc, seq: int) -> list[Instruction]:
        self.applied_by[server] = max(seq, self.applied_by.get(server, 0))
        everywhere = min(self.applied_by.get(inc, 0) for inc in self.servers)
        for done in [s for s in self.offers if s <= everywhere]:
            self.leases.handled.update(self.offers.pop(done).part.spans)
        return []

    def refused(self, message: Refused) -> list[Instruction]:
        """Old and early messages are repeated later; a fence is final."""
        fenced = message.fenced and message.epoch_no == self.epoch_no
        return [EndProcess()] if fenced else []

    # ------------------------------------------------------------------ the map

    def new_map(self, message: NewMap) -> list[Instruction]:
        """The master's hint that the map has changed."""
        return self._ask_leader(message.map) if message.epoch_no == self.epoch_no else []

    def _ask_leader(self, newer: ServerMap) -> list[Instruction]:
        if self.map is None or newer.version <= self.map.version:
            return []
        leader = newer.servers[0]
        return [
            ConnectServer(leader),
            ToServer(leader.inc, AskMap(epoch_no=self.epoch_no, inc=self.inc)),
        ]

    def map_is(self, message: MapIs) -> list[Instruction]:
        """The map, of which only the leader's word counts: what it never will order is known to it.

        See docs/protocols/integrity.md, section 3 ("refused, once per move").
        """
        if message.epoch_no != self.epoch_no or self.map is None:
            return []
        if not message.leads:
            return self._ask_leader(message.map)
        if message.map.version < self.map.version:
            return []
        done: list[Instruction] = []
        if message.map.version > self.map.version:
            done = self._change_map(message.map)
        for seq in [seq for seq in self.offers if seq <= message.seq]:
            del self.offers[seq]
        return [*done, *self._offer_again(message.barrier), *self._ready()]

    def _change_map(self, server_map: ServerMap) -> list[Instruction]:
        pulled_from, leader = self.ownership, self.servers[0]
        self._set_map(server_map)
        for offer in self.offers.values():
            offer.not_held_by &= set(self.servers)
            offer.ready_sent &= leader == self.servers[0]
        if self.pulling is None:
            watch = self.watching if leader != self.servers[0] else None  # it reads no tensors
            return [Remapped(None), *([ToServer(self.servers[0], watch)] if watch else [])]
        if self.ownership == pulled_from:
            return [Remapped(None)]
        self.ticket += 1
        self.answers = {}
        self.pulling = msgspec.structs.replace(
            self.pulling, ticket=self.ticket, map_version=server_map.version
        )
        return [Remapped(self.pulling)]

    def _offer_again(self, barrier: int) -> list[Instruction]:
        done: list[Instruction] = []
        for seq, offer in list(self.offers.items()):
            if offer.part.map_version < barrier:
                del self.offers[seq]
                part = self._number(offer.part)
                done.append(OfferAgain(seq, part))
        return done

    # ------------------------------------------------------------------ pulls

    def start_pull(
        self, tables: tuple[int, ...] = (), also: Also = BARE, *, dense: bool = True, ahead: int = 0
    ) -> list[Instruction]:
        """Ask all servers for parameters (see `Pull`); one pull is open at a time.

        BSP: of step ``leases.step + ahead`` or later. SSP: with ``ahead`` 1 it is for the next one.
        """
        self.ticket += 1
        self.answers, self.watching = {}, None
        self.resting = False
        self.pulling = Pull(
            epoch_no=self.epoch_no,
            inc=self.inc,
            ticket=self.ticket,
            min_step=step_after(self.leases.step, ahead) if self.synchronous else START,
            clock=self.next_seq - 1 + ahead if self.bounded else -1,
            feed=self.leases.in_training,
            tables=tables,
            dense=dense,
            also=also,
            map_version=self.leases.map_version,
        )
        return [ToServer(server, self.pulling) for server in self.owners]

    def watch(self) -> list[Instruction]:
        """BSP: while we compute for a step that may be decided without us, look out for that."""
        if self.pulling or self.watching or not self.leases.may_be_left_out:
            return []
        self.ticket += 1
        self.watching = Pull(
            epoch_no=self.epoch_no,
            inc=self.inc,
            ticket=self.ticket,
            min_step=step_after(self.leases.step),
            dense=False,
        )
        return [ToServer(self.servers[0], self.watching)]

    def rest(self) -> list[Instruction]:
        """SSP: nothing to compute, until the next pull; nobody needs to wait for this worker."""
        if self.resting or not self.bounded or self.map is None:
            return []
        self.ticket += 1
        self.pulling, self.resting = None, True
        return [self._idle()]

    def _idle(self) -> ToServer:
        idle = Pull(epoch_no=self.epoch_no, inc=self.inc, ticket=self.ticket, dense=False)
        return ToServer(self.servers[0], idle)

    def pulled(self, message: Pulled) -> list[Instruction]:
        """Collect answers; those of an older step than the newest (BSP) are asked for again."""
        pull = self.pulling
        if message.epoch_no != self.epoch_no:
            return []
        done = [] if self.exactly_once else self._applied(message.server, message.last_seq)
        if self.watching is not None and message.ticket == self.watching.ticket:
            self.watching, self.leases.passed = None, message.step
        if pull is None or message.ticket != pull.ticket:
            return done
        self.answers[message.server] = message
        if len(self.answers) < len(self.owners):
            return done
        newest = max(answer.step for answer in self.answers.values())
        behind = [s for s, answer in self.answers.items() if answer.step < newest]
        if self.synchronous and behind:
            self.pulling = msgspec.structs.replace(pull, min_step=newest)
            for server in behind:
                del self.answers[server]
            return [ToServer(server, self.pulling) for server in behind]
        self.pulling = None
        if self.synchronous:
            whole = message.slice if pull.feed == self.leases.in_training else None
            done += self._advance(newest, whole, message.last_seq)
        return [*done, PullDone(pull.ticket)]

    def _advance(self, step: StepNo, whole: Slice | None, last_seq: int) -> list[Instruction]:
        """All steps up to this one are decided: give back what they have left out of ours.

        Args:
            step: of which all servers have the parameters.
            whole: what the next one consists of.
            last_seq: the last of our contributions that is in one of them.
        """
        decided = [seq for seq, offer in self.offers.items() if offer.part.step <= step]
        parts = [self.offers.pop(seq).part for seq in decided]
        left = [span for part in parts if part.seq > last_seq for span in part.spans]
        withdraws = step > self.leases.step and bool(self.leases.taken)
        done: list[Instruction] = [Withdraw()] if withdraws else []
        return [*done, *map(ToMaster, self.leases.advance(step, whole, left))]

    # ------------------------------------------------------------------ loss

    def resend(self) -> list[Instruction]:
        """Everything that is unanswered, once more; leases first (see `Leases.resend`)."""
        again: list[Instruction] = [*map(ToMaster, self.leases.resend())]
        behind = self.applied_by.get
        for seq, offer in self.offers.items():
            again += [
                ToServer(server, offer.part)
                for server in sorted(offer.not_held_by)
                if self.exactly_once or behind(server, 0) < seq
            ]
        ready = [offer for offer in self.offers.values() if offer.ready_sent]
        if ready:
            again.append(self._ready_message(ready[-1]))
        if self.pulling is not None:
            missing = [s for s in self.owners if s not in self.answers]
            again += [ToServer(server, self.pulling) for server in missing]
        elif self.resting:
            again.append(self._idle())
        elif self.watching is not None:
            again.append(ToServer(self.servers[0], self.watching))
        return again

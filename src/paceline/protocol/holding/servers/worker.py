"""One worker as a pure state machine: its lease, its contributions, its pulls.

Events are messages and the training loop's own acts (`take`, `offer`, `start_pull`); every method
returns the messages to send. Gradients never come here: the edge (`client.py`) keeps them under
the contribution's seq until all servers hold them.

The protocol is that of docs/protocols/integrity.md, sections 2 and 3. The explorer in
``tests/model`` drives this very class.
"""

import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from paceline.base.samples import SampleSet, Span, between
from paceline.wire.messages.base import Server, ServerMap
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
from paceline.wire.messages.feeds import Batching, Feed, Rate, Slice, SourceLine, feed_of
from paceline.wire.messages.node import (
    FeedOpened,
    GiveBack,
    GivenBack,
    Grant,
    LeaseRequest,
    NewEpoch,
    NewMap,
    NewRate,
    NodeUp,
    Recall,
)

NOTHING: Mapping[str, int] = {}


class ToServer(msgspec.Struct, frozen=True):
    """Send to a server, named by its incarnation; the edge adds the tensors."""

    server: int
    message: Part | Ready | Pull | AskMap


class ToMaster(msgspec.Struct, frozen=True):
    """Send to the master."""

    message: NodeUp


class PullDone(msgspec.Struct, frozen=True):
    """All servers have answered the pull, at one step."""

    ticket: int


class DropWork(msgspec.Struct, frozen=True):
    """A new epoch: leases and contributions are void, gradients can go."""


class Withdraw(msgspec.Struct, frozen=True):
    """What was taken and not offered is of a step that was decided without it: drop it."""


class Leave(msgspec.Struct, frozen=True):
    """This incarnation is fenced: nothing of it counts any more. End the process."""


class Meet(msgspec.Struct, frozen=True):
    """Connect to this server, if there is no connection yet."""

    server: Server


class Remapped(msgspec.Struct, frozen=True):
    """The map is another one: meet its servers, leave the others, cut tensors by it."""

    pull: Pull | None
    """The one that was under way, under a new ticket: send it to all owners."""


class OfferAgain(msgspec.Struct, frozen=True):
    """The contribution ``seq`` is void; the same gradients are offered as ``part`` to all."""

    seq: int
    part: Part


Instruction = (
    ToServer | ToMaster | PullDone | DropWork | Withdraw | Leave | Meet | Remapped | OfferAgain
)


class Offer(msgspec.Struct):
    """A contribution that is not known to be in the order."""

    part: Part
    not_held_by: set[int]
    ready_sent: bool = False


class WorkerState:
    """The protocol state of one worker incarnation."""

    def __init__(self, inc: int, *, mode: str, samples: str, window: int = 2) -> None:
        self.inc = inc
        self.synchronous = mode == "bsp"
        self.bounded = mode == "ssp"
        self.exactly_once = samples == "exactly-once"
        #: Contributions that may be unready at a time.
        self.window = window
        self.feeds: dict[int, Feed] = {}
        #: Feeds of unknown length: what each line is at its source.
        self.lines: dict[int, SourceLine] = {}
        #: Feed -> partition -> how far the master is known to know that it reaches.
        self.told: dict[int, dict[str, int]] = {}
        self.map: ServerMap | None = None
        #: Incarnations of the map's servers, the leader first; of those that answer pulls.
        self.servers: list[int] = []
        self.owners: tuple[int, ...] = ()
        self.epoch_no = 0
        self._reset()

    def _reset(self) -> None:
        #: BSP: the step whose parameters the last pull brought.
        self.step = 0
        #: BSP: what the step after it consists of, as servers say; None: they were not asked yet.
        self.slice: Slice | None = None
        self.next_seq = 1
        self.offers: dict[int, Offer] = {}
        #: Granted and not taken, per feed, in the order of the grants.
        self.lease: dict[int, deque[Span]] = {}
        #: BSP: taken for the undecided step and not offered.
        self.taken = SampleSet()
        #: BSP: how to compute what is held, by position.
        self.batching: tuple[Batching, ...] = ()
        #: BSP: the newest step that the leader has said to be decided, while we compute for it.
        self.passed = 0
        #: On the learning rate of our contributions.
        self.rate = Rate()
        self.watching: Pull | None = None
        self.last_n = 0
        self.request: LeaseRequest | None = None
        #: The ends that every version of the open request holds.
        self.telling: tuple[tuple[str, int], ...] = ()
        self.ended: set[int] = set()
        #: Forgotten, and not known to be journalled, by number.
        self.giving_back: dict[int, tuple[Span, ...]] = {}
        self.last_r = 0
        self.ticket = 0
        self.pulling: Pull | None = None
        #: SSP: the leader is not to wait for us.
        self.resting = False
        self.answers: dict[int, Pulled] = {}
        #: At-least-once: what each server has applied of this worker, contiguously.
        self.applied_by: dict[int, int] = {}
        self.handled = SampleSet()

    # ------------------------------------------------------------------ from the master

    def new_epoch(self, message: NewEpoch) -> list[Instruction]:
        """Drop everything; the same epoch again changes nothing."""
        if message.epoch_no <= self.epoch_no:
            return []
        wanted = self.request.feed if self.request else None
        self._reset()
        self.epoch_no, self.step = message.epoch_no, message.step
        self._set_map(message.map)
        return [DropWork(), *(self.want(wanted) if wanted is not None else [])]

    def _set_map(self, server_map: ServerMap) -> None:
        self.map = server_map
        self.servers = [server.inc for server in server_map.servers]
        self.owners = server_map.sharers

    def feed_opened(self, message: FeedOpened) -> list[Instruction]:
        """The feed as all workers read it."""
        feed = message.feed
        if feed.feed not in self.feeds:
            self.feeds[feed.feed] = feed
            if feed.purpose == "train":
                self.slice = None
        return []

    def _in_training(self) -> Feed | None:
        """BSP: the feed whose slices steps consist of."""
        if not self.synchronous:
            return None
        feeds = [feed for feed in self.feeds.values() if feed.purpose == "train"]
        return max(feeds, key=lambda feed: feed.feed, default=None)

    def grant(self, message: Grant) -> list[Instruction]:
        """Take the answer to the open request, once."""
        request = self.request
        if message.epoch_no != self.epoch_no or request is None or message.n != request.n:
            return []
        self.request = None
        self.last_n = message.n
        self.handled.subtract(request.handled)
        self.told.setdefault(message.feed, {}).update(self.telling)
        self.lines.update({line.line: line for line in message.lines})
        self._add(message.feed, message.spans)
        if self.feeds[message.feed].purpose == "train":
            self.batching = message.batching
        self._take_rate(message.rate)
        if message.end:
            self.ended.add(message.feed)
        return []

    def want(
        self,
        feed: int,
        ends: Mapping[str, int] = NOTHING,
        *,
        finished: bool = False,
        starving: bool | None = None,
    ) -> list[Instruction]:
        """Have a request open for more of this feed; a changed one is sent again under its n.

        Args:
            feed: its number.
            ends: of a feed of unknown length: partition -> how far it is seen to reach.
            finished: these ends are final.
            starving: whether it is urgent; None: it is when nothing is left.
        """
        if not self.epoch_no or feed in self.ended:
            return []
        told = self.told.get(feed, NOTHING)
        news = tuple((name, end) for name, end in ends.items() if end > told.get(name, 0))
        request = LeaseRequest(
            epoch_no=self.epoch_no,
            inc=self.inc,
            n=self.last_n + 1,
            feed=feed,
            step=self.step + 1 if self.synchronous else 0,
            slice=self._slice(feed) or (),
            starving=self._starves(feed) if starving is None else starving,
            ends=news,
            finished=finished,
            handled=self.handled.spans(),
            map_version=self.map.version if self.map else 0,
        )
        if request == self.request:
            return []
        # The master may answer any version of it, so only what all of them say is surely told.
        if self.request is None:
            self.telling = news
        elif self.request.feed != feed:
            self.telling = ()
        self.request = request
        return [ToMaster(request)]

    def _starves(self, feed: int) -> bool:
        """Whether nothing is left to take; who does not know the step yet may have a part of it.

        Of left-outs nobody's part is granted ahead: who has its own in hand is to leave others'.
        """
        if self.taken and self.slice and not self.feeds[feed].is_in_order(self.slice):
            return False
        if self.slice is None and feed in self.lease and self._slice(feed) is not None:
            return not self.lease[feed]
        return not self.has_work(feed)

    def new_rate(self, message: NewRate) -> list[Instruction]:
        """ADJUST_LR, from the next contribution on."""
        if message.epoch_no == self.epoch_no:
            self._take_rate(message.rate)
        return []

    def _take_rate(self, rate: Rate) -> None:
        if rate.plan > self.rate.plan:
            self.rate = rate

    def recalled(self, message: Recall) -> list[Instruction]:
        """Give back some of what was not begun; of steps: ask for what comes instead.

        A contribution that is begun in several batches keeps what it may still get: alone it would
        wait for the rest of them.
        """
        if message.epoch_no != self.epoch_no or message.n != self.last_n:
            return []
        feed, lease = message.feed, self.lease.get(message.feed, ())
        if self._slice(feed) is None:
            self.lease[feed] = deque(between(lease, 0, message.keep))
            return self._give_back(tuple(between(lease, message.keep, sys.maxsize)))
        held = SampleSet(lease)
        back = SampleSet(held.overlap(Span(self.feeds[feed].line(), message.start, sys.maxsize)))
        if self.taken and self.slice:
            back.subtract(self.slice)
        held.subtract(back)
        self.lease[feed] = deque(held)
        return [*self._give_back(back.spans()), *(self.want(feed) if back else [])]

    def _give_back(self, spans: tuple[Span, ...]) -> list[Instruction]:
        if not spans:
            return []
        self.last_r += 1
        self.giving_back[self.last_r] = spans
        return [self._give_back_message(self.last_r)]

    def _give_back_message(self, r: int) -> ToMaster:
        spans = self.giving_back[r]
        return ToMaster(GiveBack(epoch_no=self.epoch_no, inc=self.inc, r=r, spans=spans))

    def given_back(self, message: GivenBack) -> list[Instruction]:
        """The master knows: these are others' now."""
        if message.epoch_no == self.epoch_no:
            for r in [r for r in self.giving_back if r <= message.r]:
                del self.giving_back[r]
        return []

    def source_line(self, line: int) -> SourceLine:
        """What a granted line is at its source."""
        num_samples = self.feeds[feed_of(line)].num_samples
        return self.lines[line] if num_samples is None else SourceLine(line, "", num_samples)

    # ------------------------------------------------------------------ work

    def leased(self, feed: int) -> int:
        """Samples granted and not taken."""
        return sum(len(span) for span in self.lease.get(feed, ()))

    def has_work(self, feed: int) -> bool:
        """Whether `take` would return something now."""
        return bool(self._next_spans(feed, 1))

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

    def take(self, feed: int, count: int) -> tuple[Span, ...]:
        """The samples of the next contribution, at most ``count``; none: there is no work now.

        BSP: only samples of the undecided step's slice.
        """
        spans = self._next_spans(feed, count)
        self._remove(feed, spans)
        if self._slice(feed):
            self.taken.update(spans)
        return spans

    def peek(self, feed: int, count: int, after: int = 0) -> tuple[Span, ...]:
        """What `take` will return next (BSP: for step + 1 + after), to load it ahead."""
        return self._next_spans(feed, count, after)

    def next_size(self, feed: int) -> int:
        """BSP: samples of the next batch at most."""
        if self.feeds[feed].blocks and (found := self.peek(feed, 1)):
            return self.feeds[feed].block_end(found[0].start) - found[0].start
        return self._how(self._slice(feed)).size_after(len(self.taken))

    def is_whole(self, feed: int) -> bool:
        """BSP: whether what is taken and not offered is a whole contribution."""
        how = self._how(self._slice(feed))
        ends = how.contribution and len(self.taken) % how.contribution == 0
        return bool(ends) or not self.has_work(feed)

    def step_batches(self, feed: int, after: int, limit: int) -> list[tuple[Span, ...]]:
        """BSP: the next batches of step + 1 + ``after``, at most ``limit``, as they come."""
        how, spans = self._how(self._slice(feed, after)), self.peek(feed, sys.maxsize, after)
        held = 0 if after else len(self.taken)
        at, total = 0, sum(len(span) for span in spans)
        found: list[tuple[Span, ...]] = []
        blocks = self.feeds[feed].blocks
        while at < total and len(found) < limit:
            first = between(spans, at, at + 1)[0].start if blocks else 0
            size = (
                self.feeds[feed].block_end(first) - first if blocks else how.size_after(held + at)
            )
            found.append(tuple(between(spans, at, at + size)))
            at += size
        return found

    def _how(self, whole: Slice | None) -> Batching:
        """How the share of a slice is computed."""
        feed = self._in_training()
        if feed is None or not whole:
            return Batching()
        start = feed.start_of(feed.rank(whole))
        held = [how for how in self.batching if how.start <= start]
        return held[-1] if held else Batching()

    def batches(self, feed: int, size: int, limit: int) -> list[tuple[Span, ...]]:
        """What the next ``limit`` calls of ``take(feed, size)`` will return (asynchronous)."""
        found: list[tuple[Span, ...]] = []
        batch: list[Span] = []
        room = size
        for span in self._next_spans(feed, size * limit):
            start = span.start
            while start < span.stop:
                stop = min(span.stop, start + room)
                batch.append(Span(span.line, start, stop))
                room -= stop - start
                start = stop
                if room == 0:
                    found.append(tuple(batch))
                    batch, room = [], size
        return [*found, tuple(batch)] if batch else found

    def put_back(self, feed: int, spans: tuple[Span, ...]) -> None:
        """Taken and not offered: these come first again."""
        self.taken.subtract(spans)
        self.lease.setdefault(feed, deque()).extendleft(reversed(spans))
        self._add(feed, ())

    def _add(self, feed: int, spans: tuple[Span, ...]) -> None:
        """Lengthen the lease; BSP: kept by samples, the undecided step's come first."""
        lease = self.lease.setdefault(feed, deque())
        lease.extend(spans)
        if self.synchronous:
            self.lease[feed] = deque(SampleSet(lease).spans())

    def reaches(self, feed: int, after: int) -> bool:
        """BSP: whether the lease has samples of step + 1 + ``after`` or of a later one."""
        lease, within = self.lease.get(feed), self._slice(feed, after)
        if not lease or not within:
            return False
        return lease[-1].stop > within[0].start

    def _next_spans(self, feed: int, count: int, after: int = 0) -> tuple[Span, ...]:
        within = self._slice(feed, after) if after or self.passed <= self.step else ()
        lease: Iterable[Span] = self.lease.get(feed, ())
        if within is not None:
            lease = _common(lease, within)
        found = between(lease, 0, count)
        return tuple(sorted(found)) if self.synchronous else tuple(found)

    def _slice(self, feed: int, after: int = 0) -> Slice | None:
        """BSP: what step + 1 + ``after`` consists of, unless short steps come between."""
        definition, whole = self.feeds[feed], self.slice
        if not self.synchronous or definition.purpose != "train":
            return None
        if not whole or whole[0].line != definition.line():
            return ()
        if not after:
            return whole
        number = definition.rank(whole) + after - (not definition.is_in_order(whole))
        return (definition.slice_no(number),) if number <= definition.num_slices else ()

    def _remove(self, feed: int, spans: tuple[Span, ...]) -> None:
        """Take from the lease what `_next_spans` found in it, span by span in its order."""
        if not spans:
            return
        lease, kept = self.lease[feed], list[Span]()
        for span in spans:
            while not _begins_in(span, found := lease.popleft()):
                kept.append(found)
            if found.start < span.start:
                kept.append(Span(span.line, found.start, span.start))
            if span.stop < found.stop:
                lease.appendleft(Span(span.line, span.stop, found.stop))
        lease.extendleft(reversed(kept))

    def offer(self, spans: tuple[Span, ...], rates: tuple[float, ...] = (), seen: int = -1) -> Part:
        """Number a computed contribution; the edge cuts its gradients to the servers.

        ``seen``: contributions in the model that it was computed on, as the leader said.
        """
        part = Part(
            epoch_no=self.epoch_no,
            inc=self.inc,
            seq=0,
            map_version=0,
            spans=spans,
            weight=sum(len(span) for span in spans),
            step=self.step + 1 if self.synchronous else 0,
            slice=self._slice(feed_of(spans[0].line)) or (),
            rates=rates,
            factor=self.rate.factor,
            seen=seen if self.rate.by_staleness else -1,
        )
        self.taken.subtract(spans)
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

    def _applied(self, server: int, seq: int) -> list[Instruction]:
        self.applied_by[server] = max(seq, self.applied_by.get(server, 0))
        everywhere = min(self.applied_by.get(inc, 0) for inc in self.servers)
        for done in [s for s in self.offers if s <= everywhere]:
            self.handled.update(self.offers.pop(done).part.spans)
        return []

    def refused(self, message: Refused) -> list[Instruction]:
        """Old and early messages are repeated later; a fence is final."""
        fenced = message.fenced and message.epoch_no == self.epoch_no
        return [Leave()] if fenced else []

    # ------------------------------------------------------------------ the map

    def new_map(self, message: NewMap) -> list[Instruction]:
        """The master's hint that the map has changed."""
        return self._ask_leader(message.map) if message.epoch_no == self.epoch_no else []

    def _ask_leader(self, newer: ServerMap) -> list[Instruction]:
        if self.map is None or newer.version <= self.map.version:
            return []
        leader = newer.servers[0]
        return [Meet(leader), ToServer(leader.inc, AskMap(epoch_no=self.epoch_no, inc=self.inc))]

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
        pulled_from, leader = self.owners, self.servers[0]
        self._set_map(server_map)
        for offer in self.offers.values():
            offer.not_held_by &= set(self.servers)
            offer.ready_sent &= leader == self.servers[0]
        if self.pulling is None:
            watch = self.watching if leader != self.servers[0] else None
            return [Remapped(None), *([ToServer(self.servers[0], watch)] if watch else [])]
        if self.owners == pulled_from:
            return [Remapped(None)]
        self.ticket += 1
        self.answers = {}
        self.pulling = msgspec.structs.replace(self.pulling, ticket=self.ticket)
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
        """Ask all servers (see `Pull`) for parameters of step ``self.step + ahead`` or later (BSP).

        One is open at a time; a new one replaces it. SSP: with ``ahead`` 1 it is for the next one.
        """
        self.ticket += 1
        self.answers, self.watching = {}, None
        self.resting = False
        self.pulling = Pull(
            epoch_no=self.epoch_no,
            inc=self.inc,
            ticket=self.ticket,
            min_step=self.step + ahead if self.synchronous else 0,
            clock=self.next_seq - 1 + ahead if self.bounded else -1,
            feed=self._in_training(),
            tables=tables,
            dense=dense,
            also=also,
        )
        return [ToServer(server, self.pulling) for server in self.owners]

    def watch(self) -> list[Instruction]:
        """BSP: while we compute for a step that may be decided without us, look out for that."""
        if self.pulling or self.watching or not self.taken or not self._how(self.slice).short:
            return []
        self.ticket += 1
        self.watching = Pull(
            epoch_no=self.epoch_no,
            inc=self.inc,
            ticket=self.ticket,
            min_step=self.step + 1,
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
            self.watching, self.passed = None, message.step
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
            whole = message.slice if pull.feed == self._in_training() else None
            done += self._advance(newest, whole, message.last_seq)
        return [*done, PullDone(pull.ticket)]

    def _advance(self, step: int, whole: Slice | None, last_seq: int) -> list[Instruction]:
        """All steps up to this one are decided: give back what they have left out of ours.

        Args:
            step: of which all servers have the parameters.
            whole: what the next one consists of.
            last_seq: the last of our contributions that is in one of them.
        """
        decided = [seq for seq, offer in self.offers.items() if offer.part.step <= step]
        parts = [self.offers.pop(seq).part for seq in decided]
        left = [span for part in parts if part.seq > last_seq for span in part.spans]
        withdrawn = list(self.taken) if step > self.step else []
        self.step, self.slice = step, whole
        for span in (*left, *withdrawn):
            self._add(feed_of(span.line), (span,))
        self.taken.subtract(withdrawn)
        done: list[Instruction] = [Withdraw()] if withdrawn else []
        return [*done, *self._give_back(self._remove_late())]

    def _remove_late(self) -> tuple[Span, ...]:
        """What the lease has of steps that were decided without it; it comes with others again."""
        feed, whole = self._in_training(), self.slice
        if feed is None or not whole or not self.lease.get(feed.feed):
            return ()
        decided = Span(feed.line(), 0, feed.start_of(feed.rank(whole)))
        if self.lease[feed.feed][0].start >= decided.stop:
            return ()
        lease = SampleSet(self.lease[feed.feed])
        late = SampleSet(lease.overlap(decided))
        if late:
            lease.subtract(late)
            self.lease[feed.feed] = deque(lease)
        return late.spans()

    # ------------------------------------------------------------------ loss

    def resend(self) -> list[Instruction]:
        """Everything that is unanswered, once more.

        Without an open request the last one: a master that was restarted learns by it that we
        live, and in which epoch. Our servers may be gone, and nobody else would tell us.
        """
        again: list[Instruction] = [ToMaster(self.request or self._last_request())]
        again += [self._give_back_message(r) for r in self.giving_back]
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

    def _last_request(self) -> LeaseRequest:
        feed = min(self.feeds, default=0)
        return LeaseRequest(
            epoch_no=self.epoch_no,
            inc=self.inc,
            n=self.last_n,
            feed=feed,
            map_version=self.map.version if self.map else 0,
        )


def _common(lease: Iterable[Span], within: Slice) -> Iterator[Span]:
    """What a lease has of a slice; both are ordered by samples."""
    for span in lease:
        if not within or span.start >= within[-1].stop:
            return
        for part in within if span.stop > within[0].start else ():
            start, stop = max(span.start, part.start), min(span.stop, part.stop)
            if start < stop:
                yield Span(span.line, start, stop)


def _begins_in(span: Span, other: Span) -> bool:
    return other.line == span.line and other.start <= span.start < other.stop

"""The processes of a job as the explorer sees them: production state machines and thin edges.

A cell owns one production machine and carries out its instructions in the smallest way that keeps
their meaning: tensors are the set of samples applied, a copy is that set, the network is a list of
(destination, message). No rule of the protocol is written here, only what the real edges do:
`server.py`, `client.py` and the master's `control.py`.
"""

import pickle
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any

import msgspec

from paceline.base.samples import Intervals, SampleSet, Span
from paceline.policy.actions import AdjustBatch, Partial, Share
from paceline.protocol import acts as master
from paceline.protocol.agreements import Agreements
from paceline.protocol.cuts.valid import Cuts
from paceline.protocol.holding.servers import server_acts as ps
from paceline.protocol.holding.servers import worker_acts as worker
from paceline.protocol.holding.servers.log import Log
from paceline.protocol.holding.servers.master import ServerHolder
from paceline.protocol.holding.servers.moving import Moving
from paceline.protocol.holding.servers.readiness import Readiness
from paceline.protocol.holding.servers.server import ServerState
from paceline.protocol.holding.servers.server_acts import Key
from paceline.protocol.holding.servers.server_contents import ServerContents
from paceline.protocol.holding.servers.waiting_pulls import WaitingPulls
from paceline.protocol.holding.servers.worker import WorkerState
from paceline.protocol.records import Granted, Place, Planned, Records
from paceline.protocol.samples.grant_size import Sizing
from paceline.protocol.samples.leases import Leases
from paceline.protocol.samples.ledger import Ledger, LedgerLine
from paceline.protocol.samples.left_loops import LeftLoops
from paceline.protocol.samples.plans import Plans
from paceline.protocol.training import MasterState
from paceline.wire.messages.base import CutRef, Message, ServerMap
from paceline.wire.messages.data import (
    AskMap,
    At,
    Held,
    MapIs,
    Order,
    Ordered,
    Part,
    Piece,
    Pull,
    Pulled,
    Ready,
    Refused,
    ScriptPart,
)
from paceline.wire.messages.feeds import Feed, Slice
from paceline.wire.messages.node import (
    ChangeMap,
    Committed,
    Copied,
    FeedOpened,
    Fence,
    FenceAnswer,
    GiveBack,
    GivenBack,
    GivenUp,
    Grant,
    Joined,
    JoinServers,
    LeaseRequest,
    MapSet,
    NewEpoch,
    NewMap,
    Prepared,
    Recall,
    Restore,
    Restored,
    TakeCut,
)
from paceline.wire.messages.order import Allow
from paceline.wire.schema import ModelSchema

MASTER = 0
FILES = -1
EXIT = -2
MOVED = -3
FEED = 0
SCHEMA = ModelSchema(dense=(), tables=(), groups=())
MACHINES = (
    *(MasterState, Agreements, Cuts, Ledger, LeftLoops, Moving),
    *(ServerState, ServerContents, Log, Readiness, WaitingPulls),
    *(WorkerState, Leases),
)
"""Compared by their attributes."""


class Violation(Exception):
    """An invariant (a letter of docs/protocols/integrity.md, section 6) does not hold."""

    def __init__(self, letter: str, text: str) -> None:
        super().__init__(f"{letter}: {text}")
        self.letter = letter


class File(Message, frozen=True):
    """server -> storage: this copy would survive the loss of the node."""

    directory: str
    inc: int
    step: int
    content: int


class Exit(Message, frozen=True):
    """worker -> environment: the process has ended by itself."""

    inc: int


class Buckets(Message, frozen=True):
    """old owner -> new owner: all pieces at once."""

    epoch_no: int
    piece: Piece
    content: int


class MoveOver(Message, frozen=True):
    """master -> environment: a move has ended; not ``moved``: without any effect."""

    joining: tuple[int, ...]
    leaving: tuple[int, ...] = ()
    moved: bool = True


Output = tuple[int, Message]
"""(incarnation, `MASTER`, `FILES`, `EXIT` or `MOVED`; message)."""


def mask(spans: Iterable[Span]) -> int:
    """A set of positions of the one line as the bits of an integer."""
    bits = 0
    for span in spans:
        bits |= (1 << span.stop) - (1 << span.start)
    return bits


def _hook(obj: object) -> object:
    if isinstance(obj, SampleSet):
        return obj.spans()
    if isinstance(obj, Intervals):
        return obj.edges
    if isinstance(obj, Plans):
        return [obj.known, obj.preparing]
    if isinstance(obj, LedgerLine):
        return [obj.cursor, obj.end, obj.returned]
    if isinstance(obj, ServerHolder):
        return [one for one in _plain(obj) if one is not obj.core]
    if isinstance(obj, MACHINES):
        return _plain(obj)
    return list(obj)  # type: ignore[call-overload]  # a deque


def _plain(machine: object) -> list[object]:
    """All attributes in one order, dictionaries as sorted items."""
    return [
        sorted(value.items()) if isinstance(value, dict) else value
        for _, value in sorted(vars(machine).items())
    ]


_encoder = msgspec.msgpack.Encoder(enc_hook=_hook, order="deterministic")


class ServerCell:
    """One server process: `ServerState`, its tensors (samples) and the gradients it keeps."""

    def __init__(self, state: ServerState, left_out: int = 0) -> None:
        self.state = state
        #: Samples of a step that may be missing at most.
        self.left_out = left_out
        self.content = 0
        self.kept: dict[Key, Part] = {}
        #: Set aside at the last copy entry, and to whom it goes.
        self.aside: tuple[tuple[int, Buckets], ...] = ()
        #: Of an owner that buckets come to: the map that copies; by sender what has come; what was
        #: applied since. All of it together is what it holds after the switch.
        self.arriving: ServerMap | None = None
        self.arrived: dict[int, int] = {}
        self.since = 0
        #: When the present event began.
        self.fenced_before: frozenset[int] = frozenset()

    def key(self) -> bytes:
        """Equal for equal states, whatever the order of their dictionaries."""
        arriving = self.arriving.version if self.arriving is not None else 0
        coming = [arriving, sorted(self.arrived.items()), self.since]
        kept = sorted(self.kept.items())
        return _encoder.encode([self.state, self.content, self.aside, kept, coming])

    def handle(self, event: object) -> list[Output]:
        """One message, ``grace over`` or ``resend``."""
        state, done = self.state, []
        self.fenced_before = frozenset(state.fenced)
        hears: dict[type, Callable[[Any], list[ps.Instruction]]] = {
            Part: state.part,
            Ready: state.ready,
            Order: state.order,
            At: state.at,
            Pull: state.pull,
            Fence: state.fence,
            Allow: state.allow,
            TakeCut: state.take_cut,
            JoinServers: state.join,
            ChangeMap: state.change_map,
            AskMap: state.ask_map,
        }
        match event:
            case Buckets():
                done = self._take(event)
            case (Restore() as message, File() | None as file):
                done = self._restore(message, file)
            case "grace over":
                done = self._perform(state.grace_over())
            case "resend" | ScriptPart():
                pass
            case _:
                part = event if isinstance(event, Part) else None
                done = self._perform(hears[type(event)](event), part)
        if state.leads:
            done += self._perform(state.orders())
            if state.fenced or event == "resend":
                done += self._perform(state.orders(resend=True))
            done.append((MASTER, state.progress()))
        elif event == "resend":
            done += self._perform(state.orders(resend=True))
        else:
            done += self._perform(state.orders())
        if event == "resend":
            done += self.aside
        self._check()
        return done

    def _restore(self, message: Restore, file: File | None) -> list[Output]:
        done: list[Output] = []
        for instruction in self.state.restore(message):
            if isinstance(instruction, ps.Load):
                assert file is not None
                content = SampleSet(Span(0, p, p + 1) for p in _bits(file.content))
                done += self._perform(self.state.loaded(message, file.step, content))
                self.content, self.kept, self.aside = file.content, {}, ()
                self.arriving, self.arrived, self.since = None, {}, 0
            else:
                done += self._perform([instruction])
        return done

    def has_taken(self, event: Buckets) -> bool:
        """Whether these buckets are here, or of a copy that is over."""
        version, now = event.piece.map.version, self.state.map
        if self.arriving is not None and self.arriving.version == version:
            return event.piece.server in self.arrived
        return now is not None and version <= now.version

    def _sources(self) -> set[int]:
        assert self.arriving is not None
        pairs = zip(self.arriving.ownership, self.arriving.copies, strict=True)
        me = self.arriving.index(self.state.inc)
        return {int(owner) for owner, to in pairs if to == me}

    def _take(self, event: Buckets) -> list[Output]:
        arriving, state, piece = self.arriving, self.state, event.piece
        if piece.epoch_no != state.epoch_no or arriving is None:
            return []
        if piece.map.version != arriving.version or piece.server in self.arrived:
            return []
        self.arrived[piece.server] = event.content
        if set(self.arrived) != self._sources():
            return []
        if len(set(self.arrived.values())) > 1:
            raise Violation("I", f"owners send what is of two positions: {self.arrived}")
        if state.owns:
            return self._perform(state.share_is_here(arriving.version))
        self.content, self.arriving = event.content, None
        done = self._perform(state.arrived(piece))
        return [*done, *self._perform(state.advance())]

    def _remap(self, now: ServerMap) -> None:
        """A copy entry, a switch, or neither."""
        if now.copies:
            if self.state.owns and self.state.inc in now.receivers:
                self.arriving, self.arrived, self.since = now, {}, 0
            return
        if self.arriving is not None and now.version == self.state.owned_since:
            if set(self.arrived) != self._sources():
                raise Violation("J", f"server {self.state.inc} has not all that is its own")
            self.content = next(iter(self.arrived.values())) | self.since
        self.arriving, self.arrived, self.since, self.aside = None, {}, 0, ()

    def _perform(
        self, instructions: Iterable[ps.Instruction], part: Part | None = None
    ) -> list[Output]:
        done: list[Output] = []
        for instruction in instructions:
            match instruction:
                case ps.Reply(inc, message) | ps.Tell(inc, message):
                    done.append((inc, message))
                case ps.ToMaster(message):
                    done.append((MASTER, message))
                case ps.Keep(key):
                    assert part is not None
                    self.kept[key] = part
                case ps.Apply(keys):
                    self._apply(keys)
                case ps.Forget(keys):
                    for key in keys:
                        self.kept.pop(key)
                case ps.SendBuckets(to):
                    self.aside = tuple(
                        (
                            server.inc,
                            Buckets(epoch_no=piece.epoch_no, piece=piece, content=self.content),
                        )
                        for server, piece in to
                    )
                    done += self.aside
                case ps.MapInForce(now):
                    self._remap(now)
                case ps.MakeRoom(join):
                    self.content, self.kept, self.aside = 0, {}, ()
                    self.arriving, self.arrived, self.since = join.map, {}, 0
                case ps.AnswerPull(pull):
                    if not self.state.owns:
                        raise Violation("J", f"server {self.state.inc} answers without buckets")
                    asks = bool(pull.dense or pull.tables)  # else it waits for a step alone
                    if asks and pull.map_version < self.state.owned_since:
                        raise Violation("J", f"{pull} is of buckets that were elsewhere")
                    done.append((pull.inc, self._pulled(pull)))
                case ps.CopyState(copied):
                    done.append((FILES, self._file(copied)))
                    done += self._perform(self.state.copy_is_safe(copied))
                    stored = msgspec.structs.replace(copied, stored=True)
                    done += self._perform(self.state.copy_is_safe(stored))
        return done

    def _apply(self, keys: tuple[Key, ...]) -> None:
        state, applied = self.state, 0
        whole: Slice = ()
        for key in keys:
            if key not in self.kept:
                raise Violation("A", f"server {state.inc} applies {key} without its tensors")
            if state.leads and key[0] in self.fenced_before:
                raise Violation(
                    "G", f"{key[0]} is fenced and enters position {state.contents.position}"
                )
            part = self.kept.pop(key)
            whole = part.slice or whole
            if self.arriving is not None and part.map_version < self.arriving.version:
                raise Violation("I", f"{key} has nothing of what comes to server {state.inc}")
            new = mask(part.spans)
            if new & (self.content | applied):
                raise Violation("B", f"{key} brings samples that are in the model already")
            applied |= new
        self.content |= applied
        self.since |= applied if self.arriving is not None else 0
        if whole:
            self._check_step(applied, mask(whole))

    def _check_step(self, applied: int, whole: int) -> None:
        missing = (whole & ~applied).bit_count()
        if applied & ~whole or missing > self.left_out or not applied:
            raise Violation("H", f"a step of {applied:b} is not the slice {whole:b}")

    def _pulled(self, pull: Pull) -> Pulled:
        state = self.state
        return Pulled(
            epoch_no=state.epoch_no,
            server=state.inc,
            inc=pull.inc,
            ticket=pull.ticket,
            step=state.contents.step,
            last_seq=state.contents.last_seq.get(pull.inc, 0),
            slice=state.next_slice(pull.feed),
        )

    def _file(self, copied: Copied) -> File:
        directory = cut_directory(copied.epoch_no, copied.cut_no)
        return File(directory=directory, inc=copied.inc, step=copied.step, content=self.content)

    def _check(self) -> None:
        if mask(self.state.contents.committed) != self.content:
            raise Violation("E", f"server {self.state.inc}: committed set and tensors differ")
        if set(self.kept) != set(self.state.contents.parts):
            raise Violation("A", f"server {self.state.inc}: held parts and kept tensors differ")


def _bits(bits: int) -> list[int]:
    return [p for p in range(bits.bit_length()) if bits >> p & 1]


def directory_of(cut: CutRef) -> str:
    """Where the files of a cut lie that a message names."""
    return cut_directory(cut.epoch_no, cut.cut_no)


def cut_directory(epoch_no: int, cut_no: int) -> str:
    """Where a cut's files lie. The epoch is in the name: numbers of cuts that failed come again."""
    return f"{epoch_no}-{cut_no}"


class WorkerCell:
    """One worker process: `WorkerState` and a script that reads one feed to its end."""

    def __init__(
        self,
        state: WorkerState,
        feed: Feed,
        *,
        prefetch: bool = False,
        eager: bool = False,
        pull_first: bool = True,
    ) -> None:
        self.state = state
        self.prefetch = prefetch
        #: Compute as soon as possible: to wait is the same as to send late.
        self.eager = eager
        #: Work only with parameters of this epoch.
        self.pull_first = pull_first
        #: Parameters of this epoch (BSP: of ``state.step``) are here.
        self.pulled = False
        state.leases.feed_opened(FeedOpened(inc=state.inc, feed=feed))

    def key(self) -> bytes:
        """Equal for equal states."""
        return _encoder.encode([self.state, self.pulled])

    def handle(self, event: object) -> list[Output]:
        """One message, ``work``, ``pull`` or ``resend``."""
        state, leases = self.state, self.state.leases
        hears: dict[type, Callable[[Any], list[worker.Instruction]]] = {
            NewEpoch: state.new_epoch,
            Grant: state.grant,
            Held: state.held,
            Ordered: state.ordered,
            Refused: state.refused,
            Pulled: state.pulled,
            MapIs: state.map_is,
            NewMap: state.new_map,
        }
        match event:
            case GivenUp():
                return [(EXIT, Exit(inc=state.inc))]
            case "work":
                done = self._work()
            case "pull":
                ahead = 1 if self.pulled and state.synchronous else 0
                done = self._perform(state.start_pull(ahead=ahead))
            case "resend":
                done = []
            case Recall():
                done = [(MASTER, message) for message in leases.recalled(event)]
            case GivenBack():
                leases.given_back(event)
                done = []
            case _:
                done = self._perform(hears[type(event)](event))
        while self.eager and self.may_work():
            done += self._work()
        if state.epoch_no and (self.prefetch or not leases.has_work(FEED)):
            done += [(MASTER, message) for message in leases.want(FEED)]
        done += self._perform(state.resend())
        if not state.epoch_no:
            done.append((MASTER, Prepared(inc=state.inc, schema=SCHEMA)))
        return done

    def may_work(self) -> bool:
        """Whether the script would compute a contribution now."""
        state = self.state
        may = self.pulled or not self.pull_first
        return bool(state.map) and may and state.may_offer() and state.leases.has_work(FEED)

    def may_pull(self) -> bool:
        """Whether the script waits for parameters."""
        state = self.state
        if not state.map or state.pulling is not None:
            return False
        return not self.pulled or (state.synchronous and not state.leases.has_work(FEED))

    def _work(self) -> list[Output]:
        part = self.state.offer(self.state.leases.take(FEED, 1))
        return [(server, part) for server in self.state.servers] if part else []

    def _perform(self, instructions: Iterable[worker.Instruction]) -> list[Output]:
        done: list[Output] = []
        for instruction in instructions:
            match instruction:
                case worker.ToServer(server, message):
                    done.append((server, message))
                case worker.ToMaster(message):
                    done.append((MASTER, message))
                case worker.PullDone():
                    self.pulled = True
                case worker.DropWork():
                    self.pulled = False
                case worker.OfferAgain(_, part):
                    done += [(server, part) for server in self.state.servers]
                case worker.Remapped(pull):
                    done += [(server, pull) for server in self.state.owners] if pull else []
                case worker.ConnectServer() | worker.Withdraw():
                    pass
                case worker.EndProcess():
                    done.append((EXIT, Exit(inc=self.state.inc)))
        return done


class MasterCell:
    """The master: `MasterState`, and what a restart would make of its journal."""

    def __init__(self, state: MasterState, journalled: MasterState | None) -> None:
        self.state = state
        #: A fresh `MasterState` to which every record journalled so far was applied.
        self.journalled = journalled
        #: Grants that have been sent in this life; for the reduction only.
        self.sent: dict[int, int] = {}
        #: (what a restart finds, what had been sent) where this event writes a second record.
        self.crashes: list[tuple[MasterState, tuple[Output, ...]]] = []

    @property
    def holder(self) -> ServerHolder:
        """Its part that servers are of."""
        assert isinstance(self.state.holder, ServerHolder)
        return self.state.holder

    def key(self) -> bytes:
        """Equal for equal states."""
        return _encoder.encode([self.state, self.journalled, sorted(self.sent.items())])

    def handle(self, event: object) -> list[Output]:
        """One message or one call of the master's edge, as (method, arguments)."""
        done = self._perform(self._call(event))
        done += self._perform(self.state.resend())
        return done

    def _call(self, event: object) -> list[master.Instruction]:
        state, holder = self.state, self.holder
        match event:
            case (LeaseRequest() as request, int() as samples):
                return state.request(request, Sizing(samples=samples, steps=2))
            case GiveBack():
                return state.given_back(event)
            case Prepared():
                return holder.prepare(event)
            case Restored():
                return holder.restored(event)
            case FenceAnswer():
                return holder.fence_answer(event)
            case Committed():
                return holder.committed(event)
            case Copied():
                said = state.copy_said(event)
                sealed = (
                    state.cut_sealed(one.valid) for one in said if isinstance(one, master.Seal)
                )
                return [*said, *chain.from_iterable(sealed)]
            case Joined() | MapSet():
                return holder.server_said(event)
            case ("plan", str() as node, int() as lead):
                whole = Share(state.ledger.feeds[FEED].batch_size)
                return state.carry_out(AdjustBatch(shares={node: whole}), lead)
            case ("short", int() as left_out, int() as late):
                return state.carry_out(Partial(left_out=left_out, late=late, grace_s=1.0), 0)
            case (str() as method, *arguments):
                owner = state if hasattr(state, method) else holder
                return getattr(owner, method)(*arguments)  # type: ignore[no-any-return]
            case "resend":
                return []
        raise AssertionError(event)

    def _perform(self, instructions: Iterable[master.Instruction]) -> list[Output]:
        done: list[Output] = []
        since, granted = None, 0
        for instruction in instructions:
            match instruction:
                case master.Send(inc, message):
                    if isinstance(message, Grant):
                        self.sent[inc] = message.n
                    done.append((inc, message))
                case master.WriteAhead(record):
                    if isinstance(record, Planned):
                        since, granted = record.since, 0
                    elif isinstance(record, Granted):
                        granted |= mask(record.grant.spans)
                    self._journal(record, done)
                case master.Fail(reason):
                    raise Violation("E", reason)
                case master.Moved(joining, leaving):
                    done.append((MOVED, MoveOver(joining=joining, leaving=leaving)))
                case master.NotMoved(joining):
                    done.append((MOVED, MoveOver(joining=joining, moved=False)))
                case master.FeedDone():
                    pass
        self._check_plan(since, granted)
        return done

    def _check_plan(self, since: Place | None, granted: int) -> None:
        """What is leased from a plan's place on, when it is committed, is granted after that."""
        ledger = self.state.ledger
        if since is None or since.line not in ledger.lines:
            return
        rest = mask([Span(since.line, since.position, ledger.lines[since.line].end)])
        for inc, lease in ledger.leases.items():
            if mask(lease) & rest & ~granted:
                raise Violation("K", f"{inc} holds samples of before the plan that deals them")

    def _journal(self, record: Records, sent: list[Output]) -> None:
        if self.journalled is None:
            return
        self.crashes.append((_copy(self.journalled), tuple(sent)))
        self.journalled.apply(record)


def _copy(state: MasterState) -> MasterState:
    return pickle.loads(pickle.dumps(state))  # type: ignore[no-any-return]


Cell = ServerCell | WorkerCell | MasterCell

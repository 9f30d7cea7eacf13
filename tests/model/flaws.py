"""Flaws that the explorer must find: each is one rule of the protocol, taken out of one machine.

The names follow docs/protocols/integrity-explored.md. A flaw is a small subclass of a production
class; ``finds`` are the invariants whose violation shows it (which of them comes first depends on
the order of the search), `bounds` the smallest job in which it shows.
"""

import sys
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from paceline.base.samples import SampleSet, Span
from paceline.protocol import acts as master
from paceline.protocol.acts import Send, WriteAhead
from paceline.protocol.holding.holder import Holder
from paceline.protocol.holding.servers import server_acts as ps
from paceline.protocol.holding.servers import worker_acts as worker
from paceline.protocol.holding.servers.master import ServerHolder
from paceline.protocol.holding.servers.moving import Moving
from paceline.protocol.holding.servers.server import ServerState
from paceline.protocol.holding.servers.server_acts import Keep, Load
from paceline.protocol.holding.servers.worker import Offer, WorkerState
from paceline.protocol.holding.servers.worker_acts import ToMaster
from paceline.protocol.records import CutValid, GaveBack, Granted, Records, Returned
from paceline.protocol.samples.grant_size import Sizing
from paceline.protocol.samples.leases import Ask
from paceline.protocol.samples.ledger import Ledger
from paceline.protocol.samples.plans import Plans
from paceline.protocol.samples.step_leases import StepLeases
from paceline.protocol.training import MasterState
from paceline.wire.messages.base import ServerMap
from paceline.wire.messages.data import Held, Part, Piece, Pull, Ready
from paceline.wire.messages.feeds import Feed, Slice
from paceline.wire.messages.node import (
    Committed,
    Fence,
    FenceAnswer,
    GiveBack,
    Grant,
    Joined,
    LeaseRequest,
    Recall,
    Restore,
    TakeCut,
)
from paceline.wire.messages.order import Cut, Included, Lacking, Remap, Update

from .bounds import Bounds, Machines
from .cells import FEED


class Flaw(msgspec.Struct, frozen=True, kw_only=True):
    """One rule left out."""

    name: str
    finds: str
    """Letters of the invariants that may break first."""
    machines: Machines
    bounds: Bounds
    finish: bool = True
    """Look for F too; without it the search shows what the flaw does before the job is stuck."""
    max_states: int = 40_000


# ---------------------------------------------------------------------- workers


class ReadyBeforeAllHold(WorkerState):
    """`ready` when the first server holds the part."""

    def held(self, message: Held) -> list[worker.Instruction]:
        if message.seq in self.offers:
            self.offers[message.seq].not_held_by.clear()
        return super().held(message)


class GrantTakenTwice(WorkerState):
    """A repeated grant is taken as a new one."""

    def grant(self, message: Grant) -> list[worker.Instruction]:
        leases = self.leases
        if message.epoch_no == self.epoch_no and message.n == leases.last_n:
            leases.lease[message.feed].extend(message.spans)
            return []
        return super().grant(message)


class OneContributionPerStep(WorkerState):
    """BSP by membership's rule kept: one contribution per worker and step."""

    def may_offer(self) -> bool:
        return not self.offers


class OtherLeases(WorkerState):
    """A worker whose leases are of the class ``kind``."""

    kind: type[StepLeases]

    def __init__(self, inc: int, **how: Any) -> None:
        super().__init__(inc, **how)
        self.leases = self.kind(inc, synchronous=self.synchronous)


class LeasesWithEmptyHands(StepLeases):
    """Asks only when it holds nothing, whatever the undecided step lacks."""

    def want(self, feed: int, *args: Any, **stream: Any) -> list[Ask]:
        return [] if self.leased(feed) else super().want(feed, *args, **stream)


class AsksWithEmptyHands(OtherLeases):
    kind = LeasesWithEmptyHands


class LeasesOfAnySlice(StepLeases):
    """Prefetched samples of a later slice are offered in the step at hand."""

    def _next_spans(self, feed: int, count: int, after: int = 0) -> tuple[Span, ...]:
        self.synchronous = False
        try:
            return super()._next_spans(feed, count, after)
        finally:
            self.synchronous = True


class AnySliceInAnyStep(OtherLeases):
    kind = LeasesOfAnySlice


class SilentBetweenRequests(WorkerState):
    """Repeats nothing to the master unless a request is open."""

    def resend(self) -> list[worker.Instruction]:
        again = super().resend()
        return again if self.leases.request else again[1:]


class TwoUnreadyPerStep(WorkerState):
    """BSP: contributions that all hold count against the window (found in production code)."""

    def may_offer(self) -> bool:
        return len(self.offers) < self.window


class OldPartsStayGood(WorkerState):
    """After a copy entry the same seqs are offered on: the new owner never gets their parts."""

    def _offer_again(self, barrier: int) -> list[worker.Instruction]:
        return []


class LeasesKept(StepLeases):
    """Gives back, and computes it all the same."""

    def recalled(self, message: Recall) -> list[Ask]:
        lease = {feed: list(spans) for feed, spans in self.lease.items()}
        done = super().recalled(message)
        self.lease.update({feed: deque(spans) for feed, spans in lease.items()})
        return done


class KeepsWhatItGivesBack(OtherLeases):
    kind = LeasesKept


class LeasesBegun(StepLeases):
    """Gives back what the worker has offered, too."""

    offers: dict[int, Offer]

    def recalled(self, message: Recall) -> list[Ask]:
        begun = [span for offer in self.offers.values() for span in offer.part.spans]
        if message.epoch_no == self.epoch_no and message.n == self.last_n:
            self.put_back(FEED, tuple(s for s in begun if s.start >= message.start))
        return super().recalled(message)


class GivesBackWhatItBegan(OtherLeases):
    kind = LeasesBegun

    def __init__(self, inc: int, **how: Any) -> None:
        super().__init__(inc, **how)
        self.leases.offers = self.offers  # type: ignore[attr-defined]

    def _reset(self) -> None:
        super()._reset()
        self.leases.offers = self.offers  # type: ignore[attr-defined]


class LeasesOffered(StepLeases):
    """What a step left out is given back, and offered again all the same."""

    def _remove_late(self) -> tuple[Span, ...]:
        kept = {feed: deque(spans) for feed, spans in self.lease.items()}
        late = super()._remove_late()
        self.lease = kept
        return late


class OffersWhatItGivesBack(OtherLeases):
    kind = LeasesOffered


class ForgetsWhatWasLeftOut(WorkerState):
    """Takes every contribution of a decided step for included."""

    def _advance(self, step: int, whole: Slice | None, last_seq: int) -> list[worker.Instruction]:
        return super()._advance(step, whole, sys.maxsize)


# ---------------------------------------------------------------------- servers


class OldMapsAreOrdered(ServerState):
    """After a copy entry the leader orders what was sent under older maps."""

    def _remap(self, entry: Remap) -> list[ps.Instruction]:
        done = super()._remap(msgspec.structs.replace(entry, map=entry.map))
        self.barrier = 0
        return done

    def _forget(self, keys: Iterable[ps.Key]) -> list[ps.Instruction]:
        return []


class SnapshotTooLate(ServerState):
    """The new owner takes what it is sent as the state of the entry before."""

    def arrived(self, piece: Piece) -> list[ps.Instruction]:
        return super().arrived(msgspec.structs.replace(piece, position=piece.position - 1))


class AnswersWhatMoved(ServerState):
    """Answers pulls that were cut by a map under which other servers had its buckets."""

    def _is_astray(self, pull: Pull) -> bool:
        return False


class TakesPartsByAnyMap(ServerState):
    """Keeps, at a copy entry, parts that have nothing of the buckets that come."""

    def _remap(self, entry: Remap) -> list[ps.Instruction]:
        barrier = self.barrier
        done = super()._remap(entry)
        self.barrier = barrier
        return done

    def _forget(self, keys: Iterable[ps.Key]) -> list[ps.Instruction]:
        return []


class FenceIgnored(ServerState):
    """The leader answers a fence and goes on as before."""

    def fence(self, message: Fence) -> list[ps.Instruction]:
        if message.epoch_no != self.epoch_no or not self.leads:
            return []
        answer = FenceAnswer(
            epoch_no=self.epoch_no,
            inc=self.inc,
            fenced=message.fenced,
            committed=self.contents.committed.spans(),
        )
        return [ToMaster(answer)]


class FencedReadyCounts(ServerState):
    """BSP: what was ready before the fence still covers the slice."""

    def fence(self, message: Fence) -> list[ps.Instruction]:
        ready, parts = dict(self.readiness.last_of), dict(self.contents.parts)
        done = super().fence(message)
        self.readiness.last_of, self.contents.parts = ready, parts
        return [i for i in done if not isinstance(i, ps.Forget)]


class FenceRollsForward(ServerState):
    """The answer to a fence counts what is held and not ordered."""

    def fence(self, message: Fence) -> list[ps.Instruction]:
        held = [p for key, p in self.contents.parts.items() if key[0] == message.fenced]
        counted = self.contents.committed.copy()
        counted.update(span for part in held for span in part.spans)
        return [
            ToMaster(msgspec.structs.replace(i.message, committed=counted.spans()))
            if isinstance(i, ToMaster) and isinstance(i.message, FenceAnswer)
            else i
            for i in super().fence(message)
        ]


class DuplicateApplied(ServerState):
    """A repeated part and its `ready` are taken as new."""

    def part(self, message: Part) -> list[ps.Instruction]:
        key = (message.inc, message.seq)
        if message.epoch_no != self.epoch_no or key in self.contents.parts:
            return super().part(message)
        self.contents.last_seq[message.inc] = min(
            self.contents.last_seq.get(message.inc, 0), message.seq - 1
        )
        return super().part(message)

    def _apply(self, entry: Update | Cut) -> list[ps.Instruction]:
        if isinstance(entry, Cut):
            return super()._apply(entry)
        known, self.contents.committed = self.contents.committed, SampleSet()
        try:
            return super()._apply(entry)
        finally:
            self.contents.committed.update(known)


class NewerEpochAccepted(ServerState):
    """Only messages of older epochs are refused; parts outlive the restore that wipes them."""

    def part(self, message: Part) -> list[ps.Instruction]:
        if message.epoch_no > self.epoch_no:
            key = (message.inc, message.seq)
            self.contents.parts[key] = message
            held = Held(
                epoch_no=message.epoch_no, server=self.inc, inc=message.inc, seq=message.seq
            )
            return [Keep(key), ps.Reply(message.inc, held)]
        return super().part(message)


class CutOutsideTheOrder(ServerState):
    """Every server copies when it is asked, at whatever position it is."""

    def take_cut(self, message: TakeCut) -> list[ps.Instruction]:
        if message.epoch_no != self.epoch_no or message.cut_no <= self.last_cut:
            return []
        return self._copy(Cut(cut_no=message.cut_no))


class CutWithoutStep(ServerState):
    """The step is not restored with the committed set."""

    def loaded(self, message: Restore, step: int, committed: SampleSet) -> list[ps.Instruction]:
        return super().loaded(message, 0, committed)


class OrderedOnFirstReady(ServerState):
    """BSP: the leader decides without the slice being covered."""

    def _ready_for_step(self, message: Ready) -> list[ps.Instruction]:
        if message.step != self.contents.step + 1:
            return []
        entry = Update(included=(Included(message.inc, message.seq),), step=message.step)
        return self._decide(entry)


class LeavesOutTooMuchAfterAGrace(ServerState):
    """Takes one sample more than is allowed for late."""

    def _may_lack(self, part: Part) -> Lacking:
        may_lack = super()._may_lack(part)
        return may_lack._replace(late=may_lack.late + 1)


class LeavesOutTooMuch(ServerState):
    """Leaves out of every step one sample more than is allowed."""

    def _may_lack(self, part: Part) -> Lacking:
        may_lack = super()._may_lack(part)
        return may_lack._replace(left_out=may_lack.left_out + 1)


class NeverComesBack(ServerState):
    """After the last slice of an epoch comes the next epoch, whatever was left out."""

    def next_slice(self, feed: Feed | None) -> Slice:
        whole = super().next_slice(feed)
        return whole if feed is None or not whole or feed.is_in_order(whole) else ()


class LoadedTwice(ServerState):
    """A restore that was repeated while the cut was read starts the epoch again."""

    def restore(self, message: Restore) -> list[ps.Instruction]:
        if message.inc == self.inc and message.epoch_no == self.epoch_no:
            self.epoch_no = 0
            return [Load(message)]
        return super().restore(message)


# ---------------------------------------------------------------------- master


class LedgerNotRewound(Ledger):
    """A restore leaves DONE and the leases as they were."""

    def restore(self, committed: Iterable[Span], *, again: bool = True) -> None:
        del committed, again


class KeepsLedger(MasterState):
    """See `LedgerNotRewound`."""

    def __init__(self, holder: Holder, *, mode: str, samples: str) -> None:
        super().__init__(holder, mode=mode, samples=samples)
        self.ledger = self.plans.ledger = LedgerNotRewound()


class ReturnsBeforeTheAnswer(ServerHolder):
    """A lost worker's leases go back at once."""

    def lost(self, inc: int, *, returned: bool) -> list[master.Instruction]:
        done = super().lost(inc, returned=returned)
        return [*done, self.core.record(Returned(inc=inc))] if self.map else done


class AnotherGrantForTheSameRequest(MasterState):
    """A repeated request is a new one."""

    def request(self, message: LeaseRequest, sizing: Sizing) -> list[master.Instruction]:
        last = self.grants.get(message.inc)
        if last is not None and message.n == last.n and message.epoch_no == self.epoch_no:
            spans = self.ledger.pick(message.feed, sizing.samples)
            if spans:
                grant = msgspec.structs.replace(last, spans=tuple(spans))
                return [
                    self.record(Granted(grant=grant)),
                    Send(message.inc, grant),
                ]
        return super().request(message, sizing)


class TellsWorkersAtOnce(ServerHolder):
    """Workers hear of an epoch before all its servers are in it."""

    def tell_epoch(self, inc: int) -> list[master.Instruction]:
        restoring, self.restoring = self.restoring, set()
        done = super().tell_epoch(inc)
        self.restoring = restoring
        return done


class SendsBeforeTheJournal(MasterState):
    """A grant leaves before it is journalled."""

    def request(self, message: LeaseRequest, sizing: Sizing) -> list[master.Instruction]:
        return _sends_first(super().request(message, sizing))


def _sends_first(done: Sequence[master.Instruction]) -> list[master.Instruction]:
    return sorted(done, key=lambda i: isinstance(i, WriteAhead))


class BelievesOldEpochs(ServerHolder):
    """The word of a leader of an older epoch counts."""

    def committed(self, message: Committed) -> list[master.Instruction]:
        if message.epoch_no < self.core.epoch_no:
            self.core.ledger.commit(message.committed)
            return []
        return super().committed(message)


class TakesBackTheFenced(MasterState):
    """A fenced worker that a restarted master hears of is never told to leave (was found)."""

    def request(self, message: LeaseRequest, sizing: Sizing) -> list[master.Instruction]:
        return [] if message.inc in self.gone else super().request(message, sizing)

    def worker_up(self, inc: int, node: str = "") -> list[master.Instruction]:
        self.workers[inc] = node
        self.holder.came(inc)
        return []


class ForgetsWhatIsSafe(MasterState):
    """Whether a feed is safe depends on what is not in the journal (found in production code)."""

    def apply(self, record: Records) -> None:
        done = self.ledger.done.copy()
        super().apply(record)
        if isinstance(record, CutValid) and not done:
            self.cuts.safe = set()


class SwitchesAtOnce(Moving):
    """The switch is asked for when the new server has joined, not when it has caught up."""

    def heard(self, message: Joined) -> None:
        version = self.begun.version + 1 if self.begun is not None else 0
        super().heard(msgspec.structs.replace(message, caught_up=version))


class SwitchingMaster(ServerHolder):
    """With the flaw above."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.moving = SwitchesAtOnce()


class ForgetsOwners(Moving):
    """The switch waits for fresh servers, and not for those that own buckets already."""

    def wanted_map(self, now: ServerMap) -> ServerMap | None:
        if now.copies and not self.given_up:
            self.caught_up |= {inc: now.version for inc in now.receivers if inc not in self.joining}
        return super().wanted_map(now)


class ForgetfulMaster(ServerHolder):
    """With the flaw above."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.moving = ForgetsOwners()


class LeavesAtOnce(Moving):
    """The old server goes when the leader has ordered the switch."""

    def is_over(self, now: ServerMap, *, cut_under_way: bool) -> bool:
        self.settled = True
        return super().is_over(now, cut_under_way=cut_under_way)


class HastyMaster(ServerHolder):
    """With the flaw above."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.moving = LeavesAtOnce()


class TakesBackTwice(MasterState):
    """A repeated `GiveBack` is taken as a new one."""

    def given_back(self, message: GiveBack) -> list[master.Instruction]:
        known = self.gave_back.get(message.inc, 0)
        if message.epoch_no == self.epoch_no and message.r <= known:
            return [self.record(GaveBack(inc=message.inc, r=known, spans=message.spans))]
        return super().given_back(message)


class AnswersBeforeTheJournal(MasterState):
    """What a worker gives back is acknowledged before it is journalled."""

    def given_back(self, message: GiveBack) -> list[master.Instruction]:
        return _sends_first(super().given_back(message))


class NoHolders(Plans):
    """Sees nobody who holds what a plan will deal anew."""

    def holders(self) -> list[int]:
        return []


class CommitsAtOnce(MasterState):
    """See `NoHolders`."""

    def __init__(self, holder: Holder, *, mode: str, samples: str) -> None:
        super().__init__(holder, mode=mode, samples=samples)
        self.plans = NoHolders(self.ledger, synchronous=True)


class WaitsForTheRecall(MasterState):
    """A plan whose place has come keeps it, however long the recall takes."""

    def move_plan(self, undecided: int, whole: Slice = ()) -> list[master.Instruction]:
        return self.commit_plan()


def _asp(**bounds: object) -> Bounds:
    return Bounds(**{"mode": "asp", "cuts": 0, **bounds})  # type: ignore[arg-type]


def _bsp(**bounds: object) -> Bounds:
    return Bounds(**{"mode": "bsp", "cuts": 0, **bounds})  # type: ignore[arg-type]


def _move(**bounds: object) -> Bounds:
    return _asp(**{"samples": 1, "workers": 1, "servers": 1, "moves": 1, **bounds})


def _planned(**bounds: object) -> Bounds:
    """Two steps of one sample; who computes the second changes."""
    return _bsp(**{"slice": 1, "workers": 1, "servers": 1, "plans": 1, **bounds})


FLAWS = [
    Flaw(
        name="`ready` before all servers hold the part",
        finds="A",
        machines=Machines(worker=ReadyBeforeAllHold),
        bounds=_asp(samples=1),
    ),
    Flaw(
        name="a fence is answered and ignored",
        finds="BCG",
        machines=Machines(server=FenceIgnored),
        bounds=_asp(samples=1, failures=1, kinds=("suspect-worker",)),
    ),
    Flaw(
        name="the ledger is not rewound at a restore",
        finds="DF",
        machines=Machines(master=KeepsLedger),
        bounds=_asp(samples=1, failures=1, kinds=("server",)),
    ),
    Flaw(
        name="a duplicate part is applied",
        finds="B",
        machines=Machines(server=DuplicateApplied),
        bounds=_asp(samples=1, workers=1, reduce=False),
    ),
    Flaw(
        name="a newer epoch is accepted (and workers neither wait for all servers nor pull first)",
        finds="A",
        machines=Machines(server=NewerEpochAccepted, holder=TellsWorkersAtOnce),
        bounds=_asp(
            samples=1, workers=1, failures=1, kinds=("server",), pull_first=False, reduce=False
        ),
    ),
    Flaw(
        name="leases go back before the fence is answered",
        finds="BC",
        machines=Machines(holder=ReturnsBeforeTheAnswer),
        bounds=_asp(samples=1, failures=1, kinds=("worker",)),
    ),
    Flaw(
        name="a repeated grant is taken as a new one",
        finds="ABC",
        machines=Machines(worker=GrantTakenTwice),
        bounds=_asp(samples=1, workers=1, reduce=False),
    ),
    Flaw(
        name="the same request gets another grant",
        finds="FC",
        machines=Machines(master=AnotherGrantForTheSameRequest),
        bounds=_asp(samples=2, workers=1, reduce=False),
    ),
    Flaw(
        name="a grant leaves before it is journalled",
        finds="BC",
        machines=Machines(master=SendsBeforeTheJournal),
        bounds=_asp(samples=1, failures=1, kinds=("master",)),
    ),
    Flaw(
        name="a cut is not an entry of the order",
        finds="E",
        machines=Machines(server=CutOutsideTheOrder),
        bounds=_asp(samples=1, cuts=1),
    ),
    Flaw(
        name="`committed` of an older epoch is believed",
        finds="CD",
        machines=Machines(holder=BelievesOldEpochs),
        bounds=_asp(samples=1, workers=1, failures=1, kinds=("server",), reduce=False),
    ),
    Flaw(
        name="a restore is carried out twice",
        finds="AEFD",
        machines=Machines(server=LoadedTwice),
        bounds=_asp(samples=1, workers=1, reduce=False),
    ),
    Flaw(
        name="cuts of two epochs share a directory",
        finds="E",
        machines=Machines(cut_directory=lambda _epoch_no, cut_no: f"{cut_no}"),
        # A number comes again only if a master has died with the cut; the third death loads it.
        bounds=_asp(
            samples=1, cuts=2, failures=3, kinds=("server", "master"), servers=1, workers=1
        ),
        max_states=60_000,
    ),
    Flaw(
        name="a worker is silent to the master between requests",
        finds="F",
        machines=Machines(worker=SilentBetweenRequests),
        bounds=_asp(
            samples=1, workers=1, servers=1, failures=2, kinds=("server", "master"), reduce=False
        ),
    ),
    Flaw(
        name="a restarted master never tells a fenced worker to leave",
        finds="F",
        machines=Machines(master=TakesBackTheFenced),
        bounds=_asp(
            samples=1, workers=1, servers=1, failures=2, kinds=("suspect-worker", "master")
        ),
    ),
    Flaw(
        name="a restarted master does not know what is safe",
        finds="jF",
        machines=Machines(master=ForgetsWhatIsSafe),
        bounds=_asp(samples=1, workers=1, servers=1, failures=1, kinds=("master",)),
    ),
    Flaw(
        name="one contribution per worker and step",
        finds="F",
        machines=Machines(worker=OneContributionPerStep),
        bounds=_bsp(workers=1),
    ),
    Flaw(
        name="contributions that all servers hold count against the window",
        finds="F",
        machines=Machines(worker=TwoUnreadyPerStep),
        bounds=_bsp(samples=3, slice=3, workers=1, window=2),
    ),
    Flaw(
        name="a worker asks for more only when it holds nothing",
        finds="F",
        machines=Machines(worker=AsksWithEmptyHands),
        bounds=_bsp(samples=4, failures=1, kinds=("worker",)),
    ),
    Flaw(
        name="a prefetched sample of a later slice is offered at once",
        finds="H",
        machines=Machines(worker=AnySliceInAnyStep),
        bounds=_bsp(samples=4),
        finish=False,
    ),
    Flaw(
        name="a fenced contribution that was ready still counts",
        finds="GBA",
        machines=Machines(server=FencedReadyCounts),
        bounds=_bsp(samples=2, failures=1, kinds=("worker",)),
    ),
    Flaw(
        name="the answer to a fence counts what is held and not ordered",
        finds="D",
        machines=Machines(server=FenceRollsForward),
        bounds=_bsp(samples=2, failures=1, kinds=("worker",)),
        finish=False,
    ),
    Flaw(
        name="a step is decided before its slice is covered",
        finds="H",
        machines=Machines(server=OrderedOnFirstReady),
        bounds=_bsp(samples=2),
    ),
    Flaw(
        name="a worker computes what it gave back",
        finds="C",
        machines=Machines(worker=KeepsWhatItGivesBack),
        bounds=_planned(),
    ),
    Flaw(
        name="a worker computes what it gave back (asp)",
        finds="BC",
        machines=Machines(worker=KeepsWhatItGivesBack),
        bounds=_asp(samples=3, leases=(3,), servers=1),
    ),
    Flaw(
        name="a worker gives back what it has offered",
        finds="BC",
        machines=Machines(worker=GivesBackWhatItBegan),
        bounds=_planned(leads=(0,)),
    ),
    Flaw(
        name="what was given back is taken twice",
        finds="C",
        machines=Machines(master=TakesBackTwice),
        bounds=_planned(reduce=False),
    ),
    Flaw(
        name="what was given back is acknowledged before it is journalled",
        finds="F",
        machines=Machines(master=AnswersBeforeTheJournal),
        bounds=_planned(failures=1, kinds=("master",)),
    ),
    Flaw(
        name="a plan is committed while samples of its steps are leased",
        finds="K",
        machines=Machines(master=CommitsAtOnce),
        bounds=_planned(),
    ),
    Flaw(
        name="a plan whose step has come is waited for",
        finds="F",
        machines=Machines(master=WaitsForTheRecall),
        bounds=_planned(workers=2, samples=4, slice=2),
    ),
    Flaw(
        name="what a step left out is given back, and offered again",
        finds="C",
        machines=Machines(worker=OffersWhatItGivesBack),
        bounds=_bsp(samples=3, left_out=1, servers=1),
        finish=False,
    ),
    Flaw(
        name="what a step left out counts as included",
        finds="F",
        machines=Machines(worker=ForgetsWhatWasLeftOut),
        bounds=_bsp(left_out=1, servers=1),
    ),
    Flaw(
        name="more is left out than is allowed",
        finds="H",
        machines=Machines(server=LeavesOutTooMuch),
        bounds=_bsp(samples=3, slice=3, left_out=1, servers=1),
    ),
    Flaw(
        name="more is left out after a grace than is allowed",
        finds="H",
        machines=Machines(server=LeavesOutTooMuchAfterAGrace),
        bounds=_bsp(samples=3, slice=3, in_grace=1, servers=1),
    ),
    Flaw(
        name="what is left out never comes back",
        finds="F",
        machines=Machines(server=NeverComesBack),
        bounds=_bsp(left_out=1, servers=1),
    ),
    Flaw(
        name="a cut without the step",
        finds="FEA",
        machines=Machines(server=CutWithoutStep),
        bounds=_bsp(samples=2, slice=1, cuts=1, failures=1, kinds=("server",), workers=1),
    ),
    Flaw(
        name="what was sent under an older map is offered on after a copy entry",
        finds="F",
        machines=Machines(worker=OldPartsStayGood),
        bounds=_move(),
    ),
    Flaw(
        name="what was sent under an older map is ordered after a copy entry",
        finds="AF",
        machines=Machines(server=OldMapsAreOrdered),
        bounds=_move(),
    ),
    Flaw(
        name="buckets are taken as those of an earlier position",
        finds="AEF",
        machines=Machines(server=SnapshotTooLate),
        bounds=_move(),
    ),
    Flaw(
        name="the switch does not wait for the buckets",
        finds="F",
        machines=Machines(holder=SwitchingMaster),
        bounds=_move(),
    ),
    Flaw(
        name="the switch does not wait for a server that owns buckets already",
        finds="J",
        machines=Machines(holder=ForgetfulMaster),
        bounds=_move(servers=2, joins=0, leaves=1),
    ),
    Flaw(
        name="pulls that were cut by an older map are answered after the switch",
        finds="J",
        machines=Machines(server=AnswersWhatMoved),
        bounds=_bsp(samples=2, slice=1, workers=1, servers=1, moves=1, joins=1, leaves=0),
    ),
    Flaw(
        name="parts without the buckets that come are applied by a server that gets them",
        finds="I",
        machines=Machines(server=TakesPartsByAnyMap),
        bounds=_move(servers=2, joins=0, leaves=1),
    ),
    Flaw(
        name="the old leader goes before all have its entries",
        finds="F",
        machines=Machines(holder=HastyMaster),
        bounds=_move(),
    ),
]

"""Which plan holds where, and the one that is being prepared.

A plan begins at a *place*, the first position of a slice, so "the same step on all workers" is a
property of who is granted what, and needs no agreement among workers. It is prepared by recalling
what is leased from that place on, and committed by a record when nobody holds any of it
(docs/protocols/integrity.md, section 4). What is prepared is memory and may vanish.

Reference: AntDT, sections V-E and V-F.
Differs: no primary agent and no local barrier.
"""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from paceline.base.samples import Span, between
from paceline.master.records import Place, Plan, Planned
from paceline.master.shards.ledger import Ledger
from paceline.wire.messages import LINES_PER_FEED, Feed


class Portion(NamedTuple):
    """A member's part of any slice: the samples from low / whole to high / whole of it."""

    low: int
    high: int
    whole: int

    def of(self, spans: Sequence[Span]) -> list[Span]:
        """The samples, of a slice in its order."""
        size = sum(len(span) for span in spans)
        return between(spans, size * self.low // self.whole, size * self.high // self.whole)


def portion_of(plan: Plan, members: Sequence[str], index: int) -> Portion:
    """What member ``index`` of these nodes computes; without any share among them, all alike."""
    sizes = [plan.size_of(node) for node in members]
    if not any(sizes):
        sizes = [1] * len(members)
    low = sum(sizes[:index])
    return Portion(low, low + sizes[index], sum(sizes))


NO_PLAN = Planned(plan=Plan(), since=Place(), step=0, undecided=Place())
"""All compute alike, from the start."""


class Preparing(msgspec.Struct):
    """A plan on its way."""

    plan: Plan
    lead: int
    """Steps from the undecided one to the one that it is to begin with."""
    since: Place = Place()
    step: int = 0


class Plans:
    """All plans of a job.

    Durable: `known`, changed by records only. Volatile: `preparing`.

    Args:
        ledger: who holds what.
        synchronous: whether all workers have a step in common; if not, a plan begins at once.
    """

    def __init__(self, ledger: Ledger, *, synchronous: bool) -> None:
        self.ledger, self.synchronous = ledger, synchronous
        #: By place; what comes before the first one is dealt by the default plan.
        self.known: list[Planned] = []
        self.preparing: Preparing | None = None

    # ------------------------------------------------------------------ in force

    def apply(self, record: Planned) -> None:
        """Commit a plan; forget those that no undecided step needs."""
        kept = [one for one in self.known if one.since < record.since]
        while len(kept) > 1 and kept[1].since <= record.undecided:
            del kept[0]
        self.known = [*kept, record]
        self.preparing = None

    def restart(self, step: int) -> None:
        """A new epoch after this step, in which nobody holds anything: the newest plan holds."""
        if self.known:
            newest = self.known[-1].plan
            self.known = [Planned(plan=newest, since=Place(), step=step + 1, undecided=Place())]

    def record_at(self, place: Place) -> Planned:
        """The commit of the plan by which the slice is dealt that begins here."""
        held = [one for one in self.known if one.since <= place]
        return held[-1] if held else NO_PLAN

    def at(self, place: Place) -> Plan:
        """The plan by which the slice is dealt that begins here."""
        return self.record_at(place).plan

    # ------------------------------------------------------------------ on the way

    def change(self, lead: int, undecided: int, **changes: object) -> None:
        """Prepare the newest plan with these changes, ``lead`` steps after the undecided one."""
        before = self.preparing.plan if self.preparing else (self.known or [NO_PLAN])[-1].plan
        plan = msgspec.structs.replace(before, no=before.no + 1, **changes)
        self.preparing = Preparing(plan=plan, lead=lead)
        self._place_anew(undecided)

    def move(self, undecided: int, *, free: bool = False) -> bool:
        """If the plan was to begin by now, let it begin later; whether it was.

        Nothing is granted from its place on until it is committed, so nobody may get there before.
        ``free``: nobody holds anything, so it can begin at once.
        """
        preparing = self.preparing
        if preparing is None or not (free or self.place(undecided) >= preparing.since):
            return False
        preparing.lead = 0 if free else max(1, 2 * preparing.lead)
        self._place_anew(undecided)
        return True

    def _place_anew(self, undecided: int) -> None:
        assert self.preparing is not None
        self.preparing.step = undecided + self.preparing.lead
        self.preparing.since = self.place(self.preparing.step) if self.synchronous else Place()

    def committable(self, undecided: int) -> Planned | None:
        """The record that commits the plan, once nobody holds a sample from its place on."""
        one = self.preparing
        if one is None or self.holders():
            return None
        since_then = self.place(undecided)
        return Planned(plan=one.plan, since=one.since, step=one.step, undecided=since_then)

    def holders(self) -> list[int]:
        """Who holds samples that the plan on its way will deal."""
        if self.preparing is None or not self.synchronous:
            return []
        return self.ledger.holders(self.preparing.since.line, self.preparing.since.position)

    def reserves(self, place: Place) -> bool:
        """Whether the slice that begins here waits for the plan on its way."""
        return self.preparing is not None and place >= self.preparing.since

    # ------------------------------------------------------------------ places

    def in_training(self) -> Feed | None:
        """The newest feed that is trained on, unless all of it is in the model."""
        feeds = [feed for feed in self.ledger.feeds.values() if feed.purpose == "train"]
        return feeds[-1] if feeds and not self.ledger.is_complete(feeds[-1].feed) else None

    def place(self, step: int) -> Place:
        """Where a step begins; without a feed: where the next one will."""
        feed = self.in_training()
        if feed is None or feed.num_samples is None:
            return Place(line=(max(self.ledger.feeds, default=-1) + 1) * LINES_PER_FEED)
        if step > feed.last_step:
            return Place(feed.line(), feed.num_samples * feed.epochs)
        whole = feed.slice_of(max(step, feed.first_step + 1))
        return Place(whole.line, whole.start)

"""Which plan holds where, and the one that is being prepared.

A plan begins at a *place*, the first position of a slice, so "the same step on all workers" is a
property of who is granted what, and needs no agreement among workers. It is prepared by recalling
what is leased from that place on, and committed by a record when nobody holds any of it
(docs/protocols/integrity.md, section 4). What is prepared is memory and may vanish.

Reference: AntDT, sections V-E and V-F.
Differs: no primary agent and no local barrier.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from math import inf
from typing import assert_never

import msgspec
from msgspec.structs import replace

from paceline.base.errors import ConfigError
from paceline.base.numbering import START, Inc, StepNo, step_after
from paceline.base.samples import LEAST, Portion, Span, merged
from paceline.policy.actions import (
    AdjustBatch,
    AdjustRate,
    BackupWorkers,
    Partial,
    Share,
)
from paceline.protocol.records import Place, Plan, Planned
from paceline.protocol.samples.ledger import Ledger, Part
from paceline.wire.messages.feeds import LINES_PER_FEED, Batching, Feed, Slice
from paceline.wire.messages.order import Lacking

GlobalAction = AdjustBatch | BackupWorkers | Partial | AdjustRate


def portion_of(plan: Plan, members: Sequence[str], index: int) -> Portion:
    """Return the portion that member ``index`` of these nodes computes."""
    sizes = plan.sizes_of(members)
    low = sum(sizes[:index])
    return Portion(low, low + sizes[index], sum(sizes))


def part_edges(plan: Plan, members: Sequence[str], size: int, batch_size: int) -> list[int]:
    """Where the parts of all members begin in a slice of this size, and its end.

    Where a whole slice has at least two samples for each member, none has a single one of a smaller
    slice: fewer members compute it.
    """
    edges = list(accumulate(plan.sizes_of(members), initial=0))
    found, whole = ([each * edge // edges[-1] for edge in edges] for each in (size, batch_size))
    shares = [high - low for low, high in pairwise(edges)]
    parts = [high - low for low, high in pairwise(whole)]
    enough = all(part >= LEAST for part, share in zip(parts, shares, strict=True) if share)
    return merged(found, LEAST) if enough else found


def part_sizes(
    plan: Plan, members: Sequence[str], size: int, batch_size: int | None = None
) -> list[int]:
    """Samples that each member computes of a slice of this size; ``batch_size``: of a whole one."""
    edges = part_edges(plan, members, size, size if batch_size is None else batch_size)
    return [high - low for low, high in pairwise(edges)]


def fixed_parts(plan: Plan, members: Sequence[str], index: int, feed: Feed) -> Iterator[Part]:
    """Yield each epoch of a feed of known length, and member ``index``'s part of it."""
    portion, size = portion_of(plan, members, index), feed.num_samples or 0
    for start in range(0, feed.epochs * size, size):
        epoch = (Span(feed.line(), start, start + size),)
        yield epoch, portion.of(epoch)


NO_PLAN = Planned(plan=Plan(), since=Place(), step=START, undecided=Place())
"""All compute alike, from the start."""


def _batching(plan: Plan, nodes: Sequence[str], index: int, feed: Feed, start: int) -> Batching:
    share = plan.share_of(nodes[index])
    mine = portion_of(plan, nodes, index).size(len(feed.slice_no(1)))
    batch_size = 0
    if share is not None:
        # Who computes a part of an absent worker's share has larger batches, not more of them:
        # each costs its fixed part of the time, and a pull.
        batch_size = max(share.batch_size, -(-mine // (share.accumulation * plan.chunks)))
    return Batching(
        start=start,
        batch_size=batch_size,
        contribution=-(-mine // plan.chunks) if plan.chunks > 1 else 0,
        short=max(plan.left_out, plan.late) > 0,
    )


class Preparing(msgspec.Struct):
    """A plan on its way."""

    plan: Plan
    lead: int
    """Steps from the undecided one to the one that it is to begin with."""
    since: Place = Place()
    step: StepNo = START


class Plans:
    """All plans of a job.

    Durable: `known`, changed by records only. Volatile: `preparing`.

    Args:
        ledger: who holds what.
        synchronous: whether all workers have a step in common; if not, a plan begins at once.
        granted: whether the shares of steps are leased; if not, nobody's is in a plan's way.
        whole: whether no step may lack anything.
    """

    def __init__(
        self, ledger: Ledger, *, synchronous: bool, granted: bool = True, whole: bool = False
    ) -> None:
        self.ledger, self.synchronous, self.granted = ledger, synchronous, granted
        self.whole = whole
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

    def restart(self, step: StepNo) -> None:
        """A new epoch after this step, in which nobody holds anything: the newest plan holds."""
        if self.known:
            newest = self.known[-1].plan
            self.known = [
                Planned(plan=newest, since=Place(), step=step_after(step), undecided=Place())
            ]

    @property
    def newest(self) -> Plan:
        """The plan committed last."""
        return (self.known or [NO_PLAN])[-1].plan

    def record_at(self, place: Place) -> Planned:
        """The commit of the plan by which the slice is dealt that begins here."""
        held = [one for one in self.known if one.since <= place]
        return held[-1] if held else NO_PLAN

    def at(self, place: Place) -> Plan:
        """The plan by which the slice is dealt that begins here."""
        return self.record_at(place).plan

    def batching(self, place: Place, nodes: Sequence[str], index: int) -> tuple[Batching, ...]:
        """How member ``index`` of these nodes computes its shares, from a slice's place on."""
        feed = self.in_training()
        if feed is None or not self.known:
            return ()
        records = [self.record_at(place), *(one for one in self.known if one.since > place)]
        return tuple(
            _batching(one.plan, nodes, index, feed, one.since.position if one.since > place else 0)
            for one in records
            if one.since.line <= place.line
        )

    def allowed(self) -> Planned | None:
        """Since when a step may lack what it may lack by the newest plan; None: never anything."""
        newest = self.known[-1].plan.allow if self.known else 0
        return next((one for one in self.known if newest and one.plan.allow == newest), None)

    def in_steps(self, feed: Feed) -> bool:
        """Whether workers read it slice by slice, all of them a part of each."""
        return self.synchronous and feed.purpose == "train"

    def has_fixed_parts(self, feed: Feed) -> bool:
        """Whether each worker computes a part of each epoch that is its own."""
        return self.newest.fixed and feed.purpose == "train" and bool(feed.num_samples)

    # ------------------------------------------------------------------ on the way

    def prepare(self, action: GlobalAction, lead: int, step: int, nodes: Sequence[str]) -> None:
        """Begin to make this action part of the plan, ``lead`` steps after the undecided one.

        Args:
            action: replaces what the newest plan says of the same; nothing happens if it is that.
            lead: as above.
            step: the undecided one.
            nodes: of the workers that live.

        Raises:
            ConfigError: it cannot be; the message says why.
        """
        before = self.preparing.plan if self.preparing else self.newest
        self._check(action, nodes)
        plan = self.amended(before, action, nodes)
        self._check_short(plan, nodes)
        if plan == before:
            return
        plan = replace(plan, no=before.no + 1)
        if plan.lacking != before.lacking:
            plan = replace(plan, allow=plan.no)
        self.preparing = Preparing(plan=plan, lead=lead)
        self._place_anew(StepNo(step), self.undecided())

    def amended(self, plan: Plan, action: GlobalAction, nodes: Sequence[str]) -> Plan:
        """The plan with this action as part of it; the same plan if it is that already."""
        match action:
            case AdjustBatch(shares=shares, fixed=fixed):
                plan = replace(plan, shares=dict(shares), fixed=fixed)
            case BackupWorkers(count=count):
                plan = replace(plan, backup=count, left_out=0, late=0, grace_s=0.0, chunks=1)
                plan = replace(plan, lacking_of=0)
            case Partial(left_out=left_out, chunks=chunks, late=late, grace_s=grace_s):
                late, grace_s = (late, grace_s) if late > left_out else (0, 0.0)
                lacking = {"left_out": left_out, "late": late, "grace_s": grace_s}
                plan = replace(plan, backup=0, chunks=chunks, **lacking)
                plan = replace(plan, lacking_of=self._following(nodes) if left_out or late else 0)
            case AdjustRate(factors=factors, by_staleness=by_staleness):
                plan = replace(plan, factors=dict(factors), by_staleness=by_staleness)
            case _:
                assert_never(action)
        if not plan.backup:
            return plan
        left_out, of = self._share_of(plan, nodes), self._following(nodes)
        return replace(plan, left_out=left_out, lacking_of=of)

    def _check(self, action: GlobalAction, nodes: Sequence[str]) -> None:
        match action:
            case AdjustBatch(shares=shares, fixed=fixed):
                self._check_shares(shares)
                feed = self.in_training()
                if fixed and (self.synchronous or feed is None or feed.num_samples is None):
                    raise ConfigError(
                        "fixed shares are parts of an epoch of known length, in mode asp or ssp"
                    )
            case AdjustRate(factors=factors):
                self._check_factors(factors)
            case BackupWorkers() | Partial() if self.whole:
                raise ConfigError(
                    f"{type(action).__name__} in a deterministic job: what a step lacks depends on "
                    "which worker was late; divide its work again (AdjustBatch)"
                )
            case BackupWorkers(count=count):
                if self.in_training() is None:
                    raise ConfigError(
                        "nothing is being trained on, so nobody's share can be spared"
                    )
                if not 0 <= count < len(nodes):
                    raise ConfigError(f"cannot do without {count} of {len(nodes)} workers")
            case Partial():
                pass  # a step may lack any number of samples
            case _:
                assert_never(action)

    def _global_batch(self, nodes: Sequence[str]) -> int:
        """Samples of a step that all these do; 0: nothing is trained on."""
        feed = self.in_training()
        return feed.global_batch(len(nodes)) if feed is not None else 0

    def _following(self, nodes: Sequence[str]) -> int:
        """The global batch, if it follows the workers; else 0."""
        feed = self.in_training()
        return self._global_batch(nodes) if feed is not None and feed.per_worker else 0

    def _check_shares(self, shares: Mapping[str, Share]) -> None:
        if any(share.batch_size < 1 or share.accumulation < 1 for share in shares.values()):
            raise ConfigError(f"a share is at least 1 batch of 1 sample, got {dict(shares)}")
        total = sum(share.num_samples for share in shares.values())
        feed = self.in_training()
        # One that follows the workers may be another by now: what counts is who does how much.
        wanted = feed.batch_size if feed is not None and not feed.per_worker else total
        if self.synchronous and total != wanted:
            raise ConfigError(
                f"the shares are {total} samples together; the global batch is {wanted}"
            )

    def _check_factors(self, factors: Mapping[str, float]) -> None:
        if self.synchronous:
            raise ConfigError(
                "ADJUST_LR in mode bsp: a step is the exact mean over its samples, which a factor "
                "on some of them would break; run the job with --mode asp or --mode ssp"
            )
        if not all(0 < factor < inf for factor in factors.values()):
            raise ConfigError(f"factors on learning rates are above 0, got {dict(factors)}")

    def _share_of(self, plan: Plan, nodes: Sequence[str]) -> int:
        """Samples of a step that the plan's backup workers compute, those with the largest shares.

        However many there are, a step has one worker more.
        """
        count = min(plan.backup, len(nodes) - 1)
        sizes = sorted(part_sizes(plan, nodes, self._global_batch(nodes)))
        return sum(sizes[len(sizes) - count :])

    def _check_short(self, plan: Plan, nodes: Sequence[str]) -> None:
        if (plan.backup, plan.lacking, plan.chunks) == (0, Lacking(), 1):
            return
        if not self.synchronous:
            raise ConfigError("only the steps of mode bsp wait for workers that could be left out")
        now = self._global_batch(nodes)
        size = plan.lacking_of or now or max(plan.left_out, plan.late) + 1
        if plan.chunks < 1 or plan.left_out < 0 or max(plan.left_out, plan.late) >= size:
            raise ConfigError(
                f"{plan.left_out} samples left out, {plan.late} if late, in {plan.chunks} chunks: "
                f"expected 0 to {size - 1}, and at least 1 chunk"
            )
        if not 0.0 <= plan.grace_s < inf:
            raise ConfigError(f"a grace of {plan.grace_s} s: expected 0 s or more")

    def move(self, step: StepNo, whole: Slice, *, free: bool = False) -> bool:
        """If the plan was to begin by now, let it begin later; whether it was.

        Nothing is granted from its place on until it is committed, so nobody may get there before.

        Args:
            step: the undecided one, which consists of ``whole``.
            whole: empty: as the ledger knows it.
            free: nobody holds anything, so it can begin at once.
        """
        if self.preparing is None:
            return False
        feed, whole = self.in_training(), whole or self.undecided()
        in_order = feed is None or not whole or feed.is_in_order(whole)
        if not (free or (in_order and self.reserves(self.place(whole)))):
            return False
        self.preparing.lead = 0 if free else max(1, 2 * self.preparing.lead)
        self._place_anew(step, whole)
        return True

    def _place_anew(self, step: StepNo, whole: Slice) -> None:
        assert self.preparing is not None
        lead = self.preparing.lead
        self.preparing.step = step_after(step, lead)
        self.preparing.since = self.place(whole, lead) if self.synchronous else Place()

    def committable(self) -> Planned | None:
        """The record that commits the plan, once nobody holds a sample from its place on."""
        one = self.preparing
        if one is None or self.holders():
            return None
        since_then = self.place(self.undecided())
        return Planned(plan=one.plan, since=one.since, step=one.step, undecided=since_then)

    def holders(self) -> list[Inc]:
        """Return the incarnations that hold samples which the plan on its way will deal."""
        if self.preparing is None or not (self.synchronous and self.granted):
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

    def undecided(self) -> Slice:
        """Return the slice of the undecided step, as far as the ledger knows."""
        feed = self.in_training()
        if feed is None or not self.synchronous:
            return ()
        return feed.next_slice(self.ledger.done.line(feed.line()))

    def place(self, whole: Slice, ahead: int = 0) -> Place:
        """Where a slice, or the one so many steps after it, stands; none: where the next feed will.

        Slices of left-outs have no place of their own: they are dealt as what comes after them.
        """
        feed = self.in_training()
        if feed is None or not whole:
            return Place(line=(max(self.ledger.feeds, default=-1) + 1) * LINES_PER_FEED)
        number = feed.rank(whole) + (ahead if feed.is_in_order(whole) else 0)
        return Place(feed.line(), feed.start_of(number))

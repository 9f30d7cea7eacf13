"""The durable part of `MasterState` as one record, so that a long journal can begin again."""

import msgspec

from paceline.base.numbering import CutNo, Inc
from paceline.base.samples import Intervals, SampleSet, Span
from paceline.protocol.records import (
    Agreed,
    CutValid,
    EpochStarted,
    GroupKept,
    LoopEnded,
    MoveBegun,
    Planned,
    Record,
)
from paceline.protocol.samples.ledger import LedgerLine
from paceline.protocol.training import MasterState
from paceline.wire.messages.base import ServerMap
from paceline.wire.messages.feeds import Feed, feed_of
from paceline.wire.messages.node import Grant
from paceline.wire.schema import ModelSchema


class LineKept(msgspec.Struct, frozen=True, array_like=True):
    """One line of the ledger; ``returned`` are interval edges."""

    line: int
    cursor: int
    end: int
    epoch_len: int
    returned: tuple[int, ...]
    name: str


class Snapshot(Record, frozen=True):
    """Everything that records have changed so far; stands for all of them."""

    model: ModelSchema | None
    start: EpochStarted | None
    feeds: tuple[Feed, ...]
    lines: tuple[LineKept, ...]
    leases: tuple[tuple[Inc, tuple[Span, ...]], ...]
    done: tuple[Span, ...]
    finished: tuple[int, ...]
    grants: tuple[Grant, ...]
    gone: tuple[Inc, ...]
    cuts: tuple[CutValid, ...]
    last_cut_no: CutNo
    safe: tuple[int, ...]
    covered: tuple[int, ...] = ()
    map: ServerMap | None = None
    move: MoveBegun | None = None
    gave_back: tuple[tuple[Inc, int], ...] = ()
    plans: tuple[Planned, ...] = ()
    group: GroupKept | None = None
    agreed: tuple[Agreed, ...] = ()
    opened_before: int = -1
    loops_ended: tuple[LoopEnded, ...] = ()


def take(state: MasterState) -> Snapshot:
    """Return what a fresh state must be given to be as durable as this one."""
    ledger = state.ledger
    kept = Snapshot(
        model=state.model,
        start=None,
        feeds=tuple(ledger.feeds.values()),
        lines=tuple(
            LineKept(
                number,
                line.cursor,
                line.end,
                line.epoch_len,
                tuple(line.returned.edges),
                line.name,
            )
            for number, line in ledger.lines.items()
        ),
        leases=tuple((inc, lease.spans()) for inc, lease in ledger.leases.items()),
        done=ledger.done.spans(),
        finished=tuple(sorted(ledger.finished)),
        grants=tuple(state.grants.values()),
        gone=tuple(sorted(state.gone)),
        cuts=tuple(state.cuts.valid),
        last_cut_no=state.cuts.last_no,
        safe=tuple(sorted(state.cuts.safe)),
        covered=tuple(sorted(state.cuts.covered)),
        gave_back=tuple(state.gave_back.items()),
        plans=tuple(state.plans.known),
        agreed=tuple(Agreed(*one) for one in state.ledger.agreements.agreed.items()),
        opened_before=ledger.opened_before,
        loops_ended=tuple(state.left_loops.ended.values()),
    )
    return msgspec.structs.replace(kept, **state.holder.kept())


def restore(state: MasterState, kept: Snapshot) -> None:
    """Bring a fresh state to where the snapshot was taken."""
    state.model = kept.model
    ledger = state.ledger
    ledger.feeds = {feed.feed: feed for feed in kept.feeds}
    ledger.names = {feed.feed: {} for feed in kept.feeds if feed.num_samples is None}
    for line in kept.lines:
        ledger.lines[line.line] = restored = LedgerLine(line.end, line.epoch_len, line.name)
        restored.cursor, restored.returned = line.cursor, Intervals(line.returned)
        if (names := ledger.names.get(feed_of(line.line))) is not None:
            names[line.name] = line.line
    ledger.leases = {inc: SampleSet(spans) for inc, spans in kept.leases}
    ledger.done = SampleSet(kept.done)
    ledger.finished = set(kept.finished)
    ledger.opened_before = kept.opened_before
    state.grants = {grant.inc: grant for grant in kept.grants}
    state.gone = set(kept.gone)
    state.cuts.valid = list(kept.cuts)
    state.cuts.last_no = kept.last_cut_no
    state.cuts.safe, state.cuts.covered = set(kept.safe), set(kept.covered)
    state.gave_back, state.plans.known = dict(kept.gave_back), list(kept.plans)
    for ended in kept.loops_ended:
        state.left_loops.apply(ended)
    for one in kept.agreed:
        state.ledger.agreements.apply(one)
    if state.holder.restore(kept):  # a cut proves its step
        steps = [cut.step for cut in kept.cuts if cut.epoch_no == state.epoch_no]
        state.step = max([state.step, *steps])

"""What the explorer of all-reduce reads of a process, worked out once for each of its states."""

from functools import reduce
from itertools import accumulate
from operator import or_
from typing import NamedTuple

from paceline.wire.messages.group import NO_STEP, CatchUp, RunGroup

from .group_cells import HALF, MasterCell, MemberCell, Model, mask


class MemberFacts(NamedTuple):
    """What the world reads of a member."""

    inc: int
    epoch_no: int
    group: int
    step: int
    ran: int
    run: RunGroup | None
    """Of the step that it is in."""
    running: RunGroup | None
    holds: bool
    """It may work in the group of its step."""
    rounds: tuple[int, int]
    told: tuple[int, int] | None
    updating: bool
    wants_out: bool
    leaving: bool
    left: bool
    """It has said that it is in no group any more."""
    ended: bool
    arriving: tuple[CatchUp, Model | None] | None
    model: Model
    differs: bool
    """What it holds is not what the others do, and it knows."""
    hands_out: tuple[int, int] | None
    """(epoch, step) of the state that peers may copy from it now."""
    bad: str
    """Which invariant its own state breaks."""

    @classmethod
    def of(cls, cell: MemberCell) -> "MemberFacts":
        """Read them."""
        state = cell.state
        return cls(
            inc=state.inc,
            epoch_no=state.epoch_no,
            group=state.group,
            step=state.step,
            ran=state.ran,
            run=cell.run,
            running=state.running,
            holds=cell.run is not None and cell.run is state.running,
            rounds=cell.rounds,
            told=cell.told,
            updating=cell.changing,
            wants_out=state.wants_out or cell.leaving,
            leaving=cell.leaving,
            left=state.left,
            ended=cell.at == len(cell.feeds),
            arriving=cell.arriving,
            model=cell.model,
            differs=cell.differs,
            hands_out=(state.epoch_no, state.step) if state.at_rest else None,
            bad=_bad(cell),
        )


class MasterFacts(NamedTuple):
    """What the world reads of the master."""

    epoch_no: int
    number: int
    running: bool
    step: int
    members: frozenset[int]
    workers: frozenset[int]
    gone: frozenset[int]
    losable: frozenset[int]
    """Whose death would be news."""
    needs_restore: bool
    may_form: bool
    waits: bool
    """Nobody has trained yet, and not all that are expected are there."""
    gathers: bool
    """The same, also where a first group was formed whose members have gone."""
    done: int
    kept: tuple[int, int, bool]
    """By the journal: epoch, group, whether it runs."""
    may_die: bool
    bad: str


def _bad(cell: MemberCell) -> str:
    """A replica at step t holds slices 1 ... t, once each, and its committed set says so.

    Of feeds whose steps follow the workers: slices in order, in exactly t steps.
    """
    state = cell.state
    whole = [one for one, _ in cell.model if one >= 0]
    slices = [mask([feed.slice_no(n + 1)]) for feed in cell.feeds for n in range(feed.num_slices)]
    held, in_order = list(accumulate(whole, initial=0)), list(accumulate(slices, initial=0))
    if held[-1] != reduce(or_, whole, 0):
        return f"B: {state.inc} has samples twice: {whole}"
    follows = cell.feeds[0].per_worker and set(held) <= set(in_order)
    wanted = held if follows else in_order
    in_steps = len(held) == state.step + 1 and held == wanted[: len(held)]
    if state.step != NO_STEP and not in_steps:
        return f"H: {state.inc} is at step {state.step} and holds {whole}"
    if state.step != NO_STEP and mask(state.done) != held[-1]:
        return f"H: {state.inc} holds {whole} and says {state.done}"
    if state.step != NO_STEP and cell.differs:
        return f"E: {state.inc} goes on with what it holds, from which others differ"
    if cell.model.count(HALF) > cell.changing:
        return f"H: {state.inc} holds a step in part"
    return ""


def master_facts(cell: MasterCell) -> MasterFacts:
    """Read them."""
    group, state = cell.group, cell.state
    kept = cell.journalled.holder.group if cell.journalled is not None else group
    assert kept is not None
    members = frozenset(member.inc for member in group.members)
    known = frozenset(group.ready) | frozenset(state.workers) | (members - group.lost)
    durable = (group.epoch_no, group.number, group.members, group.running, group.gone)
    said = (kept.epoch_no, kept.number, kept.members, kept.running, kept.gone)
    return MasterFacts(
        epoch_no=group.epoch_no,
        number=group.number,
        running=group.running,
        step=group.step,
        members=members,
        workers=frozenset(state.workers),
        gone=frozenset(group.gone),
        losable=known - group.gone,
        needs_restore=group.needs_restore,
        may_form=bool(group.broken),
        waits=not group.number and bool(group.ready),
        gathers=group.gathers and bool(group.ready) and not group.running,
        done=mask(state.ledger.done),
        kept=(kept.epoch_no, kept.number, kept.running),
        may_die=cell.journalled is not None,
        bad="" if durable == said or cell.unjournalled else "E: the journal says something else",
    )

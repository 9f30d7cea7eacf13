"""What checks, choices and the reduction need to know of a process."""

import msgspec

from paceline.base.samples import Span
from paceline.protocol.holding.servers.master import ServerHolder
from paceline.protocol.holding.servers.server import ServerState
from paceline.protocol.holding.servers.worker import WorkerState
from paceline.protocol.training import MasterState
from paceline.wire.messages.data import At, Held, MapIs, Order, Ordered, Part, Ready, Refused
from paceline.wire.messages.node import (
    ChangeMap,
    Committed,
    Copied,
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

from .cells import (
    FEED,
    Buckets,
    Cell,
    MasterCell,
    ServerCell,
    Violation,
    WorkerCell,
    directory_of,
    mask,
)


class Facts(msgspec.Struct, kw_only=True, frozen=True):
    """What checks and choices need to know of a process, read once per process state."""

    kind: str
    inc: int
    epoch_no: int
    # a server
    position: int = 0
    step: int = 0
    content: int = 0
    fenced: frozenset[int] = frozenset()
    placed: bool = False
    """It has a share of the model, or had one in this epoch."""
    in_grace: bool = False
    """The undecided step may be decided without what it lacks, as soon as its grace is over."""
    # a worker
    holds: int = 0
    may_work: bool = False
    may_pull: bool = False
    pulled: bool = False
    pulling: bool = False
    # the master
    done: int = 0
    to_do: int = 0
    complete: bool = False
    safe: bool = False
    map: tuple[int, ...] = ()
    """The servers that the master counts on."""
    num_sharers: int = 0
    """Servers that own buckets, by the master's map."""
    moving: bool = False
    workers: frozenset[int] = frozenset()
    owing: frozenset[int] = frozenset()
    cutting: bool = False
    storing: bool = False
    copied: frozenset[int] = frozenset()
    stored: frozenset[int] = frozenset()
    restoring: bool = False
    planning: bool = False
    journalled: bool = False
    loadable: frozenset[str] = frozenset()

    @staticmethod
    def of(cell: Cell) -> "Facts":
        """Read a process; raises `Violation` where it contradicts itself."""
        match cell:
            case ServerCell(state=state):
                return Facts(
                    kind="server",
                    inc=state.inc,
                    epoch_no=state.epoch_no,
                    position=state.contents.position,
                    step=state.contents.step,
                    content=cell.content,
                    fenced=frozenset(state.fenced),
                    placed=state.map is not None,
                    in_grace=state.readiness.grace_s is not None,
                )
            case WorkerCell(state=state):
                leased = [s for spans in state.leases.lease.values() for s in spans]
                offered = [s for o in state.offers.values() for s in o.part.spans]
                return Facts(
                    kind="worker",
                    inc=state.inc,
                    epoch_no=state.epoch_no,
                    holds=mask([*leased, *offered]),
                    may_work=cell.may_work(),
                    may_pull=cell.may_pull(),
                    pulled=cell.pulled,
                    pulling=state.pulling is not None,
                )
        return _master_facts(cell)


def ignores(cell: Cell, message: object) -> bool:
    """Whether a message can do nothing in this process, now or later."""
    match cell:
        case ServerCell(state=state):
            if isinstance(message, Buckets) and message.epoch_no == state.epoch_no:
                return cell.has_taken(message)
            return _server_ignores(state, message)
        case WorkerCell(state=state):
            return _worker_ignores(state, message)
    return _master_ignores(cell, message)


def _master_facts(cell: MasterCell) -> Facts:
    state = cell.state
    ledger = state.ledger
    line = ledger.lines.get(0)
    done, to_do = mask(ledger.done), 0
    parts = [done] + [mask(lease) for lease in ledger.leases.values()]
    if line is not None:
        to_do = mask(Span(0, a, b) for a, b in line.returned)
        parts += [to_do]
        fresh = mask([Span(0, line.cursor, line.end)])
        to_do |= fresh
        parts += [fresh]
        if sum(p.bit_count() for p in parts) != line.end or sum(parts) != (1 << line.end) - 1:
            raise Violation("C", f"a sample has two places in the ledger, or none: {parts}")
    if cell.journalled is not None:
        _compare_durable(state, cell.journalled)
    return Facts(
        kind="master",
        inc=0,
        epoch_no=state.epoch_no,
        done=done,
        to_do=to_do,
        complete=FEED in ledger.feeds and ledger.is_complete(FEED),
        safe=FEED in state.cuts.safe,
        map=tuple(sorted(cell.holder.serving)),
        num_sharers=len(cell.holder.map.sharers) if cell.holder.map else 0,
        moving=cell.holder.moving.begun is not None,
        workers=frozenset(state.workers),
        owing=frozenset(state.ledger.leases),
        cutting=state.cuts.copying is not None,
        storing=state.cuts.storing is not None,
        copied=frozenset(state.cuts.copied),
        stored=frozenset(inc for inc, copied in state.cuts.copied.items() if copied.stored),
        restoring=bool(cell.holder.restoring),
        planning=state.plans.preparing is not None,
        journalled=cell.journalled is not None,
        loadable=frozenset(
            directory_of(c.cut) for c in (*state.cuts.valid[-1:], cell.holder.start) if c
        ),
    )


def _compare_durable(state: MasterState, journalled: MasterState) -> None:
    held, kept = state.holder, journalled.holder
    assert isinstance(held, ServerHolder)
    assert isinstance(kept, ServerHolder)
    for name in ("map", "start"):
        if getattr(held, name) != getattr(kept, name):
            raise Violation("journal", f"{name} is not what the journal says")
    for name in ("epoch_no", "grants", "gone", "gave_back"):
        if getattr(state, name) != getattr(journalled, name):
            raise Violation("journal", f"{name} is not what the journal says")
    for name in ("valid", "last_no", "safe", "covered"):
        if getattr(state.cuts, name) != getattr(journalled.cuts, name):
            raise Violation("journal", f"cuts.{name} is not what the journal says")
    if held.moving.begun != kept.moving.begun:
        raise Violation("journal", "the move is not what the journal says")
    if state.plans.known != journalled.plans.known:
        raise Violation("journal", "the plans are not what the journal says")


def compare(one: Facts, two: Facts) -> None:
    """Two servers of one epoch."""
    if one.position > two.position:
        one, two = two, one
    if one.content & ~two.content:
        raise Violation("A", f"server {one.inc} has {one.content:b}, {two.inc} has not")
    if one.position == two.position and (one.content, one.step) != (two.content, two.step):
        raise Violation("A", f"servers {one.inc} and {two.inc} differ at position {one.position}")


def epoch_of(message: object) -> int:
    return getattr(message, "epoch_no", 1 << 30)


# ---------------------------------------------------------------------- what is ignored for good


def _server_ignores(state: ServerState, message: object) -> bool:
    """The reasoning behind the reduction; `World.is_dead` also tries that nothing happens."""
    epoch_no = epoch_of(message)
    if epoch_no != state.epoch_no:
        return epoch_no < state.epoch_no
    match message:
        case Part(inc=inc, seq=seq, step=step):
            known = (inc, seq) in state.contents.parts or seq <= state.contents.last_seq.get(inc, 0)
            void = message.map_version < state.barrier or state.has_left
            return known or inc in state.fenced or 0 < step <= state.contents.step or void
        case Ready(inc=inc, seq=seq, step=step):
            if inc in state.fenced or message.map_version < state.barrier or state.log.handover:
                return True
            if not step:
                return seq <= state.contents.last_seq.get(inc, 0)
            known = step == state.contents.step + 1 and state.readiness.last_of.get(inc, 0) >= seq
            return known or step <= state.contents.step
        case Order(start=start, entries=entries, fenced=fenced):
            told = all(inc in state.fenced for inc, _ in fenced)
            return start + len(entries) - 1 <= state.contents.position and told
        case At(server=server, position=position):
            return state.log.applied_at.get(server, 0) >= position
        case Fence(fenced=inc):
            return inc in state.fenced
        case Allow(no=no):
            return bool(state.readiness.allowed) and no <= state.readiness.newest
        case TakeCut(cut_no=cut_no):
            return cut_no <= state.last_cut
        case Restore() | JoinServers():
            return True
        case ChangeMap(map=wanted):
            return state.map is not None and wanted.version <= state.map.version
    return False


def _worker_ignores(state: WorkerState, message: object) -> bool:
    epoch_no = epoch_of(message)
    if isinstance(message, GivenUp):
        return False
    if isinstance(message, NewEpoch):
        return epoch_no <= state.epoch_no
    if isinstance(message, Refused) and not message.fenced:
        return True
    if epoch_no != state.epoch_no:
        return epoch_no < state.epoch_no
    version = state.map.version if state.map else 0
    match message:
        case NewMap(map=told):
            return told.version <= version
        case MapIs(map=told, leads=leads, seq=seq):
            if told.version < version or not leads:
                return told.version <= version
            void = any(o.part.map_version < message.barrier for o in state.offers.values())
            return told.version == version and not void and all(k > seq for k in state.offers)
        case Grant(n=n):
            return n <= state.leases.last_n
        case Recall(n=n):
            return n <= state.leases.last_n
        case GivenBack(r=r):
            return all(known > r for known in state.leases.giving_back)
        case Held(server=server, seq=seq):
            return seq not in state.offers or server not in state.offers[seq].not_held_by
        case Ordered(seq=seq):
            return all(known > seq for known in state.offers)
    return False


def _master_ignores(cell: MasterCell, message: object) -> bool:
    state = cell.state
    epoch_no = epoch_of(message)
    match message:
        case Prepared(inc=inc):
            return inc in state.prepared
        case LeaseRequest(inc=inc, n=n):
            if epoch_no < state.epoch_no:
                return inc in state.prepared
            last = state.grants.get(inc)
            known = last is not None and (n < last.n or (n == last.n == cell.sent.get(inc)))
            return (known or n == 0) and inc in state.workers and inc not in cell.holder.untold
    if epoch_no != state.epoch_no:
        return epoch_no < state.epoch_no
    match message:
        case GiveBack(inc=inc, r=r):
            return r <= state.gave_back.get(inc, 0) or inc in state.gone
        case Restored(inc=inc):
            return inc not in cell.holder.restoring
        case Joined(inc=inc, caught_up=caught_up):
            moving = cell.holder.moving
            if moving.begun is None or inc not in moving.begun.owners:
                return moving.begun is None or inc < max(moving.begun.owners)
            return inc in moving.joined and moving.caught_up.get(inc, 0) >= caught_up
        case MapSet(map=told, settled=settled):
            if (
                cell.holder.restoring
                or cell.holder.map is None
                or told.version > cell.holder.map.version
            ):
                return False
            return (
                not settled or cell.holder.moving.settled or told.version < cell.holder.map.version
            )
        case FenceAnswer(fenced=inc):
            return inc in state.gone
        case Committed(step=step, committed=committed):
            if cell.holder.restoring:
                return False
            return step <= state.step and not mask(committed) & ~mask(state.ledger.done)
        case Copied(cut_no=cut_no, stored=stored):
            wanted = cut_no == state.cuts.copying or (stored and cut_no == state.cuts.storing)
            return cut_no <= state.cuts.last_no and not wanted
    return False

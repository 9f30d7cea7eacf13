"""How members of one machine come together: by a board that the first of them makes.

Where all can read each other's memory they share it. If one of any machine cannot, all members of
the group connect over sockets.
"""

from collections.abc import Sequence
from contextlib import suppress

from paceline.runtime.group.board import CAN_READ, HAS_JOINED, JOINED, Board
from paceline.runtime.group.shared_memory import GroupArena, arena, keep_maps, mapped
from paceline.runtime.group.store import PeerStore
from paceline.wire.messages.group import Member

BOARD, APART, TOGETHER = "board", "apart", "together"
"""Keys, before a rank: where the board is that this first member of a machine has made; this member
cannot read another's memory; whether all on the machine of this first member can."""
MEETING = BOARD, APART, TOGETHER
_LOOK_S = 0.05
"""Seconds between two looks whether a member cannot."""
_YES, _NO = b"1", b"0"


def machines_of(members: Sequence[Member]) -> list[list[int]]:
    """Ranks of the members of each place where they may share memory, both in their order."""
    found: dict[str, list[int]] = {}
    for rank, member in enumerate(members):
        found.setdefault(member.place or str(rank), []).append(rank)
    return [*found.values()]


def meet(
    store: PeerStore, machines: Sequence[Sequence[int]], rank: int
) -> tuple[Board, GroupArena] | None:
    """Come together with those on our machine; None: all members connect over sockets.

    Raises:
        GroupOver: the group is over before, or some do not come in time.
    """
    if len(machines) == sum(map(len, machines)):
        keep_maps(())
        return None
    ours = next(ranks for ranks in machines if rank in ranks)
    board = None
    try:
        with suppress(OSError):
            board = _joined(store, ours, rank)
        if _are_together(store, board, machines, ours, rank):
            assert board is not None
            keep_maps(map(board.where, range(len(ours))))
            met, board = (board, arena()), None
            return met
        return None
    finally:
        if board is not None:  # nothing comes of it
            board.end()
            if rank == ours[0]:
                arena().give_back_later([], [board.room])


def _are_together(
    store: PeerStore,
    board: Board | None,
    machines: Sequence[Sequence[int]],
    ours: Sequence[int],
    rank: int,
) -> bool:
    """Tell whether on each machine all can read each other's memory; all members find the same."""
    if board is None:
        store.set(f"{APART}/{rank}", _NO)
    together = board is not None and _have_joined(store, board, ours)
    if rank == ours[0] and len(machines) > 1:
        store.set(f"{TOGETHER}/{rank}", _YES if together else _NO)
    keys = [f"{TOGETHER}/{ranks[0]}" for ranks in machines if ranks is not ours]
    store.wait(keys)
    return together and all(store.peek(key) != _NO for key in keys)


def _joined(store: PeerStore, ours: Sequence[int], rank: int) -> Board | None:
    """The board of our machine, with us on it; None: its maker has none."""
    own = arena()
    key, size = f"{BOARD}/{ours[0]}", len(ours)
    if rank == ours[0]:
        board, where = Board.create(own, size)
        store.set(key, where)
    else:
        store.wait_for_any([key, *(f"{APART}/{one}" for one in ours)])
        where = (store.peek(key) or b"").decode()
        if not where:
            return None
        board = Board.at(where, size, ours.index(rank))
    board.join(own.where)
    return board


def _have_joined(store: PeerStore, board: Board, ours: Sequence[int]) -> bool:
    """Wait for all on our machine; False: one of them cannot read another's memory."""
    if not _wait_for_all(store, board, ours, HAS_JOINED):
        return False
    try:
        for place in range(len(ours)):
            mapped(board.where(place))
    except OSError:
        store.set(f"{APART}/{ours[board.rank]}", _NO)
        return False
    board.mark(JOINED, CAN_READ)
    return _wait_for_all(store, board, ours, CAN_READ)


def _wait_for_all(store: PeerStore, board: Board, ours: Sequence[int], joined: int) -> bool:
    for place, rank in enumerate(ours):
        deadline_s = store.deadline_s()
        while not board.wait_for(place, JOINED, joined, _LOOK_S):
            if any(store.peek(f"{APART}/{one}") is not None for one in ours):
                return False
            store.expect([f"{BOARD}/{rank}"], deadline_s)
    return True

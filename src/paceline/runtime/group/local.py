"""Operations of a group whose members share the memory of their machine, or of a few machines.

What a member gives lies in its arena, where the others read it; who waits for an operation does our
part of it. Where the group spans several machines, the first member of each is its leader: leaders
add up what theirs give, go on with the other leaders over their process group, and leave the
outcome for theirs to copy. There a thread does our part of all operations, so that those that
travel go on while a backward pass does. Reference: docs/decisions/0056.

All members begin the same operations in the same order, and each ends them in that order.
"""

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from paceline.base.errors import InternalError
from paceline.runtime.group.board import (
    BEGUN,
    DONE,
    MOST_NUMBERS,
    NUM_OPEN,
    OUTCOME,
    REDUCED,
    Board,
)
from paceline.runtime.group.shared_memory import GroupArena, LentRoom, mapped
from paceline.runtime.group.store import GroupOver

SMALL_BYTES = 1 << 16
"""Bytes up to which each member adds up all by itself. Of more, each adds up one part."""
_LEADER = 0
_LOOK_S = 1.0
"""Seconds after which the training thread looks again whether the group is over."""
_WORD = 8
_SUMS, _GATHERS, _EXCHANGES, _NUM_KINDS = range(4)
_APART = "members have begun different operations: their scripts are at different places"
_Counts = Sequence[Sequence[Sequence[int]]]
"""Counts of bytes for each member here: those it gives to each member, and those it gets."""


_Operation = TypeVar("_Operation", bound="LocalOperation")


class Across(Protocol):
    """The leaders of all machines; each call returns when it is done. Raises as torch does."""

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way, once the group is over."""

    def sum(self, tensor: Tensor) -> None:
        """Sum in place."""

    def exchange(self, mine: Tensor, leave: list[int], theirs: Tensor, come: list[int]) -> None:
        """Give each leader so many bytes, and take so many."""


class LocalGroup:
    """The members of a group that are on our machine, connected.

    Args:
        board: of them.
        arena: of this process.
        machines: ranks in the whole group of the members of each machine, sorted.
        rank: ours in the whole group.
        across: the other leaders, if we are one; None: we are not, or there is one machine.
        names: of the members of the whole group.
        over: makes an error that says why the group is over.
    """

    def __init__(
        self,
        board: Board,
        arena: GroupArena,
        machines: Sequence[Sequence[int]],
        rank: int,
        across: Across | None,
        names: Sequence[str],
        over: Callable[[Exception], GroupOver],
    ) -> None:
        self.board, self.arena, self.machines, self.across = board, arena, machines, across
        self.ranks = next(ranks for ranks in machines if rank in ranks)
        self.rank, self.size = rank, sum(map(len, machines))
        self.is_whole = len(machines) == 1
        """Whether these are all members of the group."""
        self.leads = board.rank == _LEADER
        self._over, self._names = over, names
        places = [*map(board.where, range(board.size))]
        self._memory = [
            arena.memory if k == board.rank else mapped(one) for k, one in enumerate(places)
        ]
        self._no = 0
        self._pending = deque[LocalOperation]()
        #: Rooms that others may still read, and for which operation.
        self._lent = deque[tuple[int, LentRoom]]()
        self._all_done = 0
        self._has_ended = False
        self._begins, self._completes = threading.RLock(), threading.Lock()
        #: The first error of the thread.
        self._error: Exception | None = None
        self._begun = threading.Condition()
        arena.note_group()
        if not self.is_whole:
            threading.Thread(target=self._go_on, name="paceline-group", daemon=True).start()

    def end(self) -> None:
        """End the group for good; any thread may."""
        self.board.end()
        with self._begun:
            self._begun.notify_all()
        for one in [*self._pending]:
            one.settled.set()
        self._let_go()

    def _let_go(self) -> None:
        """Give back what we lent, once the group is over and no thread of ours is at it."""
        # All threads take these two locks in this order. Once the group is over, a thread that
        # holds the first one does not wait for other members.
        with self._begins:
            if not self.board.is_over or not self._completes.acquire(blocking=False):
                return
            self._completes.release()
            rooms = [room for _, room in self._lent]
            self._lent.clear()
            boards = [self.board.room] if self.leads and not self._has_ended else []
            self._has_ended = True
        self.arena.give_back_later(rooms, boards)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way, once the group is over."""
        # In this order: nothing begins once it is over.
        is_over = self.board.is_over
        is_busy = self._completes.locked() or not (self.across is None or self.across.is_idle)
        return is_over and not is_busy

    # ------------------------------------------------------------------ what members call

    def sum(self, tensor: Tensor) -> "LocalOperation":
        """Begin to sum a tensor in place over all members."""
        return self._begin(_Sum(self, tensor))

    def gather(self, numbers: Sequence[int]) -> "LocalGathering":
        """Begin to tell all members some numbers."""
        return self._begin(LocalGathering(self, numbers))

    def exchange(
        self, mine: Tensor, leave: list[int], theirs: Tensor, come: list[int]
    ) -> "LocalOperation":
        """Begin to give each member some bytes, and to get some; see `Group.exchange`."""
        return self._begin(_Exchange(self, mine, leave, theirs, come))

    def _begin(self, operation: _Operation) -> _Operation:
        with self._begins:
            self._check()
            number = self._no + 1
            self._make_way(number)
            self._no = operation.no = number
            operation.give()
            self._pending.append(operation)
        if not self.is_whole:
            with self._begun:
                self._begun.notify()
        return operation

    def _make_way(self, number: int) -> None:
        """Wait until all are done with the operation whose place on the board this one takes."""
        oldest = number - NUM_OPEN
        if oldest <= self._all_done:
            return
        if self._pending and self._pending[0].no <= oldest:
            self._pending[0].wait()
        self.wait_for(DONE, oldest)
        self._all_done = self.board.fewest(DONE)

    # ------------------------------------------------------------------ going on

    def complete(self, operation: "LocalOperation") -> None:
        """Do our part of an operation, and of those before; raises GroupOver."""
        if self.is_whole:
            self._complete(operation.no)
            return
        while not (operation.settled.wait(_LOOK_S) or self.board.is_over):
            continue  # the thread does our part
        if not operation.is_done:
            self._check()
            raise GroupOver("the group was dropped")

    def _check(self) -> None:
        """Raise why the group is over, if it is."""
        if isinstance(self._error, (RuntimeError, GroupOver)):
            raise self._over(self._error) from self._error
        if self._error is not None:
            raise self._error
        if self.board.is_over:
            raise GroupOver("the group was dropped")

    def _complete(self, number: int) -> None:
        try:
            with self._completes:
                while self._pending and self._pending[0].no <= number and not self.board.is_over:
                    operation = self._pending[0]
                    operation.act()
                    # After a drop others may write what we have read.
                    operation.is_done = not self.board.is_over
                    self._pending.popleft()
                    self.board.mark(DONE, operation.no)
        finally:
            if self.board.is_over:
                self._let_go()
        if self.board.is_over:
            raise GroupOver("the group was dropped")

    def _go_on(self) -> None:
        """Complete operations as they begin: in a thread."""
        while not self.board.is_over:
            with self._begun:
                self._begun.wait_for(lambda: self._pending or self.board.is_over)
            operation = self._pending[0] if self._pending else None
            if operation is None or self.board.is_over:
                continue
            try:
                self._complete(operation.no)
            except Exception as error:  # noqa: BLE001 - raised where it is waited for
                if not self.board.is_over:
                    self._error = error
                self.end()
            operation.settled.set()
        self._let_go()

    # ------------------------------------------------------------------ memory

    def lend(self, num_bytes: int) -> LentRoom:
        """Lend a room until all are done with the operation that begins."""
        while self._lent and self._lent[0][0] <= self._all_done:
            self.arena.give_back(self._lent.popleft()[1])
        if len(self._lent) >= 2:
            self._all_done = self.board.fewest(DONE)
        room = self.arena.lend(num_bytes)
        self.keep(self._no, room)
        return room

    def keep(self, number: int, room: LentRoom) -> None:
        """Keep a room until all are done with an operation."""
        self._lent.append((number, room))

    def wait_for(self, counter: int, number: int, place: int | None = None) -> None:
        """Wait until all members here, or the one at a place, are as far; raises GroupOver."""
        for one in range(self.board.size) if place is None else (place,):
            if not self.board.wait_for(one, counter, number):
                if self.board.is_over:
                    raise GroupOver("the group was dropped")
                raise GroupOver(f"{self._names[self.ranks[one]]} left the group")

    def await_given(self, operation: "LocalOperation") -> None:
        """Wait until all members here have begun an operation, as we have; raises GroupOver."""
        self.wait_for(BEGUN, operation.no)
        if len(self.board.kinds(operation.no)) > 1:
            raise GroupOver(_APART)

    def await_outcome(self, operation: "LocalOperation") -> None:
        """Wait until the leader has the outcome of an operation; raises GroupOver."""
        self.wait_for(OUTCOME, operation.no, _LEADER)
        if self.board.kind(_LEADER, operation.no) != operation.kind:
            raise GroupOver(_APART)

    def data(self, place: int, number: int) -> Tensor:
        """Bytes that the member at a place here has given: uint8."""
        offset, size = self.board.extent(place, number)
        return self._memory[place][offset : offset + size]

    def outcome(self, number: int, size: int) -> Tensor:
        """Bytes that the leader has made."""
        offset = self.board.outcome_at(_LEADER, number)
        return self._memory[_LEADER][offset : offset + size]


class LocalOperation(ABC):
    """An operation under way. ``local``: the group."""

    def __init__(self, local: LocalGroup) -> None:
        self._local = local
        self.no = 0
        self.kind = 0
        """Kind, and how much of it; equal in all members, unless their scripts are apart."""
        self.is_done = False
        self.settled = threading.Event()
        """Set once the thread has done our part, or never will."""

    @property
    def is_over(self) -> bool:
        """Whether it is done, or has failed: it touches its tensor no more."""
        return self.is_done or self._local.is_idle

    @abstractmethod
    def give(self) -> None:
        """Say what we give."""

    @abstractmethod
    def act(self) -> None:
        """Do our part; raises GroupOver, RuntimeError."""

    def wait(self) -> None:
        """Return when it is done.

        Raises:
            GroupOver: the group is over.
        """
        self._local.complete(self)


class _Sum(LocalOperation):
    """A sum in place, of copies that lie in the members' arenas.

    Few numbers each member adds up itself, so it needs to wait for the others only once.
    """

    def __init__(self, local: LocalGroup, tensor: Tensor) -> None:
        super().__init__(local)
        self._flat, self._size = tensor.view(-1), tensor.nbytes
        self._in_parts = self._size > SMALL_BYTES and local.board.size > 1
        self._is_adding = False
        self.kind = _SUMS + _NUM_KINDS * self._size

    def give(self) -> None:
        local = self._local
        if local.board.size == 1:
            local.board.publish(self.no, self.kind, 0, 0)
            return
        room = local.lend(self._size)
        self._typed(room.memory).copy_(self._flat)
        local.board.publish(self.no, self.kind, room.offset, self._size)

    def act(self) -> None:
        local = self._local
        if self._in_parts:
            self._add_part()
        if not (local.is_whole or local.leads):
            local.await_outcome(self)
            self._flat.copy_(self._typed(local.outcome(self.no, self._size)))
            return
        if self._in_parts:
            local.wait_for(REDUCED, self.no)
            for place, one in enumerate(self._given()):
                part = self._part(place)
                self._flat[part].copy_(one[part])
        elif local.board.size > 1:
            local.await_given(self)
            self._add_all(self._given())
        if not local.is_whole:
            assert local.across is not None
            local.across.sum(self._flat)
            self._leave_outcome()

    def _typed(self, room: Tensor) -> Tensor:
        return room[: self._size].view(self._flat.dtype)

    def _given(self) -> list[Tensor]:
        local = self._local
        return [self._typed(local.data(place, self.no)) for place in range(local.board.size)]

    def _add_all(self, given: Sequence[Tensor]) -> None:
        """Add up in the same order everywhere."""
        if self._flat.device.type == "cpu":
            torch.add(given[0], given[1], out=self._flat)
            for one in given[2:]:
                self._flat.add_(one)
        else:
            self._flat.copy_(torch.stack([*given]).sum(0))

    def _add_part(self) -> None:
        """Add up our part of all members' copies in our own."""
        local, own = self._local, self._local.board.rank
        local.await_given(self)
        if self._is_adding:  # a handler of a signal has raised in the midst of it
            raise GroupOver("a sum was interrupted")
        given, part = self._given(), self._part(own)
        total, self._is_adding = given[own][part], True
        for place, one in enumerate(given):
            if place != own:
                total.add_(one[part])
        local.board.mark(REDUCED, self.no)

    def _part(self, place: int) -> slice:
        count, size = len(self._flat), self._local.board.size
        return slice(count * place // size, count * (place + 1) // size)

    def _leave_outcome(self) -> None:
        """Leave the sum for the others here to copy."""
        local = self._local
        if local.board.size > 1:
            offset, _ = local.board.extent(_LEADER, self.no)
            self._typed(local.data(_LEADER, self.no)).copy_(self._flat)
            local.board.publish_outcome(self.no, offset)


class LocalGathering(LocalOperation):
    """Numbers of all members on their way."""

    def __init__(self, local: LocalGroup, numbers: Sequence[int]) -> None:
        super().__init__(local)
        self._mine, self._count = numbers, len(numbers)
        self.kind = _GATHERS + _NUM_KINDS * self._count
        self._told: list[list[int]] = []

    def give(self) -> None:
        if self._count <= MOST_NUMBERS:
            self._local.board.publish(self.no, self.kind, 0, 0, self._mine)
            return
        room = self._local.lend(self._count * _WORD)
        room.memory.numpy().view(np.int64)[: self._count] = self._mine
        self._local.board.publish(self.no, self.kind, room.offset, self._count * _WORD)

    def act(self) -> None:
        local = self._local
        if local.is_whole:
            local.await_given(self)
            self._told = [self._numbers(k) for k in range(local.size)]
            return
        size = local.size * self._count
        if local.leads:
            local.await_given(self)
            table = torch.zeros(local.size, self._count, dtype=torch.int64)
            for place, rank in enumerate(local.ranks):
                table[rank] = torch.tensor(self._numbers(place), dtype=torch.int64)
            assert local.across is not None
            local.across.sum(table)
            room = local.arena.lend(size * _WORD)
            room.memory.view(torch.int64)[:size] = table.view(-1)
            local.keep(self.no, room)
            local.board.publish_outcome(self.no, room.offset)
        else:
            local.await_outcome(self)
            table = local.outcome(self.no, size * _WORD).view(torch.int64).view(local.size, -1)
        self._told = table.tolist()

    def _numbers(self, place: int) -> list[int]:
        if self._count <= MOST_NUMBERS:
            return self._local.board.numbers(place, self.no, self._count)
        found: list[int] = self._local.data(place, self.no).view(torch.int64).tolist()
        return found

    def told(self) -> list[list[int]]:
        """Member -> its numbers, once it is done."""
        return self._told


class _Exchange(LocalOperation):
    """Each member gives each one some bytes.

    What we give lies behind how much each one gets, and how much comes from each.
    """

    def __init__(
        self, local: LocalGroup, mine: Tensor, leave: list[int], theirs: Tensor, come: list[int]
    ) -> None:
        super().__init__(local)
        self._mine, self._leave, self._theirs, self._come = mine, leave, theirs, come
        self._head = 2 * local.size * _WORD
        self.kind = _EXCHANGES

    def give(self) -> None:
        room = self._local.lend(self._head + len(self._mine))
        counts = room.memory.numpy()[: self._head].view(np.int64)
        counts[:] = [*self._leave, *self._come]
        room.memory[self._head : self._head + len(self._mine)] = self._mine
        size = self._head + len(self._mine)
        self._local.board.publish(self.no, self.kind, room.offset, size)

    def act(self) -> None:
        local = self._local
        local.await_given(self)
        given = [local.data(place, self.no) for place in range(local.board.size)]
        counts = [one[: self._head].view(torch.int64).view(2, -1).tolist() for one in given]
        self._starts = [0, *accumulate(self._come)]
        for rank, one, (leave, _) in zip(local.ranks, given, counts, strict=True):
            self._take(rank, self._part(one, leave, local.rank))
        if not local.is_whole:
            self._take_outcome(given, counts)

    def _part(self, given: Tensor, leave: Sequence[int], rank: int) -> Tensor:
        """Return the bytes that one member gives another."""
        start = self._head + sum(leave[:rank])
        return given[start : start + leave[rank]]

    def _take(self, rank: int, part: Tensor) -> None:
        if len(part) != self._come[rank]:
            raise InternalError(f"{len(part)} bytes of member {rank} for {self._come[rank]}")
        self._theirs[self._starts[rank] : self._starts[rank + 1]] = part

    def _take_outcome(self, given: Sequence[Tensor], counts: _Counts) -> None:
        """Take what comes from other machines: the leader has it, for all of ours."""
        local = self._local
        others = [ranks for ranks in local.machines if ranks is not local.ranks]
        total = sum(come[rank] for _, come in counts for ranks in others for rank in ranks)
        if local.leads:
            made = self._travel(given, counts, total)
        else:
            local.await_outcome(self)
            made = local.outcome(self.no, total)
        start = 0
        for rank in [rank for ranks in others for rank in ranks]:
            sizes = [come[rank] for _, come in counts]
            edges = [start, *(start + size for size in accumulate(sizes))]
            place = local.board.rank
            self._take(rank, made[edges[place] : edges[place + 1]])
            start = edges[-1]

    def _travel(self, given: Sequence[Tensor], counts: _Counts, total: int) -> Tensor:
        """Exchange with the other leaders what leaves this machine and what comes here."""
        local = self._local
        parts, leaving, coming = [given[0][:0]], list[int](), list[int]()
        for ranks in local.machines:
            far = ranks if ranks is not local.ranks else ()
            some = [
                self._part(one, leave, rank)
                for one, (leave, _) in zip(given, counts, strict=True)
                for rank in far
            ]
            parts += some
            leaving.append(sum(map(len, some)))
            coming.append(sum(come[rank] for _, come in counts for rank in far))
        room = local.arena.lend(total)
        local.keep(self.no, room)
        made = room.memory[:total]
        assert local.across is not None
        local.across.exchange(torch.cat(parts), leaving, made, coming)
        local.board.publish_outcome(self.no, room.offset)
        return made

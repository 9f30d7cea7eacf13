"""One group of workers that can average tensors: torch's process groups, made at each change.

What its members tell each other goes over gloo, and so do tensors in memory. Those on a device go
from one device to another where that can be (`transports`). One alone tells nobody. Who waits for
an operation looks whether its group was dropped: not all waits in torch's groups end when these do.
"""

import logging
import re
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from datetime import timedelta
from typing import Any, cast

import msgspec
import torch
from torch import Tensor
from torch._C import _distributed_c10d as c10d

from paceline.base.numbering import Inc
from paceline.runtime.group.links import measure_links, pair_up
from paceline.runtime.group.rows import RowsMaker, SharedRows, rows_at
from paceline.runtime.group.store import GroupOver, PeerStore
from paceline.runtime.group.transports import DIRECT, LONGEST_S, SOCKETS, Gloo, NoPeers, Transport
from paceline.runtime.process.reaching import place_of, refusal
from paceline.wire.messages.base import Link
from paceline.wire.messages.group import Member, RunGroup

GIVE_UP_S = 120.0
"""Seconds after which a group that has not come together never will, though nobody died: its
network does not carry it. To make a device ready may take a while."""
LOOK_S = 0.05
"""Seconds between two looks of a waiting thread whether its group was dropped. Each wait of gloo's
that runs out is an exception in C++. So a thread that waits longer sleeps until gloo wakes it."""
SHORTEST_LOOK_S, LONGEST_LOOK_S = 5e-5, 2e-3
"""Seconds between two looks at memory, at first and later."""
ROWS = "rows"
"""Key in the store of where the members' rows are."""
LONG_LOOK_S = 1.0
"""Seconds between two looks of a thread that gloo wakes."""
BREAKING = (RuntimeError, GroupOver)
"""Errors that torch raises when a group is over, and our own."""
CPU = torch.device("cpu")
_SUM, _GATHER, _EXCHANGE = c10d.AllreduceOptions(), c10d.AllgatherOptions(), c10d.AllToAllOptions()
_SUM.timeout = _GATHER.timeout = _EXCHANGE.timeout = timedelta(seconds=LONGEST_S)
_OF_GLOO = re.compile(r"gloo|connection (closed|reset|refused)|broken pipe", re.IGNORECASE)
_FATES = (
    (re.compile(r"connect(ing|FullMesh| timeout)|refused", re.IGNORECASE), "was not reached"),
    (re.compile(r"time(d )?[ -]?out", re.IGNORECASE), "did not answer in time"),
    (re.compile(r"connection (closed|reset)|broken pipe", re.IGNORECASE), "left the group"),
)
"""Fates of a peer by the words of gloo's error; the first that fits counts."""
_ADDRESS = re.compile(r"\[([^]\s]+)\]:(\d+)")

_log = logging.getLogger(__name__)


class Group:
    """A group; `begin`, and `wait` for its members, before anything else.

    Args:
        run: who belongs to it.
        inc: which of them we are.
        store: of this group.
        device: that holds what we train; of one kind in all members.
    """

    def __init__(
        self, run: RunGroup, inc: Inc, store: PeerStore, device: torch.device = CPU
    ) -> None:
        self.run = run
        self.rank = next(k for k, member in enumerate(run.members) if member.inc == inc)
        self.size = len(run.members)
        self._store, self._device = store, device
        self._dropped = False
        self._nothing = DoneAtOnce(self)
        self._room: GatherRoom | None = None
        self._told: Gathering | FirstWords | RowsTold | None = None
        #: Memory for what members tell each other, if they can all map it.
        self._maker: RowsMaker | None = None
        self._rows: SharedRows | None = None
        self._num_told = 0
        #: Set once the group is connected, or never will be.
        self._settled = threading.Event()
        self._failure: Exception | None = None
        #: Wakes who waits long for an operation: it is over, or the group was dropped.
        self._turn = threading.Condition()
        self.travels = travels(run)
        """Whether anything travels in it."""
        self._in_memory = (Gloo if self.travels else NoPeers)(store, self.rank, self.size, CPU)
        kind = DIRECT.get(device.type) if self.travels else None
        self._direct = kind(store, self.rank, self.size, device) if kind is not None else None
        #: Transport of tensors on the device.
        self._tensors: Transport = self._in_memory

    def begin(self, host: str) -> None:
        """Begin to connect to all other members; once.

        Args:
            host: address of this machine to listen at, IPv4.
        """
        threading.Thread(
            target=self._build, args=(host,), name="paceline-connect", daemon=True
        ).start()

    def wait(self) -> None:
        """Return when all members are connected.

        Raises:
            GroupOver: a peer is gone or did not come in time, or the group was dropped.
        """
        give_up_s = time.monotonic() + GIVE_UP_S
        while not self._settled.wait(LOOK_S):
            if self._store.left:
                raise self.over(GroupOver("a member has left"))
            if time.monotonic() > give_up_s:
                raise GroupOver(f"not connected within {GIVE_UP_S:.0f} s")
        if self._failure is not None:
            raise self._failure

    def _build(self, host: str) -> None:
        try:
            self._offer_rows()
            self._in_memory.connect(host)
            self._find_rows()
            if self._direct is not None and self._are_apart(self._direct.place):
                self._direct.connect(host)
                self._tensors = self._direct
        except Exception as error:  # noqa: BLE001 - whatever it is, there is no group
            self._failure = self.over(error)
        self._settled.set()

    def _offer_rows(self) -> None:
        """Make memory that members on this machine can map, if we are the first one."""
        if self.travels and self.rank == 0:
            with suppress(OSError):
                self._maker = RowsMaker(self.size)
                self._rows = self._maker.rows
                self._store.set(ROWS, self._maker.where)

    def _find_rows(self) -> None:
        if self.rank and (where := self._store.peek(ROWS)) is not None:
            self._rows = rows_at(where.decode(), self.size, self.rank)

    def over(self, error: Exception) -> GroupOver:
        """Make the error that says why the group is over: by members' names, or as torch does."""
        _log.info("group_over group=%d error=%s", self.run.group, error)
        if left := [one.node for one in self.run.members if one.inc in self._store.left]:
            return GroupOver(f"{', '.join(left)} left the group")
        missing = [self.run.members[rank] for rank in self._ranks(self._store.missing)]
        if missing:
            were = "was" if len(missing) == 1 else "were"
            names = ", ".join(map(_named, missing))
            return GroupOver(f"{names} {were} not reached in time")
        return GroupOver(self._in_words(str(error)))

    def _ranks(self, keys: Sequence[str]) -> list[int]:
        """Return the members that should set these, by the rank with which gloo's keys end."""
        ends = (key.rpartition("/")[2] for key in keys)
        return sorted({int(end) for end in ends if end.isdecimal() and int(end) < self.size})

    def _in_words(self, said: str) -> str:
        if not _OF_GLOO.search(said):
            return said
        peer = self._peer_in(said) or "another worker"
        for words, became in _FATES:
            if words.search(said):
                return f"{peer} {became}"
        return said

    def _peer_in(self, said: str) -> str:
        """The member whose address an error names; empty: none is known to have it."""
        named = set()
        for host, text in _ADDRESS.findall(said):
            # Gloo prints the port of IPv4 as it is on the wire: with its two bytes exchanged.
            port = int(text) & 0xFFFF
            named |= {(host, port), (host, port >> 8 | (port & 0xFF) << 8)}
        for rank, member in enumerate(self.run.members):
            told = self._store.peek(f"{SOCKETS}/{rank}")
            if told and named & set(msgspec.json.decode(told, type=list[tuple[str, int]])):
                return member.node
        return ""

    def _are_apart(self, place: int) -> bool:
        """Tell whether all members can use their devices, and no two of them have one."""
        places = {told for (told,) in self.gather([place]).wait()}
        return 0 not in places and len(places) == self.size

    def drop(self) -> None:
        """End it for good; any thread may, also while another one waits in it. Again: nothing."""
        self._store.end()
        self._dropped = True
        self.wake()
        self._failure = GroupOver("the group was dropped")
        self._settled.set()
        self._in_memory.end()
        if self._direct is not None:
            self._direct.end()
        if self._maker is not None:
            self._maker.close()

    def wake(self) -> None:
        """Have those who wait for operations look whether theirs is over."""
        with self._turn:
            self._turn.notify_all()

    def sleep(self, until: Callable[[], bool]) -> None:
        """Return when this is so, as seen at a `wake`, or after `LONG_LOOK_S`."""
        with self._turn:
            self._turn.wait_for(until, LONG_LOOK_S)

    def sum(self, tensor: Tensor) -> "Collective":
        """Begin to sum a tensor in place over all members.

        All members sum tensors of the same shapes in the same order.
        """
        return Collective(self, self._carrier(tensor), lambda by: by.allreduce([tensor], _SUM))

    def nothing(self) -> "DoneAtOnce":
        """Begin what is done already, in a group of one."""
        return self._nothing

    def exchange(
        self, mine: Tensor, leave: list[int], theirs: Tensor, come: list[int]
    ) -> "Collective":
        """Begin to give each member a part of our tensor, and to get one of each member's.

        Args:
            mine: ``[sum(leave)]``, the parts one after the other.
            leave: how many elements each member gets.
            theirs: ``[sum(come)]`` of the same dtype, written to.
            come: how many elements each member gives us: its ``leave`` of our rank.
        """
        # As bytes, since neither gloo nor NCCL knows all dtypes.
        width = mine.element_size()
        tensors = theirs.view(torch.uint8), mine.view(torch.uint8)
        sizes = [width * count for count in come], [width * count for count in leave]
        return Collective(
            self, self._carrier(mine), lambda by: by.alltoall_base(*tensors, *sizes, _EXCHANGE)
        )

    def _carrier(self, tensor: Tensor) -> Transport:
        return self._tensors if tensor.device.type == self._device.type else self._in_memory

    def measure_links(self) -> tuple[Link, ...]:
        """Measure what our links carry; all members do it at once, before anything else.

        Raises:
            GroupOver: the group is over.
        """
        names = [member.node for member in self.run.members]
        passes = pair_up(self.size)
        return self._aside(lambda torch_group: measure_links(torch_group, self.rank, names, passes))

    def _aside(self, act: Callable[[Any], tuple[Link, ...]]) -> tuple[Link, ...]:
        """Do what may wait for longer than the group lasts in a thread that nobody waits for."""
        done: Future[tuple[Link, ...]] = Future()

        def run() -> None:
            try:
                done.set_result(self._in_memory.begin(act))
            except BREAKING as error:
                done.set_exception(self.over(error))
            except Exception as error:  # noqa: BLE001 - raised where it is waited for
                done.set_exception(error)

        threading.Thread(target=run, name="paceline-links", daemon=True).start()
        while True:
            with suppress(TimeoutError):
                return done.result(LOOK_S)
            if self._dropped:
                raise GroupOver("the group was dropped")

    @property
    def is_dropped(self) -> bool:
        """Whether nothing comes of it any more."""
        return self._dropped

    def gather(self, values: Sequence[int]) -> "Gathering":
        """Begin to tell all members some numbers, as many as they tell."""
        if not self.travels:
            return Gathering(self.nothing(), [values])
        return self._gather(values, GatherRoom(self.size, len(values)))

    def tell(self, values: Sequence[int]) -> "Gathering | FirstWords | RowsTold":
        """Tell all members some numbers as `gather` does; each call has as many of them.

        All calls of one member come between the same sums as the others' do. They go by shared
        memory, if the first call finds that all members have it.

        Raises:
            GroupOver: the group is over.
        """
        if not self.travels:
            return Gathering(self.nothing(), [values])
        if self._told is None:
            able = self._rows is not None
            self._told = FirstWords(self.gather([*values, able]))
            return self._told
        if isinstance(self._told, FirstWords):
            # A script that has left its loop did not wait for the one before.
            self._told.wait()
            if not self._told.are_able:
                self._rows = None
            if self._maker is not None:
                self._maker.close()
        if self._rows is not None:
            if isinstance(self._told, RowsTold):
                self._told.wait()
            self._num_told += 1
            self._rows.write(self._num_told, values)
            self._told = RowsTold(self, self._rows, self._num_told)
            return self._told
        if self._room is None or not self._told.is_over:
            self._room = GatherRoom(self.size, len(values))
        self._told = self._gather(values, self._room)
        return self._told

    def _gather(self, values: Sequence[int], room: "GatherRoom") -> "Gathering":
        room.put(values)
        gathers = Collective(
            self, self._in_memory, lambda by: by.allgather([room.told], [room.mine], _GATHER)
        )
        return Gathering(gathers, room.of_all)


class Collective:
    """Operation that all members of a group do together, under way."""

    def __init__(self, group: Group, carrier: Transport, act: Callable[[Any], Any]) -> None:
        self._group, self._carrier = group, carrier
        self._has_ended = False
        try:
            self._work = carrier.begin(act)
        except RuntimeError as error:
            raise group.over(error) from error

    @property
    def is_over(self) -> bool:
        """Whether it is done, or has failed: it touches its tensor no more."""
        return bool(self._work.is_completed())

    def _is_settled(self) -> bool:
        return self._has_ended or self.is_over or self._group.is_dropped

    def _ended(self) -> None:
        """Take in that it is over; gloo tells so a moment before its work says it."""
        self._has_ended = True
        self._group.wake()

    def wait(self) -> None:
        """Return when it is done, here and not only in what a device was given to do.

        Raises:
            GroupOver: the group is over; or it was dropped, and the operation forgotten.
        """
        is_told = False
        while not self._is_settled():
            if is_told:
                self._group.sleep(self._is_settled)
                continue
            self._carrier.pause(self._work, LOOK_S)
            if not self._is_settled():
                is_told = self._carrier.will_tell(self._work, self._ended)
        # An operation that is over, too: an aborted one says that it is completed, and is not.
        if self._group.is_dropped:
            raise GroupOver("the group was dropped")
        try:
            self._carrier.result(self._work)
        except RuntimeError as error:
            raise self._group.over(error) from error


class GatherRoom:
    """Memory for numbers that all members of a group tell each other.

    Args:
        size: of the group.
        count: numbers of each member.
    """

    def __init__(self, size: int, count: int) -> None:
        self.mine = torch.empty(count, dtype=torch.int64)
        self.of_all = torch.empty(size, count, dtype=torch.int64)
        self.told = [*self.of_all.unbind()]
        self._numbers = self.mine.numpy()

    def put(self, values: Sequence[int]) -> None:
        """Set our own."""
        self._numbers[:] = values


class DoneAtOnce:
    """Operation of a group of one, which is done when it begins."""

    is_over = True

    def __init__(self, group: Group) -> None:
        self._group = group

    def wait(self) -> None:
        """Return at once; raises GroupOver if the group was dropped."""
        if self._group.is_dropped:
            raise GroupOver("the group was dropped")


class Gathering:
    """Numbers of all members on their way."""

    by_memory = False
    """Whether the numbers lie in memory that all members have."""

    def __init__(
        self, operation: "Collective | DoneAtOnce", values: Tensor | list[Sequence[int]]
    ) -> None:
        self._operation, self._values = operation, values

    @property
    def is_over(self) -> bool:
        """Whether it is done, or has failed."""
        return self._operation.is_over

    def wait(self) -> list[list[int]]:
        """Member -> its numbers; raises as `Operation.wait`."""
        self._operation.wait()
        values = self._values
        told = values.tolist() if isinstance(values, Tensor) else [[*one] for one in values]
        return cast("list[list[int]]", told)


class FirstWords:
    """The first numbers that members tell, and whether each has the memory for later ones."""

    by_memory = False

    def __init__(self, gathering: Gathering) -> None:
        self._gathering = gathering
        self.are_able = False
        """Whether all have it, once they have been waited for."""

    @property
    def is_over(self) -> bool:
        """See `Gathering`."""
        return self._gathering.is_over

    def wait(self) -> list[list[int]]:
        """See `Gathering`."""
        told = self._gathering.wait()
        self.are_able = all(one[-1] for one in told)
        return [one[:-1] for one in told]


class RowsTold:
    """Numbers that members write for each other into memory."""

    by_memory = True

    def __init__(self, group: Group, rows: SharedRows, no: int) -> None:
        self._group, self._rows, self._no = group, rows, no
        self._found: list[list[int]] | None = None

    @property
    def is_over(self) -> bool:
        """Whether all are there."""
        self._found = self._found or self._rows.read(self._no)
        return self._found is not None

    def wait(self) -> list[list[int]]:
        """Member -> its numbers: at once behind a sum that was begun after they were told.

        Raises:
            GroupOver: the group was dropped.
        """
        pause_s = SHORTEST_LOOK_S
        while not self.is_over:
            if self._group.is_dropped:
                raise GroupOver("the group was dropped")
            time.sleep(pause_s)  # noqa: TID251 - nobody wakes who waits for memory
            pause_s = min(2 * pause_s, LONGEST_LOOK_S)
        assert self._found is not None
        return self._found


def travels(run: RunGroup) -> bool:
    """Tell whether anything travels in a group: what one alone sums is there already."""
    return len(run.members) > 1


def _named(member: Member) -> str:
    """A member that did not come; with its address and why, if no connection can be made to it."""
    why = refusal(member.address)
    return f"{member.node} at {place_of(member.address)} ({why})" if why else member.node

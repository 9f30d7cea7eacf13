"""One group of workers that can average tensors: made at each change of its members.

What its members tell each other, and tensors in memory, go by memory among members of one machine
(`local`), and over gloo from machine to machine: only one member of each machine is connected to
the others. Tensors on a device go from one device to another where that can be (`transports`). One
alone tells nobody. Who waits for an operation looks whether its group was dropped: not all waits in
torch's groups end when these do.
"""

import logging
import re
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from datetime import timedelta
from typing import Any, Protocol, cast

import msgspec
import torch
from torch import Tensor
from torch._C import _distributed_c10d as c10d

from paceline.base.numbering import Inc
from paceline.runtime.group.links import measure_links, pair_up
from paceline.runtime.group.local import LocalGroup
from paceline.runtime.group.meeting import MEETING, machines_of, meet
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
_LINKS = "links"
"""Prefix, in the store, of the keys by which all members connect to measure their links."""
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
        self._told: Gathering | None = None
        self._host = ""
        #: Those on this machine that share its memory, if there are any.
        self._local: LocalGroup | None = None
        #: Ranks of those that are connected over sockets.
        self._wired: Sequence[int] = range(self.size)
        self._links: Transport | None = None
        self._connecting = threading.Lock()
        #: Set once the group is connected, or never will be.
        self._settled = threading.Event()
        self._failure: Exception | None = None
        #: Wakes who waits long for an operation: it is over, or the group was dropped.
        self._turn = threading.Condition()
        self.travels = travels(run)
        """Whether anything travels in it."""
        self._in_memory: Transport = NoPeers(store, self.rank, self.size, CPU)
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
        self._host = host
        try:
            self._connect()
            if self._direct is not None and self._are_apart(self._direct.place):
                self._direct.connect(host)
                self._tensors = self._direct
        except Exception as error:  # noqa: BLE001 - whatever it is, there is no group
            self._failure = self.over(error)
        self._settled.set()

    def _connect(self) -> None:
        """Connect to those on our machine by memory, and to other machines over sockets."""
        machines = machines_of(self.run.members)
        met = meet(self._store, machines, self.rank) if self.travels else None
        if met is not None:
            self._wired = [ranks[0] for ranks in machines] if len(machines) > 1 else ()
            across = _Leaders(self) if self.rank in self._wired else None
            names = [member.node for member in self.run.members]
            local = LocalGroup(*met, machines, self.rank, across, names, self.over)
            with self._connecting:
                self._local = local
                if self._dropped:
                    local.end()
        if not self.travels:
            self._in_memory.connect(self._host)
        elif self.rank in self._wired:
            rank, size = self._wired.index(self.rank), len(self._wired)
            self._open(Gloo(self._store, rank, size, CPU))

    def _open(self, transport: Transport) -> None:
        """Connect by a transport, which ends with the group."""
        with self._connecting:
            self._in_memory = self._tensors = transport
            if self._dropped:
                transport.end()
        transport.connect(self._host)

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
        found = set[int]()
        for key in keys:
            end = key.rpartition("/")[2]
            # Only those that are connected have a number in gloo's own keys.
            of_all = key.startswith((f"{_LINKS}/", "nccl/", *MEETING))
            ranks = range(self.size) if of_all else self._wired
            if end.isdecimal() and int(end) < len(ranks):
                found.add(ranks[int(end)])
        return sorted(found)

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
        keys = [(f"{SOCKETS}/{place}", rank) for place, rank in enumerate(self._wired)]
        keys += [(f"{_LINKS}/{SOCKETS}/{rank}", rank) for rank in range(self.size)]
        for key, rank in keys:
            told = self._store.peek(key)
            if told and named & set(msgspec.json.decode(told, type=list[tuple[str, int]])):
                return self.run.members[rank].node
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
        with self._connecting:
            self._in_memory.end()
            if self._links is not None:
                self._links.end()
            if self._local is not None:
                self._local.end()
        if self._direct is not None:
            self._direct.end()

    def wake(self) -> None:
        """Have those who wait for operations look whether theirs is over."""
        with self._turn:
            self._turn.notify_all()

    def sleep(self, until: Callable[[], bool]) -> None:
        """Return when this is so, as seen at a `wake`, or after `LONG_LOOK_S`."""
        with self._turn:
            self._turn.wait_for(until, LONG_LOOK_S)

    def sum(self, tensor: Tensor) -> "GroupOperation":
        """Begin to sum a tensor in place over all members.

        All members sum tensors of the same shapes in the same order.
        """
        carrier = self._carrier(tensor)
        if self._local is not None and carrier is self._in_memory:
            return self._local.sum(tensor)
        return Collective(self, carrier, lambda by: by.allreduce([tensor], _SUM))

    def nothing(self) -> "DoneAtOnce":
        """Begin what is done already, in a group of one."""
        return self._nothing

    def exchange(
        self, mine: Tensor, leave: list[int], theirs: Tensor, come: list[int]
    ) -> "GroupOperation":
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
        carrier = self._carrier(mine)
        if self._local is not None and carrier is self._in_memory:
            ours, own = tensors
            return self._local.exchange(own, sizes[1], ours, sizes[0])
        return Collective(self, carrier, lambda by: by.alltoall_base(*tensors, *sizes, _EXCHANGE))

    def _carrier(self, tensor: Tensor) -> Transport:
        return self._tensors if tensor.device.type == self._device.type else self._in_memory

    def measure_links(self) -> tuple[Link, ...]:
        """Measure what our links carry; all members do it at once, before anything else.

        Raises:
            GroupOver: the group is over.
        """
        names = [member.node for member in self.run.members]
        passes, everybody = pair_up(self.size), len(self._wired) == self.size

        def measure() -> tuple[Link, ...]:
            carrier: Transport = self._in_memory
            if not everybody and self.travels:
                carrier = self._carrier_of_links()
            try:
                found: tuple[Link, ...] = carrier.begin(
                    lambda torch_group: measure_links(torch_group, self.rank, names, passes)
                )
                return found
            finally:
                if carrier is not self._in_memory:
                    carrier.end()

        return self._aside(measure)

    def _carrier_of_links(self) -> Transport:
        """Connect all members, also those between whom nothing else travels by sockets."""
        store: Any = c10d.PrefixStore(_LINKS, self._store)
        carrier = Gloo(store, self.rank, self.size, CPU)
        with self._connecting:
            self._links = carrier
            if self._dropped:
                carrier.end()
        carrier.connect(self._host)
        return carrier

    def _aside(self, act: Callable[[], tuple[Link, ...]]) -> tuple[Link, ...]:
        """Do what may wait for longer than the group lasts in a thread that nobody waits for."""
        done: Future[tuple[Link, ...]] = Future()

        def run() -> None:
            try:
                done.set_result(act())
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
        if self._local is not None:
            found = self._local.gather(values)
            return Gathering(found, found.told, by_memory=self._local.is_whole)
        if not self.travels:
            return Gathering(self.nothing(), lambda: [[*values]])
        return self._gather(values, GatherRoom(self.size, len(values)))

    def tell(self, values: Sequence[int]) -> "Gathering":
        """Tell all members some numbers as `gather` does; each call has as many of them.

        Raises:
            GroupOver: the group is over.
        """
        if self._local is not None or not self.travels:
            return self.gather(values)
        if self._room is None or self._told is None or not self._told.is_over:
            self._room = GatherRoom(self.size, len(values))
        self._told = self._gather(values, self._room)
        return self._told

    def _gather(self, values: Sequence[int], room: "GatherRoom") -> "Gathering":
        room.put(values)
        gathers = Collective(
            self, self._in_memory, lambda by: by.allgather([room.told], [room.mine], _GATHER)
        )
        return Gathering(gathers, room.told_by_all)


class _Leaders:
    """The members that are connected over sockets: one of each machine."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._newest: Collective | None = None

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way."""
        return self._newest is None or self._newest.is_over

    def sum(self, tensor: Tensor) -> None:
        """Sum in place; return when it is done."""
        self._do(lambda by: by.allreduce([tensor], _SUM))

    def exchange(self, mine: Tensor, leave: list[int], theirs: Tensor, come: list[int]) -> None:
        """Exchange bytes; return when it is done."""
        self._do(lambda by: by.alltoall_base(theirs, mine, come, leave, _EXCHANGE))

    def _do(self, act: Callable[[Any], Any]) -> None:
        self._newest = Collective(self._group, self._group._in_memory, act)
        self._newest.wait()


class GroupOperation(Protocol):
    """An operation that all members of a group do together, under way."""

    @property
    def is_over(self) -> bool:
        """Whether it is done, or has failed: it touches its tensor no more."""

    def wait(self) -> None:
        """Return when it is done; raises GroupOver if the group is over."""


class Collective:
    """GroupOperation that all members of a group do together, under way."""

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

    def told_by_all(self) -> list[list[int]]:
        """Member -> its numbers."""
        return cast("list[list[int]]", self.of_all.tolist())

    def put(self, values: Sequence[int]) -> None:
        """Set our own."""
        self._numbers[:] = values


class DoneAtOnce:
    """GroupOperation of a group of one, which is done when it begins."""

    is_over = True

    def __init__(self, group: Group) -> None:
        self._group = group

    def wait(self) -> None:
        """Return at once; raises GroupOver if the group was dropped."""
        if self._group.is_dropped:
            raise GroupOver("the group was dropped")


class Gathering:
    """Numbers of all members on their way.

    Args:
        operation: by which they come.
        told: member -> its numbers, once that is done.
        by_memory: whether they are there as soon as the members have begun what they sum next.
    """

    def __init__(
        self,
        operation: "GroupOperation",
        told: Callable[[], list[list[int]]],
        *,
        by_memory: bool = False,
    ) -> None:
        self._operation, self._told, self.by_memory = operation, told, by_memory

    @property
    def is_over(self) -> bool:
        """Whether it is done, or has failed."""
        return self._operation.is_over

    def heard(self) -> list[list[int]]:
        """Member -> its numbers, if they have come by memory, whatever became of the group."""
        return self._told() if self.by_memory else []

    def wait(self) -> list[list[int]]:
        """Member -> its numbers; raises as `Collective.wait`."""
        self._operation.wait()
        return self._told()


def travels(run: RunGroup) -> bool:
    """Tell whether anything travels in a group: what one alone sums is there already."""
    return len(run.members) > 1


def _named(member: Member) -> str:
    """A member that did not come; with its address and why, if no connection can be made to it."""
    why = refusal(member.address)
    return f"{member.node} at {place_of(member.address)} ({why})" if why else member.node

"""One group of workers that can average tensors: torch's process group, made anew at each change.

Gloo's groups cannot be aborted, and a member that is no neighbour of a dead one would wait for the
whole timeout. So the sockets that a group opens are remembered, and shut down when it is dropped:
whoever waits on them fails at once, here and at the peers. Two waits in gloo end in no such way:
who connects may wait for a peer to come, five times as long as it was told to; and an operation
that is sending when its connection is shut down may be forgotten. So gloo connects, and is taken
down, in threads that nobody waits for.
"""

import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch._C import _distributed_c10d as c10d

from paceline.runtime.collective.links import measure_links
from paceline.runtime.collective.store import GroupOver, PeerStore
from paceline.wire.messages.checks import Link
from paceline.wire.messages.group import RunGroup

CONNECT_S = 10.0
"""A member that does not connect within this has a reason of which its agent will tell."""
LONGEST_S = 24 * 3600.0
"""Of one operation: whoever hangs is found by the master long before, and then the group is
dropped; a member whose script takes long between two steps does not hang."""
LOOK_S = 0.05
"""How often who waits for an operation looks whether its group was dropped."""
BREAKING = (RuntimeError, GroupOver)
"""What torch raises when a group is over, and what we do."""
BURIED_S = 1.0
"""After so long nobody is about to call a dropped group any more."""


class Group:
    """A group; `begin`, and `wait` for its members, before anything else.

    Args:
        run: who belongs to it.
        inc: which of them we are.
        store: of this group.
    """

    def __init__(self, run: RunGroup, inc: int, store: PeerStore) -> None:
        self.run = run
        self.rank = next(k for k, member in enumerate(run.members) if member.inc == inc)
        self.size = len(run.members)
        self._store = store
        self._lock = threading.Lock()
        self._dropped = False
        #: It is connected, or never will be.
        self._settled = threading.Event()
        self._failure: Exception | None = None
        self._sockets: list[socket.socket] = []
        self._torch: Any = None

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
        self._settled.wait()
        if self._failure is not None:
            raise self._failure

    def _build(self, host: str) -> None:
        # What torch's stubs lack: the options of gloo, its constructor with them, the collectives.
        gloo: Any = c10d.ProcessGroupGloo
        try:
            before = _socket_inodes()
            options = gloo._Options()
            options._timeout = timedelta(seconds=CONNECT_S)
            options._devices = [gloo.create_device(hostname=host)]
            built = gloo(self._store, self.rank, self.size, options)
            with self._lock:
                if not self._dropped:  # else torch closes what it has opened
                    self._sockets, self._torch = _sockets_since(before), built
        except Exception as error:  # noqa: BLE001 - whatever it is, there is no group
            self._failure = GroupOver(str(error))
        self._settled.set()

    def drop(self) -> None:
        """End it for good; any thread may, also while another one waits in it. Again: nothing."""
        self._store.end()
        with self._lock:
            self._dropped = True
            sockets, self._sockets = self._sockets, []
            self._failure = GroupOver("the group was dropped")
            torch_group, self._torch = self._torch, None
        self._settled.set()
        for sock in sockets:
            with suppress(OSError):  # the peer was faster
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
        if torch_group is not None:
            threading.Thread(target=_bury, args=([torch_group],), daemon=True).start()
        del torch_group

    def sum(self, tensor: Tensor) -> "Operation":
        """Begin to sum a tensor in place over all members.

        All members sum tensors of the same shapes in the same order.
        """
        options = c10d.AllreduceOptions()
        options.timeout = timedelta(seconds=LONGEST_S)
        return Operation(self, self._connected().allreduce([tensor], options))

    def exchange(
        self, mine: Tensor, leave: list[int], theirs: Tensor, come: list[int]
    ) -> "Operation":
        """Begin to give each member a part of our tensor, and to get one of each member's.

        Args:
            mine: ``[sum(leave)]``, the parts one after the other.
            leave: how many elements each member gets.
            theirs: ``[sum(come)]`` of the same dtype, written to.
            come: how many elements each member gives us: its ``leave`` of our rank.
        """
        # As bytes, since gloo does not know all dtypes.
        width = mine.element_size()
        options = c10d.AllToAllOptions()
        options.timeout = timedelta(seconds=LONGEST_S)
        work = self._connected().alltoall_base(
            theirs.view(torch.uint8),
            mine.view(torch.uint8),
            [width * count for count in come],
            [width * count for count in leave],
            options,
        )
        return Operation(self, work)

    def _connected(self) -> Any:
        """Torch's group.

        Raises:
            GroupOver: it was dropped.
        """
        torch_group = self._torch
        if torch_group is None:
            raise GroupOver("the group was dropped")
        return torch_group

    def measure_links(self) -> tuple[Link, ...]:
        """What our links carry; all members do it at once, before anything else.

        Raises:
            GroupOver: the group is over.
        """
        names = [member.node for member in self.run.members]
        return self._aside(lambda torch_group: measure_links(torch_group, self.rank, names))

    def _aside(self, act: Callable[[Any], tuple[Link, ...]]) -> tuple[Link, ...]:
        """Do what may wait for longer than the group lasts in a thread that nobody waits for."""
        done: Future[tuple[Link, ...]] = Future()
        torch_group = self._connected()

        def run() -> None:
            try:
                done.set_result(act(torch_group))
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
        mine = torch.tensor(values, dtype=torch.int64)
        all_of_them = [torch.empty_like(mine) for _ in range(self.size)]
        options = c10d.AllgatherOptions()
        options.timeout = timedelta(seconds=LONGEST_S)
        work = self._connected().allgather([all_of_them], [mine], options)
        return Gathering(Operation(self, work), all_of_them)


class Operation:
    """Something that all members of a group do together, on its way."""

    def __init__(self, group: Group, work: Any) -> None:
        self._group, self._work = group, work

    @property
    def is_over(self) -> bool:
        """Whether it is done, or has failed: it touches its tensor no more."""
        return bool(self._work.is_completed())

    def wait(self) -> None:
        """Return when it is done.

        Raises:
            RuntimeError: the group is over (torch's own error).
            GroupOver: it was dropped, and the operation forgotten.
        """
        while not self.is_over:
            with suppress(RuntimeError):  # not yet; or it has failed, as is told below
                self._work.wait(timedelta(seconds=LOOK_S))
            if self._group.is_dropped and not self.is_over:
                raise GroupOver("the group was dropped")
        self._work.wait()


class Gathering:
    """Numbers of all members on their way."""

    def __init__(self, operation: Operation, values: list[Tensor]) -> None:
        self._operation, self._values = operation, values

    def wait(self) -> list[list[int]]:
        """Member -> its numbers; raises as `Operation.wait`."""
        self._operation.wait()
        return [one.tolist() for one in self._values]


def _bury(torch_groups: list[Any]) -> None:
    """Let go of what may wait for ever for an operation that was forgotten."""
    time.sleep(BURIED_S)
    torch_groups.clear()


def _socket_inodes() -> dict[int, str]:
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the listing's own
            target = os.readlink(f"/proc/self/fd/{name}")
            if target.startswith("socket:"):
                found[int(name)] = target
    return found


def _sockets_since(before: dict[int, str]) -> list[socket.socket]:
    """Duplicates of the connected TCP sockets that were opened meanwhile.

    Duplicates, since a number that torch closes may be another file's a moment later.
    """
    known = set(before.values())
    found = []
    for number, inode in _socket_inodes().items():
        if inode in known:
            continue
        with suppress(OSError):  # closed meanwhile
            sock = socket.socket(fileno=os.dup(number))
            if sock.family in (socket.AF_INET, socket.AF_INET6) and _is_connected(sock):
                found.append(sock)
            else:
                sock.close()
    return found


def _is_connected(sock: socket.socket) -> bool:
    try:
        sock.getpeername()
    except OSError:
        return False
    return True

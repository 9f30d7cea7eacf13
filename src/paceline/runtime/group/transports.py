"""Torch's process groups that a `Group` is made of: how each connects, is waited for, and ends.

A member alone has none of them, but `NoPeers`; members of one machine need none for tensors in
memory.

Gloo's groups cannot be aborted, and a member that is no neighbour of a dead one would wait for the
whole timeout. So the sockets that a group opens are remembered, and shut down when it ends: threads
that wait on them fail at once, here and at the peers. Two waits in gloo do not end in this way. A
member that connects may wait for a peer five times as long as its timeout. An operation that is
sending when its connection is shut down may be forgotten. So gloo connects, and is taken down, in
threads that nobody waits for.

NCCL's can be aborted, which may hang: in such a thread, too. While they connect they cannot.
Reference: docs/decisions/0021-nccl-is-polled-and-aborted.md.
"""

import hashlib
import os
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import msgspec
import torch
from torch._C import _distributed_c10d as c10d

from paceline.base.interfaces import interface_of
from paceline.runtime.group.store import GroupOver, PeerStore
from paceline.wire.spec import JobSpec

SOCKETS = "sockets"
"""Key, before a rank, of the addresses from which that member is connected."""
CONNECT_S = 10.0
"""Seconds within which a member connects, unless for a reason of which its agent will tell."""
LONGEST_S = 24 * 3600.0
"""The timeout of one operation. The master finds a hung member long before and drops the group; a
member whose script takes long between two steps does not hang."""
BURIED_S = 1.0
"""Seconds after which nobody is about to call a dropped group any more."""
POLL_S = 0.0002
"""Seconds between two questions to NCCL whether an operation is over."""
LEAVE_ALIVE = {
    # By default a thread of torch watches each operation, and ends the process when one
    # fails: a survivor would end because a peer has died. This one leaves that thread out, and with
    # it the monitor that ends the process when the thread does not get on.
    "TORCH_NCCL_BLOCKING_WAIT": "1",
    # Where the environment says otherwise, they are there, but end nobody.
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
}
"""Environment of NCCL's groups, read when one is made."""


class Transport(ABC):
    """One of torch's process groups.

    Args:
        store: in which the members meet.
        rank: which of them we are.
        size: how many there are.
        device: whose tensors it is for.
    """

    def __init__(self, store: PeerStore, rank: int, size: int, device: torch.device) -> None:
        self._store, self._rank, self._size, self._device = store, rank, size, device
        self._lock = threading.Lock()
        self._ended = False
        self._torch: Any = None

    def connect(self, host: str) -> None:
        """Connect to all other members; once. May never return, also if it is ended meanwhile.

        Args:
            host: address of this machine to listen at, IPv4.
        """
        built = self._connect(host)
        with self._lock:
            if not self._ended:
                self._torch = built
                return
        self._end(built)

    def begin(self, act: Callable[[Any], Any]) -> Any:
        """Do something with torch's group; return what comes of it, as one of its works.

        Raises:
            GroupOver: it has ended, or never was connected.
        """
        torch_group = self._torch
        if torch_group is None:
            raise GroupOver("the group was dropped")
        return act(torch_group)

    def end(self) -> None:
        """End it for good, and wake who waits in it, here and elsewhere; does not wait itself."""
        with self._lock:
            self._ended = True
            torch_group, self._torch = self._torch, None
        if torch_group is not None:
            self._end(torch_group)

    @property
    @abstractmethod
    def place(self) -> int:
        """A number of our device; 0: it cannot be used. Where two members have one, neither can."""

    @abstractmethod
    def pause(self, work: Any, limit_s: float) -> None:
        """Return when a work is over, whatever came of it, or after so long."""

    @abstractmethod
    def will_tell(self, work: Any, act: Callable[[], object]) -> bool:
        """Have something called once a work is over, in any thread; False: that cannot be."""

    @abstractmethod
    def result(self, work: Any) -> None:
        """Raise what came of a work that is over: RuntimeError if it has failed."""

    @abstractmethod
    def _connect(self, host: str) -> Any:
        """Make torch's group."""

    @abstractmethod
    def _end(self, torch_group: Any) -> None:
        """End a transport that was connected."""


class Gloo(Transport):
    """Sums over sockets, for tensors in memory; those of a device it copies there and back."""

    def __init__(self, store: PeerStore, rank: int, size: int, device: torch.device) -> None:
        super().__init__(store, rank, size, device)
        self._sockets: list[socket.socket] = []

    @property
    def place(self) -> int:
        """0: gloo has no device."""
        return 0

    def _connect(self, host: str) -> Any:
        # What torch's stubs lack: the options of gloo, its constructor with them, the collectives.
        gloo: Any = c10d.ProcessGroupGloo
        before = _socket_inodes()
        options = gloo._Options()
        options._timeout = timedelta(seconds=CONNECT_S)
        options._devices = [gloo.create_device(hostname=host)]
        built = gloo(self._store, self._rank, self._size, options)
        self._sockets = _sockets_since(before)
        # Gloo's errors name a peer by its address only.
        ours = [sock.getsockname()[:2] for sock in self._sockets]
        self._store.set(f"{SOCKETS}/{self._rank}", msgspec.json.encode(ours))
        return built

    def pause(self, work: Any, limit_s: float) -> None:
        with suppress(RuntimeError):  # not yet; or it has failed, as `result` tells
            work.wait(timedelta(seconds=limit_s))

    def will_tell(self, work: Any, act: Callable[[], object]) -> bool:
        work.get_future().add_done_callback(lambda _: act())
        return True

    def result(self, work: Any) -> None:
        work.wait()

    def _end(self, torch_group: Any) -> None:
        sockets, self._sockets = self._sockets, []
        for sock in sockets:
            with suppress(OSError):  # the peer was faster
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
        threading.Thread(target=_bury, args=([torch_group],), daemon=True).start()


class NoPeers(Transport):
    """The transport of a group of one: what is summed over all members is there already."""

    @property
    def place(self) -> int:
        """0: nothing travels to a device."""
        return 0

    def _connect(self, host: str) -> Any:
        return _Nobody()

    def pause(self, work: Any, limit_s: float) -> None:
        """Return: all works are over."""

    def will_tell(self, work: Any, act: Callable[[], object]) -> bool:
        """Return False: all works are over."""
        return False

    def result(self, work: Any) -> None:
        """Return: none fails."""

    def _end(self, torch_group: Any) -> None:
        """Nobody waits in it."""


class _Nobody:
    """A process group of torch without peers, whose works are over at once, as one of itself."""

    def is_completed(self) -> bool:
        return True

    def allreduce(self, *_: Any) -> "_Nobody":
        return self

    def alltoall_base(self, theirs: Any, mine: Any, *_: Any) -> "_Nobody":
        theirs.copy_(mine)
        return self


class Nccl(Transport):
    """Sums from device to device."""

    def __init__(self, store: PeerStore, rank: int, size: int, device: torch.device) -> None:
        super().__init__(store, rank, size, device)
        #: Those under way. With a work torch lets go of its tensors, which would be given to
        #: somebody else while a kernel that is not aborted yet still writes into them.
        self._works: list[Any] = []

    @property
    def place(self) -> int:
        """A number of our GPU: NCCL refuses two members on one device."""
        if not hasattr(c10d, "ProcessGroupNCCL"):
            return 0
        uuid = str(torch.cuda.get_device_properties(self._device).uuid)
        return int(hashlib.sha256(uuid.encode()).hexdigest()[:15], 16)

    def _connect(self, host: str) -> Any:
        for name, value in LEAVE_ALIVE.items():
            os.environ.setdefault(name, value)
        nccl: Any = c10d.ProcessGroupNCCL
        options = nccl.Options()
        options._timeout = timedelta(seconds=LONGEST_S)
        with torch.cuda.device(self._device):
            store = c10d.PrefixStore("nccl", self._store)
            built = nccl(store, self._rank, self._size, options)
            built.eager_connect_single_device(self._device)
        return built

    def begin(self, act: Callable[[Any], Any]) -> Any:
        work = super().begin(act)
        self._works.append(work)
        return work

    def pause(self, work: Any, limit_s: float) -> None:
        """Pause here: torch's ``wait`` would have the device wait, not us."""
        deadline_s = time.monotonic() + limit_s
        while not work.is_completed() and time.monotonic() < deadline_s:
            time.sleep(POLL_S)  # noqa: TID251

    def will_tell(self, work: Any, act: Callable[[], object]) -> bool:
        """Return False: torch's future tells when a work is in the device's queue."""
        return False

    def result(self, work: Any) -> None:
        """Raise here: torch's ``wait`` would abort what has failed, and wait for it."""
        with suppress(ValueError):  # told before
            self._works.remove(work)
        told, kinds = work.get_future_result(), c10d.WorkResult  # type: ignore[attr-defined]
        if told.done() and kinds(told.value()) != kinds.SUCCESS:
            raise RuntimeError("NCCL has lost a member")

    def _end(self, torch_group: Any) -> None:
        threading.Thread(
            target=self._abort, args=(torch_group,), name="paceline-abort", daemon=True
        ).start()

    def _abort(self, torch_group: Any) -> None:
        with suppress(RuntimeError):
            torch_group.abort()
        while not all(work.is_completed() for work in self._works):
            time.sleep(POLL_S)  # noqa: TID251
        self._works.clear()


DIRECT: dict[str, type[Transport]] = {"cuda": Nccl}
"""Kind of device -> by what its tensors travel from one to another."""


def keep_to_network(spec: JobSpec, variable: str, exactly: str = "") -> None:
    """Keep a library on the network of ``listen``; by default it takes any that it finds.

    What the shell exports does not count, as for no other listener of the job: only the spec does.

    Args:
        spec: of the job.
        variable: of the environment, from which the library takes an interface.
        exactly: what stands before a name that is meant whole.
    """
    if variable not in spec.env:
        os.environ[variable] = exactly + interface_of(spec.listen)


def _bury(torch_groups: list[Any]) -> None:
    """Let go of what may wait for ever for an operation that was forgotten."""
    time.sleep(BURIED_S)  # noqa: TID251
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

"""The page of a worker that shares a device: what it may use of it, and whether it is idle.

    page = GatePage.create(path, device="cpu:0", share="opportunistic")    # its agent

    page = GatePage.open(path)                                             # its process
    if page.words[MODE]: …                                                 # a gate that is off

    page.order(GateMode.DUTY, 0.3, beside=path)                            # the device coordinator

A file of one page of memory in the run directory. Each word has one writer. Orders have a number,
which is written last, and for whose change the gate waits. The agent and the process hold the
file's lock as long as they live: a page that nobody holds is one of the dead.
"""

import contextlib
import ctypes
import fcntl
import mmap
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, cast, get_args

import msgspec

from paceline.base.errors import ConfigError
from paceline.base.futex import wait_for_change, wake
from paceline.base.jobdir import JobDir
from paceline.features.sharing.wire import GateMode, SharingDecision
from paceline.wire.mapped_page import StampedRing, magic_of, new_page
from paceline.wire.spec import ShareClass

MAGIC = b"PACEGAT3"
SHARE, SINCE, MODE, DUTY, BEAT, HELD, HELD_AT, LIFE, FREE, ROOM, MINIMUM, LIMIT, AWAY = range(1, 14)
"""Words, all doubles: the class; when the job came (Unix time); the order, two; when the device
coordinator gave a sign of life (monotonic); how long the gate has held its job in all, and when it
did so last (monotonic); the life of the process; 1: the job ends, and is held no more; the memory
of the device, 0: it is not shared; what the job always has of it; the limit that is ordered, 0:
none yet, inf: no limit; 1: the device's memory has no room for the process, which must end."""
_MEMORY = range(16, 23)
"""Words in which the process tells its memory, in the order of `PageMemory`."""
_ORDER_AT, _BUSY_AT, _TOLD_AT = 256, 260, 264
"""Numbers of four bytes: of the newest order; of the busy time, odd while it lasts, 0: the job says
nothing of it; of decisions so far."""
ORDER, BUSY, NUM_NUMBERS = 0, 1, 3
"""Places of the first two in `GatePage.numbers`, and how many there are."""
_DEVICE, _BESIDE = (320, 64), (384, 256)
"""Texts: where they are, and how long they may be."""
_DECISIONS_AT, _NUM_DECISIONS, _DECISION_BYTES = 640, 16, 512
"""The ring of decisions; each is the number of its bytes, in four of them, and its JSON."""
_BYTES = _DECISIONS_AT + StampedRing.num_bytes(_DECISION_BYTES, _NUM_DECISIONS)
STALE_S = 3.0
"""Seconds for which an order counts after the device coordinator's last sign of life."""
_CLASSES = get_args(ShareClass)


def page_of(job: JobDir, node: str) -> Path:
    """Return the path of a node's page, in the run directory of its job."""
    return job.run_dir / f"{node}.share"


class GateOrder(NamedTuple):
    """Newest order of the device coordinator."""

    number: int
    mode: GateMode
    duty: float
    beside: str
    """Path of the page of the guaranteed job; empty: its gaps are not waited for."""


class PageMemory(NamedTuple):
    """The memory of a process on a device that it shares, as it says at its boundaries; in bytes.

    The numbers may be of two boundaries that follow each other.
    """

    looks: float
    """Number of times that the process has said its memory."""
    limit: float
    """Limit in effect; inf: none."""
    device: float
    """Bytes of tensors on the device."""
    peak: float
    """Most bytes of them in the newest half second at least."""
    host: float
    """Bytes of tensors that lie in the host's memory instead."""
    spilled: float
    """Bytes allocated there, by all processes of the page so far."""
    batches: float
    """Mini-batches that these processes have begun."""


class GatePage:
    """The page, mapped; see the module. ``descriptor``: of its file, whose lock it takes."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path, self.descriptor = path, descriptor
        self._map = mmap.mmap(descriptor, _BYTES)
        self.words: memoryview[float] = memoryview(self._map)[:_ORDER_AT].cast("d")
        self.numbers: memoryview[int] = memoryview(self._map)[
            _ORDER_AT : _ORDER_AT + 4 * NUM_NUMBERS
        ].cast("i")
        self._order = ctypes.c_int32.from_buffer(self._map, _ORDER_AT)
        self._busy = ctypes.c_int32.from_buffer(self._map, _BUSY_AT)
        self._told = ctypes.c_int32.from_buffer(self._map, _TOLD_AT)
        self._decisions = StampedRing(
            memoryview(self._map),
            at=_DECISIONS_AT,
            record_bytes=_DECISION_BYTES,
            num_slots=_NUM_DECISIONS,
        )

    @classmethod
    def create(cls, path: Path, device: str, share: ShareClass) -> "GatePage":
        """Make and hold the page of a worker, or go on with the one of a former agent."""
        with contextlib.suppress(FileNotFoundError, ConfigError):
            return cls.open(path).hold()
        with new_page(path, MAGIC, _BYTES) as descriptor:
            page = cls(path, os.dup(descriptor)).hold()
            page.share, page.words[SINCE] = share, time.time()
            page._write_text(_DEVICE, device)
        return page

    @classmethod
    def open(cls, path: Path) -> "GatePage":
        """Map the page of a worker.

        Raises:
            FileNotFoundError: there is none.
            ConfigError: the file is of another version.
        """
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        if magic_of(descriptor, MAGIC) != MAGIC or os.fstat(descriptor).st_size < _BYTES:
            os.close(descriptor)
            raise ConfigError(f"{path}: got no page of this version of paceline; end its job")
        return cls(path, descriptor)

    def hold(self) -> "GatePage":
        """Show that the page's job lives, as long as this process does."""
        fcntl.flock(self.descriptor, fcntl.LOCK_SH)
        return self

    @property
    def is_held(self) -> bool:
        """Whether a process of its job lives; ask on a page that does not hold itself."""
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        fcntl.flock(self.descriptor, fcntl.LOCK_UN)
        return False

    def close(self) -> None:
        """Let go of the file; the map ends with the object."""
        os.close(self.descriptor)

    # ------------------------------------------------------------------ who it is

    @property
    def device(self) -> str:
        return self._read_text(_DEVICE)

    @property
    def share(self) -> ShareClass:
        return cast(ShareClass, _CLASSES[int(self.words[SHARE])])

    @share.setter
    def share(self, share: ShareClass) -> None:
        self.words[SHARE] = _CLASSES.index(share)

    @property
    def job_id(self) -> str:
        """Read from where it lies."""
        return self.path.parent.name.partition("-")[2]

    @property
    def node(self) -> str:
        return self.path.name.removesuffix(".share")

    # ------------------------------------------------------------------ orders

    def order(self, mode: GateMode, duty: float, beside: str) -> None:
        """Order what the job may do; the same again only says that it is still so."""
        self.words[BEAT] = time.monotonic()
        if self.newest == GateOrder(self._order.value, mode, duty, beside):
            return
        self._write_text(_BESIDE, beside)
        self.words[DUTY] = duty
        self.words[MODE] = mode
        self._order.value += 1
        wake(self._order)

    @property
    def order_number(self) -> int:
        """The number of the newest order."""
        return self._order.value

    @property
    def newest(self) -> GateOrder:
        """The newest order."""
        number = self._order.value
        mode, duty = GateMode(int(self.words[MODE])), self.words[DUTY]
        return GateOrder(number, mode, duty, self._read_text(_BESIDE))

    def await_order(self, number: int, timeout_s: float) -> None:
        """Wait for another order than this one."""
        wait_for_change(self._order, number, timeout_s)

    # ------------------------------------------------------------------ memory

    @property
    def memory(self) -> PageMemory:
        """Newest word of the process about its memory."""
        return PageMemory(*(self.words[at] for at in _MEMORY))

    def say_memory(self, said: PageMemory) -> None:
        """Say it, as the process."""
        for at, value in zip(_MEMORY, said):
            self.words[at] = value

    # ------------------------------------------------------------------ busy and idle

    @property
    def tells_gaps(self) -> bool:
        """Whether the job says when it is busy."""
        return self._busy.value != 0

    @property
    def busy_number(self) -> int:
        """The odd number of the busy time that the job is in; even: it is in none."""
        return self._busy.value

    def say_busy(self) -> None:
        """Say that the job uses the device now."""
        self._busy.value |= 1

    def say_idle(self) -> None:
        """Say that it does not, for a while."""
        self._busy.value = (self._busy.value | 1) + 1
        wake(self._busy)

    def say_no_gaps(self) -> None:
        """Say no more whether it does."""
        self._busy.value = 0
        wake(self._busy)

    def await_idle(self, number: int, timeout_s: float) -> None:
        """Wait until the job is no longer busy."""
        wait_for_change(self._busy, number, timeout_s)

    # ------------------------------------------------------------------ decisions

    def tell(self, decision: SharingDecision) -> None:
        """Leave a decision for the job's agent."""
        data = msgspec.json.encode(decision)[: _DECISION_BYTES - 4]
        self._decisions.put(self._told.value, len(data).to_bytes(4, "little") + data)
        self._told.value += 1

    def decisions(self, since: int) -> Iterator[tuple[int, SharingDecision]]:
        """Read decisions after that number, as far as they are still there, each with its own."""
        told = self._told.value
        for number in range(max(since, told - _NUM_DECISIONS + 1), told):
            record = self._decisions.get(number)
            if record is None:
                continue
            size = int.from_bytes(record[:4], "little")
            with contextlib.suppress(msgspec.MsgspecError):
                yield number + 1, msgspec.json.decode(record[4 : 4 + size], type=SharingDecision)

    # ------------------------------------------------------------------ texts

    def _write_text(self, field: tuple[int, int], text: str) -> None:
        at, size = field
        self._map[at : at + size] = text.encode()[:size].ljust(size, b"\0")

    def _read_text(self, field: tuple[int, int]) -> str:
        at, size = field
        return self._map[at : at + size].rstrip(b"\0").decode(errors="replace")

"""The call ring: memory in which a training process notes its collective calls, as they happen.

Written by whatever thread makes a call, without a system call; read by the agent when somebody asks
what the newest steps did. It is a file in the run directory, so it outlives a crash of its writer.
One process writes, any number read.

    ring = CallRingWriter(path, inc=7)                 # replaces the file in one step
    entry = ring.begin(group=0, op=1, num_bytes=4096, step=9)
    ring.end(entry)                                    # from any thread, or never
    ring.add_step(12, start_s, took_s)                 # a step is over

    CallRingReader(path).read(inc=7)                   # those still there, oldest first

The file is a header of 64-bit words and a `StampedRing` of entries. The end of a call is stored in
its entry later, if the slot is still that call's. What an entry's group is stands in a table beside
the ring (`groups_of`), a line each.
"""

import itertools
import mmap
import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from paceline.base.jobdir import JobDir
from paceline.base.numbering import Inc
from paceline.wire.mapped_page import StampedRing, magic_of, new_page

_MAGIC = b"PACECAL2"
_WORD_BYTES = 8
_INC, _SLOTS, _COUNT, _INFERS = 1, 2, 3, 4
"""Words of the header; word 0 is the magic."""
_HEADER_BYTES = 8 * _WORD_BYTES
_ENTRY = struct.Struct("@6Q")
"""Words of an entry: start, end, bytes, step; running number, group and op in one; wait."""
_END_AT, _WAIT_AT = 1, 5
"""Words of it that are stored later."""
_OP_BITS = _GROUP_BITS = 16
_STEP = (1 << _OP_BITS) - 1
"""Stand-in for an operation: a step of the script."""
NUM_SLOTS = 8192
OPS = (
    "allreduce_",
    "allreduce_coalesced_",
    "broadcast_",
    "reduce_",
    "allgather_",
    "_allgather_base_",
    "allgather_coalesced_",
    "allgather_into_tensor_coalesced_",
    "reduce_scatter_",
    "_reduce_scatter_base_",
    "reduce_scatter_tensor_coalesced_",
    "gather_",
    "scatter_",
    "alltoall_",
    "alltoall_base_",
    "barrier",
    "send",
    "recv_",
    "all_reduce",
    "all_reduce_",
    "all_reduce_coalesced",
    "all_gather_into_tensor",
    "all_gather_into_tensor_coalesced",
    "reduce_scatter_tensor",
    "reduce_scatter_tensor_coalesced",
    "all_to_all_single",
    "broadcast",
)
"""Torch's operators, of ``c10d`` and then of ``_c10d_functional``; the place is the number in the
ring."""


def ring_of(job: JobDir, node: str) -> Path:
    """Return the path of a node's ring, in the run directory of its job."""
    return job.run_dir / f"{node}.calls"


class CallGroup(msgspec.Struct, frozen=True, array_like=True):
    """The ranks that take part in a call."""

    name: str
    """Torch's name of the group."""
    ranks: tuple[int, ...]
    """Ranks in the job, in the order of the group's own ranks."""
    backend: str = ""


class NotedCall(msgspec.Struct, frozen=True, array_like=True):
    """One collective call of one rank. Times are of the monotonic clock, in seconds."""

    group: int
    """Place of the group in the table of groups."""
    op: int
    num_bytes: int
    step: int
    start_s: float
    end_s: float
    """End of the call; 0: it has not come to its end, or none is seen."""
    seq: int
    """Running number in its group, by which the same call is found on other ranks."""
    wait_s: float = 0.0
    """Time since when the script did nothing but wait for the call; 0: not known."""


class NotedStep(msgspec.Struct, frozen=True, array_like=True):
    """One step of one rank, on the same clock."""

    step: int
    start_s: float
    took_s: float


class RingContents(msgspec.Struct, frozen=True):
    """Contents of a ring, oldest first."""

    groups: tuple[CallGroup, ...] = ()
    calls: tuple[NotedCall, ...] = ()
    steps: tuple[NotedStep, ...] = ()
    infers: bool = False
    """Steps are taken from the period of the calls: the script steps no optimizer of torch."""


class CallRingWriter:
    """The training process's end."""

    def __init__(self, path: Path, inc: Inc, num_slots: int = NUM_SLOTS) -> None:
        self._groups = groups_of(path)
        self._groups.unlink(missing_ok=True)
        size = _HEADER_BYTES + StampedRing.num_bytes(_ENTRY.size, num_slots)
        with new_page(path, _MAGIC, size) as descriptor:
            page = memoryview(mmap.mmap(descriptor, size))
            self._words = page.cast("Q")
            self._words[_INC], self._words[_SLOTS] = inc, num_slots
        self._ring = _ring_of(page, num_slots)
        self._numbers = itertools.count()
        self._seqs: list[Iterator[int]] = []

    @property
    def infers(self) -> bool:
        """Whether steps are taken from the period of the calls."""
        return bool(self._words[_INFERS])

    @infers.setter
    def infers(self, infers: bool) -> None:
        self._words[_INFERS] = infers

    def add_group(self, group: CallGroup) -> int:
        """Append to the table; its number, from 0 on. By one thread at a time.

        Raises:
            OverflowError: there are too many.
        """
        number = len(self._seqs)
        if number >= 1 << _GROUP_BITS:
            raise OverflowError(f"{number:,} groups were made, more than are noted")
        with self._groups.open("ab") as table:
            table.write(msgspec.json.encode(group) + b"\n")
        self._seqs.append(itertools.count())
        return number

    def begin(self, group: int, op: int, num_bytes: int, step: int) -> int:
        """Note that a call begins; its number, for `end`."""
        what = (next(self._seqs[group]) << _GROUP_BITS | group) << _OP_BITS | op
        return self._add(time.monotonic_ns(), 0, num_bytes, step, what)

    def add_step(self, step: int, start_s: float, took_s: float) -> None:
        """Note a step that is over."""
        start_ns = int(start_s * 1e9)
        self._add(start_ns, start_ns + int(took_s * 1e9), 0, step, _STEP)

    def _add(self, start_ns: int, end_ns: int, num_bytes: int, step: int, what: int) -> int:
        n = next(self._numbers)
        self._ring.put(n, _ENTRY.pack(start_ns, end_ns, num_bytes, step, what, 0))
        self._words[_COUNT] = n + 1
        return n

    def end(self, n: int, wait_s: float = 0.0) -> None:
        """Note that it is over, unless the ring has come round to its slot.

        Args:
            n: number of the call.
            wait_s: since when somebody waits for it (monotonic clock), if that is known.
        """
        if self._ring.holds(n):
            at = self._ring.place(n)
            self._words[at + _WAIT_AT] = int(wait_s * 1e9)
            self._words[at + _END_AT] = time.monotonic_ns()


class CallRingReader:
    """The agent's end."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self, inc: Inc) -> RingContents:
        """All that is still there; nothing, if this life has noted none."""
        page = self._mapped()
        words = page.cast("Q")
        if not page or words[_INC] != inc:
            return RingContents()
        count, ring = words[_COUNT], _ring_of(page, words[_SLOTS])
        taken = (_take(ring, n) for n in range(max(0, count - ring.num_slots), count))
        found = [one for one in taken if one is not None]
        return RingContents(
            groups=self._read_groups(),
            calls=tuple(one for one in found if isinstance(one, NotedCall)),
            steps=tuple(one for one in found if isinstance(one, NotedStep)),
            infers=bool(words[_INFERS]),
        )

    def _mapped(self) -> memoryview:
        """The page, mapped for this reading; empty: there is none of this version."""
        try:
            descriptor = os.open(self._path, os.O_RDONLY)
        except FileNotFoundError:
            return memoryview(b"")
        try:
            size = os.fstat(descriptor).st_size
            if magic_of(descriptor, _MAGIC) != _MAGIC or size < _HEADER_BYTES:
                return memoryview(b"")
            return memoryview(mmap.mmap(descriptor, size, prot=mmap.PROT_READ))
        finally:
            os.close(descriptor)

    def _read_groups(self) -> tuple[CallGroup, ...]:
        try:
            lines = groups_of(self._path).read_bytes().splitlines()
        except FileNotFoundError:
            return ()
        return tuple(msgspec.json.decode(line, type=CallGroup) for line in lines)


def groups_of(path: Path) -> Path:
    """Where the groups of a ring stand."""
    return path.with_name(f"{path.name}.groups")


def _ring_of(page: memoryview, num_slots: int) -> StampedRing:
    return StampedRing(page, at=_HEADER_BYTES, record_bytes=_ENTRY.size, num_slots=num_slots)


def _take(ring: StampedRing, n: int) -> NotedCall | NotedStep | None:
    """Entry n; None: its slot is another's, or is being written."""
    entry = ring.get(n)
    if entry is None:
        return None
    start_ns, end_ns, num_bytes, step, what, wait_ns = _ENTRY.unpack(entry)
    op = what & ((1 << _OP_BITS) - 1)
    if op == _STEP:
        return NotedStep(step, start_ns / 1e9, (end_ns - start_ns) / 1e9)
    return NotedCall(
        group=what >> _OP_BITS & ((1 << _GROUP_BITS) - 1),
        op=op,
        num_bytes=num_bytes,
        step=step,
        start_s=start_ns / 1e9,
        end_s=end_ns / 1e9,
        seq=what >> _OP_BITS + _GROUP_BITS,
        wait_s=wait_ns / 1e9,
    )

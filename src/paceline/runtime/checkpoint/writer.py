"""A process's cuts: copied into memory, and handed to their keeper.

Training waits for one copy of the state at most. It lies in a file in memory, which outlives the
process, and the node's agent keeps it (`wire.cut_keeping`); where there is no room for such a file,
or none is wanted, in memory of the process, which then keeps it on its own.
"""

import math
import mmap
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence

import msgspec
import numpy as np

from paceline.base.errors import PermanentError
from paceline.base.numbering import CutNo
from paceline.cuts.keeper import CutKeeper, Image, say_no_room
from paceline.cuts.memory import (
    HEADROOM,
    MemoryFile,
    image_path,
    partner,
    place,
    working_memory,
)
from paceline.runtime.checkpoint import cutfile
from paceline.runtime.data.work import Array
from paceline.runtime.process.process import Process
from paceline.wire.messages.node import Copied, CutDelayed, CutKept, KeepCut

RESEND_S = 1.0
DELAYED_S = 5.0
"""Seconds after which a disk that was last said to refuse a cut may have taken it."""


class CutWriter:
    """Takes one node's cuts to where they survive, one after the other."""

    def __init__(self, process: Process, on_news: Callable[[], None] = lambda: None) -> None:
        """``on_news``: called in some thread when there is something `to_agent`, or `finished`."""
        self._on_news = on_news
        spec = process.spec.checkpoint
        self._job, self._node, self._inc = process.job, process.node, process.inc
        # Two lives of a node may copy a cut of the same number; each has a file of its own.
        self._name = f"{process.node}-{process.inc}.safetensors"
        self._in_memory = spec.in_memory and process.job.has_memory
        #: Whether it was said that memory has no room, since it last had.
        self._told = False
        self._partner: str | None = None
        self._elsewhere = ""
        """Address on another machine that keeps second copies; empty: a node of this one does."""
        #: The last image, where it is of this process only.
        self._private: mmap.mmap | None = None
        #: The copy of the last cut in this node's memory.
        self._own: MemoryFile | None = None
        #: The epoch was restored from memory, and no cut has been copied since.
        self._needed = False
        #: Images handed over, and those known to be on disk: counted by the threads that call
        #: `copy` and `finished`.
        self._num_copied = self._num_stored = 0
        self._root = process.cuts.disk.root
        self._delays: queue.SimpleQueue[CutDelayed] = queue.SimpleQueue()
        disk_s = process.spec.timeouts.disk_s
        self._keeper = CutKeeper(
            process.job, process.cuts.durable, self._hear, self._delayed, disk_s
        )
        self._delayed_s = -math.inf
        #: Cut that the agent must keep, time at which it was asked last, and its answers.
        self._ask: KeepCut | None = None
        self._asked_s = 0.0
        self._answered: set[bool] = set()
        self._image: memoryview | None = None
        """Image of the cut in `_ask`; it stays mapped here whatever becomes of its file."""
        #: Images of ours that come after that: of one name one is written at a time.
        self._waiting: list[Image] = []
        self._lock = threading.Lock()
        self._done: queue.SimpleQueue[Copied | Exception] = queue.SimpleQueue()

    def start_epoch(self, holders: Sequence[str], *, from_memory: bool) -> None:
        """Note that the node has its share; ``from_memory``: of a cut that is nowhere else."""
        self.set_holders(holders)
        self._needed = from_memory

    def set_holders(self, holders: Sequence[str], elsewhere: str = "") -> None:
        """See who of the nodes that hold state is the partner.

        Args:
            holders: their names.
            elsewhere: address on another machine that is to have the second copy in place of one.
        """
        self._elsewhere, self._partner = elsewhere if self._in_memory else "", None
        if self._in_memory and not elsewhere:
            self._partner = partner(self._job, self._node, holders)

    def make_room(self, cut_no: CutNo, num_bytes: int) -> None:
        """Allocate memory for the copy of a cut, and touch it: that costs more than copying."""
        image = self._place(cut_no, num_bytes) or self._private_image(num_bytes)
        np.frombuffer(image, np.uint8)[:: mmap.PAGESIZE] = 0

    def copy(
        self,
        copied: Copied,
        saved: Mapping[str, Array],
        pack: Callable[[Mapping[str, Array], memoryview], object] = cutfile.pack,
    ) -> None:
        """Copy these arrays as they are now, or as ``pack`` does it, and have them kept."""
        start_s = time.perf_counter()
        size = cutfile.packed_bytes(saved)
        shared = self._place(copied.cut_no, size)
        if shared is None:
            self._own = None
        else:
            self._private = None
        image = shared or self._private_image(size)
        self._needed = False
        self._num_copied += 1
        pack(saved, image)
        cost_s = time.perf_counter() - start_s
        copied = msgspec.structs.replace(copied, file=self._name, num_bytes=size, cost_s=cost_s)
        with self._lock:
            if shared is not None:
                self._answered.clear()
                self._asked_s, self._image = 0.0, shared
                self._ask = KeepCut(
                    inc=self._inc,
                    copied=copied,
                    partner=self._partner or "",
                    elsewhere=self._elsewhere,
                )
            elif self._ask is not None:
                self._waiting.append(Image(copied, image))
            else:
                self._keeper.keep(Image(copied, image))
        self._on_news()

    @property
    def _is_writing(self) -> bool:
        return self._num_copied > self._num_stored

    def _private_image(self, size: int) -> memoryview:
        if self._is_writing or self._private is None or len(self._private) < size:
            self._private = None  # freed before there is another one
            self._private = working_memory(self._root, size + size // HEADROOM)
        return memoryview(self._private)[:size]

    def _place(self, cut_no: CutNo, size: int) -> memoryview | None:
        """Room in this node's memory; None: there is none, or not now.

        There is room for one cut: not while the last one is the only one, or is read.
        """
        if self._needed or self._is_writing or not self._in_memory:
            return None
        last, self._own = self._own, None
        path = image_path(self._job, cut_no, self._node, self._name)
        try:
            self._own = place(last, path, size)
        except OSError as error:
            if not self._told:
                say_no_room(self._job, size, error)
            self._told = True
            return None
        self._told = False
        return self._own.image(size)

    def to_agent(self, now_s: float) -> list[KeepCut | CutDelayed]:
        """Return what to tell the agent now: what it has not answered, again after a while.

        Also what it passes on: that the disk refuses what this process keeps on its own.
        """
        found: list[KeepCut | CutDelayed] = []
        while not self._delays.empty():
            found.append(self._delays.get())
        ask = self._ask
        if ask is not None and now_s >= self._asked_s + RESEND_S:
            self._asked_s = now_s
            found.append(ask)
        return found

    @property
    def is_delayed(self) -> bool:
        """Whether the disk refuses a cut now; each second it is tried, and reported, again."""
        return time.monotonic() - self._delayed_s < DELAYED_S

    def _delayed(self, copied: Copied, reason: str) -> None:
        """Queue the news that the disk refuses a cut; called in a thread of the keeper."""
        self._delayed_s = time.monotonic()
        self._delays.put(CutDelayed(inc=copied.inc, cut_no=copied.cut_no, reason=reason))
        self._on_news()

    def kept(self, message: CutKept) -> None:
        """Take the agent's answer; again: nothing."""
        if message.delayed:
            self._delayed_s = time.monotonic()
            return
        ask, said = self._ask, message.copied
        wanted = ask.copied if ask is not None else None
        if wanted is None or (said.epoch_no, said.cut_no) != (wanted.epoch_no, wanted.cut_no):
            return
        if message.gone or message.error or said.stored:
            self._is_kept(gone=message.gone)
        if message.gone:
            return
        if message.error:
            self._hear(said, PermanentError(message.error))
        elif said.stored not in self._answered:
            self._answered.add(said.stored)
            self._hear(said, None)

    def _is_kept(self, *, gone: bool) -> None:
        """Note that the agent has done all that it was asked for, or (``gone``) leaves it to us."""
        with self._lock:
            ask, self._ask = self._ask, None
            if gone and ask is not None and self._image is not None:
                self._keeper.keep(Image(ask.copied, self._image))
            for image in self._waiting:
                self._keeper.keep(image)
            self._waiting.clear()
            self._image = None

    def _hear(self, copied: Copied, error: Exception | None) -> None:
        self._done.put(copied if error is None else error)
        self._on_news()

    def finished(self) -> Copied | None:
        """The next cut that is in the memory of two nodes, or on disk (``stored``).

        Raises:
            PermanentError: the disk has refused it for long.
        """
        if self._done.empty():
            return None
        done = self._done.get()
        if isinstance(done, Exception):
            raise done
        self._num_stored += done.stored
        return done

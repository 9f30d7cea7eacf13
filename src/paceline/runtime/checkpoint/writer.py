"""What becomes of a copied cut: into the memory of two nodes, then on disk.

Training waits for one copy of the state at most; all the rest happens in a thread beside it.
"""

import itertools
import logging
import mmap
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np

from paceline.base.errors import PermanentError
from paceline.runtime.checkpoint import cutfile
from paceline.runtime.checkpoint.memory import HEADROOM, MemoryFile, partner, place
from paceline.runtime.data.work import Array
from paceline.runtime.process import Process
from paceline.wire import cut
from paceline.wire.copying import copy
from paceline.wire.messages.node import Copied

RETRY_S, REFUSED_S = 1.0, 60.0
"""A disk that refuses a file is asked again so often, and for so long."""

_log = logging.getLogger(__name__)


class Image(msgspec.Struct, frozen=True):
    """One node's state at a cut."""

    copied: Copied
    data: memoryview
    partner: str | None
    """Who holds the second copy in memory; None: nobody, and this is no memory that lasts."""


class CutWriter:
    """Takes one node's cuts to where they survive, one after the other."""

    def __init__(self, process: Process, on_news: Callable[[], None] = lambda: None) -> None:
        """``on_news``: called in the writer's thread when `finished` has something to say."""
        self._on_news = on_news
        spec = process.spec.checkpoint
        self._job, self._node = process.job, process.node
        # Two lives of a node may copy a cut of the same number; each has a file of its own.
        self._name = f"{process.node}-{process.inc}.safetensors"
        self._cuts = Path(spec.folder or process.job.cuts)
        self._in_memory = spec.in_memory and process.job.has_memory
        self._partner: str | None = None
        #: The last image, where it is of this process only. Not a bytearray, all of which would be
        #: written to at once while every thread waits.
        self._private: mmap.mmap | None = None
        #: The copies of the last cut: in this node's memory, in the partner's (for the thread).
        self._own: MemoryFile | None = None
        self._replica: MemoryFile | None = None
        #: The epoch was restored from memory, and no cut has been copied since.
        self._needed = False
        #: Images handed over, and those known to be on disk: counted by the threads that call
        #: `copy` and `finished`.
        self._num_copied = self._num_stored = 0
        self._images: queue.SimpleQueue[Image] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[Copied | Exception] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="cut-writer", daemon=True).start()

    def start_epoch(self, holders: Sequence[str], *, from_memory: bool) -> None:
        """The node has its share; ``from_memory``: of a cut that is nowhere else."""
        self.set_holders(holders)
        self._needed = from_memory

    def set_holders(self, holders: Sequence[str]) -> None:
        """See who of the nodes that hold state is the partner."""
        self._partner = partner(self._job, self._node, holders) if self._in_memory else None

    def make_room(self, cut_no: int, num_bytes: int) -> None:
        """Have memory at hand for copying a cut, written to once: that costs more than copying."""
        image = self._place(cut_no, num_bytes) if self._holder() else None
        if image is None:
            image = self._private_image(num_bytes)
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
        holder = self._holder()
        image = self._place(copied.cut_no, size) if holder else None
        if image is None:
            holder, self._own, image = None, None, self._private_image(size)
        else:
            self._private = None
        self._needed = False
        self._num_copied += 1
        pack(saved, image)
        copied = msgspec.structs.replace(copied, cost_s=time.perf_counter() - start_s)
        self._images.put(Image(copied, image, holder))

    @property
    def _is_writing(self) -> bool:
        return self._num_copied > self._num_stored

    def _holder(self) -> str | None:
        """Who is to hold the second copy in memory; None: nobody.

        There is room for one cut: not while the last one is the only one, or is read.
        """
        return None if self._needed or self._is_writing else self._partner

    def _private_image(self, size: int) -> memoryview:
        if self._is_writing or self._private is None or len(self._private) < size:
            self._private = mmap.mmap(-1, size + size // HEADROOM)
        return memoryview(self._private)[:size]

    def _place(self, cut_no: int, size: int) -> memoryview | None:
        """Room in this node's memory; None: there is none."""
        last, self._own = self._own, None
        try:
            self._own = place(last, self._path(cut_no, self._node), size)
        except OSError as error:
            self._say_no_room(size, error)
            return None
        return self._own.image(size)

    def _path(self, cut_no: int, node: str) -> Path:
        return self._job.memory / f"{cut_no:06d}" / node / self._name

    def _say_no_room(self, size: int, error: OSError) -> None:
        self._partner = None  # until the next epoch
        _log.warning(
            "no_room path=%s bytes=%d error=%s: cuts count when they are on disk; give the memory "
            "file system room for two copies of the model, or set checkpoint.in_memory to false",
            self._job.memory,
            size,
            error.strerror,
        )

    def finished(self) -> Copied | None:
        """The next cut that is in the memory of two nodes, or on disk (``stored``).

        Raises:
            PermanentError: the disk has refused it for REFUSED_S.
        """
        if self._done.empty():
            return None
        done = self._done.get()
        if isinstance(done, Exception):
            raise done
        self._num_stored += done.stored
        return done

    # ------------------------------------------------------------------ the thread

    def _run(self) -> None:
        try:
            while True:
                self._keep(self._images.get())
        except Exception as error:  # noqa: BLE001 - `finished` raises it in the server's thread
            self._done.put(error)
            self._on_news()

    def _keep(self, image: Image) -> None:
        start_s = time.thread_time()
        replicated = self._replicate(image)
        copied = msgspec.structs.replace(
            image.copied,
            file=self._name,
            checksum=cut.checksum(image.data),
            num_bytes=len(image.data),
        )
        if replicated:
            self._say(copied, start_s)
        self._store(copied.cut_no, image.data)
        self._say(msgspec.structs.replace(copied, stored=True), start_s)

    def _store(self, cut_no: int, data: memoryview) -> None:
        """Write to disk; again while the disk refuses it, since somebody may make room there."""
        directory = self._cuts / f"{cut_no:06d}"
        first_s = time.monotonic()
        for attempt in itertools.count():
            try:
                cut.write_file(directory, self._name, data)
            except OSError as error:
                text = f"cut {cut_no} cannot be written to {directory}: {error.strerror}"
                if time.monotonic() - first_s > REFUSED_S:
                    raise PermanentError(f"{text}; make room there and resume the job") from error
                if not attempt:
                    _log.warning("%s; tried again for %.0f s", text, REFUSED_S)
                time.sleep(RETRY_S)
            else:
                return

    def _say(self, copied: Copied, start_s: float) -> None:
        spent_s = copied.cost_s + time.thread_time() - start_s
        self._done.put(msgspec.structs.replace(copied, cost_s=spent_s))
        self._on_news()

    def _replicate(self, image: Image) -> bool:
        """Copy an image into the partner's memory; False: there is none, or no room."""
        last, self._replica = self._replica, None
        if image.partner is None:
            return False
        size = len(image.data)
        try:
            path = self._path(image.copied.cut_no, image.partner)
            self._replica = place(last, path, size)
        except OSError as error:
            self._say_no_room(size, error)
            return False
        copy(
            np.frombuffer(self._replica.image(size), np.uint8), np.frombuffer(image.data, np.uint8)
        )
        return True

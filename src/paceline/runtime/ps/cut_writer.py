"""What becomes of a copied cut: into the memory of two nodes, then on disk.

Training waits for one copy of the server's state; all the rest happens in a thread beside it.
"""

import itertools
import logging
import queue
import threading
import time
from pathlib import Path

import msgspec
import numpy as np

from paceline.base.errors import PermanentError
from paceline.runtime.process import Process
from paceline.runtime.ps import cutfile
from paceline.runtime.ps.cut_memory import MemoryFile, partner, place
from paceline.runtime.ps.store import Store
from paceline.wire import cut
from paceline.wire.messages import Copied, CutRef, Restore

RETRY_S, REFUSED_S = 1.0, 60.0
"""A disk that refuses a file is asked again so often, and for so long."""

_log = logging.getLogger(__name__)


class Image(msgspec.Struct, frozen=True):
    """One server's state at a cut."""

    copied: Copied
    data: memoryview
    partner: str | None
    """Who holds the second copy in memory; None: nobody, and this may be no memory that lasts."""
    fresh: bool
    """The partner's copy of the last cut is to be left alone."""


class CutWriter:
    """Takes one server's cuts to where they survive, one after the other."""

    def __init__(self, process: Process) -> None:
        spec = process.spec.checkpoint
        self._job, self._node = process.job, process.node
        # Two lives of a node may copy a cut of the same number; each has a file of its own.
        self._name = f"{process.node}-{process.inc}.safetensors"
        self._cuts = Path(spec.dir or process.job.cuts)
        self._in_memory = spec.in_memory and process.job.has_memory
        self._partner: str | None = None
        self._restored_from: CutRef | None = None
        #: The last image: this node's copy in memory, or where there is none, of this process.
        self._own: MemoryFile | None = None
        self._private = bytearray()
        self._replica: MemoryFile | None = None  # used by the thread
        self._last_no = 0
        #: Images handed over and not known to be on disk: while there is one, it is left alone.
        self._num_writing = 0
        self._images: queue.SimpleQueue[Image] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[Copied | Exception] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="cut-writer", daemon=True).start()

    def start_epoch(self, restore: Restore) -> None:
        """The server was restored: who its partner is, and which cut must be left as it is."""
        self._partner = partner(self._job, self._node, restore.map) if self._in_memory else None
        self._restored_from = restore.cut

    def copy(self, copied: Copied, store: Store) -> None:
        """Copy the store as it is now, all that training waits for, and have it kept."""
        start_s = time.perf_counter()
        saved = store.save()
        size = cutfile.packed_bytes(saved)
        fresh = self._last_is_needed()
        holder = self._partner
        image = self._place(copied.cut_no, size, fresh=fresh) if holder else None
        if image is None:
            holder = None
            if fresh or len(self._private) < size:
                self._private = bytearray(size)
            image = memoryview(self._private)[:size]
        self._last_no = copied.cut_no
        self._num_writing += 1
        cutfile.pack(saved, image)
        copied = msgspec.structs.replace(copied, cost_s=time.perf_counter() - start_s)
        self._images.put(Image(copied, image, holder, fresh))

    def _last_is_needed(self) -> bool:
        """Whether the last image is being written, or is what this epoch was restored from."""
        cut = self._restored_from
        restored = cut is not None and cut.in_memory and cut.cut_no == self._last_no
        return restored or self._num_writing > 0

    def _place(self, cut_no: int, size: int, *, fresh: bool) -> memoryview | None:
        """Room in this node's memory; None: there is none."""
        last, self._own = None if fresh else self._own, None
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
        self._num_writing -= done.stored
        return done

    # ------------------------------------------------------------------ the thread

    def _run(self) -> None:
        try:
            while True:
                self._keep(self._images.get())
        except Exception as error:  # noqa: BLE001 - `finished` raises it in the server's thread
            self._done.put(error)

    def _keep(self, image: Image) -> None:
        start_s = time.thread_time()
        replicated = image.partner is not None and self._replicate(image)
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

    def _replicate(self, image: Image) -> bool:
        """Copy an image into the partner's memory; False: there is no room."""
        assert image.partner is not None
        last, self._replica = None if image.fresh else self._replica, None
        size = len(image.data)
        try:
            path = self._path(image.copied.cut_no, image.partner)
            self._replica = place(last, path, size)
        except OSError as error:
            self._say_no_room(size, error)
            return False
        # numpy lets the server's thread run meanwhile.
        np.copyto(
            np.frombuffer(self._replica.image(size), np.uint8), np.frombuffer(image.data, np.uint8)
        )
        return True

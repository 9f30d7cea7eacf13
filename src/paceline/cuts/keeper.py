"""What becomes of a copied cut: into the memory of a second node, and on disk.

The agent of the node does it, so that training pays neither processor time nor memory for it; where
the copy lies in memory of the process alone, the process does.
"""

import itertools
import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait

import msgspec

from paceline.base.disk import describe, is_refusal
from paceline.base.errors import PermanentError, TransientError
from paceline.base.jobdir import JobDir
from paceline.cuts import manifest as cut
from paceline.cuts.store import CutStore, MemoryStore
from paceline.wire.messages.node import Copied

RETRY_S = 1.0
"""A disk that refuses a file is asked again so often."""
ELSEWHERE_S = 5.0
"""A machine that does not answer for so long gets no second copy of this cut."""

_log = logging.getLogger(__name__)


class Image(msgspec.Struct, frozen=True):
    """One node's state at a cut."""

    copied: Copied
    data: memoryview
    partner: str = ""
    """Node that holds the second copy in memory; empty: none of this machine."""
    elsewhere: str = ""
    """Address on another machine, in whose memory the second copy is; empty: none."""


class CutKeeper:
    """Keeps images, one after the other, in a thread of its own.

    Args:
        job: whose cuts these are.
        disk: the store in which they are durable.
        say: called in the thread: the copy is in the memory of two nodes, or on disk (``stored``);
            or why it is not, as when the disk has refused it for ``patience_s``.
        refused: called in a thread at each attempt that a disk refuses, with the reason.
        patience_s: how long a disk that refuses is waited for, in seconds.
    """

    def __init__(
        self,
        job: JobDir,
        disk: CutStore,
        say: Callable[[Copied, Exception | None], None],
        refused: Callable[[Copied, str], None],
        patience_s: float,
    ) -> None:
        self._job, self._disk, self._say, self._refused = job, disk, say, refused
        self._patience_s = patience_s
        #: The second copy of the last cut.
        self._second = MemoryStore(job.memory, "")
        #: It was told that there is no room for it, since there was.
        self._told = False
        self._images: queue.SimpleQueue[Image] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="cut-keeper", daemon=True).start()

    def keep(self, image: Image) -> None:
        """Begin to; its bytes must not change before it is stored."""
        self._images.put(image)

    def _run(self) -> None:
        while True:
            image = self._images.get()
            try:
                self._keep(image)
            except Exception as error:  # noqa: BLE001 - the thread that hears it raises it
                self._say(image.copied, error)
            del image

    def _keep(self, image: Image) -> None:
        start_s = time.thread_time()
        storing = _begun(lambda: self._store(image.copied, image.data))
        try:
            checksum, replicated = self._replicate(image)
            cost_s = image.copied.cost_s + time.thread_time() - start_s
            copied = msgspec.structs.replace(
                image.copied, checksum=checksum, num_bytes=len(image.data), cost_s=cost_s
            )
            if replicated:
                self._say(copied, None)
        finally:
            wait([storing])  # of one name one is written at a time
        cost_s += storing.result()
        self._say(msgspec.structs.replace(copied, stored=True, cost_s=cost_s), None)

    def _store(self, copied: Copied, data: memoryview) -> float:
        """Write to disk; again while the disk refuses it, since somebody may make room there.

        Returns the seconds of a processor that it took.
        """
        start_s = time.thread_time()
        first_s = time.monotonic()
        for attempt in itertools.count():
            try:
                self._disk.put(copied.cut_no, copied.file, data)
            except (OSError, TransientError) as error:
                where = self._disk.where(copied.cut_no)
                said = describe(error, where) if isinstance(error, OSError) else str(error)
                why = f"cut {copied.cut_no} is not stored: {said}"
                if isinstance(error, OSError) and not is_refusal(
                    error
                ):  # no room that is made there would help
                    raise PermanentError(f"{why}; mend that and resume the job") from error
                if time.monotonic() - first_s > self._patience_s:
                    text = f"{why}, for {self._patience_s:.0f} s"
                    raise PermanentError(f"{text}; make room there and resume the job") from error
                if not attempt:
                    _log.warning("%s; tried again for %.0f s", why, self._patience_s)
                self._refused(copied, why)
                time.sleep(RETRY_S)  # noqa: TID251
            else:
                break
        return time.thread_time() - start_s

    def _replicate(self, image: Image) -> tuple[str, bool]:
        """The checksum of an image, and whether it is in the memory of a partner, too."""
        if image.elsewhere:
            return self._replicate_elsewhere(image)
        if not image.partner:
            self._second.let_go()
            return cut.checksum(image.data), False
        self._second.node, digest = image.partner, cut.Checksum()
        try:
            self._second.put(image.copied.cut_no, image.copied.file, image.data, digest)
        except OSError as error:
            if not self._told:
                say_no_room(self._job, len(image.data), error)
            self._told = True
            return cut.checksum(image.data), False
        self._told = False
        return str(digest), True

    def _replicate_elsewhere(self, image: Image) -> tuple[str, bool]:
        """Put the second copy into the memory of another machine, which may lack room for it."""
        from paceline.cuts.distant import DistantStore  # with ZMQ

        copied, digest = image.copied, cut.Checksum()
        node = copied.file.rpartition("-")[0]
        store = DistantStore(
            lambda: image.elsewhere,
            self._job.secret(),
            patience_s=ELSEWHERE_S,
            memory_of=node,
        )
        try:
            store.put(copied.cut_no, copied.file, image.data, digest)
        except (OSError, PermanentError, TransientError) as error:
            if not self._told:
                _log.warning(
                    "no_second_copy at=%s error=%s: cuts count when they are on disk",
                    image.elsewhere,
                    error,
                )
            self._told = True
            return cut.checksum(image.data), False
        self._told = False
        return str(digest), True


def _begun(work: Callable[[], float]) -> Future[float]:
    """Work in a thread for which the end of the process does not wait."""
    done: Future[float] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except Exception as error:  # noqa: BLE001 - raised by who asks for the result
            done.set_exception(error)

    threading.Thread(target=run, name="cut-disk", daemon=True).start()
    return done


def say_no_room(job: JobDir, num_bytes: int, error: OSError) -> None:
    """A copy does not fit into memory."""
    _log.warning(
        "no_room path=%s bytes=%d error=%s: cuts count when they are on disk; give the machine and "
        "its memory file system room for two copies more, or set checkpoint.in_memory to false",
        job.memory,
        num_bytes,
        error.strerror,
    )

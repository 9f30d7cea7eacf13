"""The cuts that the node's process has copied into memory, on their way to where they survive.

The copy is a file of the node's own on the memory file system, so it is there whatever becomes of
the process. It asks until it is answered, the next agent if this one dies.
"""

import asyncio
import contextlib
import mmap
from collections.abc import Callable

from paceline.base.jobdir import JobDir
from paceline.cuts.keeper import CutKeeper, Image
from paceline.cuts.memory import image_path
from paceline.cuts.reach import JoinedCuts, cuts_of
from paceline.wire.messages.node import Copied, CutDelayed, CutKept, KeepCut
from paceline.wire.spec import JobSpec


class CutsKept:
    """Create it in a running event loop, in which everything but the keeping is done.

    Args:
        job: of the node.
        node: its name.
        spec: of the job.
        answer: sends to the process of an incarnation.
        report: sends to the master.
    """

    def __init__(
        self,
        job: JobDir,
        node: str,
        spec: JobSpec,
        answer: Callable[[CutKept], object],
        report: Callable[[CutDelayed], object],
    ) -> None:
        self._job, self._node, self._answer = job, node, answer
        self._loop = asyncio.get_running_loop()
        self._report = report
        self._cuts = cuts_of(job, spec)
        self._keeper = CutKeeper(
            job, self._cuts.durable, self._hear, self._delayed, spec.timeouts.disk_s
        )
        #: What is being kept, or was last, and what was said of it.
        self._asked: KeepCut | None = None
        self._said: list[CutKept] = []

    def ask(self, message: KeepCut) -> None:
        """The process asks, or asks again."""
        if message == self._asked:
            for said in self._said:
                self._answer(said)
            return
        self._asked, self._said = message, []
        copied = message.copied
        if isinstance(self._cuts, JoinedCuts):  # elsewhere the master frees it
            self._cuts.forget_memory(copied.cut_no)
        path = image_path(self._job, copied.cut_no, self._node, copied.file)
        try:
            with path.open("rb") as file:
                mapped = mmap.mmap(file.fileno(), copied.num_bytes, access=mmap.ACCESS_READ)
        except (OSError, ValueError):  # an epoch has begun, which frees memory
            self._tell(CutKept(inc=copied.inc, copied=copied, gone=True))
            return
        data = memoryview(mapped)
        self._keeper.keep(Image(copied, data, message.partner, message.elsewhere))

    def _hear(self, copied: Copied, error: Exception | None) -> None:
        """Hand the keeper's word on a cut to the loop; runs in the keeper's thread."""
        kept = CutKept(inc=copied.inc, copied=copied, error="" if error is None else str(error))
        with contextlib.suppress(RuntimeError):  # the loop is closed: the agent ends
            self._loop.call_soon_threadsafe(self._tell, kept)

    def _delayed(self, copied: Copied, reason: str) -> None:
        """Have the loop report why a cut is delayed; runs in the keeper's thread."""
        delayed = CutDelayed(inc=copied.inc, cut_no=copied.cut_no, reason=reason)
        kept = CutKept(inc=copied.inc, copied=copied, delayed=True)
        with contextlib.suppress(RuntimeError):  # the loop is closed: the agent ends
            self._loop.call_soon_threadsafe(self._report, delayed)
            self._loop.call_soon_threadsafe(self._answer, kept)

    def _tell(self, kept: CutKept) -> None:
        asked = self._asked
        if asked is not None and _is_of(asked, kept.copied):
            self._said.append(kept)
        self._answer(kept)


def _is_of(asked: KeepCut, copied: Copied) -> bool:
    one = asked.copied
    return (one.epoch_no, one.inc, one.cut_no) == (copied.epoch_no, copied.inc, copied.cut_no)

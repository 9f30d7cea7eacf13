"""The cuts that a member makes: copied beside its work, kept by the checkpoint's writer.

What a step computes on does not change between one update and the next, so a cut of the step
before is copied meanwhile; the update waits for the rest of it (docs/protocols/integrity.md,
section 5: a cut is one replica with its committed set, and agrees with itself).
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from paceline.runtime.allreduce.replica import Replica
from paceline.runtime.allreduce.state import MemberState
from paceline.runtime.checkpoint import cutfile
from paceline.runtime.checkpoint.memory import HEADROOM
from paceline.runtime.checkpoint.writer import CutWriter
from paceline.runtime.process import Process
from paceline.wire.messages.group import NO_STEP
from paceline.wire.messages.node import Copied, TakeCut


class Keeper:
    """Copies the state when the master asks for it. Used under the client's lock."""

    def __init__(self, process: Process, on_news: Callable[[], None]) -> None:
        """``on_news``: called in some thread when `said` has something to say."""
        self._inc = process.inc
        self._writer = CutWriter(process, on_news)
        self._thread = ThreadPoolExecutor(1, "paceline-cut")
        self._asked: TakeCut | None = None
        self._copying: Future[None] | None = None
        #: Memory is made for so many bytes.
        self._room: Future[None] | None = None
        self._room_bytes = 0
        #: The newest cut that was copied, and the last word about it.
        self._cut_no = 0
        self._last: Copied | None = None
        self._writing = 0

    def set_holders(self, nodes: Sequence[str]) -> None:
        """The nodes of the members: one of them is to hold a second copy in memory."""
        self._writer.set_holders(nodes)

    @property
    def busy(self) -> bool:
        """Whether a cut was asked for that is not on disk."""
        return self._asked is not None or self._writing > 0

    def ask(self, message: TakeCut) -> list[Copied]:
        """The master asks for a cut; what was said of it already is said again."""
        if message.cut_no > self._cut_no:
            self._asked = message
            return []
        return (
            [self._last] if self._last is not None and self._last.cut_no == message.cut_no else []
        )

    def copy_if_asked(self, state: MemberState, replica: Replica) -> None:
        """Begin to copy, if a cut is wanted; the state must be whole and at rest until `wait`."""
        asked = self._asked
        if asked is None or state.step == NO_STEP or state.updating or state.copying is not None:
            return
        if asked.epoch_no != state.epoch_no:
            self._asked = None
            return
        if state.step < asked.step or (self._room is not None and not self._room.done()):
            return
        saved = replica.save()
        if not self._has_room(asked.cut_no, cutfile.packed_bytes(saved)):
            return
        self._asked = None
        self._cut_no = asked.cut_no
        copied = Copied(
            epoch_no=state.epoch_no,
            inc=self._inc,
            cut_no=asked.cut_no,
            position=state.step,
            step=state.step,
            committed=state.done.spans(),
            sharers=(self._inc,),
        )
        self.wait()
        self._writing += 1
        self._copying = self._thread.submit(self._writer.copy, copied, saved)

    def _has_room(self, cut_no: int, num_bytes: int) -> bool:
        """Whether there is memory to copy into; if not, it is made beside some steps."""
        if self._room is not None:
            self._room.result()  # raises what has failed
            self._room = None
        if num_bytes <= self._room_bytes:
            return True
        # What of a state is no tensor may grow by some bytes.
        self._room_bytes = num_bytes + num_bytes // HEADROOM
        self._room = self._thread.submit(self._writer.make_room, cut_no, num_bytes)
        return False

    def wait(self) -> None:
        """Return when nothing is being copied: the state may change."""
        copying, self._copying = self._copying, None
        if copying is not None:
            copying.result()

    def said(self) -> list[Copied]:
        """What there is to say about cuts: one is in memory, or on disk.

        Raises:
            PermanentError: the disk has refused one for long.
        """
        found = []
        while (copied := self._writer.finished()) is not None:
            self._writing -= copied.stored
            self._last = copied
            found.append(copied)
        return found

"""The cuts that a member makes: copied during its work, kept by the checkpoint's writer.

What a step computes on does not change between one update and the next, so a cut of the step
before is copied meanwhile; the update waits for the rest of it (docs/protocols/integrity.md,
section 8: a cut is one replica with its committed set, and agrees with itself).

Members that each hold a shard copy *together*: all of them after the same step. They find it in the
all-gather of a step, as they do for a division: the cut that all are ready for is copied after it.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from paceline.base.numbering import CutNo, EntryNo, Inc
from paceline.cuts.memory import HEADROOM
from paceline.cuts.reach import files_of_master
from paceline.protocol.holding.group.member import MemberState, second_machine
from paceline.runtime.checkpoint import cutfile
from paceline.runtime.checkpoint.writer import CutWriter
from paceline.runtime.data.work import Array
from paceline.runtime.process.process import Process
from paceline.runtime.state.replica import Replica
from paceline.wire.messages.group import NO_STEP, Member
from paceline.wire.messages.node import Copied, CutDelayed, CutKept, KeepCut, TakeCut


class Keeper:
    """Copies the state when the master asks for it. Used under the client's lock."""

    def __init__(
        self, process: Process, on_news: Callable[[], None], *, together: bool = False
    ) -> None:
        """``on_news``: called in some thread when `said` has something to say."""
        self._inc, self._together = process.inc, together
        self._process = process
        #: Members whose copies make a cut.
        self._sharers: tuple[Inc, ...] = (process.inc,)
        #: The newest cut that we can copy after the step that comes next, and that all can.
        self.ready_for = self._agreed = 0
        self.copied_step = NO_STEP
        """Step of the last copy."""
        self._writer = CutWriter(process, on_news)
        self._thread = ThreadPoolExecutor(1, "paceline-cut")
        self._asked: TakeCut | None = None
        self._copying: Future[None] | None = None
        self._room: Future[None] | None = None
        self.num_bytes = 0
        """Most bytes that a copy has: memory is made for so many."""
        #: The newest cut that was copied, and the last word about it.
        self._cut_no = 0
        self._last: Copied | None = None
        self._writing = 0

    def set_members(self, members: Sequence[Member]) -> None:
        """Tell the writer the nodes of the members: one of them holds a second copy in memory.

        A shard is nowhere else, so its second copy is on another machine, if there is one.
        """
        elsewhere = ""
        if self._together:
            self._sharers = tuple(member.inc for member in members)
            is_distant = any(one.distant for one in members if one.inc == self._inc)
            near = "" if is_distant else second_machine(self._inc, members)
            elsewhere = files_of_master(self._process.job) if is_distant else near
        self._writer.set_holders([member.node for member in members], elsewhere)

    def agree(self, ready_for: Sequence[int]) -> None:
        """Take what each member was `ready_for` as it entered the step about to be complete."""
        if len(set(ready_for)) == 1:
            self._agreed = ready_for[0]

    @property
    def takes_behind(self) -> bool:
        """Whether a cut is wanted of what the script held when it left its loop."""
        return self._asked is not None and self._asked.behind

    @property
    def writes(self) -> bool:
        """Whether a cut was copied that is not on disk."""
        return self._writing > 0

    @property
    def busy(self) -> bool:
        """Whether a cut was asked for that is not on disk."""
        return self._asked is not None or self._writing > 0

    def ask(self, message: TakeCut) -> list[Copied]:
        """Take the master's request for a cut; say again what was said of that cut already."""
        if message.cut_no > self._cut_no:
            self._asked = message
            return []
        return (
            [self._last] if self._last is not None and self._last.cut_no == message.cut_no else []
        )

    def copy_if_asked(
        self, state: MemberState, replica: Replica, *, for_good: bool = False
    ) -> None:
        """Begin to copy, if a cut is wanted; the state must be whole and at rest until `wait`.

        ``for_good``: no member completes another step.
        """
        asked = self._wanted(state)
        agreed = self._together and asked is not None and asked.cut_no == self._agreed
        if asked is None or (self._is_making_room and not agreed):
            return
        saved = replica.save()
        if not self._has_room(asked.cut_no, cutfile.packed_bytes(saved), wait=agreed):
            return
        self.ready_for = asked.cut_no
        if agreed or not self._together or (for_good and state.step >= asked.step):
            self._copy(asked, state, saved)

    def _wanted(self, state: MemberState) -> TakeCut | None:
        """The cut that is asked for, if it can be of this step; with others, of the next."""
        asked = self._asked
        if asked is None or state.step == NO_STEP or state.updating or state.copying is not None:
            return None
        if asked.epoch_no != state.epoch_no:
            self._asked = None
            return None
        return asked if state.step + self._together >= asked.step else None

    def _copy(self, asked: TakeCut, state: MemberState, saved: Mapping[str, Array]) -> None:
        self._asked = None
        self._cut_no, self.copied_step = asked.cut_no, state.step
        copied = Copied(
            epoch_no=state.epoch_no,
            inc=self._inc,
            cut_no=asked.cut_no,
            position=EntryNo(state.step),
            step=state.step,
            committed=state.done.spans(),
            sharers=self._sharers,
        )
        self.wait()
        self._writing += 1
        self._copying = self._thread.submit(self._writer.copy, copied, saved)

    @property
    def _is_making_room(self) -> bool:
        return self._room is not None and not self._room.done()

    def _has_room(self, cut_no: CutNo, num_bytes: int, *, wait: bool) -> bool:
        """Tell whether there is memory to copy into; if not, make it beside some steps, or now."""
        if self._room is not None:
            self._room.result()  # raises what has failed
            self._room = None
        if num_bytes <= self.num_bytes:
            return True
        # The part of a state that is no tensor may grow by some bytes.
        self.num_bytes = num_bytes + num_bytes // HEADROOM
        self._room = self._thread.submit(self._writer.make_room, cut_no, num_bytes)
        return wait and self._has_room(cut_no, num_bytes, wait=True)

    def wait(self) -> None:
        """Return when nothing is being copied: the state may change."""
        copying, self._copying = self._copying, None
        if copying is not None:
            copying.result()

    @property
    def is_delayed(self) -> bool:
        return self._writer.is_delayed

    def kept(self, message: CutKept) -> None:
        self._writer.kept(message)

    def said(self) -> list[Copied | KeepCut | CutDelayed]:
        """Return what to say about cuts: one is in memory, or on disk, or must be kept.

        Raises:
            PermanentError: the disk has refused one for long.
        """
        found: list[Copied | KeepCut | CutDelayed] = [*self._writer.to_agent(time.monotonic())]
        while (copied := self._writer.finished()) is not None:
            self._writing -= copied.stored
            self._last = copied
            found.append(copied)
        return found

"""The cuts of a job: when the next is due, when one counts, which ones stay.

A disk that refuses one is waited for, as long as ``timeouts.disk_s`` says.
"""

import logging
import math
from collections.abc import Callable

from paceline.base.disk import describe, is_refusal
from paceline.base.errors import ConfigError
from paceline.base.numbering import NO_CUT, CutNo
from paceline.base.samples import num_samples
from paceline.master.cut_folders import CutFolders
from paceline.master.handover import beside_cut
from paceline.master.parts import MasterParts
from paceline.master.status import count_committed
from paceline.master.training_core import TrainingCore
from paceline.protocol.acts import Seal
from paceline.protocol.cuts.cadence import Cadence
from paceline.protocol.records import CutStored, CutValid, Records
from paceline.wire.events.job import DiskHealsEvent, DiskRefusesEvent, NotKeptEvent
from paceline.wire.events.state import CutStoredEvent, CutValidEvent
from paceline.wire.messages.base import CutRef

DELAYED_S = 5.0
"""Seconds after which a disk that was last said to refuse a cut may have taken it."""

_log = logging.getLogger(__name__)


class CutKeeping:
    """The cuts of one job, around their `CutFolders`."""

    def __init__(self, parts: MasterParts, core: TrainingCore) -> None:
        self._parts, self._spec, self._outbox = parts, parts.spec, parts.outbox
        self._state, self._edge, self._do, self._fail = core
        self.folders = CutFolders.of(parts.job, parts.spec)
        self.cadence = Cadence(parts.spec.checkpoint)
        self.uploading: CutNo | None = None
        """Number of a cut that is being copied elsewhere: it stays."""
        self.trusted: set[CutNo] = set()
        """Cuts that were just written and never read: no need to verify them."""
        #: A cut whose manifest is still to be written, why it was not, and since when.
        self._unsealed: Seal | None = None
        self._refused: OSError | None = None
        self._refused_s: float | None = None
        #: The cut that a disk refuses, and when it was last said.
        self._delayed_no: CutNo | None = None
        self._delayed_s = self._delayed_since_s = -math.inf

    # ------------------------------------------------------------------ one that counts

    def seal(self, order: Seal) -> None:
        """Make the cut one that can be loaded; on a disk that refuses it again with each tick."""
        self._unsealed = order
        self._seal()

    def _seal(self) -> None:
        if self._unsealed is None or self._state.model is None:
            return
        valid, copies = self._unsealed.valid, self._unsealed.copies
        if not self._state.awaits(valid) or copies != self._state.cuts.sealed:
            self._unsealed = self._refused = self._refused_s = None
            return  # who made it is gone, and another cut may have its number
        try:
            beside = b"" if valid.cut.in_memory else beside_cut(self._parts, self._state, valid)
            self.folders.seal(valid, copies, self._state.model, beside)
        except OSError as error:
            if self._refused is None:
                where = self.folders.sealed_at(valid.cut)
                _log.warning("no_manifest path=%s error=%s: tried again", where, error.strerror)
            self._refused = error
            return
        self._unsealed = self._refused = self._refused_s = None
        self._do(self._state.cut_sealed(valid))
        if not valid.cut.in_memory:
            self.cadence.cost(max(copied.cost_s for copied in copies))
            self._outbox.later(self._delete_others)

    def _seal_again(self, cut: CutRef, now_s: float) -> None:
        """Seal it again: somebody may make room, and the job is resumed from the cuts before it."""
        if self._refused_s is None:
            self._refused_s = now_s
        if self._refused is not None:
            why = describe(self._refused, self.folders.sealed_at(cut))
            reason = f"the manifest of cut {cut.cut_no} is not stored: {why}"
            if now_s - self._refused_s > self._spec.timeouts.disk_s:
                self._fail(f"{reason}; make room there and resume the job")
                return
            self.delayed(cut.cut_no, reason, now_s)
        self._seal()
        self.note_copied(now_s)

    def note_copied(self, now_s: float) -> None:
        """The time between cuts runs from the end of one to the start of the next."""
        if not self._state.cuts.under_way:
            self.cadence.ended(now_s)

    def before_record(self, record: Records) -> None:
        """Report a cut that counts from now on, or is on disk."""
        if isinstance(record, CutValid):
            self.trusted.add(record.cut.cut_no)
            self._outbox.tell(CutValidEvent(cut_no=record.cut.cut_no, step=record.step))
            if not record.cut.in_memory:
                self._note_stored(record.cut)
        elif isinstance(record, CutStored):
            self._outbox.tell(CutStoredEvent(cut_no=record.cut.cut_no))
            self._note_stored(record.cut)

    # ------------------------------------------------------------------ disks

    def can_begin(self, now_s: float) -> bool:
        """Make the folder of cut 0, unless there is a cut; False: the disk refuses it now."""
        return bool(self._state.cuts.valid) or self.takes(self.folders.make_first, now_s)

    def takes(self, write: Callable[[], None], now_s: float) -> bool:
        """Write something of cut 0; False: the disk refuses it now."""
        try:
            write()
        except OSError as error:
            if not is_refusal(error):
                raise
            self.delayed(
                NO_CUT, f"no cut can be stored: {describe(error, self.folders.disk.root)}", now_s
            )
            return False
        return True

    def delayed(self, cut_no: CutNo, reason: str, now_s: float) -> None:
        """A disk refuses something of a cut: say so once, and wait."""
        disk_s = self._spec.timeouts.disk_s
        if cut_no != self._delayed_no:
            self._delayed_since_s = now_s
            self._outbox.tell(DiskRefusesEvent(error=reason, waits="cuts", for_s=disk_s))
        elif now_s - self._delayed_since_s > disk_s + DELAYED_S:
            self._fail(f"{reason}, for {disk_s:.0f} s; make room there and resume the job")
        self._delayed_no, self._delayed_s = cut_no, now_s

    def _note_stored(self, cut: CutRef) -> None:
        """A cut is on disk: one that refused it does so no longer."""
        if self._delayed_no is not None:
            self._delayed_no = None
            self._outbox.tell(DiskHealsEvent(waited="cuts", cut_no=cut.cut_no))

    def waits_for_disk(self, now_s: float) -> bool:
        """Tell whether a disk refuses the cut that is under way."""
        waits = self._state.cuts.under_way or self._delayed_no == NO_CUT
        return waits and now_s - self._delayed_s < DELAYED_S

    def check_may_leave(self, now_s: float) -> None:
        """Raises ConfigError while a worker that leaves would wait for a disk, and all for it."""
        if self.waits_for_disk(now_s):
            raise ConfigError("a disk refuses a cut, which a worker that leaves would wait for")

    # ------------------------------------------------------------------ what there is

    @property
    def last_s(self) -> float:
        """Seconds that a cut may take, by the size of the last one."""
        return self.folders.patience_s(self._state.cuts.sealed)

    def newest_stored(self) -> CutRef | None:
        """The newest cut on disk."""
        newest = self._newest_stored()
        return newest.cut if newest is not None else None

    def _newest_stored(self) -> CutValid | None:
        valid = reversed(self._state.cuts.valid)
        return next((cut for cut in valid if not cut.cut.in_memory), None)

    def not_kept(self) -> NotKeptEvent | None:
        """Count what is in the model and in no cut on disk; None: nothing."""
        newest = self._newest_stored()
        held = num_samples(newest.committed) if newest is not None else 0
        missing = count_committed(self._state) - held
        cut_no = newest.cut.cut_no if newest is not None else None
        return NotKeptEvent(samples=missing, cut_no=cut_no) if missing > 0 else None

    def _delete_others(self) -> None:
        """The newest cut is on disk: older ones may go, and those that never got there."""
        cuts = self._state.cuts.valid
        newest = cuts[-1].cut.cut_no
        stored = [cut.cut.cut_no for cut in cuts if not cut.cut.in_memory]
        keep = set(stored[-self._spec.checkpoint.keep :])
        keep |= self._edge.being_loaded()
        if self.uploading is not None:
            keep.add(self.uploading)
        for cut in cuts:
            if cut.cut.cut_no not in keep:
                self._do(self._state.cut_gone(cut.cut.cut_no))
        self.folders.delete_others(keep, newest)

    # ------------------------------------------------------------------ the clock

    def tick(self, now_s: float, *, wanted: bool, asked: bool = False) -> None:
        """Look after the last cut, and ask for the next one.

        Args:
            now_s: on the steady clock.
            wanted: a cut is made when the cadence says so.
            asked: a cut is made when a worker asks for one; so it is if it is ``wanted``.
        """
        if self._unsealed is not None:
            self._seal_again(self._unsealed.valid.cut, now_s)
        held = self._state.cuts.valid[-1].step if self._state.cuts.valid else 0
        due = self.cadence.is_due(now_s, self._state.step - held)
        if note := self.cadence.note():
            self._outbox.tell(note)
        is_due = wanted and due and self._has_changed()
        if is_due or ((wanted or asked) and self._state.holder.wants_cut):
            self._do(self._state.take_cut())

    def _has_changed(self) -> bool:
        if not self._state.cuts.valid:
            return bool(self._state.ledger.done)
        if self._state.cuts.valid[-1].cut.in_memory:  # restored from there: it never comes to disk
            return True
        return count_committed(self._state) > num_samples(self._state.cuts.valid[-1].committed)

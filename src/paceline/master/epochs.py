"""The epochs of a job: the cut that one starts from, and what it takes out of the model.

Verifying a cut, which reads it whole, happens in a thread.
"""

import asyncio

from paceline.base.numbering import NO_CUT, EpochNo
from paceline.master.cut_folders import CutChosen
from paceline.master.cut_keeping import CutKeeping
from paceline.master.evaluations import Evaluations
from paceline.master.parts import MasterParts
from paceline.master.reporting import last_measured
from paceline.master.status import count_committed
from paceline.master.training_core import TrainingCore
from paceline.wire.events.state import CutDamagedEvent, EpochEvent
from paceline.wire.messages.base import CutRef


class Epochs:
    """The epochs of one job."""

    def __init__(
        self, parts: MasterParts, core: TrainingCore, cuts: CutKeeping, evaluations: Evaluations
    ) -> None:
        self._job, self._outbox = parts.job, parts.outbox
        self._state, self._edge, self._do, self._fail = core
        self._cuts, self._evaluations = cuts, evaluations
        self.choosing = False
        """Whether cuts are being verified for the next epoch."""
        #: Whether no epoch has begun since the job was resumed after its end: nothing has failed.
        self._begins_anew = False
        #: Samples in the model just before the newest epoch began.
        self._trained = 0
        #: The same as the master before this one measured it; 0 once an epoch has begun.
        self._measured = 0

    def resume(self, *, ended: bool) -> None:
        """Go on after the journal was applied; ``ended``: the job had come to an end, in order."""
        self._begins_anew = ended
        measured = last_measured(self._job)
        if measured is not None and measured.epoch_no == self._state.epoch_no:
            # The journal has only what cuts hold. Members that live say the rest again; where all
            # have died, nobody does.
            self._measured = measured.committed

    async def choose_cut(self) -> CutChosen:
        """Find the newest undamaged cut."""
        self.choosing = True
        cuts, trusted = tuple(reversed(self._state.cuts.valid)), frozenset(self._cuts.trusted)
        return await asyncio.to_thread(self._cuts.folders.first_undamaged, cuts, trusted)

    def start(self, chosen: CutChosen, now_s: float) -> None:
        """Start an epoch from this cut, if the servers are all still up.

        None was undamaged: choose again if another one has become valid meanwhile.
        """
        self.choosing = False
        for cut_no, error in chosen.damaged:
            self._outbox.tell(CutDamagedEvent(cut_no=cut_no, reason=error))
            self._do(self._state.cut_gone(cut_no))
        if chosen.damaged and not self._state.cuts.valid:
            errors = "; ".join(error for _, error in chosen.damaged)
            self._fail(f"no cut can be loaded, the job cannot go on: {errors}")
            return
        before = self._state.epoch_no
        self._trained = max(count_committed(self._state), self._measured)
        self._edge.begin_epoch(chosen, now_s)
        if 0 < before < self._state.epoch_no:
            if self._begins_anew:
                self._cuts.cadence.ended(now_s)
            else:
                self._cuts.cadence.went_back(now_s)
            self._begins_anew = False

    def tell(self, epoch_no: EpochNo, cut: CutRef | None) -> None:
        """An epoch begins, from this cut or from what the script has built."""
        number = cut.cut_no if cut is not None else NO_CUT
        self._cuts.trusted.discard(number)
        self._outbox.tell(
            EpochEvent(
                epoch_no=epoch_no,
                cut_no=number,
                undone=max(self._trained - count_committed(self._state), 0),
                in_memory=cut is not None and cut.in_memory,
                resumed=self._begins_anew,
            )
        )
        self._measured = 0
        # A worker may be reading those of the epoch before.
        self._evaluations.delete(before=epoch_no - 1)

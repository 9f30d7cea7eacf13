"""Shutdown of a job: carries out what `paceline.master.ending` decides."""

from paceline.master.ending import Ending, Seen, Stage, how_finished, stopped
from paceline.master.job_end import JobEnd
from paceline.master.members import MembersEdge
from paceline.master.parts import MasterParts, Times
from paceline.master.status import work_of
from paceline.master.training import Training
from paceline.wire.events.job import StoppedEvent

SAME_S = 1.0
"""Signals within so long of a first one are one wish: `ray job stop` sends SIGTERM to the command
and to all that descends from it, so the master gets it from Ray and from the supervisor."""


class Shutdown:
    """Takes the end of one job from stage to stage."""

    def __init__(
        self,
        parts: MasterParts,
        times: Times,
        end: JobEnd,
        training: Training,
        members: MembersEdge,
    ) -> None:
        self._members, self._outbox = parts.members, parts.outbox
        self._clock, self.end = times.steady, end
        self._training, self._edge = training, members
        self._asked_s = -SAME_S
        #: Until then workers of a job that is stopped may wait for a cut under way.
        self._stop_by_s = 0.0

    def signalled(self, number: int) -> None:
        """End the job, as a signal of this number asks; if a former one has, at once."""
        again = self._clock() >= self._asked_s + SAME_S
        self.stop(number, at_once=self.end.ending is not None and again)

    def stop(self, number: int, *, at_once: bool) -> None:
        """End the job: a signal of this number asks for it; 0: ``paceline stop``."""
        end = self.end
        end.at_once |= at_once
        if end.ending is None:
            self._outbox.tell(StoppedEvent(signal=number))
            end.begin(stopped(number))
            self._asked_s = self._clock()
            self._stop_by_s = self._asked_s + self._training.cuts.last_s
            self.stop_workers()
        if at_once and end.ending is not None and not end.is_leaving:
            end.leave(end.ending)

    def stop_workers(self) -> None:
        """Have workers leave as soon as a cut of what they hold then can be made."""
        ending = self.end.ending
        waits = self._training.edge.last_cut_waits and self._clock() < self._stop_by_s
        if ending is None or ending.state != "stopped" or self._members.closing or waits:
            return
        self._training.stop()
        self._edge.close()

    @property
    def may_ask_for_cuts(self) -> bool:
        """Whether a cut is made for a worker that asks.

        Also while workers end in order. A script with a SIGTERM handler of its own leaves its loop
        at a step of its own choice, and asks for a last cut of that step: A's wish makes A the
        copier in place of B, which was asked when the stop began.
        """
        ending = self.end.ending
        if ending is None:
            return True
        orderly = ending.state == "stopped" and not self.end.at_once
        return orderly and ending.stage is Stage.WORKERS

    def go_on(self) -> None:
        """Begin the end when all scripts have returned; go on with it as far as it can now."""
        ending = self.end.ending
        # The job was told to stop when nothing was left but what its scripts do at their ends.
        stops = ending is not None and ending.state == "stopped" and not self.end.is_leaving
        if (ending is None or stops) and self._members.roster.all_finished():
            work = work_of(self._training.state, self._members)
            self.end.begin(Ending(end=how_finished(work)))
        if self.end.ending is not None:
            self._advance(self.end.ending)

    def ask_again(self) -> None:
        """An epoch begins: a last cut that was asked for before may never come."""
        if self.end.ending is not None:
            self.end.ending.wanted_cut = None

    def _advance(self, ending: Ending) -> None:
        while True:
            stage = ending.stage
            if stage is Stage.CUT and ending.wanted_cut is None:
                ending.wanted_cut = self._training.edge.take_last_cut()
            ending.advance(self._seen(), self._clock())
            if ending.stage is stage:
                return
            if ending.stage is Stage.LEAVE:
                self.end.leave(ending)

    def _seen(self) -> Seen:
        roster = self._members.roster
        return Seen(
            workers_alive=sum(node.life.is_alive for node in roster.of_role("worker")),
            last_stored_no=self._training.state.cuts.last_stored_no,
            servers_up=roster.servers() is not None,
            agents_connected=len(self._outbox.streams),
            waits_for_disk=self._training.cuts.waits_for_disk(self._clock()),
        )

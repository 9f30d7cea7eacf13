"""How a job is brought to its end: carries out what `paceline.master.ending` decides."""

import logging
from collections.abc import Callable, Iterable

from paceline.master.ending import Ending, Seen, Stage, failed, stopped
from paceline.master.monitor import Monitor
from paceline.master.outbox import Outbox
from paceline.master.training import Training
from paceline.protocol.nodes.membership import Membership
from paceline.protocol.nodes.node import Act
from paceline.wire.events.job import FinishedEvent, StoppedEvent
from paceline.wire.spec import JobSpec

_log = logging.getLogger(__name__)


class Shutdown:
    """The end of one job, once it has begun.

    Args:
        spec: of the job.
        training: asked for a last cut.
        members: all nodes, which end.
        monitor: knows how long a step takes.
        outbox: of the master.
        clock: for times within the job.
        own_time: the time in which the master itself ran.
        wall_clock: of the job.
        act: carries out what the membership says.
        changed: notes that the job as a whole must be looked at.
    """

    def __init__(  # noqa: PLR0913
        self,
        spec: JobSpec,
        training: Training,
        members: Membership,
        monitor: Monitor,
        outbox: Outbox,
        *,
        clock: Callable[[], float],
        own_time: Callable[[], float],
        wall_clock: Callable[[], float],
        act: Callable[[Iterable[Act]], None],
        changed: Callable[[], None],
    ) -> None:
        self._spec, self._training, self._members = spec, training, members
        self._monitor, self._outbox = monitor, outbox
        self._clock, self._own_time, self._wall_clock = clock, own_time, wall_clock
        self._act, self._changed = act, changed
        self.ending: Ending | None = None
        self.at_once = False
        """Nothing is waited for any more."""
        #: Until then workers of a job that is stopped may wait for a cut under way.
        self._stop_by_s = 0.0

    def begin(self, ending: Ending) -> None:
        """Begin this end; it replaces another one that is under way."""
        ending.ended_s = self._wall_clock()
        self.ending = ending
        self._changed()

    def fail(self, reason: str) -> None:
        """End the job for this reason."""
        self.end_failed(failed(reason))

    def end_failed(self, ending: Ending) -> None:
        """End the job at once, without a last cut."""
        if self.ending is not None and self.ending.stage >= Stage.LEAVE:
            return
        _log.error("job_failed reason=%s", ending.error)
        self.begin(ending)
        self._leave(ending)

    def stop(self, number: int, *, at_once: bool) -> None:
        """End the job: a signal of this number asks for it; 0: ``paceline stop``."""
        self.at_once |= at_once
        if self.ending is None:
            self._outbox.tell(StoppedEvent(signal=number))
            self.begin(stopped(number))
            self._stop_by_s = self._clock() + self._training.last_cut_s
            self.stop_workers()
        if at_once and self.ending is not None and self.ending.stage < Stage.LEAVE:
            self._changed()
            self._leave(self.ending)

    def stop_workers(self) -> None:
        """Have workers leave as soon as a cut of what they hold then can be made."""
        waits = self._training.edge.last_cut_waits and self._clock() < self._stop_by_s
        if self.ending is None or self.ending.state != "stopped" or self._members.closing or waits:
            return
        self._training.stop()
        self._act(self._members.close(self._own_time(), self.stop_s()))

    def stop_s(self) -> float:
        """Seconds that a process has to end in."""
        return self._spec.timeouts.derived(self._monitor.step_s()).stop_s or 0.0

    def advance(self, ending: Ending) -> None:
        """Go on with the end as far as it can now."""
        while True:
            stage = ending.stage
            if stage is Stage.CUT and ending.wanted_cut is None:
                ending.wanted_cut = self._training.edge.take_last_cut()
            ending.advance(self._seen(), self._clock())
            if ending.stage is stage:
                return
            if ending.stage is Stage.LEAVE:
                self._leave(ending)

    def _seen(self) -> Seen:
        return Seen(
            workers_alive=sum(node.alive for node in self._members.of_role("worker")),
            last_stored_no=self._training.state.cuts.last_stored_no,
            servers_up=self._members.servers() is not None,
            agents_connected=len(self._outbox.streams),
            waits_for_disk=self._training.waits_for_disk(self._clock()),
        )

    def _leave(self, ending: Ending) -> None:
        """Everybody ends; the outcome follows when they have."""
        ending.enter(Stage.LEAVE, self._clock())
        if ending.state == "finished":
            self._outbox.tell(FinishedEvent())
        ending.ended_s = self._wall_clock()
        self._members.closing = True
        for name in self._members.nodes:
            self._outbox.retire(name)

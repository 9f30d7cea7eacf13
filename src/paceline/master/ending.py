"""Stages by which a job is brought to its end: a pure sequence.

workers (a stop: they finish their step and leave) -> cut (unless the newest one holds everything)
-> leave (everybody ends) -> over. A failure, or a second request to stop, goes to `leave` at once.
"""

from enum import IntEnum

import msgspec

from paceline.base.numbering import CutNo
from paceline.jobs.outcome import END_OF_SIGNAL, ENDS, End, code_of


class Stage(IntEnum):
    """The stages of an `Ending`, in order; one may be skipped, none is entered twice."""

    WORKERS = 1
    CUT = 2
    LEAVE = 3
    OVER = 4


LAST_CUT_S = 30.0
"""Seconds that the last cut may take; then the one before it is the last."""
LEAVE_S = 3.0
"""Seconds that agents have to end their processes; those that are left are ended by force."""


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """View of the job as the master sees it right now."""

    workers_alive: int
    last_stored_no: CutNo
    """The newest cut on disk."""
    servers_up: bool
    agents_connected: int
    waits_for_disk: bool = False
    """Whether the last cut is on its way, and a disk refuses it."""


class ScriptsWork(msgspec.Struct, frozen=True, kw_only=True):
    """Work that the scripts of a job have done when all of them have returned."""

    is_known: bool
    """False: scripts that train on their own."""
    num_loops: int
    """Feeds to train on that were opened."""
    num_unfinished: int
    """Opened feeds that are not wholly in the model."""


def how_finished(work: ScriptsWork) -> End:
    """Say what it means that all scripts have returned."""
    if not work.is_known:
        return End.FINISHED
    if not work.num_loops:
        return End.NOT_TRAINED
    return End.STOPPED_EARLY if work.num_unfinished else End.FINISHED


class Ending(msgspec.Struct, kw_only=True):
    """The end of one job, under way."""

    end: End
    stage: Stage = Stage.WORKERS
    error: str = ""
    traceback: str = ""
    own_code: int = 0
    """The script's exit code, where that of the job must be the same."""
    wanted_cut: CutNo | None = None
    """The number of the last cut, once it was asked for."""
    deadline_s: float = 0.0
    ended_s: float = 0.0
    """Unix time at which the work was over."""

    @property
    def state(self) -> str:
        """``finished``, ``failed`` or ``stopped``."""
        return ENDS[self.end].state

    @property
    def is_complete(self) -> bool:
        """Whether all that had to be done is done."""
        return self.end is End.FINISHED

    @property
    def exit_code(self) -> int:
        """The exit code for the shell."""
        return code_of(self.end, self.own_code)

    def enter(self, stage: Stage, now_s: float) -> None:
        """Go on to a stage; a later one stays."""
        if stage > self.stage:
            self.stage = stage
            self.deadline_s = now_s + (LAST_CUT_S if stage is Stage.CUT else LEAVE_S)

    def advance(self, seen: Seen, now_s: float) -> None:
        """Leave every stage whose work is done, or whose time is over."""
        if self.stage is Stage.WORKERS and seen.workers_alive == 0:
            self.enter(Stage.CUT, now_s)
        if self.stage is Stage.CUT and seen.waits_for_disk:
            self.deadline_s = now_s + LAST_CUT_S
        if self.stage is Stage.CUT and self._cut_done(seen, now_s):
            self.enter(Stage.LEAVE, now_s)
        if self.stage is Stage.LEAVE and (seen.agents_connected == 0 or now_s > self.deadline_s):
            self.enter(Stage.OVER, now_s)

    def _cut_done(self, seen: Seen, now_s: float) -> bool:
        there = self.wanted_cut is not None and seen.last_stored_no >= self.wanted_cut
        # Nobody replaces a server of a job that was told to stop.
        hopeless = self.state != "finished" and not seen.servers_up
        return there or hopeless or now_s > self.deadline_s


def failed(error: str, traceback: str = "", own_code: int = 0) -> Ending:
    """The end of a job that cannot go on; ``own_code``: the script's, where the script failed."""
    end = End.SCRIPT_FAILED if own_code else End.FAILED
    return Ending(end=end, error=error, traceback=traceback, own_code=own_code)


def stopped(number: int) -> Ending:
    """Begin the end that a person wants, with a signal of this number; 0: ``paceline stop``."""
    return Ending(end=END_OF_SIGNAL.get(number, End.STOPPED))

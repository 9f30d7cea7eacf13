"""The end of a job once it has begun: which it is, and that all nodes leave."""

import logging

from paceline.master.ending import Ending, Stage, failed
from paceline.master.inbox import Inbox
from paceline.master.parts import MasterParts, Times
from paceline.wire.events.job import FinishedEvent

_log = logging.getLogger(__name__)


class JobEnd:
    """The end of one job; `paceline.master.shutdown` takes it from stage to stage."""

    def __init__(self, parts: MasterParts, times: Times, inbox: Inbox) -> None:
        self._members, self._outbox = parts.members, parts.outbox
        self._times, self._inbox = times, inbox
        self.ending: Ending | None = None
        """None: the job goes on."""
        self.at_once = False
        """Whether nothing is waited for any more."""

    @property
    def is_leaving(self) -> bool:
        """Whether all nodes are on their way out, or gone."""
        return self.ending is not None and self.ending.stage >= Stage.LEAVE

    @property
    def is_over(self) -> bool:
        """Whether the outcome can be written."""
        return self.ending is not None and self.ending.stage is Stage.OVER

    def begin(self, ending: Ending) -> None:
        """Begin this end; it replaces another one that is under way."""
        ending.ended_s = self._times.wall()
        self.ending = ending
        self._inbox.changed = True

    def fail(self, reason: str, traceback: str = "", exit_code: int = 0) -> None:
        """End the job at once, without a last cut.

        Args:
            reason: for people.
            traceback: of the script, where it has failed.
            exit_code: of the script, where that of the job must be the same.
        """
        if self.is_leaving:
            return
        _log.error("job_failed reason=%s", reason)
        ending = failed(reason, traceback, exit_code)
        self.begin(ending)
        self.leave(ending)

    def leave(self, ending: Ending) -> None:
        """Have all nodes leave; the outcome follows when they have."""
        ending.enter(Stage.LEAVE, self._times.steady())
        if ending.state == "finished":
            self._outbox.tell(FinishedEvent())
        ending.ended_s = self._times.wall()
        self._inbox.changed = True
        self._members.close_at_once()
        for name in self._members.roster.nodes:
            self._outbox.retire(name)

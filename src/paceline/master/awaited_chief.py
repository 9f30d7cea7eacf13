"""Workers begin no loop before the chief is where they are: what it alone does is done once.

A script has one worker print, save and write its log where it is ``job.is_chief``, mostly behind a
loop. If that worker dies near the loop's end, the others are through before its next life has come;
so they wait, where they would begin their next loop, until it has come to that. It takes over what
the others' scripts held at the end of the loop, and does what stands behind it. What they held is
in a cut: of the loop's end, or, if it was left before, of those who wait.
"""

from collections.abc import Iterator

from paceline.base.node_files import CHIEF
from paceline.base.numbering import StepNo
from paceline.master.parts import MasterParts
from paceline.master.training_core import TrainingCore
from paceline.wire.events.nodes import ChiefMissedEvent
from paceline.wire.messages.group import NO_STEP
from paceline.wire.messages.node import OpenFeed

LONGEST_S = 60.0
"""Others wait so long for a life of the chief that has not come to any loop."""


class AwaitedChief:
    """Who waits for the chief of one job.

    Args:
        parts: of the master.
        core: of the training.
    """

    def __init__(self, parts: MasterParts, core: TrainingCore) -> None:
        self._is_group = parts.spec.traits.holder == "replicas"
        self._roster, self._outbox = parts.members.roster, parts.outbox
        self._state, self._do = core.state, core.do
        #: Who waits, and since when somebody does.
        self._held: dict[str, OpenFeed] = {}
        self._since_s = 0.0
        #: The newest loop that was begun without it.
        self._missed = -1

    def is_awaited(self, name: str, message: OpenFeed, now_s: float) -> bool:
        """Whether this worker is not to begin its next loop yet."""
        if not self._is_group or name == CHIEF or message.feed.purpose != "train":
            return False
        if not self._begins_next(message) or not self._comes(now_s):
            return False
        chief, newest = self._roster.nodes[CHIEF].life.inc, self._newest()
        is_left = not self._state.ledger.is_complete(newest)
        if is_left and message.step == NO_STEP:
            return False
        if not self._held:
            self._since_s = now_s
        self._held[name] = message
        self._state.awaited = {chief}
        if is_left:
            self._do(self._state.holder.left_loop(newest, StepNo(message.step), chief))
        return True

    def take_freed(self) -> Iterator[tuple[str, OpenFeed]]:
        """Those whose loop is open now, or is not to wait any more."""
        if any(self._begins_next(held) for held in self._held.values()):
            return
        freed, self._held = self._held, {}
        self._state.awaited = set()
        alive = {name for name in freed if self._roster.nodes[name].life.inc == freed[name].inc}
        yield from ((name, freed[name]) for name in sorted(alive))

    def _begins_next(self, message: OpenFeed) -> bool:
        """Whether the loop is a new one, and not the first."""
        return self._newest() >= 0 and self._state.known_feed(message.feed) is None

    def _newest(self) -> int:
        """The newest loop; -1: there was none."""
        feeds = self._state.ledger.feeds.values()
        return max((feed.feed for feed in feeds if feed.purpose == "train"), default=-1)

    def _comes(self, now_s: float) -> bool:
        """Whether the chief is in the job, or on its way to it; says so once if it is given up."""
        chief = self._roster.nodes.get(CHIEF)
        if chief is None or not chief.fate.lives_on:
            return False
        if chief.life.inc in self._state.trains_on or not self._held:
            return True
        waited_s = now_s - self._since_s
        newest = self._newest()
        if waited_s <= LONGEST_S:
            return True
        if newest > self._missed:
            self._missed = newest
            self._outbox.tell(ChiefMissedEvent(node=CHIEF, waited_s=waited_s))
        return False

"""Workers begin no loop before worker 0 has done what it alone does behind the loop before.

A script has one worker print, save and write its log where it is ``job.is_chief``, mostly behind a
loop. If that worker dies near the loop's end, or behind it, the others are through before its next
life has come. So they wait where they would begin their next loop, until it begins that, too. Its
next life takes over what the others' scripts held at the end of the loop, and does what stands
behind it. What they held is in a cut: of the loop's end, or, if it was left before, of those who
wait.
"""

from paceline.base.node_files import CHIEF
from paceline.base.numbering import NO_INC, StepNo
from paceline.master.parts import MasterParts
from paceline.master.training_core import TrainingCore
from paceline.protocol.nodes.node import Node
from paceline.wire.events.nodes import ChiefMissedEvent
from paceline.wire.messages.group import NO_STEP
from paceline.wire.messages.node import OpenFeed

LONGEST_S = 60.0
"""How long a life of worker 0 that is on its way to the others is waited for."""
IN_STEP_S = 1.0
"""A worker 0 that has waited so long in a step is in its loop, and waits for those that left it."""


class AwaitedChief:
    """Workers that are not to begin their next loop yet.

    Args:
        parts: of the master.
        core: of the training.
    """

    def __init__(self, parts: MasterParts, core: TrainingCore) -> None:
        self._is_group = parts.spec.traits.holder == "replicas"
        self._roster, self._outbox = parts.members.roster, parts.outbox
        self._monitor, self._core = parts.monitor, core
        self._held: dict[str, OpenFeed] = {}
        #: The life that is waited for, and since when it is on its way.
        self._life, self._since_s = NO_INC, 0.0
        #: No life of it came in time; none is waited for until one has trained.
        self._is_missed = False

    def hold(self, name: str, message: OpenFeed, now_s: float) -> bool:
        """Whether a worker waits, which asks again and again; what it waits for is set going.

        Args:
            name: of the worker's node.
            message: its word that it has come to a loop.
            now_s: of the master's clock.
        """
        state, newest = self._core.state, self._newest()
        is_left = newest >= 0 and not state.ledger.is_complete(newest)
        chief = self._roster.nodes.get(CHIEF)
        waits = chief is not None and self._begins_next(name, message) and self._comes(chief, now_s)
        if chief is None or not waits or (is_left and not self._can_follow(chief, message)):
            self._held.pop(name, None)
            if not self._held:
                state.awaited = set()
            return False
        self._held[name] = message
        state.awaited = {chief.life.inc}
        if is_left:
            step = StepNo(message.step)
            self._core.do(state.holder.left_loop(newest, step, chief.life.inc))
        return True

    def begins(self, name: str, message: OpenFeed) -> bool:
        """Whether worker 0 begins a loop that was not open, so that the others may go on."""
        return name == CHIEF and message.feed.purpose == "train" and self._is_new(message)

    def take_held(self) -> list[tuple[str, OpenFeed]]:
        """Return those that waited, and what they asked for: they wait no more."""
        held, self._held = self._held, {}
        self._core.state.awaited = set()
        lives = {name: self._roster.nodes[name].life.inc for name in held}
        return [(name, held[name]) for name in sorted(held) if lives[name] == held[name].inc]

    def _begins_next(self, name: str, message: OpenFeed) -> bool:
        """Whether this worker would be the first in a loop that is not the job's first one."""
        is_other = self._is_group and name != CHIEF and message.feed.purpose == "train"
        return is_other and self._newest() >= 0 and self._is_new(message)

    def _is_new(self, message: OpenFeed) -> bool:
        return self._core.state.known_feed(message.feed) is None

    def _newest(self) -> int:
        """The newest loop; -1: there was none."""
        feeds = self._core.state.ledger.feeds.values()
        return max((feed.feed for feed in feeds if feed.purpose == "train"), default=-1)

    def _can_follow(self, chief: Node, message: OpenFeed) -> bool:
        """Whether worker 0 can come out of a loop that a worker has left before its end."""
        seen, inc = self._monitor.nodes.get(CHIEF), chief.life.inc
        waiting_s = seen.facts.waiting_s if seen is not None and seen.facts.inc == inc else 0.0
        return message.step != NO_STEP and waiting_s <= IN_STEP_S

    def _comes(self, chief: Node, now_s: float) -> bool:
        """Whether worker 0 is in the job, or on its way to it; says so once if it is given up."""
        inc, trained = chief.life.inc, chief.life.inc in self._core.state.trains_on
        if trained or not self._held or inc != self._life:
            self._life, self._since_s = inc, now_s
        self._is_missed &= not trained
        waited_s = now_s - self._since_s
        if not self._is_missed and self._held and waited_s > LONGEST_S:
            self._is_missed = True
            self._outbox.tell(ChiefMissedEvent(node=CHIEF, waited_s=waited_s))
        return chief.fate.lives_on and not self._is_missed

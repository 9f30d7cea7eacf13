"""Workers begin no loop before worker 0 has done what it alone does behind the loop before: pure.

A script has one worker print, save and write its log where it is ``job.is_chief``, mostly behind a
loop. If that worker dies near the loop's end, or behind it, the others are through before its next
life has come. So they wait where they would begin their next loop, until it begins that, too. Its
next life takes over what the others' scripts held at the end of the loop, and does what stands
behind it. What they held is in a cut: of the loop's end, or, if it was left before, of those who
wait.

A worker that waits asks again and again, so each of its words is a fact, and the clock needs none.
"""

from collections.abc import Mapping

import msgspec

from paceline.base.node_files import CHIEF
from paceline.base.numbering import NO_INC, Inc, StepNo
from paceline.wire.messages.group import NO_STEP
from paceline.wire.messages.node import OpenFeed

LONGEST_S = 60.0
"""How long a life of worker 0 that is on its way to the others is waited for."""
IN_STEP_S = 1.0
"""A worker 0 that has waited so long in a step is in its loop, and waits for those that left it."""


class ChiefSeen(msgspec.Struct, frozen=True, kw_only=True):
    """Worker 0 as the master sees it."""

    inc: Inc
    lives_on: bool
    """It has not finished, failed or left: this life, or a next one, comes."""
    trains: bool
    """This life has come to where the others are."""
    waiting_s: float = 0.0
    """How long this life has waited in a step."""


class AtLoop(msgspec.Struct, frozen=True, kw_only=True):
    """A fact: a worker has come to a loop, while the job is so."""

    node: str
    message: OpenFeed
    is_new: bool
    """No worker has begun this loop."""
    newest: int
    """The newest loop over training data; -1: there was none."""
    is_left: bool
    """The newest loop was left before its end."""
    chief: ChiefSeen | None
    lives: Mapping[str, Inc]
    """If it is worker 0: the lives that the nodes of those that wait have now."""


class AdmitWorker(msgspec.Struct, frozen=True):
    """Open a loop for a worker, and tell it so."""

    node: str
    message: OpenFeed


class AwaitLife(msgspec.Struct, frozen=True):
    """From here on this life is awaited; `NO_INC`: none is."""

    inc: Inc


class KeepLeftLoop(msgspec.Struct, frozen=True):
    """Have those that left a loop in a step keep what they hold for a life that is to follow."""

    feed: int
    step: StepNo
    inc: Inc


class MissChief(msgspec.Struct, frozen=True):
    """No life of worker 0 came in time, so it is given up; an event says so."""

    waited_s: float


ChiefAct = AdmitWorker | AwaitLife | KeepLeftLoop | MissChief


class AwaitedChief:
    """Workers that are not to begin their next loop yet.

    Args:
        waits: workers follow worker 0: they are a group, and each holds the model.
    """

    def __init__(self, *, waits: bool) -> None:
        self._waits = waits
        self.held: dict[str, OpenFeed] = {}
        """What the workers that wait have asked for."""
        #: The life that is waited for, and since when it is on its way.
        self._life, self._since_s = NO_INC, 0.0
        #: No life of it came in time; none is waited for until one has trained.
        self._is_missed = False

    def came(self, at: AtLoop, now_s: float) -> list[ChiefAct]:
        """What follows from a worker's word; an act that is not there: it waits, and asks again."""
        acts: list[ChiefAct] = []
        if self._is_ahead(at) and at.chief is not None:
            acts += self._look(at.chief, now_s)
            if self._comes(at.chief) and not (at.is_left and not _can_follow(at.chief, at.message)):
                self.held[at.node] = at.message
                acts.append(AwaitLife(at.chief.inc))
                if at.is_left:
                    acts.append(KeepLeftLoop(at.newest, StepNo(at.message.step), at.chief.inc))
                return acts
        self.held.pop(at.node, None)
        if not self.held:
            acts.append(AwaitLife(NO_INC))
        acts.append(AdmitWorker(at.node, at.message))
        if at.node == CHIEF and at.is_new and at.message.feed.purpose == "train":
            acts += self._free(at.lives)
        return acts

    def _is_ahead(self, at: AtLoop) -> bool:
        """Whether this worker would be the first in a loop that is not the job's first one."""
        is_other = self._waits and at.node != CHIEF and at.message.feed.purpose == "train"
        return is_other and at.newest >= 0 and at.is_new

    def _look(self, chief: ChiefSeen, now_s: float) -> list[ChiefAct]:
        """Count the time of a life that is on its way; it is given up once, and that is said."""
        if chief.trains or not self.held or chief.inc != self._life:
            self._life, self._since_s = chief.inc, now_s
        self._is_missed &= not chief.trains
        waited_s = now_s - self._since_s
        if self._is_missed or not self.held or waited_s <= LONGEST_S:
            return []
        self._is_missed = True
        return [MissChief(waited_s)]

    def _comes(self, chief: ChiefSeen) -> bool:
        """Whether worker 0 is in the job, or on its way to it."""
        return chief.lives_on and not self._is_missed

    def _free(self, lives: Mapping[str, Inc]) -> list[ChiefAct]:
        """Worker 0 begins a loop that was not open, so those that waited go on, too."""
        held, self.held = self.held, {}
        alive = [name for name in sorted(held) if lives[name] == held[name].inc]
        return [AwaitLife(NO_INC), *(AdmitWorker(name, held[name]) for name in alive)]


def _can_follow(chief: ChiefSeen, message: OpenFeed) -> bool:
    """Whether worker 0 can come out of a loop that a worker has left before its end."""
    return message.step != NO_STEP and chief.waiting_s <= IN_STEP_S

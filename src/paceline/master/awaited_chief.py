"""The edge of `AwaitedChief`: how the job is when a worker comes to a loop, and what follows."""

from collections.abc import Callable
from typing import assert_never

from paceline.base.node_files import CHIEF
from paceline.base.numbering import NO_INC
from paceline.master.parts import MasterParts
from paceline.master.training_core import TrainingCore
from paceline.protocol.samples.awaited_chief import (
    AdmitWorker,
    AtLoop,
    AwaitedChief,
    AwaitLife,
    ChiefSeen,
    KeepLeftLoop,
    MissChief,
)
from paceline.wire.events.nodes import ChiefMissedEvent
from paceline.wire.messages.node import OpenFeed


class LoopGate:
    """Gate at which workers come to loops.

    Args:
        parts: of the master.
        core: of the training.
        open_loop: tells a worker that its loop is open.
    """

    def __init__(
        self, parts: MasterParts, core: TrainingCore, open_loop: Callable[[str, OpenFeed], None]
    ) -> None:
        self._chief = AwaitedChief(waits=parts.spec.traits.holder == "replicas")
        self._roster, self._outbox = parts.members.roster, parts.outbox
        self._monitor, self._core, self._open = parts.monitor, core, open_loop

    def came(self, name: str, message: OpenFeed, now_s: float) -> None:
        """Note that a worker has come to a loop, or asks again."""
        state = self._core.state
        for act in self._chief.came(self._at(name, message), now_s):
            match act:
                case AdmitWorker(node=node, message=asked):
                    self._open(node, asked)
                case AwaitLife(inc=inc):
                    state.awaited = {inc} - {NO_INC}
                case KeepLeftLoop(feed=feed, step=step, inc=inc):
                    self._core.do(state.holder.left_loop(feed, step, inc))
                case MissChief(waited_s=waited_s):
                    self._outbox.tell(ChiefMissedEvent(node=CHIEF, waited_s=waited_s))
                case _:
                    assert_never(act)

    def _at(self, name: str, message: OpenFeed) -> AtLoop:
        ledger = self._core.state.ledger
        feeds = (feed.feed for feed in ledger.feeds.values() if feed.purpose == "train")
        newest = max(feeds, default=-1)
        waiting = self._chief.held if name == CHIEF else ()
        return AtLoop(
            node=name,
            message=message,
            is_new=self._core.state.known_feed(message.feed) is None,
            newest=newest,
            is_left=newest >= 0 and not ledger.is_complete(newest),
            chief=self._chief_now(),
            lives={one: self._roster.nodes[one].life.inc for one in waiting},
        )

    def _chief_now(self) -> ChiefSeen | None:
        if (chief := self._roster.nodes.get(CHIEF)) is None:
            return None
        inc, seen = chief.life.inc, self._monitor.nodes.get(CHIEF)
        return ChiefSeen(
            inc=inc,
            lives_on=chief.fate.lives_on,
            trains=inc in self._core.state.trains_on,
            waiting_s=seen.facts.waiting_s if seen is not None and seen.facts.inc == inc else 0.0,
        )

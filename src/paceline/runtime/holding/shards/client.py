"""The side of its group of a member that holds a shard of the model.

The group comes together before there is a model, since torch divides it by the group; what the
shard must begin with is known before that, and loaded when the model is prepared. A member never
goes on in another group: when this one breaks, the process ends, and the next one begins again.
"""

import hashlib
import os
import sys
import threading
from collections.abc import Callable, Iterable
from types import FrameType
from typing import NoReturn

import torch
import torch.distributed as dist

from paceline.base.errors import ConfigError, InternalError, PermanentError, TransientError
from paceline.base.samples import SampleSet
from paceline.protocol.holding.group.member import Copy, LoadReplica
from paceline.runtime.group.group import BREAKING, Group
from paceline.runtime.group.member import MemberClient
from paceline.runtime.group.store import PeerStore
from paceline.runtime.holding.shards.shards import Shards
from paceline.runtime.process.feature_port import Links
from paceline.runtime.process.process import Process
from paceline.wire.messages.base import CutRef
from paceline.wire.messages.feeds import Feed
from paceline.wire.messages.group import RunGroup
from paceline.wire.messages.node import NodeUp

TOGETHER_S = 300.0
"""Seconds for which members whose scripts have returned wait for the others, to cut together."""

_TORCH, _COLLECTIVES = os.path.dirname(torch.__file__), os.path.dirname(dist.__file__)


class ShardClient(MemberClient):
    """A member that holds a shard of the model."""

    def __init__(self, process: Process) -> None:
        super().__init__(process, together=True)
        #: The cut that we begin with.
        self._cut: CutRef | None = None
        self._shards: Shards | None = None
        #: We are at the end of a feed, as all members are.
        self._at_end = False
        #: We leave, and have asked for a cut of what we all hold.
        self._asks_last = False
        #: We are in our part of a step; and seen to wait for others within it.
        self._in_part = self._waits = False

    def come_together(self) -> tuple[Group, PeerStore]:
        """Return when all members are there: the group, and the store in which they meet.

        Raises:
            TransientError: one of them is gone.
        """
        self._exchange.start()
        with self._changed:
            self._do(self.state.join())
            while (run := self.state.running) is None:
                self._check_stop()
                self._exchange.wait()
        group = self._begun(run)
        if group is None or not self._connected(group):
            raise InternalError("the group was over before it began")
        self.unmark()  # what the script does until its first step may take as long as it takes
        with self._changed:
            return group, self._peers.store(run.group)

    def start(self, shards: Shards, group: Group) -> None:
        """Become what the job goes on from: everything is prepared.

        Raises:
            ConfigError: other members have prepared something else.
            TransientError: a member is gone, or the cut is damaged.
        """
        form = shards.describe()
        digest = int(hashlib.sha256(form.encode()).hexdigest()[:15], 16)
        if any(one != digest for one in self._gathered(group, digest)):
            raise ConfigError(
                "job.prepare: the workers have prepared different models or optimizers, here "
                f"{form}; build the same in every worker, whatever its rank"
            )
        if self._cut is not None:
            try:
                shards.load_cut(*self.process.cuts.places(self._cut))
            except PermanentError as error:
                # The master reads a cut before it is loaded again, and finds another.
                raise TransientError(str(error)) from error
        if len(set(self._gathered(group, self.variables.arrived_digest()))) > 1:
            # A thread of one script changed a variable as it was about to be copied, say.
            self.variables.decline()
        with self._changed:
            self._replica = self._shards = shards

    def _gathered(self, group: Group, value: int) -> list[int]:
        """The values of all members.

        Raises:
            TransientError: a member is gone.
        """
        try:
            return [one for (one,) in group.gather([value]).wait()]
        except BREAKING as error:
            raise TransientError(f"the group of workers broke as they prepared: {error}") from error

    def enter(
        self, feed: int, at_end: Callable[[SampleSet], bool]
    ) -> tuple[RunGroup, Group] | None:
        """See `MemberClient.enter`; each step begins with shards."""
        entered = super().enter(feed, at_end)
        self._reshard()
        return entered

    def _until(
        self, done: Callable[[], bool], ask: Callable[[], Iterable[NodeUp]] = lambda: ()
    ) -> None:
        self._reshard()
        super()._until(done, ask)

    def _reshard(self) -> None:
        """Have the parameters sharded, where all members are at the same place of their scripts.

        A forward pass of the script's own leaves its root's parameters gathered until something
        shards them: torch's ``state_dict`` for a cut does, and members may copy one at different
        moments. The next forward pass would gather in some of them alone, and all would wait.
        """
        if self._shards is not None and not self.in_body:
            self._shards.reshard()

    def check(self, measure: Callable[[Links], None]) -> None:
        """Check the node; all members measure at the same time."""
        measure(lambda: ())

    def mark(self, *, computing: bool) -> None:
        with self._changed:
            self._in_part, self._waits = computing, False
            super().mark(computing=computing)

    def unmark(self) -> None:
        with self._changed:
            self._in_part = False
            super().unmark()

    def tick(self) -> None:
        super().tick()
        if self._in_part:
            self._look()

    def _look(self) -> None:
        """See whether the training thread waits: forward and backward are full of collectives."""
        waits = _is_in_collective(sys._current_frames().get(threading.main_thread().ident or 0))
        if waits != self._waits:
            self._waits = waits
            super().mark(computing=not waits)

    def failed(self, run: RunGroup, reason: str) -> None:
        """Give up: a shard is of no use without the others.

        Raises:
            TransientError: always.
        """
        raise TransientError(f"the group of workers is broken: {reason}")

    def await_end(self, feed: Feed) -> None:
        self._at_end = True
        super().await_end(feed)
        self._at_end = False

    def _rest(self, *, stays: bool = False) -> None:
        if self.in_body or self._replica is None:
            return
        # From the end of a feed others may go on to the next, once there is a cut of it.
        at_end = self._at_end and self._keeper.copied_step != self.state.step
        goes = self._leaving or self._hands_over
        # Behind a loop the script may change its weights: a cut of that waits for the next loop.
        if self._loop_edge % 2 and not (goes or self._keeps_end or self.state.running is None):
            return
        for_good = at_end or goes or self.state.running is None
        self._keeper.copy_if_asked(self.state, self._replica, for_good=for_good)

    def _leave(self) -> NoReturn:
        """Leave the group.

        A preempted member has a cut made first, if the others stand still with it, too: they begin
        again from the newest.
        """
        together = self.state.running is None or self._at_end
        if together and not self.process.told_to_stop and self._replica is not None:
            self._asks_last = True
            self.checkpoint()
        super()._leave()

    @property
    def _hand_over_s(self) -> float:
        """Seconds that a hand-over may take, which needs all members.

        Some have more to do after their loops, for example saving a file. If the job stops, and the
        script's own handler of the signal left its loop, others may have left theirs a step later:
        they wait for us in it, and no cut comes.
        """
        alone_s = super()._hand_over_s
        return alone_s if self.process.told_to_stop else max(TOGETHER_S, alone_s)

    @property
    def _owes_cut(self) -> bool:
        asks = self._asks_last and not self.process.told_to_stop
        return super()._owes_cut or (asks and self._asker.waits)

    def _take_over(self, order: Copy | LoadReplica) -> None:
        if isinstance(order, Copy):
            raise InternalError("a member that holds a shard was told to copy another's")
        self._cut = order.order.cut
        self._do(self.state.copied(order.order))

    def _drop(self, run: RunGroup | None) -> None:
        """Connections end with the process: peers may still wait for what we have sent."""


def _is_in_collective(frame: FrameType | None) -> bool:
    """Tell whether a thread is in torch's distributed code, or in what that calls of torch."""
    while frame is not None and frame.f_code.co_filename.startswith(_TORCH):
        if frame.f_code.co_filename.startswith(_COLLECTIVES):
            return True
        frame = frame.f_back
    return False

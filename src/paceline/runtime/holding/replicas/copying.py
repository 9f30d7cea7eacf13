"""The state of a peer on its way to us: out of the memory of its process, or in parts.

See docs/decisions/0014-who-joins-reads-its-peers-memory.md.
"""

import logging
import os
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import NamedTuple

from torch import Tensor

from paceline.base.numbering import Inc
from paceline.base.processes import find_job_process, this_machine
from paceline.protocol.holding.group.member import MemberState
from paceline.runtime.holding.replicas.direct import read_memory
from paceline.runtime.process.process import Process
from paceline.runtime.state.replica import Arriving, Photograph, Replica
from paceline.wire.messages.group import BEYOND, NO_STEP, STILL, AskState, CatchUp, StatePart

PARTS_AHEAD = 4
"""Parts of a peer's state that are asked for at a time: beside the state, as it was built and as it
comes, what a joiner's copy takes of memory."""

_log = logging.getLogger(__name__)


class Reading(NamedTuple):
    """The memory of a peer that is being read."""

    order: CatchUp
    arriving: Arriving
    targets: list[Tensor]
    done: Future[None]


class Copier:
    """Follows orders to copy. Used under the client's lock.

    Args:
        process: ours.
        ask: asks the source of an order for a part.
        aside: does something in a thread of its own.
    """

    def __init__(
        self,
        process: Process,
        ask: Callable[[CatchUp, int], None],
        aside: Callable[[Callable[[], None]], Future[None]],
    ) -> None:
        self._job_path, self._ask, self._aside = process.job.path, ask, aside
        #: What we copy, and whom from; it is loaded where the training thread waits.
        self._arriving: tuple[CatchUp, Arriving] | None = None
        self._reading: Reading | None = None
        self.is_left_behind = False
        """Whether the script of the state's holder has left the loop that ours is in."""

    def follow(self, order: CatchUp) -> None:
        """Copy what it says; what has come of the same for a former group is kept."""
        arriving = Arriving()
        if self._arriving is not None and _is_of_one_state(self._arriving[0], order):
            arriving = self._arriving[1]
        self._arriving, self.is_left_behind = (order, arriving), False
        self._ask_parts()

    def restart(self) -> None:
        """Copy the same from the start: what has come was of another place of the script."""
        if self._arriving is not None:
            self._arriving, self.is_left_behind = (self._arriving[0], Arriving()), False
            self._ask_parts()

    def forget(self) -> None:
        """Forget the order: nothing has to be copied."""
        self._arriving = None

    def _ask_parts(self) -> None:
        """Ask for the parts that are missing, a few at a time."""
        if self._arriving is None:
            return
        order, arriving = self._arriving
        for part in arriving.ask(PARTS_AHEAD):
            self._ask(order, part)

    def resend(self) -> None:
        """Ask once more for what is unanswered."""
        if self._arriving is None:
            return
        order, arriving = self._arriving
        arriving.ask_again()
        self._ask_parts()
        if arriving.unconfirmed:
            self._ask(order, STILL)

    def take(self, source: int, message: StatePart, frame: memoryview, within: int) -> None:
        """Take a part that has come; ``within``: the feed that our script is in."""
        if self._arriving is None:
            return
        order, arriving = self._arriving
        # A former source may hold another model of an equal step.
        wanted = (order.source.inc, order.epoch_no, order.step)
        if (source, message.epoch_no, message.step) != wanted or message.within != within:
            return
        if message.part == BEYOND:
            self.is_left_behind = True
            return
        if message.part == STILL:
            arriving.unconfirmed = False
            return
        if message.part == 0 and arriving.unconfirmed:  # it has changed since
            arriving = Arriving()
            self._arriving = order, arriving
        kept = arriving.take(message.part, message.num_parts, frame, message.digest)
        near = message.machine == this_machine() and message.addresses
        found = find_job_process(message.pid, self._job_path) if near else None
        if kept and found is not None and found.node == order.source.node:
            arriving.readable = message.pid, message.addresses
        self._ask_parts()

    def go_on(self, state: MemberState, replica: Replica, *, stays: bool) -> bool:
        """Read the memory of the source once it is known; whether a read is under way.

        One at a time, also if it is not wanted any more: it is written into what we hold.

        Args:
            state: says what is wanted, and whether we hold a step of our own.
            replica: what it is for.
            stays: nothing else touches our tensors until that is loaded.
        """
        if self._reading is not None and self._reading.done.done():
            reading, self._reading = self._reading, None
            self._have_read(reading)
        if self._reading is None and self._arriving is not None:
            order, arriving = self._arriving
            if arriving.readable is not None and state.may_load(order):
                assert arriving.layout is not None
                # A member with a step of its own keeps it until the other one is confirmed.
                in_place = stays and state.step == NO_STEP
                targets = replica.targets(arriving.layout, in_place=in_place)
                done = self._aside(partial(read_memory, *arriving.readable, targets))
                self._reading = Reading(order, arriving, targets, done)
        return self.is_reading

    @property
    def is_reading(self) -> bool:
        """Whether something is written into what we hold."""
        return self._reading is not None

    def _have_read(self, reading: Reading) -> None:
        try:
            reading.done.result()
        except OSError as error:
            _log.info("state_in_parts reason=%s", error)
            reading.arriving.readable = None
            self._ask_parts()
            return
        reading.arriving.read(reading.targets)
        self._ask(reading.order, STILL)

    def arrived(self, state: MemberState) -> tuple[CatchUp, Arriving] | None:
        """Return what is here as a whole and wanted, once."""
        found = self._arriving
        if found is None or not found[1].whole or not state.may_load(found[0]):
            return None
        self._arriving = None
        return found


class Photographs:
    """Photographs of what we hold, for peers to read: taken when each asks first.

    What a forward pass replaces meanwhile is kept for them.
    """

    def __init__(self) -> None:
        #: By peer, and the feed that both scripts are within.
        self._taken: dict[tuple[Inc, int], Photograph] = {}

    def clear(self) -> None:
        """Drop all of them: what we hold becomes another state."""
        self._taken.clear()

    def part(self, replica: Replica, asked: AskState, inc: Inc) -> tuple[StatePart, bytes] | None:
        """Answer a peer that copies what we hold; None: there is no such part.

        Args:
            replica: what we hold.
            asked: by the peer.
            inc: ours.
        """
        reader = asked.inc, asked.within
        photograph, number = self._taken.get(reader), asked.part
        if photograph is None:
            photograph = self._taken[reader] = replica.photograph()
            if number == STILL:  # what was read may be torn: it is to be read again
                number = 0
        if not STILL <= number < photograph.num_parts:
            return None
        frame, digest = (b"", 0) if number == STILL else photograph.part(number)
        answer = StatePart(
            epoch_no=asked.epoch_no,
            inc=inc,
            step=asked.step,
            part=number,
            within=asked.within,
            num_parts=photograph.num_parts,
            digest=digest,
            machine=this_machine(),
            pid=os.getpid(),
            addresses=() if number else photograph.addresses,
        )
        return answer, frame


def beyond(asked: AskState, inc: Inc) -> tuple[StatePart, bytes]:
    """Answer a peer whose loop our script has left; ``inc``: ours."""
    answer = StatePart(
        epoch_no=asked.epoch_no,
        inc=inc,
        step=asked.step,
        part=BEYOND,
        within=asked.within,
        num_parts=0,
        digest=0,
    )
    return answer, b""


def _is_of_one_state(one: CatchUp, other: CatchUp) -> bool:
    """Tell whether two orders copy the same."""
    return (one.source, one.epoch_no, one.step) == (other.source, other.epoch_no, other.step)

"""Questions of a worker to the master, asked until it has the answer.

A wish for a cut; and, at a place of its script, where the model is, and what others say.
"""

import sys
import time
from collections.abc import Sequence
from typing import assert_never

from msgspec.structs import replace

from paceline.base.errors import ConfigError
from paceline.base.numbering import EpochNo, Inc, StepNo
from paceline.runtime.process.process import Process
from paceline.runtime.script.evaluation_results import Until
from paceline.runtime.script.strategy import MEET_S
from paceline.wire.messages.feeds import ScriptPlace, Underway
from paceline.wire.messages.node import AgreedOn, AgreeOn, AskCut, AskPlace, CutMade, PlaceIs

NOTICE_S = 20.0
"""A worker that waits longer than so many seconds for the others says so, once."""


def underway_at(place: ScriptPlace, found: PlaceIs) -> Underway | None:
    """Return how far the job is in the feed at a place; None: nobody has begun it."""
    for feed, at in zip(found.begun, found.at, strict=False):
        if feed.place == place and feed.num_samples is not None:
            return Underway(feed.num_samples, feed.epochs, at)
    return None


class Asking:
    """The questions of one worker."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._met: dict[ScriptPlace, AgreedOn] = {}
        self._begun: PlaceIs | None = None

    def answered(self, message: AgreedOn | PlaceIs) -> None:
        """Take in an answer."""
        match message:
            case AgreedOn():
                self._met[message.place] = message
            case PlaceIs():
                self._begun = message
            case _:
                assert_never(message)

    def begun(self, until: Until, *, stands_by: bool = False) -> PlaceIs:
        """Ask how far the model is in the script, as the master knows; ``until`` waits."""
        ask = AskPlace(inc=self._process.inc, stands_by=stands_by)
        self._begun = None
        until(lambda: self._begun is not None, ask=lambda: [ask])
        return self._begun or PlaceIs(inc=ask.inc)

    def underway(self, until: Until, place: ScriptPlace) -> Underway | None:
        """See `Strategy.underway`."""
        return underway_at(place, self.begun(until))

    def meet(
        self,
        until: Until,
        place: ScriptPlace,
        value: bytes,
        *,
        all_workers: bool,
        in_body: bool = False,
    ) -> Sequence[bytes]:
        """See `Strategy.meet`; ``until`` waits."""
        message = AgreeOn(
            inc=self._process.inc,
            place=place,
            value=value,
            rank=self._process.rank,
            all=all_workers,
            in_body=in_body,
        )
        start_s, said = time.monotonic(), False

        def is_met() -> bool:
            nonlocal said
            waited_s = time.monotonic() - start_s
            if waited_s > NOTICE_S and not said:
                said = True
                sys.stderr.write(
                    f"paceline: {self._process.node} waits for the other workers to make the same "
                    f"call, up to {MEET_S:.0f} s\n"
                )
            if waited_s > MEET_S:
                raise ConfigError(
                    "job.all_gather, job.broadcast or job.barrier was called here, and not in all "
                    f"other workers within {MEET_S:.0f} s; call it in every worker, whatever its "
                    "rank"
                )
            return place in self._met

        until(is_met, ask=lambda: [message])
        return self._met.pop(place).values


class CutAsker:
    """The cuts that one process asks for. The newest wish stands for those before it."""

    def __init__(self, inc: Inc) -> None:
        self._inc = inc
        self._asked: AskCut | None = None
        self._num_asked = 0

    def ask(self, epoch_no: EpochNo, step: int) -> list[AskCut]:
        """Wish for a cut with this step in it; 0: of what the model holds now."""
        self._num_asked += 1
        self._asked = AskCut(epoch_no=epoch_no, inc=self._inc, n=self._num_asked, step=StepNo(step))
        return self.resend()

    def ask_last(self, epoch_no: EpochNo, step: int, feed: int) -> list[AskCut]:
        """Ask the same for a script that has returned; its last loop was over this feed."""
        (asked,) = self.ask(epoch_no, step)
        self._asked = replace(asked, leaves=True, feed=feed)
        return self.resend()

    def went_back(self, epoch_no: EpochNo) -> None:
        """Take in that what should be kept is gone: then ask for what there is instead."""
        if self._asked is not None and self._asked.epoch_no != epoch_no:
            self._asked = replace(self._asked, epoch_no=epoch_no, step=0)

    def resend(self) -> list[AskCut]:
        """Return what must be said (again) to the master."""
        return [] if self._asked is None else [self._asked]

    @property
    def waits(self) -> bool:
        """Whether a wish is unfulfilled."""
        return self._asked is not None

    def is_met(self, waited_s: float) -> bool:
        """Tell whether no wish is unfulfilled.

        Raises:
            ConfigError: it was waited for too long: others have not done its step.
        """
        if self.waits and waited_s > MEET_S:
            raise ConfigError(
                f"job.prepare: no cut of the training before was made within {MEET_S:.0f} s; leave "
                "its loops over job.batches in all workers after the same step"
            )
        return not self.waits

    def made(self, message: CutMade) -> None:
        """The master's answer."""
        if self._asked is not None and message.n >= self._asked.n:
            self._asked = None

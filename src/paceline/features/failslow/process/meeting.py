"""All ranks of a script meet between two steps, and measure what they compute and send.

Nobody enters anything that waits for the others before the master has said that all have come. A
rank that waits trains on when the master says so, when its agent is gone, or after `LONGEST_S`.
"""

import select
import sys
import time
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from typing import assert_never

import msgspec
import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from paceline.features.failslow.process.node_speed import measure_node
from paceline.features.failslow.wire import (
    FEATURE,
    AtMeeting,
    GoOn,
    Measure,
    MeetAt,
    RankMeasured,
)
from paceline.runtime.group.links import measure_links
from paceline.runtime.process.process import Process
from paceline.wire.messages.base import Link

LONGEST_S = 60.0
AGAIN_S = 1.0
"""Seconds between two messages that this process has come."""
PATIENCE_S = 10.0
"""Seconds that a peer may take for one message, when links are measured."""
CONNECT_S = 10.0
"""Seconds for the ranks to connect with each other, apart from the script's own groups."""

MeetingTakes = MeetAt | Measure | GoOn
"""Messages to a rank of a script."""

_decode = msgspec.msgpack.Decoder(MeetingTakes).decode


class Meetings:
    """The meetings of one process; `look` after each step.

    Args:
        process: whose link carries the master's words.
        device: on which the script trains.
    """

    def __init__(self, process: Process, device: Callable[[], torch.device]) -> None:
        self._process, self._device = process, device
        self._due: MeetAt | None = None
        self._orders: deque[Measure | GoOn] = deque()
        """Words of a meeting that this rank waits in."""
        self._group: dist.ProcessGroupGloo | None = None
        """Kept until all have measured: to a peer that still connects, its end is an error."""

    def told(self, body: msgspec.Raw) -> None:
        """Take in a word of the master."""
        message: MeetingTakes = _decode(body)
        match message:
            case MeetAt():
                self._due = message
            case Measure() | GoOn():
                self._orders.append(message)
            case _:
                assert_never(message)

    def look(self, step: int) -> None:
        """Take part in the meeting at this step, if there is one; a step has just been done."""
        self._process.hear()
        self._orders.clear()  # of meetings that are over
        due = self._due
        if due is None or step < due.step:
            return
        self._due = None
        late = step > due.step
        came = AtMeeting(inc=self._process.inc, meeting=due.meeting, step=step, late=late)
        self._process.say(FEATURE, came)
        if not late:
            self._stay(came)

    def _stay(self, came: AtMeeting) -> None:
        """Wait for the master's words; one that knows of no meeting answers that we go on."""
        meeting = came.meeting
        link, until_s = self._process.link, time.monotonic() + LONGEST_S
        while link.connected and time.monotonic() < until_s:
            ready, _, _ = select.select([link.fileno()], [], [], AGAIN_S)
            if not ready:
                self._process.say(FEATURE, came)
            self._process.hear()
            if self._obey(meeting):
                break
        self._group = None

    def _obey(self, meeting: int) -> bool:
        """Do what came; whether the meeting is over."""
        is_over = False
        while self._orders:
            order = self._orders.popleft()
            if order.meeting != meeting:
                continue
            match order:
                case Measure():
                    self._process.say(FEATURE, self._measure(order))
                case GoOn():
                    is_over = True  # and the next meeting's order may be right behind it
                case _:
                    assert_never(order)
        return is_over

    def _measure(self, order: Measure) -> RankMeasured:
        inc, meeting = self._process.inc, order.meeting
        try:
            speed = measure_node(self._device())
            links = self._links(order) if any(order.passes) else ()
        except Exception as error:  # noqa: BLE001 - told to the master, whatever it is
            words = f"{type(error).__name__}: {error}"
            sys.stderr.write(f"paceline: this rank was not measured: {words}\n")
            return RankMeasured(inc=inc, meeting=meeting, error=words)
        speed = speed.with_links(links)
        return RankMeasured(inc=inc, meeting=meeting, speed=speed)

    def _links(self, order: Measure) -> tuple[Link, ...]:
        """Over connections of their own: the script's groups may have work under way."""
        mine = f"paceline/{order.meeting}"
        store = c10d.PrefixStore(mine, c10d._get_default_store())
        rank, size = dist.get_rank(), dist.get_world_size()
        self._group = dist.ProcessGroupGloo(store, rank, size, timedelta(seconds=CONNECT_S))
        return measure_links(self._group, rank, order.names, order.passes, PATIENCE_S)

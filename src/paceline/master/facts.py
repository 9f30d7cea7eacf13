"""What the master's task takes from its inbox, beside what other modules name."""

import asyncio
import signal

import msgspec

from paceline.master.asking import Answered
from paceline.master.cut_folders import CutChosen
from paceline.protocol.nodes.platform import AnyWord
from paceline.wire.client import Reply, RoomCall
from paceline.wire.control import AgentStream
from paceline.wire.messages.agent import AgentUp


class Tick(msgspec.Struct, frozen=True):
    """The clock has moved on."""


class StreamEnded(msgspec.Struct, frozen=True):
    """An agent's connection is over."""


class Asked(msgspec.Struct, frozen=True):
    """A person's call; the answer goes into the future."""

    call: RoomCall
    answer: "asyncio.Future[Reply]"

    def reply(self, reply: Reply) -> None:
        """Answer, if somebody still waits."""
        if not self.answer.done():
            self.answer.set_result(reply)


class StopAsked(msgspec.Struct, frozen=True):
    """A signal of this number asks for the end; the second one, at once."""

    number: int = signal.SIGTERM


class FromAgent(msgspec.Struct, frozen=True):
    """What came on a stream."""

    stream: AgentStream
    message: AgentUp | StreamEnded


class FromPlatform(msgspec.Struct, frozen=True):
    """What the backend says of a node."""

    word: AnyWord


Fact = FromAgent | FromPlatform | Tick | Asked | CutChosen | StopAsked | Answered

"""Fail-slow in an agent: reads the collective calls that a script's process has noted."""

from pathlib import Path

import msgspec

from paceline.agent.feature_port import AgentHere, AgentPart
from paceline.features.failslow.call_ring import NUM_SLOTS, CallRingReader, ring_of
from paceline.features.failslow.wire import CallsTold, TellCalls

MOST_CALLS = 4096
"""Most calls that an agent tells at once."""

_decode = msgspec.msgpack.Decoder(TellCalls).decode


class CallReader(AgentPart):
    """Answers the master's questions about calls of one node's process."""

    def __init__(self, here: AgentHere) -> None:
        self._here = here
        self._ring = ring_of(here.job, here.node)

    def told(self, body: msgspec.Raw) -> None:
        self._here.send(read_calls(self._here.node, self._ring, _decode(body)))


def make(here: AgentHere) -> CallReader | None:
    """Return the part of a node whose script trains by itself; None: no calls are noted."""
    return CallReader(here) if not here.spec.traits.trains else None


def read_calls(node: str, ring: Path, question: TellCalls) -> CallsTold:
    """Read the collective calls that the master asks for; none where none were noted.

    Steps of which calls are missing are left out: all of such a step would pass for computing.
    """
    noted, first = CallRingReader(ring).read(question.inc), question.from_step
    is_full = len(noted.calls) + len(noted.steps) >= NUM_SLOTS - 1
    wanted = tuple(call for call in noted.calls if call.step >= first)
    calls = wanted[-MOST_CALLS:]
    if calls and (is_full or len(calls) < len(wanted)):
        first = max(first, calls[0].step + 1)
    told = msgspec.structs.replace(
        noted,
        calls=tuple(call for call in calls if call.step >= first),
        steps=tuple(step for step in noted.steps if step.step >= first)[-MOST_CALLS:],
    )
    return CallsTold(node=node, inc=question.inc, asked=question.asked, noted=told)

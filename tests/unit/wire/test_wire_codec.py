"""Whatever a peer sends: a decoder gives a message or says Garbage, and nothing else."""

import random
from collections.abc import Callable
from typing import Any

import pytest

from paceline.wire import control, data_packing, node_link
from paceline.wire.codec import MAX_REASON, Garbage, decoder, encode
from paceline.wire.messages.agent import Heartbeat, Leave, NodeFacts
from paceline.wire.messages.data import Data, Pull
from paceline.wire.messages.node import ProcessUp, Stop
from paceline.wire.shm import FramePlace

DECODERS: list[Callable[[Any], Any]] = [
    control._decode_up,
    control._decode_down,
    control._decode_call,
    control._decode_reply,
    node_link._decode_up,
    node_link._decode_down,
    data_packing._decode,
]
GOOD = [
    encode(message)
    for message in (
        data_packing.Envelope(
            Pull(epoch_no=1, inc=1, ticket=1, tables=(1, 2)),
            "own.arena",
            (FramePlace(1, 2, 3, 4), None),
        ),
        [Heartbeat(node="worker-0", facts=NodeFacts(inc=1))],
        ProcessUp(node="worker-0", inc=1, pid=1, role="worker"),
        Stop(inc=1),
        [Leave()],
    )
]


def survives(decode: Callable[[Any], Any], data: bytes) -> bool:
    try:
        decode(data)
    except Garbage:
        return False
    return True


def test_damaged_messages_are_garbage_or_other_messages() -> None:
    rng = random.Random(17)
    accepted = 0
    for _ in range(5_000):
        data = bytearray(rng.choice(GOOD))
        for _ in range(rng.randrange(1, 5)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        cut = rng.randrange(len(data)) if rng.random() < 0.2 else len(data)
        accepted += sum(survives(decode, bytes(data[:cut])) for decode in DECODERS)
    assert 0 < accepted < 5_000 * len(DECODERS)


def test_random_bytes_are_garbage() -> None:
    rng = random.Random(23)
    for _ in range(2_000):
        data = rng.randbytes(rng.randrange(2, 40))
        assert not any(survives(decode, data) for decode in DECODERS)


@pytest.mark.parametrize("depth", [10, 1_000, 100_000])
def test_deep_nesting_does_not_get_through(depth: int) -> None:
    nested = b"\x82\xa4type\xa4Pull\xa1x" + b"\x91" * depth + b"\x01"
    for decode in DECODERS:
        assert not survives(decode, nested)
        assert not survives(decode, b"\x91" + nested)


def test_what_a_peer_sent_is_quoted_in_short() -> None:
    with pytest.raises(Garbage) as caught:
        decoder(Data)(encode({"type": "x" * 10_000}))
    assert len(str(caught.value)) <= MAX_REASON

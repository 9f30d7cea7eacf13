"""Members that hold shards and leave their loop alone."""

import pytest

from paceline.protocol.nodes.hangs import ALONE_S, find_left_alone
from paceline.protocol.reasons import left_alone
from paceline.runtime.holding.shards.client import TOGETHER_S
from paceline.wire.messages.agent import NodeFacts

WAITS, BUSY, OUT = (
    NodeFacts(inc=1, waiting_s=4.0),
    NodeFacts(inc=2, computing_s=0.5),
    NodeFacts(inc=3),
)


@pytest.mark.parametrize(
    ("members", "leavers", "found"),
    [
        ({"a": OUT, "b": WAITS}, ["a"], ["b"]),
        ({"a": OUT, "b": WAITS, "c": WAITS}, ["a"], ["b", "c"]),
        # It may leave after the same step.
        ({"a": OUT, "b": BUSY}, ["a"], []),
        ({"a": OUT, "b": OUT}, ["a"], []),
        ({"a": OUT, "b": WAITS, "c": BUSY}, ["a"], []),
        ({"a": OUT, "b": WAITS}, [], []),
    ],
)
def test_those_that_wait_for_a_step_without_the_leavers_are_left_alone(
    members: dict[str, NodeFacts], leavers: list[str], found: list[str]
) -> None:
    assert find_left_alone(members, leavers, 3.0) == found
    assert not find_left_alone(members, leavers, 5.0)


def test_a_long_bound_does_not_outlast_the_leaver() -> None:
    waits = NodeFacts(inc=2, waiting_s=ALONE_S + 1)
    assert find_left_alone({"a": OUT, "b": waits}, ["a"], 400.0) == ["b"]
    assert ALONE_S <= TOGETHER_S / 2


def test_the_end_names_who_has_left_and_the_remedy() -> None:
    told = left_alone(["worker-0"], ["worker-1", "worker-2"])
    assert told.startswith(
        "worker-0 left the loop over job.batches before its end, while worker-1 "
    )
    assert "decide by job.step" in told

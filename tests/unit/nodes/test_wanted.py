"""The number of workers that are wanted is kept, and is at any time what counting them gives."""

import random

import pytest

from paceline.protocol.nodes.lives import Fate
from paceline.protocol.nodes.node import (
    JobEnded,
    MemberRecords,
    NodeDropped,
    NodeFinished,
    NodeJoined,
    NodeRecalled,
    NodeRefused,
    NodeStarted,
    WorkersWanted,
)
from paceline.protocol.nodes.roster import Roster


def records(draw: random.Random, roster: Roster) -> MemberRecords:
    """Draw a record that can follow what the roster has."""
    workers = [node.name for node in roster.of_role("worker")]
    if not workers:
        return WorkersWanted(count=3)
    name = draw.choice(workers)
    return draw.choice(
        [
            NodeStarted(node=name, inc=roster.next_inc),
            NodeStarted(node=f"worker-{draw.randrange(9)}", inc=roster.next_inc),
            NodeFinished(node=name),
            NodeRefused(node=name, reason="another model"),
            NodeRecalled(node=name),
            WorkersWanted(count=draw.randrange(1, 8)),
            NodeJoined(node=f"worker-{draw.randrange(9)}"),
            NodeDropped(node=name),
            JobEnded(),
        ]
    )


@pytest.mark.parametrize("seed", range(20))
def test_the_kept_number_is_the_counted_one(seed: int) -> None:
    draw, roster = random.Random(seed), Roster(4, 1, None)
    seen = set()
    for _ in range(300):
        roster.apply(records(draw, roster))
        if draw.random() < 0.1 and (names := [node.name for node in roster.of_role("worker")]):
            roster.fail(draw.choice(names))
        counted = sum(
            node.fate in (Fate.STAYS, Fate.BACKS_OFF) for node in roster.of_role("worker")
        )
        assert roster.num_wanted() == counted
        seen.add(counted)
    assert len(seen) > 3

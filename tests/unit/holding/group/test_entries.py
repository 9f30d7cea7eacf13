"""Where a member without a batch comes in, as far as the master's word goes."""

from typing import Any, cast

import pytest
from msgspec.structs import replace

from paceline.base.numbering import Inc
from paceline.runtime.group.entries import EntriesOfMember
from paceline.runtime.variables.variables import Variables
from paceline.wire.messages.feeds import Feed
from paceline.wire.messages.node import PlaceIs

LOOP = Feed(
    feed=3,
    purpose="train",
    num_samples=8,
    epochs=1,
    batch_size=4,
    shard_size=8,
    shuffle=False,
    seed=0,
    place=(0, -1, 3),
    site="here",
)


class Told:
    """A member whose master answers so, one after the other."""

    def __init__(self, *answers: PlaceIs, together: bool = False) -> None:
        self.answers, self.together = list(answers), together
        self.variables = Variables(found=True)

    def begun(self, *, stands_by: bool = False) -> PlaceIs:
        return self.answers.pop(0)

    def pause(self, _: float) -> None:
        assert self.answers, "it waits for ever"


def next_after(*answers: PlaceIs) -> Any:
    entries = EntriesOfMember(cast(Any, Told(*answers)), lambda: 0)
    return entries.next_after((0, -1, 2))


def answer(**fields: Any) -> PlaceIs:
    return PlaceIs(inc=Inc(1), others=True, **fields)


def test_it_waits_for_the_next_loop_of_others() -> None:
    before = replace(LOOP, feed=2, place=(0, -1, 2))
    found = next_after(answer(newest=before), answer(newest=LOOP))
    assert (found.place, found.site) == (LOOP.place, "here")


@pytest.mark.parametrize(
    "told",
    [
        PlaceIs(inc=Inc(1), newest=LOOP),
        answer(newest=replace(LOOP, place=(0, -1, 0), training=1)),
    ],
    ids=["nobody else is there", "they are in the training that its script is to prepare"],
)
def test_it_goes_on_where_no_loop_of_others_comes(told: PlaceIs) -> None:
    assert next_after(told) is None


def test_members_that_begin_together_wait_for_no_other_and_come_to_the_loop_of_their_cut() -> None:
    # A faster one is in the next loop already, or has left the one that the cut is of.
    member = Told(answer(newest=LOOP), together=True)
    entries = EntriesOfMember(cast(Any, member), lambda: 0)
    member.variables.become({"place": (0, -1, 2), "opened": "there", "turn": 1})
    found = entries.newest()
    assert found is not None
    assert (found.place, found.site, found.turn) == ((0, -1, 2), "there", 1)
    assert entries.next_after((0, -1, 2)) is None


def test_a_member_that_copies_comes_to_the_loop_of_the_others() -> None:
    member = Told(answer(newest=LOOP))
    member.variables.become({"place": (0, -1, 2), "opened": "there", "turn": 1})
    found = EntriesOfMember(cast(Any, member), lambda: 0).newest()
    assert found is not None
    assert found.place == LOOP.place

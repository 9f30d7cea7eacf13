"""Where a member without a batch comes in, as far as the master's word goes."""

from typing import Any, cast

import pytest
from msgspec.structs import replace

from paceline.base.numbering import Inc
from paceline.runtime.group.entries import EntriesOfMember
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

    def __init__(self, *answers: PlaceIs) -> None:
        self.answers = list(answers)

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

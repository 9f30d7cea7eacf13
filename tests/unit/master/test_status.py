"""How many samples a job will have trained, as far as its script has shown."""

from types import SimpleNamespace
from typing import Any

import pytest

from paceline.master.status import known_total
from paceline.wire.messages.feeds import Feed, ScriptPlace


def state(*places: ScriptPlace, samples: int | None = 100, of_epochs: int = 0) -> Any:
    """A job whose script has opened loops over batches at these places, and an evaluation."""
    given: Any = {"num_samples": samples, "epochs": 1, "batch_size": 8, "shard_size": 8}
    given |= {"shuffle": True, "seed": 0}
    feeds = [
        Feed(feed=number, purpose="train", place=place, of_epochs=of_epochs, **given)
        for number, place in enumerate(places)
    ]
    feeds.append(Feed(feed=9, purpose="evaluate", place=(0, -1, 9), **given))
    ledger = SimpleNamespace(
        feeds={feed.feed: feed for feed in feeds},
        total=lambda feed: None if feed == 9 else samples,
    )
    return SimpleNamespace(ledger=ledger)


@pytest.mark.parametrize(
    ("places", "so_far", "in_the_end"),
    [
        (((0, -1, 0),), 100, 100),
        (((),), 100, 100),  # of a version that notes no places
        (((0, 0, 0),), None, 100),  # epochs may follow
        (((0, -1, 0), (0, -1, 1)), None, 200),  # so may passes over a loader
        ((), None, None),
    ],
)
def test_the_total_is_known_once_no_loop_can_follow(
    places: tuple[ScriptPlace, ...], so_far: int | None, in_the_end: int | None
) -> None:
    assert known_total(state(*places), finished=False) == so_far
    assert known_total(state(*places), finished=True) == in_the_end


@pytest.mark.parametrize(
    ("places", "total"),
    [
        (((0, 0, 0),), 500),
        (((0, 0, 0), (0, 1, 0)), 500),
        (((0, 0, 0), (0, 0, 1)), 1000),  # two loops in each epoch
        (((0, 0, 0), (0, 0, 1), (0, 1, 0)), 1000),  # the second one of epoch 1 is to come
        (((0, 4, 0),), 100),
        (((0, 5, 0),), None),  # more epochs than there are
        (((0, 0, 0), (1, 0, 0)), None),  # a second loop over epochs: there may be a third
        (((0, -1, 0), (0, 0, 0)), None),
    ],
)
def test_epochs_are_expected_to_be_like_the_one_before(
    places: tuple[ScriptPlace, ...], total: int | None
) -> None:
    assert known_total(state(*places, of_epochs=5), finished=False) == total
    assert known_total(state(*places, of_epochs=5), finished=True) == 100 * len(places)
    assert known_total(state(*places, samples=None, of_epochs=5), finished=False) is None


def test_a_stream_has_no_total() -> None:
    assert known_total(state((0, -1, 0), samples=None), finished=False) is None

"""Batches are asked for in the order in which they are likely needed, and made once."""

from collections.abc import Sequence
from typing import Any

from paceline.base.samples import Span
from paceline.runtime.data.reader import Reader
from paceline.runtime.data.work import Work
from paceline.wire.messages.feeds import Feed, SourceLine

FEED = Feed(
    feed=0,
    purpose="train",
    num_samples=100,
    epochs=1,
    batch_size=10,
    shard_size=10,
    shuffle=False,
    seed=0,
)


class Submitted:
    """A loader that makes nothing."""

    order = None

    def __init__(self) -> None:
        self.asked: list[Work] = []
        self.num_submitted = 0

    def submit(self, work: Work, ranges: Sequence[Any]) -> None:
        assert ranges
        self.asked.append(work)
        self.num_submitted += 1

    def clear(self, keep: int = 0) -> None:
        del self.asked[keep:]


def test_a_change_of_what_comes_later_leaves_what_comes_before_it() -> None:
    loader = Submitted()
    reader = Reader(loader, FEED, lambda line: SourceLine(line, "", 100))  # type: ignore[arg-type]
    a, b, old, new, last = (Work(0, (Span(0, k, k + 1),), 1, k + 1) for k in range(5))

    reader.ask([a, b, old])
    reader.ask([a, b, new, last])

    assert loader.asked == [a, b, new, last]
    assert loader.num_submitted == 5
    reader.ask([a, b])
    assert loader.asked == [a, b, new, last], "fewer are no change"


def test_batches_are_added_behind_all_that_were_asked_for() -> None:
    loader = Submitted()
    reader = Reader(loader, FEED, lambda line: SourceLine(line, "", 100))  # type: ignore[arg-type]
    works = [Work(0, (Span(0, k, k + 1),), 1, k + 1) for k in range(4)]
    reader.add(works[:1])
    reader.add(works[1:3])
    assert loader.asked == works[:3]
    reader.ask([*works[:2], works[3]])
    assert loader.asked == [*works[:2], works[3]]

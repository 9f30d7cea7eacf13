"""What a worker is granted of each step where steps are computed in blocks."""

from itertools import pairwise

import pytest

from paceline.base.numbering import Inc
from paceline.base.samples import Span
from paceline.protocol.records import Place, Plan
from paceline.protocol.samples.grant_size import Sizing
from paceline.protocol.samples.grants import Deal, Dealt
from paceline.protocol.samples.ledger import Ledger
from paceline.protocol.samples.plans import Plans
from paceline.wire.messages.feeds import Feed
from paceline.wire.messages.node import LeaseRequest

NUM_SAMPLES, BATCH_SIZE = 45, 20
ONE, TWO = Inc(1), Inc(2)


@pytest.mark.parametrize("num_workers", [1, 2, 3, 5, 7])
@pytest.mark.parametrize("blocks", [7, 8])
def test_no_block_is_divided(num_workers: int, blocks: int) -> None:
    feed = Feed(
        feed=0,
        purpose="train",
        num_samples=NUM_SAMPLES,
        epochs=1,
        batch_size=BATCH_SIZE,
        shard_size=NUM_SAMPLES,
        shuffle=False,
        seed=0,
        blocks=blocks,
    )
    ledger = Ledger()
    ledger.open(feed)
    plans = Plans(ledger, synchronous=True, whole=True)
    workers = {inc: f"worker-{inc}" for inc in range(num_workers)}
    granted: list[Span] = []
    for inc in workers:
        asked = LeaseRequest(epoch_no=1, inc=inc, n=1, feed=0, map_version=0)
        mine = Deal(ledger, plans, asked, workers=workers, step=0).pick(Sizing(steps=3))
        granted += mine
    granted.sort()
    assert all(one.stop == after.start for one, after in pairwise(granted))
    assert (granted[0].start, granted[-1].stop) == (0, NUM_SAMPLES)
    edges = {0, *(feed.block_end(position) for position in range(NUM_SAMPLES))}
    assert edges.issuperset(span.start for span in granted)


class Table:
    """Two workers that are dealt the slices of one feed: what each grant looks at is counted."""

    def __init__(self) -> None:
        self.feed = Feed(
            feed=0,
            purpose="train",
            num_samples=400,
            epochs=1,
            batch_size=4,
            shard_size=400,
            shuffle=False,
            seed=0,
        )
        self.ledger = Ledger()
        self.ledger.open(self.feed)
        self.plans = Plans(self.ledger, synchronous=True, whole=True)
        self.workers = {ONE: "worker-0", TWO: "worker-1"}
        self.dealt: dict[Inc, Dealt] = {}
        self.num_looks = 0

    def grant(self, inc: Inc, step: int, steps: int = 10) -> list[Span]:
        """What this worker gets while ``step`` is the undecided one."""
        whole = (self.feed.slice_no(step),)
        asked = LeaseRequest(
            epoch_no=1, inc=inc, n=1, feed=0, step=step, slice=whole, starving=True, map_version=0
        )
        named = {"workers": self.workers, "step": 0, "dealt": self.dealt}
        deal = Deal(self.ledger, self.plans, asked, **named)  # type: ignore[arg-type]
        look = self.plans.at

        def counted(place: Place) -> Plan:
            self.num_looks += 1
            return look(place)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(self.plans, "at", counted)
            spans = deal.pick(Sizing(steps=steps))
        self.ledger.grant(inc, spans)
        return spans

    def looks(self, inc: Inc, step: int) -> tuple[int, list[Span]]:
        """How many slices a grant looks at, and what it is."""
        self.num_looks = 0
        spans = self.grant(inc, step)
        return self.num_looks, spans


def halves(first: int, last: int, index: int) -> list[Span]:
    """A worker's parts of these slices."""
    return [Span(0, 4 * k - 4 + 2 * index, 4 * k - 2 + 2 * index) for k in range(first, last + 1)]


def test_a_grant_looks_at_new_slices_and_at_the_undecided_one() -> None:
    table = Table()
    assert table.grant(ONE, 1) == halves(1, 10, 0)
    assert table.grant(TWO, 2) == halves(2, 11, 1)
    # Of the undecided step what the other one was not dealt, and of two new slices its own.
    looks, spans = table.looks(ONE, 3)
    assert spans == halves(11, 12, 0)
    assert looks == 4, "one for what is urgent, one for the undecided slice, and the two"


@pytest.mark.parametrize("what", ["given back", "lost", "gone back"])
def test_what_came_back_is_found_again(what: str) -> None:
    table = Table()
    table.grant(ONE, 1)
    mine = table.grant(TWO, 1)
    if what == "given back":
        table.ledger.give_back(TWO, mine[3:5])
    elif what == "lost":
        table.ledger.lose(TWO)
    else:
        table.ledger.restore([])
    expected = halves(4, 5, 1) if what == "given back" else halves(1, 10, 1)
    assert table.grant(TWO, 1) == expected


def test_parts_that_change_are_dealt_anew() -> None:
    table = Table()
    table.grant(ONE, 1)
    del table.workers[TWO]
    assert table.grant(ONE, 2) == [*halves(2, 10, 1), Span(0, 40, 44)]

"""What a worker is granted of each step where steps are computed in blocks."""

from itertools import pairwise

import pytest

from paceline.base.samples import Span
from paceline.protocol.samples.grant_size import Sizing
from paceline.protocol.samples.grants import Deal
from paceline.protocol.samples.ledger import Ledger
from paceline.protocol.samples.plans import Plans
from paceline.wire.messages.feeds import Feed
from paceline.wire.messages.node import LeaseRequest

NUM_SAMPLES, BATCH_SIZE = 45, 20


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

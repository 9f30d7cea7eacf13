"""What a worker of servers takes from its leases."""

import pytest

from paceline.base.samples import Span
from paceline.protocol.samples.step_leases import StepLeases
from paceline.runtime.holding.servers.works import Works
from paceline.wire.messages.feeds import Feed
from paceline.wire.messages.node import FeedOpened, Grant
from paceline.wire.spec import JobSpec

INC = 5


@pytest.fixture
def leases() -> StepLeases:
    leases = StepLeases(INC, synchronous=False)
    feed = Feed(
        feed=0,
        purpose="train",
        num_samples=400,
        epochs=1,
        batch_size=40,
        shard_size=40,
        shuffle=False,
        seed=0,
    )
    leases.feed_opened(FeedOpened(inc=INC, feed=feed))
    return leases


def lease(leases: StepLeases, span: Span, batch_size: int) -> None:
    leases.want(0)
    n = leases.last_n + 1
    assert leases.grant(
        Grant(epoch_no=leases.epoch_no, inc=INC, n=n, feed=0, spans=(span,), batch_size=batch_size)
    )


def taken(works: Works) -> list[int]:
    found = []
    while (work := works.take(0)) is not None:
        found.append(work.num_samples)
    return found


def test_a_batch_is_the_part_of_as_many_workers_as_the_newest_grant_knows(
    leases: StepLeases,
) -> None:
    leases.begin(1)
    works = Works(JobSpec(script="/train.py", mode="asp"), 4, leases)
    lease(leases, Span(0, 0, 40), 0)
    assert taken(works) == [10] * 4, "as many as there were when it was started"
    lease(leases, Span(0, 40, 120), 20)
    assert taken(works) == [20] * 4
    lease(leases, Span(0, 120, 200), 40)
    assert [work.num_samples for work in works.upcoming(0, 2)] == [40, 40]
    leases.begin(2)
    lease(leases, Span(0, 0, 40), 0)
    assert taken(works) == [40], "an epoch that begins again has as many workers"

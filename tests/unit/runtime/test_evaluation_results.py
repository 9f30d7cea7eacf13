"""What a worker that came when all was evaluated makes of the master's word."""

from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

from paceline.base.numbering import NO_EPOCH, EpochNo, Inc
from paceline.base.samples import Span
from paceline.runtime.evaluation_results import EvaluationResults
from paceline.wire.messages.feeds import Feed
from paceline.wire.messages.node import Evaluated

SIZES: dict[str, Any] = {"num_samples": 9, "batch_size": 3, "shard_size": 9, "epochs": 1}
FEED = Feed(feed=0, purpose="evaluate", shuffle=False, seed=0, **SIZES)


def test_results_that_an_epoch_has_made_void_are_waited_for_no_longer() -> None:
    leases: Any = SimpleNamespace(epoch_no=NO_EPOCH, inc=1, feeds={0: FEED})
    asked = 0

    def until(done: Callable[[], bool], ask: Callable[[], Iterable[Any]] = lambda: ()) -> None:
        nonlocal asked
        while not done():
            asked += len([*ask()])
            assert asked < 3
            here = Span(FEED.line(), 0, 0)
            answer = Evaluated(inc=Inc(1), feed=0, span=here, stored=False, epoch_no=EpochNo(2))
            results.answered(answer)

    process: Any = SimpleNamespace()
    results = EvaluationResults(leases, until, process)
    assert results.get(0) is None
    assert asked == 1

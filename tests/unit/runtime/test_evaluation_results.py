"""What a worker that came when all was evaluated makes of the master's word."""

from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import torch

from paceline.base.numbering import NO_EPOCH, EpochNo, Inc
from paceline.base.samples import Span
from paceline.runtime.script.evaluation import untouched
from paceline.runtime.script.evaluation_results import EvaluationResults
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


def test_a_module_in_training_mode_gets_its_buffers_back() -> None:
    norm, quiet = torch.nn.BatchNorm1d(2), torch.nn.BatchNorm1d(2).eval()
    holder = torch.nn.Module()
    holder.register_buffer("seen", torch.zeros(1))
    before, own = norm.running_mean, holder.seen
    with untouched([norm, quiet, holder, "no module"]):
        norm(torch.randn(8, 2) + 5.0)
        quiet(torch.randn(8, 2))
        holder.seen = torch.ones(3)
        assert norm.num_batches_tracked == 1
    assert norm.num_batches_tracked == 0
    assert norm.running_mean is before
    assert norm.running_mean.tolist() == [0.0, 0.0]
    assert holder.seen is own
    assert own.tolist() == [0.0]

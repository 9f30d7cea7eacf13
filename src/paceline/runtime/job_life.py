"""The part of `Job` that is of one life: its random numbers, and the check of its node."""

from collections.abc import Sequence
from functools import partial

import torch
from torch import nn

from paceline.base.errors import ConfigError
from paceline.runtime.data.work import Work
from paceline.runtime.preflight import check_node
from paceline.runtime.seeding import seed_all, seed_of
from paceline.runtime.strategy import Strategy
from paceline.wire.messages.feeds import Feed

CPU = torch.device("cpu")


class JobLife:
    """One life of a worker."""

    def __init__(self, strategy: Strategy) -> None:
        self._strategy = strategy
        self._modules: Sequence[nn.Module] = ()
        self._has_begun = False
        """Whether a batch was trained on in this life."""
        self._first_feed: int | None = None
        """That was opened to train on."""

    def _check_prepared(self, caller: str) -> None:
        if not self._modules:
            raise ConfigError(
                f"{caller} was called before job.prepare; call "
                "model, optimizer = job.prepare(model, optimizer) first"
            )

    def _process_seed(self, feed: Feed) -> int:
        from paceline.runtime.process import current

        process = current()
        life = process.inc if process is not None else 0
        return seed_of(feed.seed, self._strategy.rank, life)

    def _passed_over(self, seconds: float) -> None:
        """Others' records were read for so long: a worker that comes late does not hang."""
        from paceline.runtime.process import current

        process = current()
        if process is not None:
            process.ledger.delay(seconds)

    def _begin_stream(self, feed: Feed, work: Work) -> None:
        """Have what the script draws from here on (dropout, say) be this life's own.

        Until its first batch a life draws what all others have drawn, so that they build the same
        model and divide their data alike. From then on they differ by who draws and by where the
        life begins, and what a former life has drawn does not come again. The first life of the
        first worker goes on as it began, as a script without a job would.
        """
        rank, spec, first = self._strategy.rank, self._strategy.spec, work.spans[0]
        is_first = rank == 0 and feed.feed == self._first_feed
        is_first = is_first and (first.line, first.start) == (feed.line(), 0)
        if not (self._has_begun or is_first or spec.deterministic):
            seed_all(seed_of(spec.seed, rank, feed.feed, first.line, first.start))
        self._has_begun = True

    def _check_node(self) -> None:
        """Measure the node, if this is the first life there that trains."""
        from paceline.runtime.process import current

        process = current()
        if process is not None and process.check:
            process.check = False
            device = next((one.device for one in self._modules[0].parameters()), CPU)
            self._strategy.check(partial(check_node, process.inc, device))

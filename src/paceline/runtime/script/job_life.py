"""The part of `Job` that is of one life: its random numbers, and the check of its node."""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import nn

from paceline.base.errors import ConfigError
from paceline.runtime.data.work import Work
from paceline.runtime.process.preflight import check_node
from paceline.runtime.process.seeding import all_kept, draws, seed_all, seed_of
from paceline.runtime.script.strategy import Strategy
from paceline.wire.messages.feeds import Feed

CPU = torch.device("cpu")


class JobLife:
    """One life of a worker."""

    def __init__(self, strategy: Strategy) -> None:
        self._strategy = strategy
        self._modules: Sequence[nn.Module] = ()
        self._has_begun = self._is_over = False
        """Whether a batch was trained on in this life; whether `paceline.init` was called again."""
        self._draws_alone = False
        """Whether the script draws what it would draw without a job."""
        self._give_back: Callable[[], None] | None = None
        """Puts back what all workers draw between loops."""
        self._first_feed: int | None = None
        """That was opened to train on."""

    def _check_goes_on(self, caller: str) -> None:
        if self._is_over:
            raise ConfigError(
                f"{caller} was called of a job that is over: pl.init() was called again, and "
                "returned the one that goes on"
            )

    def _check_prepared(self, caller: str) -> None:
        self._check_goes_on(caller)
        if not self._modules:
            raise ConfigError(
                f"{caller} was called before job.prepare; call "
                "model, optimizer = job.prepare(model, optimizer) first"
            )

    def _process_seed(self, feed: Feed) -> int:
        from paceline.runtime.process.process import current

        process = current()
        life = process.inc if process is not None else 0
        return seed_of(feed.seed, self._strategy.rank, life)

    def _passed_over(self, seconds: float) -> None:
        """Others' records were read for so long: a worker that comes late does not hang."""
        from paceline.runtime.process.process import current

        process = current()
        if process is not None:
            process.ledger.delay(seconds)

    def _begin_stream(self, feed: Feed, work: Work) -> None:
        """Have what the script draws in a loop (dropout, say) be this life's own.

        Elsewhere a life draws what all others draw, so that they build the same models and divide
        their data alike. In a loop they differ by who draws and by where the life begins, and what
        a former life has drawn does not come again. In its first loop the first life of the first
        worker goes on as it began, as a script without a job would; where it is the only worker, it
        does so for good.
        """
        strategy, spec, first = self._strategy, self._strategy.spec, work.spans[0]
        begins = not self._has_begun and not spec.deterministic
        begins = begins and strategy.rank == 0 and feed.feed == self._first_feed
        begins = begins and (first.line, first.start) == (feed.line(), 0)
        if not self._has_begun:
            self._draws_alone = begins and (strategy.is_alone or spec.workers.count == 1)
        self._has_begun = True
        self._strategy.variables.draws_alone = self._draws_alone
        if self._draws_alone:
            return
        self._give_back = all_kept()
        if self._strategy.variables.found:
            self._strategy.variables.draws = draws()
        if not (begins or spec.deterministic):
            seed_all(seed_of(spec.seed, strategy.rank, feed.feed, first.line, first.start))

    def _leave_stream(self) -> None:
        """A loop is over: draw what all workers draw, also those that pass over the loop."""
        if self._give_back is not None:
            self._give_back()
            self._give_back = None

    def _check_node(self) -> None:
        """Measure the node, if this is the first life there that trains."""
        from paceline.runtime.process.process import current

        process = current()
        if process is not None and process.check:
            process.check = False
            device = next((one.device for one in self._modules[0].parameters()), CPU)
            self._strategy.check(partial(check_node, process.inc, device))

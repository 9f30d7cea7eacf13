"""Random numbers of a script: its worker's own within a loop, the same in all workers between.

The generators are those of ``random``, numpy and torch.
"""

from collections.abc import Callable

from paceline.runtime.data.work import Work
from paceline.runtime.process.seeding import all_kept, draws, seed_all, seed_of
from paceline.runtime.script.strategy import Strategy
from paceline.wire.messages.feeds import Feed


class Draws:
    """Generators of ``random``, numpy and torch in one life of a worker."""

    def __init__(self) -> None:
        self.has_begun = False
        """Whether a batch was trained on in this life."""
        self.first_feed: int | None = None
        """Number of the first feed that this life opened to train on."""
        self._draws_alone = False
        """Whether the script draws what it would draw without a job."""
        self._give_back: Callable[[], None] | None = None
        """Puts back what all workers draw between loops."""

    def begin(self, strategy: Strategy, feed: Feed, work: Work) -> None:
        """Have what the script draws in a loop (dropout, say) be this life's own.

        Elsewhere a life draws what all others draw, so that they build the same models and divide
        their data alike. In a loop they differ by who draws and by where the life begins, and what
        a former life has drawn does not come again. In its first loop the first life of the first
        worker goes on as it began, as a script without a job would; where it is the only worker, it
        does so for good.
        """
        spec, first = strategy.spec, work.spans[0]
        begins = not self.has_begun and not spec.deterministic
        begins = begins and strategy.rank == 0 and feed.feed == self.first_feed
        begins = begins and (first.line, first.start) == (feed.line(), 0)
        if not self.has_begun:
            self._draws_alone = begins and (strategy.is_alone or spec.workers.count == 1)
        self.has_begun = True
        strategy.variables.draws_alone = self._draws_alone
        if self._draws_alone:
            return
        self._give_back = all_kept()
        if strategy.variables.found:
            strategy.variables.draws = draws()
        if not (begins or spec.deterministic):
            seed_all(seed_of(spec.seed, strategy.rank, feed.feed, first.line, first.start))

    def leave(self) -> None:
        """A loop is over: draw what all workers draw, also those that pass over the loop."""
        if self._give_back is not None:
            self._give_back()
            self._give_back = None

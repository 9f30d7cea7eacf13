"""Number of samples in the model, as one worker of parameter servers reckons."""

from paceline.runtime.data.work import Work
from paceline.wire.messages.feeds import Feed


class Reckoning:
    """The samples of each feed to train on, as of the worker's last word of it."""

    def __init__(self) -> None:
        self._held: dict[int, int] = {}
        self._whole = 0
        self._brings = 0
        self._feed = -1

    def begin(self, work: Work, counted: int | None, whole: int) -> None:
        """Take in what a batch is computed on.

        Args:
            work: the batch.
            counted: samples of its feed that come before it; None: what was here so far.
            whole: samples of its step (synchronous).
        """
        self._feed = work.feed
        self._held[work.feed] = self._held.get(work.feed, 0) if counted is None else counted
        self._whole = whole or work.num_samples
        self._brings = 0 if work.step and not work.ends_step else self._whole

    def took(self) -> None:
        """Add what the batch in hand brings: its gradients are on their way."""
        self._held[self._feed] += self._brings
        self._whole -= self._brings
        self._brings = 0

    def complete(self, feed: Feed) -> None:
        """Note that all samples of a feed are in the model, by whichever workers."""
        if feed.num_samples is not None:
            self._held[feed.feed] = feed.num_samples * feed.epochs

    @property
    def now(self) -> int | None:
        """Samples in the model; None: nothing is known so far."""
        return sum(self._held.values()) if self._held else None

    @property
    def with_step(self) -> int:
        """Samples in the model, with those of the step in hand."""
        return sum(self._held.values()) + self._whole

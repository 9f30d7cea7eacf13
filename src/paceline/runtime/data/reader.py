"""Batches of works, made ahead of the training loop."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import takewhile
from typing import Any

from paceline.base.samples import Span
from paceline.runtime.data.batch import CollateFn
from paceline.runtime.data.drawing import never_draws
from paceline.runtime.data.inline import InlineLoader, takes_rows_at_once
from paceline.runtime.data.iterated import Iterated, IteratedOrder
from paceline.runtime.data.loader import Loader, check_source
from paceline.runtime.data.order import EpochOrder
from paceline.runtime.data.stream import StreamSource
from paceline.runtime.data.work import Work
from paceline.wire.messages.feeds import Feed, SourceLine

BatchLoader = Loader | InlineLoader


def order_of(
    feed: Feed, num_samples: int | None, kind: type[EpochOrder] = EpochOrder
) -> EpochOrder:
    """The order of a feed's records, whose number may be known only later than the feed."""
    return kind(
        num_samples,
        shard_size=feed.shard_size,
        seed=feed.seed,
        shuffle=feed.shuffle,
        window_shards=feed.window_shards or None,
    )


def loader_of(
    dataset: Any,
    feed: Feed,
    *,
    num_workers: int,
    collate_fn: CollateFn | None,
    pin_memory: bool = False,
    prefetch: int = 2,
    process_seed: int = 0,
) -> BatchLoader:
    """Make the loader that reads a feed: in processes, in a thread, or in the training thread.

    Raises:
        ConfigError: see `Loader`.
    """
    kind = IteratedOrder if isinstance(dataset, Iterated) else EpochOrder
    order = None if isinstance(dataset, StreamSource) else order_of(feed, feed.num_samples, kind)
    check_source(dataset, order, num_workers, prefetch)
    at_once = not pin_memory and takes_rows_at_once(dataset, collate_fn, feed.batch_size)
    if num_workers == 0 and (at_once or not never_draws(dataset, collate_fn)):
        return InlineLoader(
            dataset, order, collate_fn=collate_fn, pin_memory=pin_memory, seed=feed.seed
        )
    return Loader(
        dataset,
        order,
        num_workers=num_workers,
        collate_fn=collate_fn,
        pin_memory=pin_memory,
        prefetch=prefetch,
        seed=feed.seed,
        process_seed=process_seed,
    )


class Reader:
    """Asks the loader for the batches of works, in the order in which they are likely needed.

    Args:
        loader: of the feed's dataset.
        feed: as the job reads it.
        source_line: as `Trainer.source_line`.
        on_first: called with the first work whose batch is taken.
    """

    def __init__(
        self,
        loader: BatchLoader,
        feed: Feed,
        source_line: Callable[[int], SourceLine],
        on_first: Callable[[Work], None] | None = None,
    ) -> None:
        self._loader, self._feed, self._source_line = loader, feed, source_line
        self._on_first = on_first
        self._asked: deque[Work] = deque()
        self._made: dict[Work, Any] = {}
        """Batches, and errors of the user's dataset that wait for their batch's turn."""

    @property
    def makes_ahead(self) -> bool:
        """Whether batches are made while the script computes."""
        return self._loader.makes_ahead

    def ask(self, works: Iterable[Work]) -> None:
        """Have the batches of these works made, which come next. Never blocks."""
        coming = [work for work in works if work not in self._made]
        pairs = zip(self._asked, coming, strict=False)
        known = sum(1 for _ in takewhile(lambda pair: pair[0] is pair[1], pairs))
        if known < min(len(self._asked), len(coming)):
            self._loader.clear(keep=known)
            while len(self._asked) > known:
                self._asked.pop()
        self.add(coming[known:])

    def add(self, works: Iterable[Work]) -> None:
        """Have the batches of these works made, too, behind all that were asked for."""
        for work in works:
            self._loader.submit(work, self._ranges(work))
            self._asked.append(work)

    def get(self, work: Work) -> Any:
        """The batch of ``work``; blocks until it is made. Raises what the dataset raised."""
        if self._on_first is not None:
            self._on_first(work)
            self._on_first = None
        if work not in self._made:
            if not self._asked or self._asked[0] is not work:
                self.ask([work])
            self._asked.popleft()
            return self._loader.get()[1]
        made = self._made.pop(work)
        if isinstance(made, Exception):
            raise made
        return made

    def is_made(self, work: Work) -> bool:
        """Tell whether ``get`` would return at once. False for a batch that failed: it is not."""
        if work in self._made:
            return not isinstance(self._made[work], Exception)
        if not self._asked or self._asked[0] is not work:
            return False
        try:
            made = self._loader.get(timeout_s=0)[1]
        except TimeoutError:
            return False
        except Exception as error:  # noqa: BLE001 - the user's; get() raises it in its turn
            made = error
        self._asked.popleft()
        self._made = {work: made}
        return not isinstance(made, Exception)

    def _ranges(self, work: Work) -> list[tuple[Any, int, int]]:
        """The spans of ``work`` as the loader takes them: (epoch or partition, start, stop)."""
        ranges: list[tuple[Any, int, int]] = []
        for span in work.spans:
            line = self._source_line(span.line)
            order = self._loader.order
            if order is not None and order.num_samples is None and line.num_samples is not None:
                self._loader.order = order_of(self._feed, line.num_samples)
            for epoch, start, stop in _by_epoch(span, line.num_samples):
                ranges.append((line.name if order is None else epoch, start, stop))
        return ranges


def _by_epoch(span: Span, num_samples: int | None) -> Iterator[tuple[int, int, int]]:
    """The parts of a span as (epoch, start, stop)."""
    size, start = num_samples or span.stop, span.start
    while start < span.stop:
        epoch, offset = divmod(start, size)
        length = min(span.stop - start, size - offset)
        yield epoch, offset, offset + length
        start += length

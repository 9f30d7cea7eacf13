"""Batches of works, made ahead of the training loop."""

from collections import deque
from collections.abc import Iterable
from typing import Any

from paceline.runtime.data.loader import Loader
from paceline.runtime.ps.port import Work
from paceline.wire.messages import Feed


class Reader:
    """Asks the loader for the batches of works, in the order in which they are likely needed."""

    def __init__(self, loader: Loader, feed: Feed) -> None:
        self._loader, self._feed = loader, feed
        self._asked: deque[Work] = deque()
        self._made: dict[Work, Any] = {}
        """Batches, and errors of the user's dataset that wait for their batch's turn."""

    def ask(self, works: Iterable[Work]) -> None:
        """These come next: have their batches made. Never blocks."""
        coming = [work for work in works if work not in self._made]
        known = min(len(coming), len(self._asked))
        if any(a is not b for a, b in zip(self._asked, coming, strict=False)):
            self._loader.clear()
            self._asked.clear()
            known = 0
        for work in coming[known:]:
            self._loader.submit(work, self._ranges(work))
            self._asked.append(work)

    def get(self, work: Work) -> Any:
        """The batch of ``work``; blocks until it is made. Raises what the dataset raised."""
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
        """Whether ``get`` would return at once. False for a batch that failed: it is not."""
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

    def _ranges(self, work: Work) -> list[tuple[int, int, int]]:
        """The spans of ``work`` as (epoch, start, stop); a span may cross epochs."""
        ranges = []
        size = self._feed.num_samples or 0
        for span in work.spans:
            start = span.start
            while start < span.stop:
                epoch, offset = divmod(start, size)
                length = min(span.stop - start, size - offset)
                ranges.append((epoch, offset, offset + length))
                start += length
        return ranges

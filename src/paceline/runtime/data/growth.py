"""Reach of sources of unknown length by now, found without making the training loop wait.

Both kinds answer ``look`` from memory. A stream is looked at by a thread, since its answers may
take long; the lines of a text file are counted by the file's own thread.
"""

import threading
from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from paceline.runtime.data.stream import StreamSource

LOOK_EVERY_S = 0.25
COUNTED_AT_ONCE_BYTES = 256 << 20
"""Bytes of text that are counted in less than a second: their length is waited for."""
CLOSE_TIMEOUT_S = 5.0


class Growth(Protocol):
    """Reach of a source of unknown length: how far it can be read by now."""

    def look(self) -> tuple[Mapping[str, int], bool]:
        """Partition -> its end as last seen, and whether these are final. Never blocks.

        Raises what the source raised.
        """

    def wait(self) -> None:
        """Block until ``look`` may say something else, or for some tenths of a second."""


@runtime_checkable
class Counting(Protocol):
    """A map-style dataset whose length is counted in the background."""

    def num_known(self) -> tuple[int, bool]:
        """Records that can be read without waiting, and whether these are all. Never blocks."""

    def wait_known(self, count: int) -> tuple[int, bool]:
        """Block until ``count`` records are known, or all."""

    def progress_bytes(self) -> tuple[int, int]:
        """Bytes whose records are counted, bytes in all."""


def is_long(dataset: object) -> bool:
    """Tell whether counting the records takes so long that training should not wait for it.

    A matter of the size alone: neither an index that is already there nor who asks may change the
    order in which the records are read.
    """
    return isinstance(dataset, Counting) and dataset.progress_bytes()[1] > COUNTED_AT_ONCE_BYTES


class StreamGrowth:
    """The ends of a stream's partitions, from a thread that looks every quarter of a second.

    The thread runs from ``__enter__`` to ``__exit__``. Start it after the processes that read the
    source were forked: what it holds at that moment would stay held in them.
    """

    def __init__(self, source: StreamSource) -> None:
        self._source = source
        self._ends: dict[str, int] = {}
        self._finished = False
        self._error: Exception | None = None
        self._stop = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._watch, name="paceline-stream", daemon=True)

    def __enter__(self) -> "StreamGrowth":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop looking. A look that hangs in the source is left behind after 5 s."""
        with self._changed:
            self._stop = True
            self._changed.notify_all()
        self._thread.join(CLOSE_TIMEOUT_S)

    def look(self) -> tuple[Mapping[str, int], bool]:
        with self._changed:
            if self._error is not None:
                raise self._error
            return dict(self._ends), self._finished

    def wait(self) -> None:
        with self._changed:
            if self._error is None and not self._finished:
                self._changed.wait(LOOK_EVERY_S)

    def _watch(self) -> None:
        try:
            while not self._look_once():
                pass
        except Exception as error:  # noqa: BLE001 - the source's; look() raises it in its turn
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _look_once(self) -> bool:
        """Look at all partitions, then wait; True: there is nothing more to look for."""
        # Asked first: what is added after this answer is not final is seen by the next look.
        finished = self._source.finished()
        for name in self._source.partitions():
            end = self._source.end(name)
            with self._changed:
                if end and end > self._ends.get(name, 0):
                    self._ends[name] = end
                    self._changed.notify_all()
                if self._stop:
                    return True
        with self._changed:
            self._finished = finished
            if finished:
                self._changed.notify_all()
            return finished or self._changed.wait_for(lambda: self._stop, LOOK_EVERY_S)


class CountGrowth:
    """A dataset in the course of being counted, as one partition without a name.

    Args:
        dataset: its lines are counted by a thread of its own.
        window_size: shuffled by windows of so many records; of those that are not the last, only
            whole ones can be read.
    """

    def __init__(self, dataset: Counting, window_size: int | None) -> None:
        self._dataset, self._window_size = dataset, window_size or 1
        self._readable = 0

    def __enter__(self) -> "CountGrowth":
        return self

    def __exit__(self, *_: object) -> None:
        """Stop nothing: the counting belongs to the dataset, which may be read again."""

    def look(self) -> tuple[Mapping[str, int], bool]:
        known, is_final = self._dataset.num_known()
        self._readable = known if is_final else known - known % self._window_size
        return {"": self._readable}, is_final

    def wait(self) -> None:
        self._dataset.wait_known(self._readable + self._window_size)

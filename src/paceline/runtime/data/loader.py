"""Batches made ahead of the training loop, from leased ranges of positions.

The owner of the leases says what each batch consists of (``submit``) and takes the batches in
the same order (``get``). A thread reads, or drives torch's DataLoader: loader processes, pinned
memory and the transport of tensors are torch's. The training thread only takes from a queue.
"""

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Sampler, get_worker_info

from paceline.base.errors import ConfigError, InternalError, PermanentError
from paceline.runtime.data.batch import CollateFn, fetch_rows
from paceline.runtime.data.drawing import Begin, Drawing, Places, never_draws
from paceline.runtime.data.order import EpochOrder, IndicesAhead
from paceline.runtime.data.sources.tensor_rows import TensorRows
from paceline.runtime.data.stream import StreamSource, fetch_records

Ranges = Sequence[tuple[Any, int, int]]
"""``(epoch, start, stop)`` of a feed, or ``(partition, start, stop)`` of a stream."""

CLOSE_TIMEOUT_S = 30.0
NOT_ASKED = 0
"""The number of what no request asked for; theirs begin at 1."""


class Loader:
    """Make batches in the background, in the order in which they were asked for.

    Args:
        dataset: map-style (see ``batch``) or a ``StreamSource``.
        order: positions -> record indices; None for a stream.
        num_workers: loader processes; 0 reads in a thread of this process.
        collate_fn: as in torch's DataLoader.
        pin_memory: as in torch's DataLoader.
        prefetch: batches made ahead, by the thread and by each loader process.
        seed: of what is drawn while records are read; see `drawing`. A thread reads only what
            draws nothing: it shares the generators of the process with the script.
        process_seed: of loader processes, which sources make generators of their own from
            (``get_worker_info().seed``); another one in each worker and life.

    Attributes:
        order: may be replaced (a length became known); holds for what is submitted afterwards.

    Raises:
        ConfigError: a number is out of range, or ``dataset`` is neither kind of source.
    """

    makes_ahead = True
    """Whether batches are made while the script computes."""

    def __init__(
        self,
        dataset: Any,
        order: EpochOrder | None,
        *,
        num_workers: int = 0,
        collate_fn: CollateFn | None = None,
        pin_memory: bool = False,
        prefetch: int = 2,
        seed: int = 0,
        process_seed: int = 0,
    ) -> None:
        check_source(dataset, order, num_workers, prefetch)
        self.order = order
        self._num_workers = num_workers
        self._requests = _Requests()
        self._ready: SimpleQueue[_Done] = SimpleQueue()
        # A token for each batch that may be made ahead. A queue, because it is the semaphore
        # that costs the training thread least.
        self._room: SimpleQueue[None] = SimpleQueue()
        for _ in range(prefetch):
            self._room.put(None)
        batches = Batches(dataset, collate_fn, seed)
        self._batches: Iterator[Any]
        if num_workers or pin_memory:
            self._batches = iter(
                DataLoader(
                    batches,
                    batch_size=None,
                    sampler=self._requests,
                    num_workers=num_workers,
                    collate_fn=_as_it_is,
                    pin_memory=pin_memory,
                    prefetch_factor=prefetch if num_workers else None,
                    # Torch seeds its workers from the global generator otherwise, and so would
                    # change the random numbers of the user's script.
                    generator=torch.Generator().manual_seed(process_seed),
                )
            )
        else:
            # What is left of torch's loader then takes longer than many a batch.
            self._batches = map(batches.__getitem__, self._requests)
        self._thread = threading.Thread(target=self._drive, name="paceline-loader", daemon=True)
        self._thread.start()

    def submit(self, tag: Any, ranges: Ranges) -> None:
        """Ask for one batch of the samples at ``ranges``, in that order.

        Never blocks; may be called from any thread.

        Args:
            tag: given back with the batch.
            ranges: at least one sample; they may lie in several epochs or partitions.

        Raises:
            InternalError: the loader is closed.
        """
        self._requests.put(tag, tuple(ranges), self.order)

    def get(self, timeout_s: float | None = None) -> tuple[Any, Any]:
        """The next batch, as ``(tag, batch)``; blocks until it is made. For one thread.

        An exception of the dataset or of ``collate_fn`` is raised here, in its batch's place,
        with the traceback of the thread or process where it happened.

        Raises:
            TimeoutError: no batch within ``timeout_s``.
            InternalError: the loader is closed.
        """
        if not self._thread.is_alive():
            raise InternalError("a batch was asked of a closed loader")
        try:
            while not self._requests.taken(done := self._ready.get(timeout=timeout_s)):
                self._room.put(None)
        except Empty:
            raise TimeoutError(f"no batch was ready within {timeout_s} s") from None
        self._room.put(None)
        if done.error is not None:
            raise done.error
        return done.tag, done.batch

    def clear(self, keep: int = 0) -> None:
        """Forget the batches that were submitted and not yet taken, but for the next ``keep``."""
        self._requests.clear(keep)

    def close(self) -> None:
        """Stop the thread and the loader processes; what is in the making is dropped.

        Raises:
            PermanentError: the dataset did not return from reading a batch in 30 s.
        """
        self._requests.close()
        self._room.put(None)
        if self._thread is threading.current_thread():
            return  # collected as garbage here: it ends on its own
        self._thread.join(CLOSE_TIMEOUT_S)
        if self._thread.is_alive():
            raise PermanentError(
                f"the loader still waits for its dataset after {CLOSE_TIMEOUT_S:.0f} s; "
                "its thread is left behind: look for a read that hangs"
            )
        if self._num_workers:
            # Torch does this when the iterator is collected, but an exception that the user
            # keeps also keeps the iterator, and with it the processes.
            self._batches._shutdown_workers()  # type: ignore[attr-defined]

    def __enter__(self) -> "Loader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _drive(self) -> None:
        self._room.get()
        # Asked again after each idle turn: the request may have been cleared meanwhile.
        while self._requests.wait():
            batch, error = None, None
            try:
                batch = next(self._batches)
            except BaseException as caught:  # noqa: BLE001 - the user's; get() raises it again
                error = caught
            if batch is _Idle:
                continue
            request = self._requests.pop()
            self._ready.put(_Done(request.number, request.tag, batch, error))
            self._room.get()


class Request(NamedTuple):
    """A batch that was asked for."""

    number: int
    tag: Any
    ranges: tuple[tuple[Any, int, int], ...]
    order: EpochOrder | None


class _Done(NamedTuple):
    number: int
    tag: Any
    batch: Any
    error: BaseException | None


class _Idle:
    """Stands for "no request" in torch's pipeline; travels as a class, so identity survives."""


class _Requests(Sampler[Any]):
    """The queue of requests, as the sampler of torch's DataLoader.

    Torch takes a new index *before* it hands out the next batch, so an empty queue must not make
    it wait: it gets ``_Idle``, which comes back at once and is skipped.
    """

    def __init__(self) -> None:
        self._closed = False
        self._last = 0
        #: Numbers of the requests that must be taken, in order.
        self._wanted: deque[int] = deque()
        self._waiting: deque[Request] = deque()
        self._given: deque[Request] = deque()
        self._changed = threading.Condition()

    def put(self, tag: Any, ranges: tuple[tuple[Any, int, int], ...], order: Any) -> None:
        with self._changed:
            if self._closed:
                raise InternalError(f"batch {tag} was submitted to a closed loader")
            self._last += 1
            self._wanted.append(self._last)
            self._waiting.append(Request(self._last, tag, ranges, order))
            self._changed.notify()

    def taken(self, done: _Done) -> bool:
        """Take what was made; False: it was cleared."""
        with self._changed:
            if done.number == NOT_ASKED:
                return True
            if not self._wanted or self._wanted[0] != done.number:
                return False
            self._wanted.popleft()
            return True

    def wait(self) -> bool:
        """Block until a batch is due; False when the loader is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._waiting or self._given)
            return not self._closed

    def pop(self) -> Request:
        """The request that the batch just made (or failed) answers."""
        with self._changed:
            if waiting := self._given or self._waiting:
                return waiting.popleft()
            # A loader process died with nothing to do: the next batch asked for will say so.
            return Request(NOT_ASKED, None, (), None)

    def clear(self, keep: int) -> None:
        with self._changed:
            while len(self._wanted) > keep:
                number = self._wanted.pop()
                if self._waiting and self._waiting[-1].number == number:
                    self._waiting.pop()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()

    def __iter__(self) -> Iterator[Any]:
        while True:
            with self._changed:
                if self._waiting:
                    self._given.append(self._waiting.popleft())
                    request: Any = self._given[-1]
                else:
                    request = _Idle
            yield request


class Batches(Dataset[Any]):
    """Request -> batch, as the dataset of torch's DataLoader; runs in its processes."""

    def __init__(self, dataset: Any, collate_fn: CollateFn | None, seed: int) -> None:
        self._dataset, self._collate_fn, self._seed = dataset, collate_fn, seed
        self._drawing = Drawing()
        self._is_quiet = never_draws(dataset, collate_fn)
        self._ahead = IndicesAhead()

    def __getitem__(self, request: Any) -> Any:
        if request is _Idle:
            return _Idle
        if self._is_quiet or get_worker_info() is None:  # in a thread: see `Loader`
            return self._fetch(request, None)
        return self.drawn(request)

    def drawn(self, request: Any) -> Any:
        """The batch of a request, each record with random numbers of its own; see `Drawing`."""
        places = Places(self._seed, request.ranges)
        return self._drawing.read(partial(self._fetch, request), places.seed_of)

    def _fetch(self, request: Any, begin: Begin | None) -> Any:
        if request.order is None:
            return fetch_records(self._dataset, request.ranges, self._collate_fn, begin)
        found = [self._ahead.indices(request.order, *one) for one in request.ranges]
        indices = found[0] if len(found) == 1 else np.concatenate(found)
        if self._collate_fn is None and type(self._dataset) is TensorRows:
            return self._dataset.__getitems__(torch.from_numpy(indices))
        return fetch_rows(self._dataset, indices, self._collate_fn, begin)


def _as_it_is(batch: Any) -> Any:
    return batch


def check_source(dataset: Any, order: EpochOrder | None, num_workers: int, prefetch: int) -> None:
    """Raises ConfigError: a number is out of range, or ``dataset`` is neither kind of source."""
    if num_workers < 0 or prefetch < 1:
        raise ConfigError(
            f"num_workers is {num_workers} and prefetch {prefetch}; "
            "they must be at least 0 and at least 1"
        )
    if order is None and not isinstance(dataset, StreamSource):
        raise ConfigError(
            f"{type(dataset).__name__} is no StreamSource (partitions, end, read, finished); "
            "a map-style dataset needs an order"
        )
    if order is not None and not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise ConfigError(
            f"{type(dataset).__name__} is no map-style dataset: it needs __len__ and __getitem__; "
            "give iterable data as a StreamSource"
        )

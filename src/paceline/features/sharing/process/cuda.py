"""A GPU that a training process shares: how long the process used it, by events on its stream.

A GPU works through a queue, so a process that waits holds nothing back while its queue is long. So
the queue is kept short: an event ends each chunk of work, and the process goes on when all chunks
but the newest are done. The time from event to event is the GPU's own. It contains what other
processes computed meanwhile, and what the GPU waited for this process's launches: too much rather
than too little, and a duty that follows a guaranteed job's steps makes up for it.
"""

import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from paceline.base.devices import gpu_index
from paceline.base.errors import ConfigError

CHUNK_S = 1e-3
"""Seconds of the GPU's time that a chunk takes, about. Work that is queued when the guaranteed job
begins to compute costs that job as much. Two processes' work takes turns of some 2 ms (H100)."""
MOST_POINTS = 256
"""Most points of a gate in a chunk."""
AHEAD = 1
"""Chunks that may be queued while the process goes on."""
POLL_S = 5e-5
"""Seconds between looks at an event."""
RAW_STREAM = "_cuda_getCurrentRawStream"
"""Name of torch's function for the current stream's number, which costs a tenth of asking for the
stream."""


class Chunk(NamedTuple):
    """Work in the queue, between two events."""

    begin: Any
    end: Any
    num_points: int
    """Points of the gate within the chunk."""


class CudaDevice:
    """A GPU, as one process uses it.

    Args:
        device: its name.
        cuda: torch's module, or a stand-in.

    Raises:
        ConfigError: torch sees no such GPU.
    """

    rest_s = 0.0  # In a moment of the host, much more than that is queued for the GPU.

    def __init__(self, device: str, cuda: Any = torch.cuda) -> None:
        index = gpu_index(device)
        assert index is not None
        require_gpu(device, index, cuda)
        self._cuda, self._index = cuda, index
        self._busy_s = 0.0
        self._begin: Any = None
        """Event at which the open chunk begins; None: there is none."""
        self._has_left = self._saw_capture = False
        self._queued = deque[Chunk]()
        self._spare: list[Any] = []
        self._mark: Any = None
        self._raw = getattr(torch._C, RAW_STREAM, None) if cuda is torch.cuda else None
        self._stream, self._raw_stream = None, -1
        self._num_points, self._most_points = 0, 1
        self._never = threading.Event()
        self._lock = threading.Lock()

    def busy_s(self) -> float:
        """Return the GPU's time in all chunks that are done; waits until only the newest is not."""
        with self._lock:
            self._num_points += 1
            if self._has_left or (self._begin is not None and self._num_points < self._most_points):
                return self._busy_s
            if not self._can_record():
                return self._busy_s
            self._cut(self._record())
            while len(self._queued) > AHEAD:
                while not self._queued[0].end.query():
                    self._never.wait(POLL_S)
                self._count()
            return self._busy_s

    def leave(self) -> None:
        with self._lock:
            if self._begin is None or not self._can_record():
                return
            self._cut(self._record())
            self._begin, self._has_left = None, True
            while self._queued and self._queued[0].end.query():
                self._count()

    def enter(self) -> None:
        with self._lock:
            if self._has_left and self._can_record():
                self._begin, self._has_left = self._record(), False
                self._num_points = 0

    def work(self) -> Callable[[], bool] | None:
        if not self._can_record():
            return None
        if self._mark is None:
            self._mark = self._cuda.Event()
        self._mark.record(self._current_stream())
        query: Callable[[], bool] = self._mark.query
        return None if query() else query

    def _can_record(self) -> bool:
        """Say whether events can be asked for now: while a graph is captured, they cannot."""
        if not self._cuda.is_initialized():
            return False
        if self._cuda.is_current_stream_capturing():
            if not self._saw_capture:
                say("CUDA graphs have no gates inside: the job is held between them")
            self._saw_capture = True
            return False
        return True

    def _record(self) -> Any:
        event = self._spare.pop() if self._spare else self._cuda.Event(enable_timing=True)
        event.record(self._current_stream())
        return event

    def _current_stream(self) -> Any:
        """Return the stream that work goes to now."""
        if self._raw is None:
            return self._cuda.current_stream(self._index)
        raw = self._raw(self._index)
        if raw != self._raw_stream:
            self._stream, self._raw_stream = self._cuda.current_stream(self._index), raw
        return self._stream

    def _cut(self, end: Any) -> None:
        """End the open chunk, and begin the next."""
        if self._begin is not None:
            self._queued.append(Chunk(self._begin, end, self._num_points))
        self._begin, self._num_points = end, 0

    def _count(self) -> None:
        """Take in the oldest chunk, which is done."""
        chunk = self._queued.popleft()
        took_s = chunk.begin.elapsed_time(chunk.end) / 1e3
        self._busy_s += took_s
        self._spare.append(chunk.begin)  # the end may be where the next chunk begins
        if chunk.num_points:
            fitting = chunk.num_points * CHUNK_S / max(took_s, CHUNK_S / MOST_POINTS)
            middle = (self._most_points + fitting) / 2
            self._most_points = max(1, min(MOST_POINTS, round(middle)))


def require_gpu(device: str, index: int, cuda: Any) -> None:
    """Raise ConfigError if torch sees no such GPU."""
    if not cuda.is_available():
        raise ConfigError(
            f"share.device: got {device}, but torch {torch.__version__} sees no GPU; install a "
            "torch that is built for CUDA, or share cores, e.g. --device cpu:0"
        )
    count = cuda.device_count()
    if index >= count:
        raise ConfigError(
            f"share.device: got {device}, expected one that torch sees: cuda:0 to "
            f"cuda:{count - 1}; set CUDA_VISIBLE_DEVICES, or name another"
        )


def say(what: str) -> None:
    """Leave a line in the log of the node."""
    sys.stderr.write(f"paceline: {what}\n")

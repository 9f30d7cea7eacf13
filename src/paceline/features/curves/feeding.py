"""The thread of the master that writes curves into sinks, so that a slow one holds nobody up."""

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from paceline.features.curves.sinks.registry import SINKS
from paceline.features.curves.sinks.sink import SinkWriter
from paceline.jobs.curves import CurveLine, CurveOrder
from paceline.wire.spec import JobSpec

MAX_WAITING = 10_000
"""Points that wait for a slow sink; of more the newest are dropped."""
FLUSH_S = 1.0
CLOSE_S = 5.0
"""Seconds that the sinks have, when the job has ended, to take the points that wait."""


class SinkFeed:
    """The sinks of one job.

    Args:
        spec: names them (``log_to``).
        job_id: of the job.
        again: the newest points that a master before this one may have written or not; they are
            written again. Empty: there was none.
    """

    def __init__(self, spec: JobSpec, job_id: str, again: Sequence[CurveLine]) -> None:
        self._log_to, self._job_id, self._again = spec.log_to, job_id, again
        self._order = CurveOrder()
        self._queue: queue.Queue[CurveLine | int | None] = queue.Queue(MAX_WAITING)
        self._failed: list[tuple[str, str]] = []
        self._lock = threading.Lock()
        if again:
            self._order.begins(again[-1])
        self._thread = threading.Thread(target=self._run, name="paceline-sinks", daemon=True)
        self._thread.start()

    def add(self, line: CurveLine) -> None:
        """Have a line of the curves written."""
        void_from = self._order.begins(line)
        with contextlib.suppress(queue.Full):
            if void_from is not None:
                self._queue.put_nowait(void_from)
            self._queue.put_nowait(line)

    def take_failed(self) -> list[tuple[str, str]]:
        """Return the sinks that have failed since the last call, and why; no more goes there."""
        with self._lock:
            failed, self._failed = self._failed, []
        return failed

    def close(self) -> None:
        """Have what waits written, for a bounded time."""
        with contextlib.suppress(queue.Full):
            self._queue.put(None, timeout=CLOSE_S)
        self._thread.join(CLOSE_S)

    # ------------------------------------------------------------------ the thread

    def _run(self) -> None:
        writers: dict[str, SinkWriter] = {}
        for name, to in self._log_to.items():
            with self._failing(name):
                writers[name] = SINKS.make(name, {"to": to}).open(self._job_id)
        if self._again:
            self._write(writers, self._again[0].step)
        for line in self._again:
            self._write(writers, line)
        while True:
            try:
                found = self._queue.get(timeout=FLUSH_S)
            except queue.Empty:
                self._flush(writers)
                continue
            if found is None:
                break
            self._write(writers, found)
            if self._queue.empty():
                self._flush(writers)
        for name, writer in writers.items():
            with self._failing(name):
                writer.close()

    def _write(self, writers: dict[str, SinkWriter], found: CurveLine | int) -> None:
        for name, writer in [*writers.items()]:
            with self._failing(name, writers):
                if isinstance(found, int):
                    writer.go_back(found)
                else:
                    writer.add(found)

    def _flush(self, writers: dict[str, SinkWriter]) -> None:
        for name, writer in [*writers.items()]:
            with self._failing(name, writers):
                writer.flush()

    @contextlib.contextmanager
    def _failing(self, name: str, writers: dict[str, SinkWriter] | None = None) -> Iterator[None]:
        """Give up a sink that fails, whatever its code raises."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - a sink may be of any package
            with self._lock:
                self._failed.append((name, f"{type(error).__name__}: {error}"))
            if writers is not None:
                del writers[name]


BeginFeed = Callable[[Sequence[CurveLine]], SinkFeed]


def feed_of(spec: JobSpec, job_id: str) -> BeginFeed | None:
    """Return what begins to write a job's curves elsewhere; None: the spec names no place."""
    return partial(SinkFeed, spec, job_id) if spec.log_to else None

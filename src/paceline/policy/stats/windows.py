"""Sliding windows over what one node reports.

Reference: AntDT sections V-D and VI-A (L_trans and L_per).
Differs: the paper counts windows in minutes only; here in iterations, too, so that a job of two
minutes has windows as well.
"""

import math
from collections import deque

import msgspec

_CUT, _CUT_STILL = 0.5, 0.25
"""Parts of a node's own time. A node that waits longer than the first for its quota has a cut one,
until it waits less than the second. With the first alone, half a quota would come and go."""


class WindowMeans(msgspec.Struct, frozen=True, kw_only=True):
    """Means over the newest iterations of one node, since its report before."""

    t_s: float
    """Time at which the last of them ended."""
    iterations: int
    samples: float = 0.0
    """Per iteration; of a server 0."""
    compute_s: float = 0.0
    """T^w: thread time from batch ready to gradients ready, without any wait; of a server 0."""
    compute_max_s: float = 0.0
    """The largest T^w among them; 0: not known."""
    server_s: float = 0.0
    """T^s: of a worker, the slowest server's handler for its request; of a server, its own work for
    the requests of all workers."""
    message_s: float = 0.0
    """T^m: round trip of the request, without T^s; by all-reduce its own work for the sums and the
    update."""
    data_s: float = 0.0
    """T^d: wait for the batch, from when it was wanted until it was read; in no other part."""
    stolen_s: float = 0.0
    """Seconds of the iteration in which the node was ready to run and other processes had the
    processors."""
    throttled_s: float = 0.0
    """Seconds of the iteration in which the node waited for a cpu quota that its machine has
    cut."""
    bpt_s: float = 0.0
    """Wall time of an iteration, waits included."""

    def is_cut(self, *, before: bool) -> bool:
        """Whether it is a cut quota that its time goes to: the kernel says so, no statistics.

        ``before``: it was so in the report before.
        """
        least = _CUT_STILL if before else _CUT
        return self.throttled_s >= least * (self.compute_s or self.server_s) > 0.0

    @property
    def throughput(self) -> float:
        """Samples per second of T^w; 0 of a server."""
        return self.samples / self.compute_s if self.compute_s else 0.0

    @property
    def begin_s(self) -> float:
        """When the first of the iterations began."""
        return self.t_s - self.iterations * self.bpt_s

    @property
    def span_s(self) -> float:
        """Seconds of all its iterations."""
        return self.iterations * (self.bpt_s or self.compute_s + self.server_s)


class Pace(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Means over one sliding window of one node, per iteration."""

    iterations: int
    """Iterations in the window."""
    seconds: float
    """Time that they span."""
    samples: float
    """Mean batch size of a worker."""
    throughput: float = 0.0
    """Mean of batch size / T^w, samples per s."""
    smoothed: float = 0.0
    """Throughput as an exponential average over all reports, the newest weighing most."""
    compute_s: float = 0.0
    """T^w: thread time from batch ready to gradients ready, without any wait."""
    server_s: float = 0.0
    """T^s: of a worker, the slowest server's handler for its request; of a server, its own work for
    the requests of all workers."""
    message_s: float = 0.0
    """T^m: round trip of the request, without T^s; by all-reduce its own work for the sums and the
    update."""
    data_s: float = 0.0
    """T^d: wait for the batch, from when it was wanted until it was read; in no other part."""
    stolen_s: float = 0.0
    """Seconds of the iteration in which the node was ready to run and other processes had the
    processors."""
    bpt_s: float = 0.0
    """Wall time of an iteration, waits included."""


class Window:
    """The fewest newest reports that reach a number of iterations or a span of time.

    Args:
        iterations: full when it holds as many; None: not counted.
        seconds: full when it spans as much; None: not counted.
        smoothing: weight of the newest report in the exponential average.

    Raises:
        ValueError: neither limit is counted, or one is not positive.
    """

    def __init__(
        self, iterations: int | None, seconds: float | None, smoothing: float = 0.3
    ) -> None:
        limits = (iterations, seconds)
        if limits == (None, None) or any(limit is not None and limit <= 0 for limit in limits):
            raise ValueError(
                f"a window of {iterations} iterations and {seconds} s; give at least one, above 0"
            )
        self._iterations = math.inf if iterations is None else iterations
        self._seconds = math.inf if seconds is None else seconds
        self._reports: deque[WindowMeans] = deque()
        self._sums = _Sums()
        self._until_resum = 0
        self._smoothing = smoothing
        self._smoothed: float | None = None

    def add(self, report: WindowMeans) -> None:
        """Take in the newest report; O(1) amortised."""
        self._reports.append(report)
        self._sums.add(report, 1)
        before = report.throughput if self._smoothed is None else self._smoothed
        self._smoothed = before + self._smoothing * (report.throughput - before)
        while len(self._reports) > 1 and self._full_without_oldest():
            self._sums.add(self._reports.popleft(), -1)
        self._until_resum -= 1
        if self._until_resum < 0:
            # What went in and came out again leaves rounding errors behind, of the size of the
            # largest that was in.
            self._sums = _Sums()
            for each in self._reports:
                self._sums.add(each, 1)
            self._until_resum = len(self._reports)

    def full(self) -> bool:
        """Whether it reaches one of its limits."""
        return self._sums.iterations >= self._iterations or self._span_s() >= self._seconds

    def is_fresh(self, now_s: float) -> bool:
        """Whether anything is in it that is newer than its span of time."""
        return bool(self._reports) and now_s - self._reports[-1].t_s <= self._seconds

    def pace(self, now_s: float) -> Pace | None:
        """Means over the window; None: nothing is in it that is newer than its span of time."""
        if not self.is_fresh(now_s):
            return None
        sums, count = self._sums, self._sums.iterations
        return Pace(
            iterations=count,
            seconds=self._span_s(),
            samples=sums.samples / count,
            throughput=sums.throughput / count,
            smoothed=self._smoothed or 0.0,
            compute_s=sums.compute_s / count,
            server_s=sums.server_s / count,
            message_s=sums.message_s / count,
            data_s=sums.data_s / count,
            stolen_s=sums.stolen_s / count,
            bpt_s=sums.bpt_s / count,
        )

    def clear(self) -> None:
        """Forget everything."""
        self._reports.clear()
        self._sums = _Sums()
        self._until_resum = 0
        self._smoothed = None

    def _span_s(self) -> float:
        return self._reports[-1].t_s - self._reports[0].begin_s if self._reports else 0.0

    def _full_without_oldest(self) -> bool:
        left = self._sums.iterations - self._reports[0].iterations
        span_s = self._reports[-1].t_s - self._reports[1].begin_s
        return left >= self._iterations or span_s >= self._seconds


class Blocks:
    """Puts reports together until they span a time: what is shorter is the machine's jitter.

    Args:
        seconds: that a block spans at least.
        same_size: batch sizes that differ by no more than this part of one are in one block.
    """

    def __init__(self, seconds: float, same_size: float) -> None:
        self._seconds, self._same_size = seconds, same_size
        self._begun: list[WindowMeans] = []
        self._span_s = 0.0
        self._is_cut = False

    def add(self, report: WindowMeans) -> WindowMeans | None:
        """The block that this report completes; None: none.

        A block that a change of batch size ends early is dropped. So is one in which its machine
        cuts the node's quota, or gives it back, with the report that has a part of both.
        """
        is_cut = report.is_cut(before=self._is_cut)
        if is_cut != self._is_cut:
            self._is_cut = is_cut
            self.clear()
            return None
        begun = self._begun
        if begun and abs(report.samples - begun[0].samples) > self._same_size * begun[0].samples:
            self.clear()
        self._begun.append(report)
        self._span_s += report.span_s
        if self._span_s < self._seconds:
            return None
        whole = self._begun
        self.clear()
        return whole[0] if len(whole) == 1 else _together(whole)

    def clear(self) -> None:
        """Drop what is not whole."""
        self._begun, self._span_s = [], 0.0


def _together(reports: list[WindowMeans]) -> WindowMeans:
    count = sum(report.iterations for report in reports)

    def mean(field: str) -> float:
        total: float = sum(report.iterations * getattr(report, field) for report in reports)
        return total / count

    latest_s = [report.compute_max_s for report in reports]
    return WindowMeans(
        t_s=reports[-1].t_s,
        iterations=count,
        samples=mean("samples"),
        compute_s=mean("compute_s"),
        compute_max_s=max(latest_s) if all(latest_s) else 0.0,
        server_s=mean("server_s"),
        message_s=mean("message_s"),
        data_s=mean("data_s"),
        stolen_s=mean("stolen_s"),
        throttled_s=mean("throttled_s"),
        bpt_s=mean("bpt_s"),
    )


class _Sums:
    """Over iterations."""

    __slots__ = (
        "bpt_s",
        "compute_s",
        "data_s",
        "iterations",
        "message_s",
        "samples",
        "server_s",
        "stolen_s",
        "throughput",
    )

    def __init__(self) -> None:
        self.iterations = 0
        self.samples = self.throughput = self.compute_s = self.server_s = self.message_s = (
            self.data_s
        ) = self.stolen_s = self.bpt_s = 0.0

    def add(self, report: WindowMeans, sign: int) -> None:
        count = sign * report.iterations
        self.iterations += count
        self.samples += count * report.samples
        self.throughput += count * report.throughput
        self.compute_s += count * report.compute_s
        self.server_s += count * report.server_s
        self.message_s += count * report.message_s
        self.data_s += count * report.data_s
        self.stolen_s += count * report.stolen_s
        self.bpt_s += count * report.bpt_s

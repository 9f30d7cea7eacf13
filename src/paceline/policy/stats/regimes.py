"""Regimes of one node: stretches in which it behaves alike.

A change of batch size that we ordered is no change of the node: as long as what follows could be
the same node at another size, its regime goes on and has learnt a second point.
"""

import math
from collections import deque

import msgspec
import numpy as np

from paceline.policy.stats import affine
from paceline.policy.stats.changes import ChangePoints
from paceline.policy.stats.windows import Report

_THRESHOLD = 0.05
"""Least change of a node's time that is told from noise."""
_SAME_SIZE = 0.02
"""Batch sizes closer than this are one."""
_MAX_POINTS = 8
_VERIFY = 3
_WARM_UP = 8
_RECENT = 16
_SIGMAS = 3.0


class Point(msgspec.Struct, frozen=True, array_like=True):
    """What a worker showed at one batch size."""

    batch_size: int
    iterations: int
    compute_s: float
    """Mean T^w."""


class Regime(msgspec.Struct, frozen=True, kw_only=True):
    """A node since its last change point: it has behaved alike since then."""

    since_s: float
    """When it began, on the observation's clock."""
    iterations: int
    points: tuple[Point, ...]
    """By batch size, ascending: with two sizes an affine cost can be fitted."""
    verified: bool = True
    """False: a change is suspected, and these are the iterations since; enough for a cheap cure."""
    slope_s: float | None = None
    """Per sample, as the node's earlier regimes showed it; None: this is the first one."""


class Regimes:
    """Follows the time that one node takes for its iterations.

    Of a worker this is T^w as a function of its batch size, of a server T^s.

    Args:
        slope_s: per sample, as an earlier life of the node showed it.
    """

    def __init__(self, slope_s: float | None = None) -> None:
        self._slope_s = slope_s
        self._changes = ChangePoints(_THRESHOLD, _VERIFY, _WARM_UP)
        self._size: float | None = None
        """Batch size that the change points are watched at."""
        self._recent: deque[Report] = deque(maxlen=_RECENT)
        """At that size."""
        self._points = _Points([])
        """Of the present regime."""
        self._doubt: list[Report] = []
        """Reports since a change that is suspected; they are in no regime yet."""
        self._settling = False
        """The doubt came up with a new batch size, which the change points cannot judge."""

    def add(self, report: Report) -> None:
        """Take in the newest report."""
        moved = self._size is None or abs(report.samples - self._size) > _SAME_SIZE * self._size
        if moved:
            self._size = report.samples
            self._recent.clear()
            self._changes.rescale(_time_s(report))
        self._recent.append(report)
        change = self._changes.update(_time_s(report))
        if moved or self._settling:
            self._settle(report)
        elif change is not None:
            self._begin(list(self._recent)[-change.values :])
        elif self._changes.pending:
            self._doubt = list(self._recent)[-self._changes.pending :]
        else:
            self._doubt = []
            self._points.add(report)

    def present(self) -> Regime | None:
        """The regime it is in, or seems to be in since a change that is not verified."""
        points = _Points(self._doubt) if self._doubt else self._points
        if not points.iterations:
            return None
        return Regime(
            since_s=points.since_s,
            iterations=points.iterations,
            points=points.by_size(),
            verified=not self._doubt,
            slope_s=self._slope_s,
        )

    def slope_s(self) -> float | None:
        """Per sample, as shown so far; None: by nothing."""
        return self._points.slope_s(self._slope_s) if self._points.iterations else self._slope_s

    def _settle(self, report: Report) -> None:
        """Whether the node at another batch size is in the same regime."""
        if self._doubt and self._agrees(_Points(self._doubt), report):
            self._settling = True
            self._doubt.append(report)
            if len(self._doubt) >= _VERIFY:
                self._begin(self._doubt)
        elif not self._points.iterations or self._agrees(self._points, report):
            if self._doubt:
                self._changes.rescale(_time_s(report))
            self._doubt = []
            self._settling = False
            self._points.add(report)
        else:
            self._settling = True
            self._doubt = [report]

    def _agrees(self, points: "_Points", report: Report) -> bool:
        tolerance = max(_THRESHOLD, _SIGMAS * self._changes.noise)
        low_s, high_s = points.bounds_s(report.samples, self._slope_s)
        return low_s * (1.0 - tolerance) <= _time_s(report) <= high_s * (1.0 + tolerance)

    def _begin(self, reports: list[Report]) -> None:
        """A verified regime, with its first reports."""
        self._slope_s = self.slope_s()
        # The first of them may still hold iterations of the regime before.
        later = _Points(reports[1:])
        self._points = _Points(reports) if self._agrees(later, reports[0]) else later
        self._doubt = []
        self._settling = False


class _Points:
    """Sums over reports, by batch size."""

    def __init__(self, reports: list[Report]) -> None:
        self.since_s = 0.0
        self.iterations = 0
        self._groups: list[_Group] = []
        for report in reports:
            self.add(report)

    def add(self, report: Report) -> None:
        if not self.iterations:
            self.since_s = report.begin_s
        self.iterations += report.iterations
        for group in self._groups:
            if abs(report.samples - group.size) <= _SAME_SIZE * group.size:
                break
        else:
            if len(self._groups) == _MAX_POINTS:
                self._groups.remove(min(self._groups, key=lambda group: group.iterations))
            group = _Group()
            self._groups.append(group)
        group.iterations += report.iterations
        group.samples += report.iterations * report.samples
        group.seconds += report.iterations * _time_s(report)

    def by_size(self) -> tuple[Point, ...]:
        points = (
            Point(round(group.size), group.iterations, group.seconds / group.iterations)
            for group in self._groups
        )
        return tuple(sorted(points, key=lambda point: point.batch_size))

    def slope_s(self, prior_s: float | None) -> float:
        return self._fit(prior_s)[1]

    def bounds_s(self, size: float, prior_s: float | None) -> tuple[float, float]:
        """What a batch of this size may take in this regime."""
        sizes, weights = self._sizes(), self._weights()
        if affine.identified(sizes, weights):
            delay_s, slope_s = self._fit(prior_s)
            return delay_s + slope_s * size, delay_s + slope_s * size
        mean_s = sum(group.seconds for group in self._groups) / weights.sum()
        mean_size = float(np.average(sizes, weights=weights))
        all_slope_s = mean_s * size / mean_size if mean_size else mean_s
        return min(mean_s, all_slope_s), max(mean_s, all_slope_s)

    def _fit(self, prior_s: float | None) -> tuple[float, float]:
        weights = self._weights()
        times_s = np.array([group.seconds for group in self._groups]) / weights
        delays_s, slopes_s = affine.fit(
            np.zeros(len(weights), np.int64),
            self._sizes(),
            times_s,
            weights,
            np.array([math.nan if prior_s is None else prior_s]),
        )
        return float(delays_s[0]), float(slopes_s[0])

    def _sizes(self) -> affine.Floats:
        return np.array([group.size for group in self._groups])

    def _weights(self) -> affine.Floats:
        return np.array([float(group.iterations) for group in self._groups])


class _Group:
    """Reports at one batch size, summed over iterations."""

    __slots__ = ("iterations", "samples", "seconds")

    def __init__(self) -> None:
        self.iterations = 0
        self.samples = self.seconds = 0.0

    @property
    def size(self) -> float:
        return self.samples / self.iterations


def _time_s(report: Report) -> float:
    """The time that tells how fast the node itself is; a server has no T^w."""
    return report.compute_s or report.server_s

"""Regimes of one node: stretches in which it behaves alike.

A change of batch size that we ordered is no change of the node: as long as what follows could be
the same node at another size, its regime goes on and has learnt a second point.
"""

import itertools
import math
import statistics
from collections import deque
from collections.abc import Iterable

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
_MIN_SCATTER = 4


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
    scatter: float = 0.0
    """Standard deviation of single iterations over their mean, lately; 0: not known."""


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
        self._scatter = 0.0

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
            self._scatter = _scatter(self._recent) or self._scatter

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
            scatter=self._scatter,
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
        low_s, high_s = points.bounds_s(report.samples)
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

    def bounds_s(self, size: float) -> tuple[float, float]:
        """What a batch of this size may take in this regime.

        Whatever the split into delay and slope: more samples take no less time, and no more than in
        proportion. This also holds where a small batch does not use all of a device.
        """
        low_s, high_s = 0.0, math.inf
        for group in self._groups:
            time_s = group.seconds / group.iterations
            scaled_s = time_s * size / group.size if group.size else time_s
            low_s = max(low_s, min(time_s, scaled_s))
            high_s = min(high_s, max(time_s, scaled_s))
        return low_s, high_s

    def slope_s(self, prior_s: float | None) -> float:
        weights = np.array([float(group.iterations) for group in self._groups])
        _, slopes_s = affine.fit(
            np.zeros(len(weights), np.int64),
            np.array([group.size for group in self._groups]),
            np.array([group.seconds for group in self._groups]) / weights,
            weights,
            np.array([math.nan if prior_s is None else prior_s]),
        )
        return float(slopes_s[0])


class _Group:
    """Reports at one batch size, summed over iterations."""

    __slots__ = ("iterations", "samples", "seconds")

    def __init__(self) -> None:
        self.iterations = 0
        self.samples = self.seconds = 0.0

    @property
    def size(self) -> float:
        return self.samples / self.iterations


def _scatter(reports: Iterable[Report]) -> float:
    """Of single iterations over their mean, by the differences between reports; 0: too few.

    By their median, so that a change of level among them is not taken for scatter.
    """
    differences = [
        abs(_time_s(one) - _time_s(two))
        / _time_s(one)
        * math.sqrt(one.iterations * two.iterations / (one.iterations + two.iterations))
        for one, two in itertools.pairwise(reports)
    ]
    return 1.4826 * statistics.median(differences) if len(differences) >= _MIN_SCATTER else 0.0


def _time_s(report: Report) -> float:
    """The time that tells how fast the node itself is; a server has no T^w."""
    return report.compute_s or report.server_s

"""Regimes of one node: stretches in which it behaves alike.

A change of batch size that we ordered is no change of the node: as long as what follows could be
the same node at another size, its regime goes on and has learnt a second point.
"""

import bisect
import math
from collections import deque

import msgspec
import numpy as np

from paceline.policy.stats import affine
from paceline.policy.stats.changes import ChangePoints
from paceline.policy.stats.windows import WindowMeans

_THRESHOLD = 0.05
"""Least change of a node's time that counts as more than noise."""
SAME_SIZE = 0.02
"""Batch sizes closer than this are one."""
_MAX_POINTS = 8
_VERIFY = 3
_WARM_UP = 8
_LONGEST = 100
_RECENT = 16
_SIGMAS = 3.0
_MIN_SCATTER = 4
_LATE_HALF_LIFE = 150, 50.0
"""Iterations and seconds, whichever is longer; longer than a change of level is news, so that one
is not taken for random delays."""
_BURST = 15, 10.0
"""Iterations and seconds; what was over after fewer was chance, and no behaviour of the node."""
_TRAIL = 64
"""Stretches that are kept."""
_HALF_LIFE = 30, 10.0
"""Iterations and seconds, whichever is longer, after which what was seen weighs half."""


LATE = 1.0 + np.concatenate(([0.0], np.geomspace(0.01, 7.0, 15)))
"""Times over the expected time that `Regime.late` counts, from 1 to 8; close to each other where
the scatter of undisturbed iterations is, which would else look larger than it is."""
_LEVELS = LATE.tolist()
_EXCESS = (LATE - 1.0).tolist()


class Point(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Behaviour of a worker at one batch size."""

    batch_size: int
    iterations: int
    compute_s: float
    """Mean T^w, the newest iterations weighing most."""
    recent: float = 1.0
    """Weight for the present level of the node; fades as iterations pass."""


class Stretch(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Some iterations of a worker, one after the other."""

    t_s: float
    """Time at which the last of them ended."""
    span_s: float
    """Seconds from the begin of the first iteration to the end of the last one."""
    iterations: int
    samples: float
    """Samples of one batch."""
    compute_s: float
    """Mean T^w."""
    compute_max_s: float
    """Largest T^w."""

    @property
    def begin_s(self) -> float:
        """When the first of them began."""
        return self.t_s - self.span_s

    def time_s(self, ago_s: float, turn: int) -> float:
        """T^w of one of them: one took the longest, nobody knows which, the others alike.

        Args:
            ago_s: before the end of the last one.
            turn: of the worker; the longest iterations of several are not taken for the same one.
        """
        if self.iterations == 1:
            return self.compute_s
        number = int(self.iterations * ago_s / max(self.span_s, 1e-9))
        if (number - 7 * turn - 3) % self.iterations == 0:
            return self.compute_max_s
        rest_s = self.iterations * self.compute_s - self.compute_max_s
        return rest_s / (self.iterations - 1)


class Regime(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A node since its last change point: it has behaved alike since then."""

    since_s: float
    """Time at which the regime began, on the observation's clock."""
    iterations: int
    points: tuple[Point, ...]
    """Points by batch size, ascending: to two sizes an affine cost can be fitted."""
    verified: bool = True
    """False: a change is suspected, and these are the iterations since; they have lasted for long
    enough for a cheap cure."""
    slope_s: float | None = None
    """Per sample, as the node's earlier regimes showed it; None: this is the first one."""
    scatter: float = 0.0
    """Standard deviation of single iterations over their mean, lately; 0: not known."""
    late: tuple[float, ...] = ()
    """Lateness of single iterations: fading counts of reports by the largest of their times over
    the expected one (`LATE`), and last of iterations; none: not known."""
    trail: tuple[Stretch, ...] = ()
    """Newest stretches of a worker, the oldest first, also of regimes before."""
    is_cut: bool = False
    """The kernel says that the machine has cut the node's cpu quota: the regime began when that
    did."""
    stolen_s: float = 0.0
    """Seconds of an iteration in which the node was ready to run and other processes had the
    processors. A mean like those of its points: the cost of its machine's load over the iterations
    that make the node look slow."""
    reported_s: float | None = None
    """Seconds since the regime began of which reports tell; they are late on a busy machine. None:
    all."""


class Regimes:
    """Follows the time that one node takes for its iterations.

    Of a worker this is T^w as a function of its batch size, of a server T^s.
    """

    def __init__(self) -> None:
        self._slope_s: float | None = None
        """Seconds per sample, as earlier regimes showed them; None: not known."""
        self._changes = ChangePoints(_THRESHOLD, _VERIFY, _WARM_UP, longest=_LONGEST)
        self._size: float | None = None
        """Batch size that the change points are watched at."""
        self._recent: deque[WindowMeans] = deque(maxlen=_RECENT)
        """Newest reports at that size."""
        self._points = _Points([])
        """Points of the present regime."""
        self._is_cut = False
        """True: the node's cpu quota is cut in the present regime."""
        self._doubt: list[WindowMeans] = []
        """Reports since a change that is suspected; they are in no regime yet."""
        self._settling = False
        """The doubt came up with a new batch size, which the change points cannot judge."""
        self._scatter = _Scatter()
        self._late = _Late()
        self._unjudged: list[tuple[float, WindowMeans]] = []
        """Lateness of iterations in reports that are in no regime yet."""
        self._before = _Points([])
        """Points of the regime before."""
        self._slow_since_s: float | None = None
        """Time since which the node is slower than before, through one regime or several; None: it
        is not."""
        self._spells: list[float] = []
        self._trail: deque[Stretch] = deque(maxlen=_TRAIL)
        self._burst: list[tuple[float, WindowMeans]] = []
        """Lateness of the present regime's reports for the regime before; none: it is no burst."""

    def add(self, report: WindowMeans) -> None:
        """Take in the newest report."""
        if report.compute_s:
            self._trail.append(_stretch(report))
        if report.is_cut(before=self._is_cut) != self._is_cut:
            self._begin_with_quota(report)
            return
        moved = self._size is None or abs(report.samples - self._size) > SAME_SIZE * self._size
        if moved:
            self._size = report.samples
            self._recent.clear()
            self._changes.rescale(_time_s(report))
            self._changes.noise = max(
                self._changes.noise, self._late.deviation() / math.sqrt(report.iterations)
            )
        self._recent.append(report)
        if self._is_cut:  # the wait for a quota goes up and down, which is no other behaviour
            self._points.add(report)
            return
        if report.compute_max_s:
            self._unjudged.append((self._points.lateness(report), report))
        judged = self._changes.ready
        change = self._changes.update(_time_s(report))
        if moved or self._settling or not judged:
            self._settle(report)
        elif change is not None:
            self._begin(list(self._recent)[-change.values :])
        elif self._changes.pending:
            self._doubt = list(self._recent)[-self._changes.pending :]
        else:
            self._clear_doubt()
            self._accept(report)

    def take_spells(self) -> list[float]:
        """Seconds that each slow spell lasted that has ended since this was last asked."""
        spells, self._spells = self._spells, []
        return spells

    def present(self) -> Regime | None:
        """The regime it is in; a change that is not verified counts once it has lasted a while."""
        doubt = _Points(self._doubt)
        lasting = doubt.span_s >= _BURST[1] or not self._points.iterations
        points = doubt if self._doubt and lasting else self._points
        if not points.iterations:
            return None
        return Regime(
            since_s=points.since_s,
            iterations=points.iterations,
            points=points.by_size(),
            verified=points is not doubt,
            slope_s=self._slope_s,
            scatter=self._scatter.deviation(),
            late=self._late.counts(),
            trail=tuple(self._trail),
            is_cut=self._is_cut,
            stolen_s=points.stolen_s(),
            reported_s=round(points.span_s, 2),
        )

    def _begin_with_quota(self, report: WindowMeans) -> None:
        """The machine has cut the node's quota, or given it back: nothing has to be verified."""
        self._is_cut, self._size = not self._is_cut, report.samples
        self._recent.clear()
        self._recent.append(report)
        self._changes.rescale(_time_s(report))
        self._begin([report])
        self._burst.clear()  # it is no chance

    def _settle(self, report: WindowMeans) -> None:
        """Whether the node at another batch size is in the same regime."""
        if self._doubt and self._agrees(_Points(self._doubt), report):
            self._settling = True
            self._doubt.append(report)
            if len(self._doubt) >= _VERIFY:
                self._begin(self._doubt)
        elif not self._points.iterations or self._agrees(self._points, report):
            if self._doubt:
                self._changes.rescale(_time_s(report))
            self._clear_doubt()
            self._settling = False
            self._accept(report)
        else:
            self._settling = True
            self._doubt = [report]

    def _clear_doubt(self) -> None:
        """Drop a suspected change that was none: the present regime goes on as before."""
        if self._doubt and self._slow_since_s is None and self._is_slower(self._doubt):
            self._spells.append(self._doubt[-1].t_s - self._doubt[0].begin_s)
        self._doubt = []

    def _is_slower(self, reports: list[WindowMeans]) -> bool:
        """Tell whether the node is slower in these reports than in the present regime."""
        return bool(self._points.iterations) and sum(map(self._points.ratio, reports)) > len(
            reports
        )

    def _note_spell(self, reports: list[WindowMeans]) -> None:
        """Begin or end a slow spell, as another regime begins with these reports."""
        if self._is_slower(reports):
            if self._slow_since_s is None:
                self._slow_since_s = reports[0].begin_s
        elif self._slow_since_s is not None:
            self._spells.append(reports[0].begin_s - self._slow_since_s)
            self._slow_since_s = None

    def _accept(self, report: WindowMeans) -> None:
        self._points.add(report)
        if len(self._recent) > 1:
            self._scatter.add(self._recent[-2], report)
        for ratio, each in self._unjudged:
            self._late.add(ratio, each)
        self._unjudged.clear()
        if self._burst:
            self._burst.append((self._before.lateness(report), report))
        if self._points.iterations >= _BURST[0] and self._points.span_s >= _BURST[1]:
            self._burst.clear()

    def _agrees(self, points: "_Points", report: WindowMeans) -> bool:
        by_chance = self._late.deviation() / math.sqrt(report.iterations)
        tolerance = max(_THRESHOLD, _SIGMAS * self._changes.noise, _SIGMAS * by_chance)
        low_s, high_s = points.bounds_s(report.samples)
        return low_s * (1.0 - tolerance) <= _time_s(report) <= high_s * (1.0 + tolerance)

    def _begin(self, reports: list[WindowMeans]) -> None:
        """A verified regime, with its first reports."""
        self._note_spell(reports)
        if self._points.iterations:
            self._slope_s = self._points.slope_s(self._slope_s)
            self._before = self._points
        # The first of them may still hold iterations of the regime before.
        later = _Points(reports[1:])
        self._points = _Points(reports) if self._agrees(later, reports[0]) else later
        self._doubt = []
        self._settling = False
        # These iterations were not late by chance, unless it is over soon; as is what came before.
        for ratio, each in self._burst:
            self._late.add(ratio, each)
        self._burst.clear()
        if self._before.iterations:
            self._burst += [(self._before.lateness(each), each) for each in reports]
        self._unjudged.clear()


class _Points:
    """Sums over reports, by batch size."""

    def __init__(self, reports: list[WindowMeans]) -> None:
        self.since_s = 0.0
        self.iterations = 0
        self.span_s = 0.0
        self._groups: list[_Group] = []
        for report in reports:
            self.add(report)

    def add(self, report: WindowMeans) -> None:
        if not self.iterations:
            self.since_s = report.begin_s
        self.iterations += report.iterations
        self.span_s += report.span_s
        for group in self._groups:
            if abs(report.samples - group.size) <= SAME_SIZE * group.size:
                break
        else:
            if len(self._groups) == _MAX_POINTS:
                self._groups.remove(min(self._groups, key=lambda group: group.iterations))
            group = _Group()
            self._groups.append(group)
        for each in self._groups:
            each.recent *= _fade(report, _HALF_LIFE)
        group.add(report)

    def by_size(self) -> tuple[Point, ...]:
        points = (
            Point(round(each.size), each.iterations, each.time_s, each.recent)
            for each in self._groups
        )
        return tuple(sorted(points, key=lambda point: point.batch_size))

    def stolen_s(self) -> float:
        total_s = sum(group.iterations * group.stolen_s for group in self._groups)
        return total_s / sum(group.iterations for group in self._groups)

    def bounds_s(self, size: float) -> tuple[float, float]:
        """Return the bounds of what a batch of this size takes in this regime.

        Whatever the split into delay and slope: more samples take no less time, and no more than in
        proportion. This also holds where a small batch does not use all of a device.
        """
        low_s, high_s = 0.0, math.inf
        for group in self._groups:
            scaled_s = group.time_s * size / group.size if group.size else group.time_s
            low_s = max(low_s, min(group.time_s, scaled_s))
            high_s = min(high_s, max(group.time_s, scaled_s))
        return low_s, high_s

    def slope_s(self, prior_s: float | None) -> float:
        _, slopes_s = affine.fit(
            np.zeros(len(self._groups), np.int64),
            np.array([group.size for group in self._groups]),
            np.array([group.time_s for group in self._groups]),
            np.array([float(group.iterations) for group in self._groups]),
            np.array([group.recent for group in self._groups]),
            np.array([math.nan if prior_s is None else prior_s]),
        )
        return float(slopes_s[0])

    def lateness(self, report: WindowMeans) -> float:
        """The time of its longest iteration over the expected one."""
        return (report.compute_max_s or _time_s(report)) / self._expected_s(report)

    def ratio(self, report: WindowMeans) -> float:
        """The ratio of its mean time to the expected one."""
        return _time_s(report) / self._expected_s(report)

    def _expected_s(self, report: WindowMeans) -> float:
        """The time expected at its size; its own mean as far as that leaves it open."""
        for group in self._groups:
            if abs(report.samples - group.size) <= SAME_SIZE * group.size:
                return group.time_s
        low_s, high_s = self.bounds_s(report.samples)
        return min(max(_time_s(report), low_s), high_s)


class _Scatter:
    """The scatter of single iterations over their mean, by the differences between reports."""

    def __init__(self) -> None:
        self._differences: deque[float] = deque(maxlen=_RECENT)

    def add(self, before: WindowMeans, report: WindowMeans) -> None:
        """The two newest reports at one batch size."""
        difference = abs(_time_s(report) - _time_s(before)) / _time_s(before)
        pairs = report.iterations * before.iterations / (report.iterations + before.iterations)
        self._differences.append(difference * math.sqrt(pairs))

    def deviation(self) -> float:
        """Standard deviation; 0: not known.

        By the third quartile, so that a change of level is not taken for scatter.
        """
        count = len(self._differences)
        return sorted(self._differences)[3 * count // 4] / 1.15 if count >= _MIN_SCATTER else 0.0


class _Late:
    """Counts of how late iterations were, which fade."""

    def __init__(self) -> None:
        self._counts = [0.0] * len(LATE)
        self._iterations = 0.0

    def add(self, ratio: float, report: WindowMeans) -> None:
        """A report whose largest time was ``ratio`` times the expected one."""
        fade = _fade(report, _LATE_HALF_LIFE)
        self._counts = [fade * count for count in self._counts]
        self._iterations = fade * self._iterations + report.iterations
        # Between two counters it counts for both in parts, so that the mean stays what it is.
        ratio = min(max(ratio, 1.0), _LEVELS[-1])
        above = max(bisect.bisect_left(_LEVELS, ratio), 1)
        low, high = _LEVELS[above - 1 : above + 1]
        part = (ratio - low) / (high - low)
        self._counts[above - 1] += 1.0 - part
        self._counts[above] += part

    def deviation(self) -> float:
        """Standard deviation of single iterations over the expected time; 0: not known."""
        squares = sum(
            count * excess * excess for count, excess in zip(self._counts, _EXCESS, strict=True)
        )
        return math.sqrt(squares / self._iterations) if self._iterations else 0.0

    def counts(self) -> tuple[float, ...]:
        return (*self._counts, self._iterations) if self._iterations else ()


class _Group:
    """Reports at one batch size, as averages whose memory fades."""

    __slots__ = ("iterations", "recent", "size", "stolen_s", "time_s")

    def __init__(self) -> None:
        self.iterations = 0
        self.recent = self.size = self.time_s = self.stolen_s = 0.0

    def add(self, report: WindowMeans) -> None:
        self.iterations += report.iterations
        self.recent += report.iterations
        part = report.iterations / self.recent
        self.size += part * (report.samples - self.size)
        self.time_s += part * (_time_s(report) - self.time_s)
        self.stolen_s += part * (report.stolen_s - self.stolen_s)


def _fade(report: WindowMeans, half_life: tuple[int, float]) -> float:
    """Return the rest of the weight of older reports."""
    iterations, seconds = half_life
    fade: float = 0.5 ** min(report.iterations / iterations, report.span_s / seconds)
    return fade


def _time_s(report: WindowMeans) -> float:
    """The time that tells how fast the node itself is; a server has no T^w."""
    return report.compute_s or report.server_s


def _stretch(report: WindowMeans) -> Stretch:
    """Shorten a report to four digits: a stretch is written with every decision that is logged."""
    return Stretch(
        round(report.t_s, 2),
        round(report.span_s, 2),
        report.iterations,
        round(report.samples, 1),
        float(f"{report.compute_s:.4g}"),
        float(f"{report.compute_max_s or report.compute_s:.4g}"),
    )

"""The detector, and two simpler ones that it is held against: each returns the steps of its alarms.

Reference: FALCON (arXiv:2410.12588), tables 4 and 5: BOCD alone, SlideWindow.
"""

import statistics
from collections import deque
from collections.abc import Callable, Mapping

from paceline.features.failslow.policy.detection import SlowJobDetector
from paceline.policy.stats.changes import Shift
from paceline.policy.stats.run_lengths import RunLengths
from paceline_experiments.failslow.steps import SyntheticJob

_WARM_UP = 30
_MASS = 0.9
_WINDOW, _BEFORE = 10, 100


def detect(job: SyntheticJob) -> list[int]:
    """Steps at which the detector verifies an onset."""
    detector = SlowJobDetector()
    found = [detector.update(fact) for fact in job.facts()]
    return [one.found_step for one in found if one is not None and one.shift is Shift.ONSET]


def bocd_alone(job: SyntheticJob) -> list[int]:
    """Steps at which a change point is likely; nothing verifies it."""
    times_s = job.times_s.tolist()
    first = times_s[:_WARM_UP]
    level = statistics.median(first)
    off = statistics.median(abs(time_s - level) for time_s in first)
    runs = RunLengths(level, max(0.01 * level, 1.4826 * off))
    likely = []
    for number, time_s in enumerate(times_s):
        runs.update(time_s)
        likely.append(number > _WARM_UP and runs.mass(1, 3) > _MASS)
    return _rises(likely)


def slide_window(job: SyntheticJob) -> list[int]:
    """Steps at which the median of ten rises above 1.1 times that of the hundred before."""
    newest: deque[float] = deque(maxlen=_WINDOW)
    before: deque[float] = deque(maxlen=_BEFORE)
    slow = []
    for time_s in job.times_s.tolist():
        if len(newest) == _WINDOW:
            before.append(newest[0])
        newest.append(time_s)
        known = len(before) >= _WARM_UP
        slow.append(known and statistics.median(newest) > 1.1 * statistics.median(before))
    return _rises(slow)


def _rises(flags: list[bool]) -> list[int]:
    return [at for at, flag in enumerate(flags) if flag and not (at and flags[at - 1])]


DETECTORS: Mapping[str, Callable[[SyntheticJob], list[int]]] = {
    "paceline": detect,
    "BOCD alone": bocd_alone,
    "SlideWindow": slide_window,
}

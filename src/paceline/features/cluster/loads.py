"""Load of the cores of this machine in the last seconds."""

from collections import deque
from collections.abc import Iterable
from statistics import fmean

import psutil

from paceline.base.devices import cores_of

WINDOW_S = 10.0
EVERY_S = 1.0


class CoreLoads:
    """The load of devices, by their names."""

    def __init__(self, devices: Iterable[str]) -> None:
        self._cores = {name: cores_of(name) for name in devices}
        #: When, and by core the seconds that it was busy, and all seconds.
        self._samples: deque[tuple[float, list[tuple[float, float]]]] = deque()

    def sample(self, now_s: float) -> None:
        """Look at the cores, if that is due."""
        if self._samples and now_s - self._samples[-1][0] < EVERY_S:
            return
        cores = []
        for times in psutil.cpu_times(percpu=True):
            # A guest's time is in the user's time as well.
            total_s = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
            cores.append((total_s - times.idle - getattr(times, "iowait", 0.0), total_s))
        self._samples.append((now_s, cores))
        while now_s - self._samples[0][0] > WINDOW_S:
            self._samples.popleft()

    def loads(self) -> dict[str, float]:
        """The part of the window in which each device was busy; empty: nothing is known yet."""
        if len(self._samples) < 2:
            return {}
        first, last = self._samples[0][1], self._samples[-1][1]
        loads = [
            min(1.0, (busy - busy_then) / max(1e-9, total - total_then))
            for (busy_then, total_then), (busy, total) in zip(first, last, strict=False)
        ]
        return {
            name: fmean(loads[core] for core in cores)
            for name, cores in self._cores.items()
            if max(cores) < len(loads)
        }

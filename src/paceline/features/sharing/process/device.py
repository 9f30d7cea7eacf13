"""Port of the device that a job shares with others: what a gate must know of it."""

import time
from collections.abc import Callable
from typing import Protocol

from paceline.base.devices import cores_of


class Device(Protocol):
    """A device, as this process uses it."""

    rest_s: float
    """Longest time after a passage in which the next ones only look for another order."""

    def busy_s(self) -> float:
        """Return how long this process has used the device so far, in the device's own time."""
        ...

    def leave(self) -> None:
        """Take in that the job gives the device no work from now on."""
        ...

    def enter(self) -> None:
        """Take in that it does again."""
        ...

    def work(self) -> Callable[[], bool] | None:
        """Return what says whether the work given so far is done; None: it is."""
        ...


class CpuDevice:
    """Cores: a process uses them as long as it runs on them, not while others do."""

    rest_s = 1e-3

    def __init__(self, device: str) -> None:
        """``device``: its name. Raises ConfigError: there is no such device."""
        self._num_cores = len(cores_of(device))

    def busy_s(self) -> float:
        return time.process_time() / self._num_cores

    def leave(self) -> None:
        pass

    def enter(self) -> None:
        pass

    def work(self) -> Callable[[], bool] | None:
        return None

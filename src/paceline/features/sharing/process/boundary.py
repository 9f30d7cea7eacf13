"""Boundaries between mini-batches: a process takes in its memory's limit there, and tells its use.

The boundary is an optimizer's ``zero_grad``, once the gradients are dropped: then the least lies
on the device, and all that the next mini-batch allocates comes under the new limit. A script that
keeps its gradients, or drops them in another way, has its boundary after the optimizer's step.
A process that comes to no boundary, as one that evaluates or waits, takes its limit in as well.
"""

import functools
import math
import os
import threading
from collections.abc import Iterator
from time import monotonic
from typing import Any
from weakref import WeakSet

import torch
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from paceline.features.sharing.gate_page import LIMIT, GatePage, PageMemory
from paceline.features.sharing.process.memory import DeviceMemory

AWAY_S = 0.5
"""Seconds without a boundary after which a process takes its limit in where it is."""
PEAK_S = 0.5
"""Least seconds for which peaks are kept."""
AGAIN_S = 1.0
"""Seconds after which a limit that could not be kept is tried again."""


class MemoryBoundary:
    """The boundaries of one process.

    Args:
        page: has the limit, and takes the use.
        memory: of the device.
    """

    def __init__(self, page: GatePage, memory: DeviceMemory) -> None:
        self._page, self._memory = page, memory
        self._said = page.memory
        self._ordered, self._tried_s = 0.0, 0.0
        self._owed = False
        """Whether tensors in the host's memory may have room on the device now."""
        self._passed_s = self._peak_s = monotonic()
        self._peaks = (0.0, 0.0)
        """Peaks of the present span of `PEAK_S`, and of the one before, in bytes."""
        self._optimizers: WeakSet[Optimizer] = WeakSet()
        self._unseen_steps = 0
        """Steps of optimizers since a boundary."""
        self._lock = threading.Lock()
        self._is_fork = False

    def install(self) -> None:
        """Have the process pass its boundaries from now on."""
        self.pass_(between=True)
        _after_zero_grad(self._dropped)
        register_optimizer_step_post_hook(self._stepped)
        os.register_at_fork(after_in_child=self._leave_to_fork)
        threading.Thread(target=self._follow, name="paceline-memory", daemon=True).start()

    def pass_(self, *, between: bool) -> None:
        """Take in the limit, and say what is used.

        Args:
            between: it is between two mini-batches, so that tensors may be moved.
        """
        if self._is_fork or not self._lock.acquire(blocking=False):
            return
        try:
            now_s = monotonic()
            limit = self._limit(now_s)
            use = self._memory.look()
            if between and self._owed and use.host_bytes:
                self._memory.take_home(self._tensors())
                moved = self._memory.look()
                peak, spilled = max(use.peak_bytes, moved.peak_bytes), use.spilled_bytes
                use = moved._replace(peak_bytes=peak, spilled_bytes=spilled)
            self._owed = self._owed and not between
            self._said = PageMemory(
                looks=self._said.looks + 1,
                limit=limit,
                device=use.device_bytes,
                peak=self._peak(use.peak_bytes, now_s),
                host=use.host_bytes,
                spilled=self._said.spilled + use.spilled_bytes,
                batches=self._said.batches + between,
            )
            self._page.say_memory(self._said)
            self._passed_s = now_s
        finally:
            self._lock.release()

    def _limit(self, now_s: float) -> float:
        """Apply the limit that is ordered; the one in effect."""
        ordered, in_effect = self._page.words[LIMIT] or math.inf, self._said.limit
        tried_s = now_s - self._tried_s
        if ordered != self._ordered or (in_effect > ordered and tried_s > AGAIN_S):
            self._owed = self._owed or ordered > self._ordered
            self._ordered, self._tried_s = ordered, now_s
            asked = None if math.isinf(ordered) else int(ordered)
            in_effect = self._memory.set_limit(asked)
        return math.inf if math.isinf(ordered) else in_effect

    def _peak(self, peak: float, now_s: float) -> float:
        if now_s - self._peak_s > PEAK_S:
            self._peak_s, self._peaks = now_s, (0.0, self._peaks[0])
        self._peaks = max(peak, self._peaks[0]), self._peaks[1]
        return max(self._peaks)

    def _tensors(self) -> Iterator[torch.Tensor]:
        """Yield what lives longer than a mini-batch: parameters and the state of optimizers."""
        for optimizer in list(self._optimizers):
            for group in optimizer.param_groups:
                yield from group["params"]
            for state in optimizer.state.values():
                yield from (one for one in state.values() if isinstance(one, torch.Tensor))

    def _dropped(self) -> None:
        self._unseen_steps = 0
        self.pass_(between=True)

    def _stepped(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        self._optimizers.add(optimizer)
        self._unseen_steps += 1
        if self._unseen_steps > len(self._optimizers):
            self.pass_(between=True)

    def _follow(self) -> None:
        """Pass where the process is, as long as it comes to no boundary."""
        never = threading.Event()
        while not never.wait(AWAY_S):
            if monotonic() - self._passed_s > AWAY_S:
                self.pass_(between=False)

    def _leave_to_fork(self) -> None:
        self._is_fork = True


def _after_zero_grad(dropped: Any) -> None:
    """Have optimizers say when they have dropped their gradients."""
    zero_grad = Optimizer.zero_grad

    @functools.wraps(zero_grad)
    def told(optimizer: Optimizer, set_to_none: bool = True) -> None:
        zero_grad(optimizer, set_to_none)
        if set_to_none:
            dropped()

    Optimizer.zero_grad = told  # type: ignore[method-assign, assignment]

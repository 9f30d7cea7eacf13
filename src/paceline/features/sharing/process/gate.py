"""The gate of a job that shares a device: the job waits at it, as the device coordinator orders.

A thread of the job passes it at many points of a step (`paceline.features.sharing.process.hooks`).
What the job computes is not changed, only when. All waits end when the order changes.
"""

import os
import threading
from collections.abc import Callable, MutableSequence
from pathlib import Path
from time import monotonic

from paceline.base.errors import ConfigError
from paceline.features.sharing.gate_page import (
    BEAT,
    BUSY,
    FREE,
    HELD,
    HELD_AT,
    MODE,
    NUM_NUMBERS,
    ORDER,
    STALE_S,
    GateOrder,
    GatePage,
)
from paceline.features.sharing.policy.duty import LEAST_DUTY, idle_s
from paceline.features.sharing.process.device import Device
from paceline.features.sharing.wire import GateMode

NOBODY = memoryview(bytes(4 * NUM_NUMBERS)).cast("i")
"""The numbers of a job that is never busy."""
LEAST_IDLE_S = 1e-3
"""Seconds of a wait below which waits are put together."""
MOST_CREDIT_S = 5e-3
"""Most extra seconds of the device for a job whose waits ended late, as on a busy processor."""
MOST_FREE_S = 0.05
"""Most seconds owed when an order comes, for what a job used while nothing held it."""
LOOK_S = 0.5
"""Longest wait after which the gate looks whether there is a device coordinator."""


class Gate:
    """The gate of one process.

    Args:
        page: has the orders.
        device: that the job shares.
        held: called with what each wait took (s).
    """

    def __init__(self, page: GatePage, device: Device, held: Callable[[float], None]) -> None:
        self._page, self._device, self._held = page, device, held
        self._words: memoryview[float] | MutableSequence[float] = page.words
        self._used_s = device.busy_s()
        """Seconds of the device that were used, as of the last passage."""
        self._owed_s = 0.0
        """Seconds used for which the job has not idled; negative: it has idled for more."""
        self._newest = page.newest
        self._is_free = True
        self._has_left = False
        """Whether the job has left the device."""
        self._lock = threading.Lock()
        self._beside: GatePage | None = None
        self._due_s = 0.0
        """Time before which no more can be owed than what is waited for in one go."""
        self._numbers, self._busy = page.numbers, NOBODY
        """Numbers of the page, and of the guaranteed job if the order says to wait for its gaps."""
        self._number = 0
        """Number of the order that was obeyed last."""
        # No process that the script forks, as those of its loaders, is held.
        os.register_at_fork(after_in_child=self.free)

    def tick(self) -> None:
        """Wait as ordered. Without an order, or soon after a passage, these are few comparisons."""
        if self._words[MODE]:
            if (
                monotonic() >= self._due_s
                or self._numbers[ORDER] != self._number
                or self._busy[BUSY] % 2
            ):
                self._pass()
        elif not self._is_free:
            self._is_free = True

    def _pass(self) -> None:
        if not self._lock.acquire(blocking=False):
            return  # another thread of the job waits here already
        try:
            used_s = self._device.busy_s()
            chunk_s, self._used_s = used_s - self._used_s, used_s
            if self._is_free:
                self._is_free, chunk_s = False, min(chunk_s, MOST_FREE_S)
            self._owed_s += chunk_s
            self._idle(chunk_s)
            if self._has_left:
                self._device.enter()
                self._has_left = False
        finally:
            self._lock.release()

    def _idle(self, chunk_s: float) -> None:
        start_s = now_s = monotonic()
        bound_s = idle_s(max(chunk_s, LEAST_IDLE_S), LEAST_DUTY)
        while True:
            order, waited_s = self._order(now_s), now_s - start_s
            left_s = idle_s(self._owed_s, order.duty) - waited_s
            if order.mode is GateMode.OFF:
                self._owed_s = 0.0
                self._rest(order, now_s)
                break
            if order.mode is GateMode.PAUSE:
                self._leave()
                self._page.await_order(order.number, LOOK_S)
            elif left_s >= LEAST_IDLE_S:
                self._leave()
                self._page.await_order(order.number, min(left_s, LOOK_S))
            else:
                if order.mode is not GateMode.GAP or not self._await_gap(order, bound_s):
                    idle_for_one_s = idle_s(1.0, order.duty)
                    paid_s = waited_s / idle_for_one_s if idle_for_one_s else self._owed_s
                    self._owed_s = max(self._owed_s - paid_s, -MOST_CREDIT_S)
                    self._rest(order, now_s)
                    break
                bound_s -= monotonic() - now_s
            before_s, now_s = now_s, monotonic()
            self._note(now_s - before_s, now_s)

    def _rest(self, order: GateOrder, now_s: float) -> None:
        """See until when the job cannot owe a wait: it uses no more of the device than passes."""
        idle_for_one_s = idle_s(1.0, order.duty) if order.mode is not GateMode.OFF else 0.0
        rest_s = self._device.rest_s
        if idle_for_one_s:
            rest_s = min(rest_s, LEAST_IDLE_S / idle_for_one_s - self._owed_s)
        beside = self._beside if order.mode is GateMode.GAP else None
        self._busy = NOBODY if beside is None else beside.numbers
        self._number, self._due_s = order.number, now_s + rest_s

    def _order(self, now_s: float) -> GateOrder:
        """Return what holds now; without a device coordinator, the least that harms nobody."""
        if self._page.order_number != self._newest.number:
            self._newest = self._page.newest
        order = self._newest
        if self._words[FREE]:
            return order._replace(mode=GateMode.OFF)
        if now_s - self._words[BEAT] > STALE_S:
            return order._replace(mode=GateMode.DUTY, duty=LEAST_DUTY)
        return order

    def _await_gap(self, order: GateOrder, bound_s: float) -> bool:
        """Wait for the guaranteed job to be idle; whether there was anything to wait for."""
        if self._beside is None or str(self._beside.path) != order.beside:
            self._beside = _open(order.beside)
        number = self._beside.busy_number if self._beside is not None else 0
        if self._beside is None or not number % 2 or bound_s <= 0:
            return False
        self._leave()
        self._beside.await_idle(number, min(bound_s, LOOK_S))
        return True

    def _leave(self) -> None:
        if not self._has_left:
            self._device.leave()
            self._has_left = True

    def _note(self, waited_s: float, now_s: float) -> None:
        self._words[HELD] += waited_s
        self._words[HELD_AT] = now_s
        self._held(waited_s)

    def free(self) -> None:
        """Hold the process no more: a wait that a signal has interrupted, as it must, ends."""
        self._words = [0.0] * FREE + [1.0]


def _open(path: str) -> GatePage | None:
    try:
        return GatePage.open(Path(path)) if path else None
    except (OSError, ConfigError):
        return None

"""What the script logs, from ``job.log`` until the master has it in a file.

The training thread adds values. A number on a GPU stays there until the next message is due: one
wait for the device in a second, not one for each call. The exchange's thread takes messages, and
repeats them until the master keeps them.
"""

import math
import re
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paceline.base.errors import ConfigError
from paceline.base.numbering import Inc
from paceline.runtime.script.strategy import LogPlace
from paceline.wire.messages.curves import (
    MAX_NAMES,
    UNPLACED,
    Attempt,
    LoggedStep,
    LoggedTotal,
    LogKept,
)
from paceline.wire.messages.node import Logged

EVERY_S = 1.0
"""Seconds between two messages."""
RESEND_S = 3.0
"""Seconds until a message is sent again: less than the time in which the master waits for other
workers' values of a step. What a master that died has heard comes again before the next one
writes."""
MAX_STEPS = 32
"""Most steps of one name in one message; of more, some at equal distances are sent."""
MAX_PENDING = 1024
"""Steps that wait to be sent; beyond that they are thinned out as well."""
MAX_UNKEPT = 64
"""Messages that are kept for a master that does not answer; of more the oldest are dropped."""
PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_.\-]*(/[A-Za-z0-9_.\-]+)*")
MAX_NAME = 100

Number = float | Tensor


def checked_log(values: Mapping[str, Any]) -> dict[str, Number]:
    """Return the values that were given to ``job.log``, as numbers of one element.

    Raises:
        ConfigError: a name that is not plain, or something that is not a number.
    """
    if not isinstance(values, Mapping):
        raise ConfigError(
            f"job.log: got {_called(values)}, expected names with their values; write "
            'job.log(loss=loss), or job.log({"val/loss": loss})'
        )
    for name in map(str, values):
        if len(name) > MAX_NAME or not PLAIN.fullmatch(name):
            raise ConfigError(
                f"job.log: got the name {name[: 2 * MAX_NAME]!r}, expected letters, digits and "
                f"_ . - with / between parts, up to {MAX_NAME} of them, as loss or val/auc; "
                "rename it"
            )
    return {str(name): _number(name, value) for name, value in values.items()}


def _number(name: str, value: Any) -> Number:
    if type(value) is float:
        return value
    if isinstance(value, Tensor):
        return _of_tensor(name, value)
    if isinstance(value, np.ndarray) and value.ndim == 0 and value.dtype.kind in "fiub":
        return float(value)
    if isinstance(value, Real | np.bool_):
        return _finite_or_not(value)
    what = f"an array of shape {value.shape}" if isinstance(value, np.ndarray) else _called(value)
    raise ConfigError(
        f"job.log: got {what} for {name}, expected a number or a tensor of no dimensions; log what "
        "sums it up, as its mean()"
    )


def _finite_or_not(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:  # of a large integer
        return math.inf if value > 0 else -math.inf


def _called(value: Any) -> str:
    return f"{type(value).__name__} {str(value)[:40]!r}"


def _of_tensor(name: str, value: Tensor) -> Number:
    if value.ndim or value.is_complex():
        what = "complex numbers" if value.is_complex() else f"a tensor of shape {[*value.shape]}"
        raise ConfigError(
            f"job.log: got {what} for {name}, expected a tensor of no dimensions; log what sums it "
            "up, as its mean()"
        )
    if hasattr(value, "full_tensor"):  # a DTensor, which every rank would have to put together
        raise ConfigError(
            f"job.log: got a DTensor for {name}, which all ranks hold together; log its "
            "full_tensor(), or the value of this rank, its to_local()"
        )
    if value.device.type in ("cpu", "meta"):
        return float(value.item())
    # A copy: the script may change it in place, and a compiled graph writes over its outputs.
    kind = value.dtype if value.dtype == torch.float64 else torch.float32
    return value.detach().to(kind, copy=True)


@dataclass(slots=True)
class _Step:
    """What was logged in one step and is not sent yet."""

    attempt: Attempt
    samples: int
    between: bool
    values: dict[str, tuple[Number, int]] = field(default_factory=dict)

    def add(self, name: str, value: Number) -> None:
        held, count = self.values.get(name, (0.0, 0))
        self.values[name] = (value if not count else held + value, count + 1)


class LogBook:
    """What one life of a worker has logged and the master does not keep yet."""

    def __init__(self, inc: Inc) -> None:
        self._inc = inc
        #: The training thread adds, the exchange's takes.
        self._lock = threading.Lock()
        self._steps: dict[int, _Step] = {}
        self._newest = Attempt()
        self._names: set[str] = set()
        self._left_out = ""
        self._unkept: deque[tuple[float, Logged]] = deque(maxlen=MAX_UNKEPT)
        self._n = 0
        self._settle_at_s = self._send_at_s = 0.0

    def add(self, place: LogPlace, values: Mapping[str, Number], now_s: float) -> None:
        """Take in values; in the training thread."""
        with self._lock:
            known = {name: value for name, value in values.items() if self._is_known(name)}
            if known:
                step = self._step(place)
                for name, value in known.items():
                    step.add(name, value)
            if len(self._steps) > MAX_PENDING:
                self._thin(MAX_PENDING // 2)
        if now_s >= self._settle_at_s or place.between:  # no loop may follow that would settle it
            self._settle_at_s = now_s + EVERY_S
            self.settle()

    def _is_known(self, name: str) -> bool:
        if name not in self._names:
            if len(self._names) == MAX_NAMES:
                self._left_out = self._left_out or name
                return False
            self._names.add(name)
        return True

    def _step(self, place: LogPlace) -> _Step:
        found = self._steps.get(place.step)
        if found is not None and found.attempt == place.attempt:
            found.samples = max(found.samples, place.samples)
            found.between &= place.between
            return found
        if place.attempt > self._newest and place.step > UNPLACED:
            # A newer attempt takes the place of older ones, from this step on.
            self._newest, void_from = place.attempt, place.step + place.between
            self._steps = {
                step: one
                for step, one in self._steps.items()
                if step < void_from or one.attempt >= place.attempt
            }
        fresh = _Step(place.attempt, place.samples, place.between)
        return self._steps.setdefault(place.step, fresh)

    def settle(self) -> None:
        """Have all values here as plain numbers; in the training thread, which waits for a GPU."""
        with self._lock:
            waiting = [
                (step, name, held)
                for step in self._steps.values()
                for name, (held, _) in step.values.items()
                if isinstance(held, Tensor)
            ]
        # Without the lock: the thread that talks to the master does not wait for a GPU.
        values = _read([held for *_, held in waiting])
        with self._lock:
            for (step, name, held), value in zip(waiting, values, strict=True):
                if name in step.values and step.values[name][0] is held:
                    step.values[name] = (value, step.values[name][1])

    def due(self, now_s: float) -> list[Logged]:
        """What is to be sent (again) now."""
        with self._lock:
            again = [one for sent_s, one in self._unkept if now_s - sent_s >= RESEND_S]
            if again:
                self._unkept = deque(
                    ((now_s, one) for _, one in self._unkept), maxlen=self._unkept.maxlen
                )
            if now_s < self._send_at_s:
                return again
            self._send_at_s = now_s + EVERY_S
            return [*again, *self._taken(now_s)]

    def rest(self) -> list[Logged]:
        """All that the master does not keep: the process ends; in the training thread."""
        with suppress(RuntimeError):  # a GPU that has failed
            self.settle()
        with self._lock:
            self._taken(0.0)
            return [one for _, one in self._unkept]

    def _taken(self, now_s: float) -> list[Logged]:
        """Make a message of what is here as plain numbers."""
        self._thin(MAX_STEPS)
        steps = [*self._ready()]
        if not steps and not self._left_out:
            return []
        self._n += 1
        message = Logged(inc=self._inc, n=self._n, steps=tuple(steps), left_out=self._left_out)
        self._left_out = ""
        self._unkept.append((now_s, message))
        return [message]

    def _ready(self) -> Iterable[LoggedStep]:
        for number in sorted(self._steps):
            step = self._steps[number]
            ready = {
                name: LoggedTotal(held, count)
                for name, (held, count) in step.values.items()
                if not isinstance(held, Tensor)
            }
            for name in ready:
                del step.values[name]
            if not step.values:
                del self._steps[number]
            if ready:
                yield LoggedStep(step.attempt, number, step.samples, ready, between=step.between)

    def _thin(self, most: int) -> None:
        """Leave at most so many steps of each name: the same ones in all workers, by and large."""
        numbers: dict[str, list[int]] = {}
        for number in sorted(self._steps):
            for name in self._steps[number].values:
                numbers.setdefault(name, []).append(number)
        for name, found in numbers.items():
            for number in _superfluous(found, most):
                del self._steps[number].values[name]
        for number in [number for number, step in self._steps.items() if not step.values]:
            del self._steps[number]

    def kept(self, message: LogKept) -> None:
        """The master has these in its file."""
        with self._lock:
            while self._unkept and self._unkept[0][1].n <= message.n:
                self._unkept.popleft()


def _superfluous(numbers: list[int], most: int) -> Iterator[int]:
    """Yield the steps to drop, if there are more than ``most``.

    Of each block of numbers the first step stays. A block's size is a power of two.
    """
    if len(numbers) <= most:
        return
    size = 1 << (-(-(numbers[-1] - numbers[0] + 1) // (most - 1)) - 1).bit_length()
    for before, number in pairwise(numbers):
        if number // size == before // size:
            yield number


def _read(values: list[Tensor]) -> list[float]:
    """The values of tensors without dimensions, with one wait for each device."""
    found = [0.0] * len(values)
    kinds: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for index, value in enumerate(values):
        kinds.setdefault((value.device, value.dtype), []).append(index)
    for indices in kinds.values():
        numbers = torch.stack([values[index] for index in indices]).tolist()
        for index, number in zip(indices, numbers, strict=True):
            found[index] = number
    return found

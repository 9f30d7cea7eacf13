"""The curves in a worker: from ``job.log`` until the master has the values in a file.

The training thread adds values. A number on a GPU stays there until the next message is due: one
wait for the device in a second, not one for each call. The exchange's thread takes messages, and
repeats them until the master keeps them.
"""

import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise

import msgspec
import torch
from torch import Tensor

from paceline.features.curves.wire import MAX_NAMES, Logged, LoggedStep, LoggedTotal, LogKept
from paceline.runtime.process.feature_port import Here, LogPlace, Number, ProcessPart
from paceline.wire.codec import decoder
from paceline.wire.messages.base import UNPLACED, Attempt

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


@dataclass(slots=True)
class _Step:
    """Values that were logged in one step and are not sent yet."""

    attempt: Attempt
    samples: int
    between: bool
    values: dict[str, tuple[Number, int]] = field(default_factory=dict)

    def add(self, name: str, value: Number) -> None:
        held, count = self.values.get(name, (0.0, 0))
        self.values[name] = (value if not count else held + value, count + 1)


_decode = decoder(LogKept)


class LogBook(ProcessPart):
    """Values that one life of a worker has logged and the master does not keep yet."""

    def __init__(self) -> None:
        #: The training thread adds, the exchange's takes.
        self._lock = threading.Lock()
        self._steps: dict[int, _Step] = {}
        self._newest = Attempt()
        self._names: set[str] = set()
        self._left_out = ""
        self._unkept: deque[tuple[float, Logged]] = deque(maxlen=MAX_UNKEPT)
        self._n = 0
        self._settle_at_s = self._send_at_s = 0.0

    def logged(self, place: LogPlace, values: Mapping[str, Number], now_s: float) -> None:
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

    def loop_ended(self) -> None:
        # What was logged in the loop is not to wait for the next call.
        with suppress(RuntimeError):  # a GPU that has failed: what the loop ends with says so
            self.settle()

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
        message = Logged(n=self._n, steps=tuple(steps), left_out=self._left_out)
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

    def told(self, body: msgspec.Raw) -> None:
        message: LogKept = _decode(body)
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


def make(here: Here) -> LogBook | None:
    """Begin the book of a worker's life; None: the script trains on its own, and logs elsewhere."""
    return LogBook() if here.spec.traits.trains else None

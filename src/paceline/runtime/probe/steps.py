"""Steps of an unmodified script: from one step of its optimizer to the next.

Torch calls the hook after each step of each optimizer. Where a script has several, its steps are
those of the rarest: of a GAN whose discriminator is trained five times as often, the generator's.
What makes a step longer without anything being slow is marked, so that nobody takes it for that.
"""

import functools
import gc
import io
import sys
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from paceline.runtime.probe.faults import is_of_script
from paceline.wire.step_ledger import Mark

LOOK_BACK = 64
"""Calls of optimizers among which the rarest is looked for."""
GC_SHARE = 0.05
"""A step is marked if looking for garbage took more of it than this."""


class StepProbe:
    """Says when a step is over, from `install` on.

    Args:
        on_step: called with the start of the step, its length (s), the time that the calling
            thread ran, and what it is marked with.
    """

    def __init__(self, on_step: Callable[[float, float, float, Mark], None]) -> None:
        self._on_step = on_step
        self._boundary = 0
        """Identity of the optimizer whose steps count; 0: none has stepped yet."""
        self._begun = 0
        """The optimizer whose step has begun."""
        self._recent: deque[int] = deque(maxlen=LOOK_BACK)
        self._since_look = 0
        self._start_s, self._start_ran_s = time.monotonic(), time.thread_time()
        self._marks = Mark.FIRST
        self._gc_s = self._gc_start_s = 0.0
        self._watches_compiler = self._is_off = False
        self.device = torch.device("cpu")
        """Device that the script trains on, as far as its optimizer says."""

    def install(self) -> None:
        """Have torch and Python call us."""
        register_optimizer_step_pre_hook(self._begins)
        register_optimizer_step_post_hook(self._stepped)
        gc.callbacks.append(self._collected)
        _mark_evaluation(self._mark)
        _mark_saves(self._mark)

    def take_marks(self, took_s: float) -> Mark:
        """Return the marks of a step that ends elsewhere; the next step begins unmarked.

        The script's start is kept for the first step of an optimizer, should there be one.
        """
        marks = self._marks & ~Mark.FIRST
        if self._gc_s > GC_SHARE * took_s:
            marks |= Mark.GARBAGE
        self._marks, self._gc_s = self._marks & Mark.FIRST, 0.0
        return marks

    def _mark(self, mark: Mark) -> None:
        self._marks |= mark

    def _stepped(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        one, begun = id(optimizer), self._begun
        self._begun = 0
        if begun != one:
            return  # a class of optimizers calls the step of the one that it is derived from
        self._recent.append(one)
        self._since_look += 1
        if not self._boundary:
            self._boundary = one
        elif self._since_look >= LOOK_BACK:
            self._follow(self._rarest())
        if one == self._boundary and not self._is_off:
            try:
                self.device = _device_of(optimizer, self.device)
                self._step_is_over()
            except Exception as error:
                if is_of_script(error):
                    raise
                self._is_off = True
                sys.stderr.write(f"paceline: steps are watched no more: {error!r}\n")

    def _begins(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        self._begun = id(optimizer)

    def _follow(self, one: int) -> None:
        """Count the steps of this optimizer; those of another one are no pace to compare with."""
        self._since_look = 0
        if one != self._boundary:
            self._boundary = one
            self._marks |= Mark.FIRST

    def _rarest(self) -> int:
        """Return the rarest optimizer that comes again; the present one if it is about as rare.

        Of optimizers that take turns, one is seen once more than the others.
        """
        counts = Counter(self._recent)
        again = {one: count for one, count in counts.items() if count > 1}
        least = min(again.values(), default=0)
        if not again or 0 < counts[self._boundary] <= least + 1:
            return self._boundary
        return next(one for one, count in again.items() if count == least)

    def _step_is_over(self) -> None:
        now_s, ran_s = time.monotonic(), time.thread_time()
        took_s = now_s - self._start_s
        marks = self._marks & Mark.FIRST | self.take_marks(took_s)
        self._on_step(self._start_s, took_s, ran_s - self._start_ran_s, marks)
        # After what we have done ourselves: waiting for the other ranks, perhaps.
        self._start_s, self._start_ran_s = time.monotonic(), time.thread_time()
        self._marks, self._gc_s = Mark.NONE, 0.0
        if not self._watches_compiler and "torch._dynamo.callback" in sys.modules:
            self._watches_compiler = True
            handler = sys.modules["torch._dynamo.callback"].callback_handler
            handler.register_start_callback(lambda *_: self._mark(Mark.COMPILE))

    def _collected(self, phase: str, _info: dict[str, int]) -> None:
        if phase == "start":
            self._gc_start_s = time.monotonic()
        else:
            self._gc_s += time.monotonic() - self._gc_start_s


def _device_of(optimizer: Optimizer, before: torch.device) -> torch.device:
    parameters = (one for group in optimizer.param_groups for one in group["params"])
    return next((one.device for one in parameters), before)


def _mark_evaluation(mark: Callable[[Mark], None]) -> None:
    train = nn.Module.train

    @functools.wraps(train)
    def marked(module: nn.Module, mode: bool = True) -> nn.Module:
        if not mode:
            mark(Mark.EVALUATION)
        return train(module, mode)

    nn.Module.train = marked  # type: ignore[method-assign, assignment]


def _mark_saves(mark: Callable[[Mark], None]) -> None:
    save = torch.save

    @functools.wraps(save)
    def marked(obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
        if not isinstance(f, io.BytesIO):  # a tensor that is sent as an object is saved to memory
            mark(Mark.CHECKPOINT)
        save(obj, f, *args, **kwargs)

    torch.save = torch.serialization.save = marked

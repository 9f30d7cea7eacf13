"""The exact weighted mean of all members' gradients, bucket by bucket while backward still runs.

Each member's gradients are a mean over its own samples; what is summed is that times their number,
and the sum is divided by the number of all, so uneven shares weigh what they are worth. As in
torch's DDP, parameters are put into buckets in the reverse of their order, in which backward
reaches them, and a bucket leaves when it is full. Buckets leave in their order on every member.

    reducer.begin(group, weight)         # before the user's backward
    loss.backward()                      # hooks fill buckets, full ones leave
    reducer.finish(total)                # gradients are the mean over all samples now
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Variable

from paceline.runtime.allreduce.group import Group

BUCKET_BYTES, FIRST_BUCKET_BYTES = 25 << 20, 1 << 20
"""As DDP's: the first is small, so that the first sum begins early."""


class Bucket:
    """Some parameters' gradients in one flat tensor.

    Behind them lies a mark for each parameter: how many members have a gradient for it. What none
    has stays None, as it would in one process.
    """

    def __init__(self, params: Sequence[nn.Parameter]) -> None:
        self.params = params
        size = sum(param.numel() for param in params)
        first = params[0]
        self.flat = torch.zeros(size + len(params), dtype=first.dtype, device=first.device)
        self.views: list[Tensor] = []
        start = 0
        for param in params:
            self.views.append(self.flat[start : start + param.numel()].view_as(param))
            start += param.numel()
        self.marks = self.flat[start:]
        self.missing = len(params)
        self.work: Any = None

    def fill(self, weight: int) -> None:
        """Put the gradients in, each times ``weight``."""
        marks = [0.0] * len(self.params)
        for k, (param, view) in enumerate(zip(self.params, self.views, strict=True)):
            if param.grad is None or not weight:
                view.zero_()  # not times 0, which keeps what is not finite
            else:
                torch.mul(param.grad, weight, out=view)
                marks[k] = 1.0
        self.marks.copy_(torch.tensor(marks))

    def empty(self, total: int) -> None:
        """Make the parameters' gradients what lies here, divided by ``total``."""
        marks = self.marks.tolist()
        for param, view, mark in zip(self.params, self.views, marks, strict=True):
            if not mark:
                param.grad = None
                continue
            if param.grad is None:
                param.grad = torch.empty_like(param)
            torch.div(view, total, out=param.grad)


class Reducer:
    """Averages the gradients of these parameters.

    Args:
        params: those that are trained, the same in all members, in the same order.
        early: whether gradients leave as soon as backward has made them.
    """

    def __init__(self, params: Iterable[nn.Parameter], *, early: bool = True) -> None:
        self._buckets = [Bucket(some) for some in _in_buckets(list(params))]
        self._bucket_of = {param: bucket for bucket in self._buckets for param in bucket.params}
        self._group: Group | None = None
        self._weight = 0
        self._next = 0
        self._on_end: Callable[[], None] = lambda: None
        self._ends = False
        self.called_twice = False
        """A parameter got a second gradient for one batch, after the first one had left."""
        if early:
            for param in self._bucket_of:
                param.register_post_accumulate_grad_hook(self._on_gradient)

    def begin(self, group: Group, weight: int, on_end: Callable[[], None]) -> None:
        """The next backward is the one whose gradients count.

        Args:
            group: where they are summed.
            weight: samples that the loss is a mean of; 0: they do not count.
            on_end: called at the end of the backward, within it, if gradients leave early.
        """
        self._group, self._weight, self._next, self._on_end = group, weight, 0, on_end
        self.called_twice = self._ends = False
        for bucket in self._buckets:
            bucket.missing, bucket.work = len(bucket.params), None

    def _on_gradient(self, param: nn.Parameter) -> None:
        bucket = self._bucket_of[param]
        if bucket.work is not None:
            self.called_twice = True
        if self._group is None:
            return
        if not self._ends:
            self._ends = True
            Variable._execution_engine.queue_callback(self._on_end)
        bucket.missing -= 1
        if bucket.missing == 0:
            self._launch(self._group, only_full=True)

    def _launch(self, group: Group, *, only_full: bool) -> None:
        """Let buckets go, in their order."""
        while self._next < len(self._buckets):
            bucket = self._buckets[self._next]
            if only_full and bucket.missing > 0:
                return
            bucket.fill(self._weight)
            try:
                bucket.work = group.sum(bucket.flat)
            except RuntimeError:  # the group is over, as `flush` is told in its turn
                if not only_full:
                    raise
                return
            self._next += 1

    def flush(self) -> None:
        """Let all gradients go that there will be; raises what torch raises for a lost group."""
        if self._group is not None:
            self._launch(self._group, only_full=False)

    def finish(self, total: int) -> None:
        """Wait for all sums, and divide by ``total``, the samples of all members."""
        self.flush()
        self._group = None
        for bucket in self._buckets:
            bucket.work.wait()
        for bucket in self._buckets:
            bucket.empty(total)

    def drop(self) -> None:
        """The group is over: what is under way comes to nothing."""
        self._group = None
        for bucket in self._buckets:
            bucket.work = None


def _in_buckets(params: list[nn.Parameter]) -> list[list[nn.Parameter]]:
    """Group parameters of one kind, the last one first."""
    open_ones: dict[tuple[torch.dtype, torch.device], list[nn.Parameter]] = {}
    found: list[list[nn.Parameter]] = []
    for param in reversed(params):
        kind = (param.dtype, param.device)
        bucket = open_ones.setdefault(kind, [])
        bucket.append(param)
        limit = BUCKET_BYTES if found else FIRST_BUCKET_BYTES
        if sum(one.numel() * one.element_size() for one in bucket) >= limit:
            found.append(open_ones.pop(kind))
    return [*found, *open_ones.values()]

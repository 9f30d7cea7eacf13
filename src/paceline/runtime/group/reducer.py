"""The exact weighted mean of all members' gradients, bucket by bucket while backward still runs.

Each member's gradients are a mean over its own samples; what is summed is that times their part of
all samples, so uneven shares weigh what they are worth. As in torch's DDP, parameters are put into
buckets in the reverse of their order, in which backward reaches them, and a bucket leaves when it
is full. Buckets leave in their order on every member.

    reducer.begin(group)                     # a step
    reducer.expect(part, on_end, last=True)  # before the user's backward
    loss.backward()                          # hooks fill buckets, full ones leave
    reducer.finish()                         # gradients are the mean over all samples now

A member may come to its share in several batches: it expects each of them, and takes what backward
has left (`Reducer.take`); gradients leave with the last one.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from time import monotonic, sleep  # noqa: TID251

import torch
from torch import Tensor, nn
from torch.autograd import Variable
from torch.optim.swa_utils import AveragedModel
from torch.utils.hooks import RemovableHandle

from paceline.base.errors import ConfigError
from paceline.runtime.group.group import BREAKING, Group, GroupOperation

BUCKET_BYTES, FIRST_BUCKET_BYTES = 25 << 20, 1 << 20
"""Bytes of a bucket, and of the first, as in DDP: a small one lets the first sum begin early."""
SMALL_BYTES = 1 << 14
"""Bytes of a gradient, in the mean, below which a call of torch costs more than its bytes."""
ALL = -1
"""Stand-in for an optimizer's number: all optimizers that have gradients."""
_EDITED = (
    "a hook has changed the gradient of a parameter of shape {}, as backward was going on; change "
    "gradients behind loss.backward(), where they are the mean over all workers"
)
LEFT_OUT = -1024.0
"""Stand-in for a mark: with fewer than 1,024 members it makes the sum negative, in any dtype."""
FAIL_S, POLL_S = 0.05, 0.001
"""Seconds within which all operations of a dropped group fail that were not forgotten, and seconds
between two looks at them."""


class Bucket:
    """Some parameters' gradients in one flat tensor.

    Behind them lies a mark for each parameter: how many members have a gradient for it. What none
    has stays None, as it would in one process. In a group of one the gradients stay where they are:
    they are the mean.
    """

    def __init__(self, params: Sequence[Tensor]) -> None:
        self.params = params
        self.sum: GroupOperation | None = None
        self.is_left_out = False
        """Whether a member has left the step out that was summed last."""
        self._all = frozenset(range(len(params)))
        self._make()
        self.begin()
        self.expect()

    def _make(self) -> None:
        first = self.params[0]
        size, count = sum(param.numel() for param in self.params), len(self.params)
        self.flat = torch.zeros(size + count, dtype=first.dtype, device=first.device)
        self._numbers, self._marks = self.flat.split([size, count])
        self._views: list[Tensor] = []
        start = 0
        for param in self.params:
            # In the parameter's own layout: what is elementwise runs through both in one line.
            strides = torch.empty_like(param, device="meta").stride()
            self._views.append(self.flat.as_strided(param.shape, strides, start))
            start += param.numel()
        self._ones = torch.ones_like(self._marks)
        self._are_small = self._numbers.nbytes < SMALL_BYTES * count

    def begin(self, *, alone: bool = False) -> None:
        """Prepare for the next step; ``alone``: nobody else has gradients of it."""
        self.sum, self._is_alone, self._stays = None, alone, False
        #: 1 for each parameter that something was put in for; empty: for none.
        self._has: list[float] = []

    def expect(self) -> None:
        """Prepare for the next batch."""
        self.missing = set(self._all)
        """Places of parameters whose gradients are to come; of others they come too late."""
        self.arrived: list[tuple[int, Tensor, int]] = []
        """Parameters whose gradients are there, these, and the version of each: `take` puts in all
        at once."""
        #: Those that were put in last; a hook of the script may follow ours.
        self._taken: list[tuple[int, Tensor, int]] = []

    @property
    def is_full(self) -> bool:
        """Whether all gradients of the batch are there."""
        return not self.missing

    def take(self, part: float, *, last: bool = False) -> None:
        """Put in the gradients of the batch that are there and not in yet, times ``part``.

        ``last``: no other batch of the step follows. If none came before, either, they may stay.
        """
        self._taken, self.arrived = self.arrived, []
        self.check_edits()
        places, grads = [k for k, _, _ in self._taken], [grad for _, grad, _ in self._taken]
        for k in sorted(self.missing):
            if (grad := self.params[k].grad) is not None:
                places.append(k)
                grads.append(grad)
        self.missing.difference_update(places)
        if not part:  # not times 0, which keeps what is not finite
            return
        self._check_kinds(grads)
        # Within a backward that creates a graph they are part of it.
        only = self._is_alone and last and part == 1.0 and not self._has
        are_plain = not torch.is_grad_enabled() or not any(one.requires_grad for one in grads)
        self._stays = only and are_plain
        if self._stays:
            return
        with torch.no_grad():
            self._put_all(places, grads, part)

    def check_edits(self) -> None:
        """Raise ConfigError if a hook has changed a gradient since it was there."""
        params = self.params
        for k, grad, version in self._taken:
            if grad._version == version and params[k].grad is grad:
                continue
            # Views of one tensor of the script's have one version in all.
            if params[k].grad is not grad or not grad._is_view():
                raise ConfigError(_EDITED.format(tuple(grad.shape)))

    def _check_kinds(self, grads: Sequence[Tensor]) -> None:
        dtype, dense = self.flat.dtype, torch.strided
        for grad in grads:
            if grad.dtype is dtype and grad.layout is dense:
                continue
            if grad.layout is not dense:
                raise ConfigError(
                    f"a parameter of shape {tuple(grad.shape)} has a gradient of layout "
                    f"{grad.layout}, and gradients are averaged whole: look its rows up with "
                    "sparse=False, or run the job with --strategy ps and nn.Embedding(sparse=True)"
                )
            raise ConfigError(
                f"a parameter of shape {tuple(grad.shape)} has a gradient of {grad.dtype}, and was "
                f"{dtype} at job.prepare; convert the model before it"
            )

    def _put_all(self, places: Sequence[int], grads: list[Tensor], part: float) -> None:
        views = [self._views[k] for k in places]
        are_all = not self._has and len(places) == len(self.params)
        if are_all and part == 1.0:
            torch._foreach_copy_(views, grads)
        elif are_all and self._are_small:
            # Two passes over what is in the processor's cache take less than a call for each.
            torch._foreach_copy_(views, grads)
            self._numbers.mul_(part)
        else:
            self._has = self._has or [0.0] * len(self.params)
            for k, view, grad in zip(places, views, grads, strict=True):
                if self._has[k]:
                    view.add_(grad, alpha=part)
                elif part == 1.0:
                    view.copy_(grad)
                else:
                    torch.mul(grad, part, out=view)
                self._has[k] = 1.0
        if are_all:
            self._has = [1.0] * len(self.params)

    def _complete(self) -> None:
        has = self._has or [0.0] * len(self.params)
        if min(has) > 0.0:
            self._marks.copy_(self._ones)
            return
        for one, view in zip(has, self._views, strict=True):
            if one <= 0.0:
                view.zero_()
        self._marks.copy_(torch.tensor(has))

    def leave_out(self) -> None:
        """Put nothing in, and have all members see that the step must be left out."""
        self._stays = False
        self.missing.clear()
        self.arrived.clear()
        self._has = [LEFT_OUT] * len(self.params)

    def launch(self, group: Group) -> None:
        """Begin to sum what is in: other gradients come too late."""
        self.missing.clear()
        if self._stays:
            self.sum = group.nothing()
            return
        self._complete()
        # Neither gloo nor NCCL knows complex numbers.
        numbers = torch.view_as_real(self.flat) if self.flat.is_complex() else self.flat
        self.sum = group.sum(numbers)

    def combine(self, group: Group) -> None:
        """Do what is left to do once every member has launched its part."""

    def give(self) -> None:
        """Make the parameters' gradients what lies here now: in their own memory, as by DDP.

        A script may keep a gradient, and compare it with that of the next step.
        """
        if self._stays:
            self.is_left_out = False
            return
        marks = self._marks.real.tolist()
        self.is_left_out = min(marks) < 0
        grads, means, dtype, dense = list[Tensor](), list[Tensor](), self.flat.dtype, torch.strided
        for param, view, mark in zip(self.params, self._views, marks, strict=True):
            grad = param.grad
            if mark <= 0:
                param.grad = None
            elif grad is None or grad.requires_grad or (grad.dtype, grad.layout) != (dtype, dense):
                param.grad = view.clone()
            else:
                grads.append(grad)
                means.append(view)
        if grads:
            torch._foreach_copy_(grads, means)

    @property
    def is_idle(self) -> bool:
        """Whether no operation is at it."""
        return self.sum is None or self.sum.is_over

    def drop(self) -> None:
        """The group is over; whatever an operation still does, it does not do it to us."""
        if not self.is_idle:
            self._make()
        self.sum = None


class Reducer:
    """Averages the gradients of these parameters.

    Args:
        params: those that are trained, the same in all members, in the same order.
        early: whether gradients leave as soon as backward has made them.
        buckets: that hold them, and maybe more; None: they are made here.
    """

    sums_gradients = True
    """Whether what is summed is each member's gradients, whatever it computed them in."""

    def __init__(
        self,
        params: Iterable[nn.Parameter],
        *,
        early: bool = True,
        buckets: Sequence[Bucket] | None = None,
    ) -> None:
        params = list(params)
        self._buckets = buckets or [Bucket(some) for some in in_buckets(params)]
        self._place = {
            param: (bucket, k) for bucket in self._buckets for k, param in enumerate(bucket.params)
        }
        self._device = params[0].device if params else None
        self._group: Group | None = None
        self._part = 0.0
        self._last = True
        self._next = 0
        self._on_end: Callable[[], None] = lambda: None
        self._has_run = False
        self.called_twice = False
        """Whether a parameter got a second gradient for one batch."""
        self._may_be_early, self._takes_early = early, False
        self._rests = False
        self._handed_in = False
        self.left_out = False
        """Whether a member has left out the step that was finished last."""
        self._hooks: list[RemovableHandle] = []
        for param in params:
            trained = param.requires_grad
            param.requires_grad_(True)  # one that is frozen for a while takes no hook otherwise
            self._hooks += self._hook(param)
            param.requires_grad_(trained)

    def _hook(self, param: nn.Parameter) -> list[RemovableHandle]:
        return [param.register_post_accumulate_grad_hook(self._noting(param))]

    def _noting(self, param: nn.Parameter) -> Callable[[Tensor], None]:
        """Return what notes that the gradient of a parameter is there: called once for each."""
        bucket, k = self._place[param]

        def note(param: Tensor) -> None:
            if self._rests:
                self._has_run = True
                return
            if not self._has_run:
                self._begin_backward()
            missing = bucket.missing
            if k not in missing:
                self.called_twice |= not self._handed_in
            elif self._takes_early:
                missing.remove(k)
                if (grad := param.grad) is not None:
                    bucket.arrived.append((k, grad, grad._version))
                if not missing and self._last:
                    self._launch_full()

        return note

    def _begin_backward(self) -> None:
        self._has_run = True
        if self._group is not None and self._may_be_early:
            # Also where nothing leaves early: the script may clip the mean before it steps.
            Variable._execution_engine.queue_callback(self._on_end)

    @property
    def is_on_cpu(self) -> bool:
        """Whether all gradients are in memory, where nothing has to be waited for."""
        return self._device is None or self._device.type == "cpu"

    def rest(self) -> None:
        """Leave the gradients of the next batch alone: they are the mean as they are."""
        self._rests, self._has_run = True, False
        self.called_twice = self.left_out = False

    def close(self) -> None:
        """Remove the hooks: another reducer averages from now on."""
        for hook in self._hooks:
            hook.remove()

    def begin(self, group: Group, runs: Sequence[range], *, whole: bool = True) -> None:
        """A step begins, whose gradients are summed in this group.

        Args:
            group: as above.
            runs: what of it each member computes, for those that sum up block by block.
            whole: whether all gradients of ours are in the sums; if not, none leaves before
                `flush`, and another thread may call `hand_in` instead.
        """
        self._group, self._next, self._rests = group, 0, False
        self._handed_in, self._takes_early = False, self._may_be_early and whole
        alone = self.sums_gradients and whole and not group.travels
        for bucket in self._buckets:
            bucket.begin(alone=alone)

    def expect(self, part: float, on_end: Callable[[], None], *, last: bool) -> None:
        """The next backward is the one whose gradients count.

        Args:
            part: what the loss counts for, a mean over some samples: their part of the samples
                of all members. 0: it does not count.
            on_end: called at the end of the backward, within it, if gradients may leave early.
            last: whether no other batch of ours follows in this step.
        """
        self._part, self._on_end, self._last = part, on_end, last
        self.called_twice = self._has_run = False
        for bucket in self._buckets:
            bucket.expect()

    def _launch_full(self) -> None:
        """Let buckets go that are full, in their order."""
        group = self._group
        while group is not None and self._next < len(self._buckets):
            bucket = self._buckets[self._next]
            if not bucket.is_full:
                return
            try:
                self._launch_next(group)
            except BREAKING:  # as `flush` hears in its turn
                return

    def _launch_next(self, group: Group) -> None:
        bucket = self._buckets[self._next]
        bucket.take(self._part, last=True)
        bucket.launch(group)
        self._next += 1

    def await_device(self) -> None:
        """Return when backward is done, and not only given to a device to do."""
        if self._device is not None and self._device.type == "cuda":
            # Wait for this stream only: sums, which wait for others, are in one of their own.
            torch.cuda.current_stream(self._device).synchronize()

    def take(self) -> None:
        """A batch is over; others of our share follow."""
        for bucket in self._buckets:
            bucket.take(self._part)

    def flush(self) -> None:
        """Let all gradients go that there will be; raises as `Operation.wait` for a lost group."""
        while self._group is not None and self._next < len(self._buckets):
            self._launch_next(self._group)

    def hand_in(self) -> None:
        """Let go what was taken so far, and nothing else of ours; raises as `flush`."""
        self._handed_in = True
        group, self._next = self._group, len(self._buckets)
        if group is not None:
            for bucket in self._buckets:
                bucket.launch(group)

    def await_sums(self) -> None:
        """Wait until what is ours is summed, so far as that can be before `finish`."""
        self.flush()
        for bucket in self._buckets:
            if bucket.sum is not None:
                bucket.sum.wait()

    def finish(self, part: float = 1.0) -> None:
        """Wait for all sums, and make them the gradients.

        ``part``: of the step's samples that is in them.
        """
        self.flush()
        group, self._group, self._takes_early = self._group, None, False
        if group is not None:
            for bucket in self._buckets:
                bucket.combine(group)
        for bucket in self._buckets:
            assert bucket.sum is not None
            bucket.sum.wait()
        # Before the first is written to: gradients that torch has cut out of one have one version.
        for bucket in self._buckets:
            bucket.check_edits()
        for bucket in self._buckets:
            if part != 1.0:
                bucket.flat.div_(part)
            bucket.give()
        self.left_out = any(bucket.is_left_out for bucket in self._buckets)

    def leave_out(self) -> None:
        """Do without this member's gradients, and let all members see it."""
        for bucket in self._buckets:
            bucket.leave_out()

    def forget(self) -> None:
        """The gradients of a batch are taken: what the next backward adds to is nothing."""
        for bucket in self._buckets:
            for param in bucket.params:
                param.grad = None

    @property
    def has_gradients(self) -> bool:
        """Whether a backward of this batch has left a gradient that is not zero, or may have."""
        if not self._buckets:
            return True  # another one averages them
        if not self._has_run:
            return False
        grads = (param.grad for bucket in self._buckets for param in bucket.params)
        return any(bool(grad.any()) for grad in grads if grad is not None)

    # ------------------------------------------------------------------ several optimizers

    takes_turns = False
    """Whether an optimizer may step on gradients that were computed after the step of another."""
    by_closure: Collection[int] = ()
    """Optimizers that have gradients computed again and again within one step."""
    loss: float | None = None
    """Loss that a closure has returned; after `finish` the mean over all members. None: no
    closure."""
    threads = 1
    """Threads of torch; after `finish` those of the member that has the fewest."""

    def calling(self, optimizer: int) -> None:
        """The closure of an optimizer is called next."""

    def has_run(self, optimizer: int) -> bool:
        """Tell whether an optimizer's closure, once called, may have left gradients."""
        return self._has_run or not self._buckets

    @property
    def may_skip(self) -> bool:
        """Whether an optimizer may step on some batches only."""
        return False

    def no_more(self) -> None:
        """Agree that no other optimizer steps on this batch; raises as `finish`."""

    def skip(self, optimizers: set[int]) -> None:
        """Note that these optimizers do not step on this batch."""

    def is_due(self, optimizer: int) -> bool:
        """Tell whether gradients of an optimizer are still to be averaged before it steps."""
        return False

    def wants(self, optimizer: int) -> None:
        """`finish` is called for the step of this optimizer next; `ALL`: for all of them."""

    def is_last_turn(self, stepped: set[int], optimizer: int) -> bool:
        """Tell whether nothing is averaged any more once this optimizer steps, after others."""
        return True

    def check_over(self, optimizer: int) -> None:
        """The step of an optimizer is for good: raise ConfigError if its gradients are not."""

    def keep(self, optimizer: int) -> None:
        """Copy what an optimizer is about to change: `take_back` may follow."""

    def keep_average(self, average: AveragedModel) -> None:
        """Copy an average that is about to follow steps on trial, so that `take_back` has it."""

    def take_back(self) -> None:
        """Undo the steps of all optimizers that were kept."""

    # ------------------------------------------------------------------ the end of a step

    def update(self) -> None:
        """The optimizers have changed the parameters: change what else the step changes."""

    def end(self) -> None:
        """The step is over, and the script done with its last batch."""

    def drop(self) -> None:
        """The group is over: what is under way comes to nothing."""
        self._group, self._takes_early = None, False
        deadline_s = monotonic() + FAIL_S
        while monotonic() < deadline_s and not all(bucket.is_idle for bucket in self._buckets):
            sleep(POLL_S)
        for bucket in self._buckets:
            bucket.drop()


def in_buckets(params: Sequence[Tensor]) -> list[list[Tensor]]:
    """Group parameters of one kind, the last one first."""
    open_ones: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    found: list[list[Tensor]] = []
    for param in reversed(params):
        kind = (param.dtype, param.device)
        bucket = open_ones.setdefault(kind, [])
        bucket.append(param)
        limit = BUCKET_BYTES if found else FIRST_BUCKET_BYTES
        if sum(one.numel() * one.element_size() for one in bucket) >= limit:
            found.append(open_ones.pop(kind))
    return [*found, *open_ones.values()]

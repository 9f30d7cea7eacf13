"""Gradients of several optimizers, averaged whenever one of them steps on some that are not yet.

A script that trains two models in turn (a GAN) steps the first one, and computes the gradients of
the second with what that step has changed:

    loss_of_first.backward(); first.step()      # turn 1: the gradients of the first are averaged
    loss_of_second.backward(); second.step()    # turn 2: those of the second

An optimizer that calls a closure again and again within its step (LBFGS) takes a turn for each
call. It goes on by the loss, so in these turns the losses are averaged, too.

Until the last turn is over the step may come again: what optimizers did in it is taken back then
(`Undo`). Members tell each other at each turn which optimizer steps, and whose gradients they have.
"""

import struct
from collections.abc import Callable, Collection, Sequence

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.hooks import RemovableHandle

from paceline.base.errors import ConfigError
from paceline.runtime.group.group import Group
from paceline.runtime.group.reducer import ALL, Bucket, Reducer, in_buckets
from paceline.runtime.holding.replicas.undo import Undo

LEAVES, NO_MORE = -2, -3
"""Stand-ins for an optimizer's number: this member steps none on its batch, or no other one."""
_NOT_CLEARED = (
    "loss.backward() adds to gradients that an optimizer has not stepped on, and that are those of "
    "this worker alone, or of a batch before; call zero_grad() of that optimizer before it"
)
_NOT_CLEARED_AGAIN = (
    "loss.backward() in a closure adds to gradients that were averaged over all workers before; "
    "call optimizer.zero_grad() in the closure, before it"
)
_CALLS_DIFFER = (
    "the workers call the closure of an optimizer differently: {}; have the closure make the same "
    "calls in all workers, and set nothing of the optimizer by what one worker counts, draws or "
    "measures (processors of different kinds differ in last bits, and may differ in this, too)"
)
_EDITED = (
    "gradients were changed between loss.backward() and optimizer.step() (by torch's clipping, for "
    "example), when they were those of this worker alone: with several optimizers they are "
    "averaged when one steps; clip with job.clip_grad_norm_(max_norm, optimizer) before it steps"
)
_IN_PARTS = (
    "an optimizer stepped on gradients that were computed after another one had stepped, on a part "
    "of a worker's share of the batch: such steps need the whole share as one batch; leave out "
    "accumulate, and limits of a batch's size"
)
_SCALED = (
    "optimizers step in turn, and one of their gradients is scaled by a GradScaler, which does not "
    "know of a step that is taken back; compute in bfloat16, which needs none"
)
_AFTER_ALL = (
    "loss.backward() was called after an optimizer of this batch had stepped, though in the "
    "batches before all optimizers stepped on gradients of one time; call it before the first of "
    "them steps, or have them take turns from the first batch on"
)


class TurnReducer(Reducer):
    """Averages the gradients of several optimizers, in as many turns as they take.

    Args:
        params: of each optimizer, those that are trained.
        undo: of the optimizers.
        scaled: whether the script has a scaler.
        by_closure: see `Reducer.by_closure`.
    """

    takes_turns = True
    sums_gradients = False

    def __init__(
        self,
        params: Sequence[Sequence[nn.Parameter]],
        undo: Undo,
        *,
        scaled: bool = False,
        by_closure: Collection[int] = (),
    ) -> None:
        self.by_closure = by_closure
        self._of = [[Bucket(some) for some in in_buckets(of_one)] for of_one in params]
        self._undo, self._scaled = undo, scaled
        self._owner: dict[Tensor, int] = {
            param: number for number, of_one in enumerate(params) for param in of_one
        }
        #: Parameters with gradients that were not averaged, and the versions of these.
        self._late: dict[Tensor, int] = {}
        #: Parameters whose gradients of this batch are taken, but not averaged.
        self._left: set[Tensor] = set()
        #: Parameters whose gradients another batch has left, and nobody averaged.
        self._stale: set[Tensor] = set()
        #: Parameters whose gradients must be cleared in each call of a closure.
        self._cleared = {one for one, number in self._owner.items() if number in by_closure}
        self._averaged: set[int] = set()
        self._taken: set[int] = set()
        self._stepped: set[int] = set()
        #: Optimizers for which a backward has left gradients since their closures were called.
        self._ran: set[int] = set()
        self._has_taken = self._leaves = self._skips = self._is_broken = False
        self._num_parts = self._num_turns = 0
        self._optimizer = ALL
        #: None: not known yet. A scaler does not know of a step that is taken back.
        self._alternates: bool | None = False if scaled else None
        every = [param for of_one in params for param in of_one]
        buckets = [bucket for of_one in self._of for bucket in of_one]
        super().__init__(every, early=False, buckets=buckets)

    def _hook(self, param: nn.Parameter) -> list[RemovableHandle]:
        after = param.register_post_accumulate_grad_hook(self._on_gradient)
        return [after, param.register_hook(self._before(param))]

    def _before(self, param: Tensor) -> Callable[[Tensor], None]:
        def check(_gradient: Tensor) -> None:
            if param in self._stale:
                self._stale.discard(param)
                if param.grad is not None and bool(param.grad.any()):
                    again = self._owner[param] in self.by_closure
                    raise ConfigError(_NOT_CLEARED_AGAIN if again else _NOT_CLEARED)

        return check

    def _on_gradient(self, param: Tensor) -> None:
        self._has_run = True
        assert param.grad is not None
        self._late[param] = param.grad._version
        self._ran.add(self._owner[param])

    # ------------------------------------------------------------------ a step

    def begin(self, group: Group, runs: Sequence[range], *, whole: bool = True) -> None:
        super().begin(group, runs, whole=whole)
        if self._is_broken:
            self._forget_broken()
        self.loss = None  # of a step that broke before it was told
        self._num_turns = self._num_parts = 0
        self._leaves = self._skips = False
        for some in (self._averaged, self._taken, self._stepped):
            some.clear()

    def drop(self) -> None:
        super().drop()
        self._is_broken = True

    def _forget_broken(self) -> None:
        """Clear what a broken step has left, which the plain script would not have there.

        A loss of one model leaves gradients in the other one, and its optimizer clears them only
        after that backward. In the second run of the body they are of the first one.
        """
        self._is_broken = False
        for param in (*self._late, *self._left):
            param.grad = None
        self._late.clear()
        self._left.clear()

    def expect(self, part: float, on_end: Callable[[], None], *, last: bool) -> None:
        super().expect(part, on_end, last=last)
        self._stale.update(self._left, self._late)
        self._stale -= self._cleared
        self._left.clear()
        self._late.clear()
        self._ran.clear()
        self._has_taken = False
        self._num_parts += part > 0

    def calling(self, optimizer: int) -> None:
        self._ran.discard(optimizer)
        self._stale -= self._cleared
        if optimizer in self.by_closure:
            self._stale.update(one for one in self._cleared if self._owner[one] == optimizer)

    def has_run(self, optimizer: int) -> bool:
        return optimizer in self._ran

    def take(self) -> None:
        fresh = self._fresh()
        if self._has_taken and fresh and self._part:
            raise ConfigError(_IN_PARTS)
        super().take()
        self._has_taken = True
        self._taken |= fresh
        self._left.update(self._late)
        self._late.clear()

    def forget(self) -> None:
        super().forget()
        self._left.clear()
        self._late.clear()

    def leave_out(self) -> None:
        self._leaves = True

    def _fresh(self) -> set[int]:
        return {self._owner[param] for param in self._late}

    # ------------------------------------------------------------------ its turns

    @property
    def may_skip(self) -> bool:
        return not self._scaled

    def no_more(self) -> None:
        self._optimizer = NO_MORE
        if self._group is not None:
            self._agree(self._group)

    def skip(self, optimizers: set[int]) -> None:
        self._skips = True
        of_them = (one for one, number in self._owner.items() if number in optimizers)
        # A worker that joins would not have them.
        self._stale.update(one for one in of_them if one.grad is not None)

    def is_due(self, optimizer: int) -> bool:
        is_averaged = optimizer in self._averaged and optimizer not in self.by_closure
        return not is_averaged or optimizer in self._fresh()

    def wants(self, optimizer: int) -> None:
        self._optimizer = optimizer

    def is_last_turn(self, stepped: set[int], optimizer: int) -> bool:
        if optimizer in self.by_closure:
            return False
        waiting = set(range(len(self._of))) - stepped
        if waiting == {optimizer}:
            return True
        return self._alternates is False and not any(map(self.is_due, waiting))

    def check_over(self, optimizer: int) -> None:
        if self.is_due(optimizer):
            raise ConfigError(_SCALED if self._scaled else _AFTER_ALL)

    def flush(self) -> None:
        """Do nothing: nothing leaves before all members have told whose turn it is."""

    def finish(self, part: float = 1.0) -> None:
        group = self._group
        if group is None:
            return
        if self._num_turns and self._num_parts > 1:
            raise ConfigError(_IN_PARTS)
        turn = self._agree(group)
        buckets = [bucket for number in turn for bucket in self._of[number]]
        for bucket in buckets:
            if bucket.sum is not None:  # of a turn before
                bucket.begin()
                bucket.expect()
            self._check_edits(bucket)
            bucket.take(self._part)
            bucket.launch(group)
        for bucket in buckets:
            assert bucket.sum is not None
            bucket.sum.wait()
            if part != 1.0:
                bucket.flat.div_(part)
            bucket.give()
        self._num_turns += 1
        self._averaged |= turn
        self._taken -= turn
        for param in [one for one in self._late if self._owner[one] in turn]:
            del self._late[param]

    def _agree(self, group: Group) -> set[int]:
        """Agree on whose gradients are averaged: those that a member has, and of who steps."""
        mine = (self._fresh() | self._taken) - self._stepped
        flags = [int(number in mine) for number in range(len(self._of))]
        loss, self.loss = self._loss_in_words(), None
        step = LEAVES if self._leaves else self._optimizer
        told = group.gather([step, torch.get_num_threads(), *loss, *flags]).wait()
        steps = [one[0] for one in told]
        self.left_out = LEAVES in steps
        if self.left_out:
            return set()
        self._check_alike([(one[0], one[2]) for one in told], group)
        self.threads = min(one[1] for one in told)
        if told[0][2]:
            # Added up in one order, so that it is the same in all members bit for bit.
            self.loss = sum(struct.unpack("<d", struct.pack("<q", one[3]))[0] for one in told)
        found = {k for k in range(len(self._of)) if any(one[4 + k] for one in told)}
        return found | {step for step in steps if step != ALL}

    def _loss_in_words(self) -> tuple[int, int]:
        """Return whether a closure has returned a loss, and the bits of what it counts for."""
        if self.loss is None:
            return 0, 0
        counts = self._part * self.loss if self._part else 0.0  # not times 0: it may be infinite
        bits: int = struct.unpack("<q", struct.pack("<d", counts))[0]
        return 1, bits

    def _check_alike(self, told: Sequence[tuple[int, int]], group: Group) -> None:
        """Raise ConfigError if not all tell the same: which optimizer steps, and if by closure."""
        if len(set(told)) == 1:
            return
        nodes = [member.node for member in group.run.members]
        steps = [
            "no other one" if step == NO_MORE else f"optimizer {step}{' by its closure' * by}"
            for step, by in told
        ]
        shown = ", ".join(f"{step} in {node}" for step, node in zip(steps, nodes, strict=True))
        if any(by or step in self.by_closure for step, by in told):
            raise ConfigError(_CALLS_DIFFER.format(shown))
        raise ConfigError(
            f"the workers step different optimizers at one time: {shown}; have all of them "
            "step in one order, whatever a worker's batch is like; for which batches one "
            "steps, say by job.step: if job.step % 5 == 0"
        )

    def _check_edits(self, bucket: Bucket) -> None:
        for param in bucket.params:
            version, grad = self._late.get(param), param.grad
            if version is None or grad is None or grad._is_view() or grad._version == version:
                continue
            if bool(grad.any()):
                raise ConfigError(_EDITED)

    # ------------------------------------------------------------------ for good, or not

    def keep(self, optimizer: int) -> None:
        self._stepped.add(optimizer)
        self._undo.keep(optimizer)

    def keep_average(self, average: AveragedModel) -> None:
        self._undo.keep_average(average)

    def take_back(self) -> None:
        self._undo.restore()
        self._is_broken = True

    def update(self) -> None:
        self._undo.drop()
        self._group = None
        # If some have not stepped, they may yet take a turn of their own in other batches.
        if not (self.left_out or (self._skips and self._num_turns < 2)):
            self._alternates = self._num_turns > 1 and not self._scaled

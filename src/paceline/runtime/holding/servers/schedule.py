"""Position of a job's schedule, and the script's part of training that moves with it.

Schedulers and hyper-parameters live with the workers, so a new life of one would begin them again.
Every worker hands their state to the servers, which keep the newest beside the model and write it
into cuts; a worker that joins, or goes back to a cut, takes it from there.

A *position* counts the steps of the schedule that are done: global batches in the model
(`Feed.steps_in`). State is of a position, and may lag behind the model by a step: then schedulers
that the last loop body stepped are stepped for what is missing.

What a synchronous step lacks is decided when the script is through with it. So its body does what a
whole step is worth, and the next body begins with taking that back, if it was less: A's body of
step 25 takes the schedule from 24 to 25; the step is decided without B's share; at step 26 A goes
back to 24, where B, which was late and has not stepped since, is too.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from paceline.base.errors import ConfigError, PermanentError
from paceline.runtime.data.work import Work
from paceline.runtime.holding.servers.buffers import ModelBuffers
from paceline.runtime.holding.servers.reckoning import Reckoning
from paceline.runtime.holding.servers.settings import Setting, SettingsBetween, put
from paceline.runtime.process.feature_port import LogPlace
from paceline.runtime.server.admission import MAX_SCRIPT_BYTES
from paceline.runtime.state.begun import prepared, tell_differences
from paceline.runtime.state.outside import START, Outside
from paceline.runtime.state.packed import pack, unpack
from paceline.runtime.state.saved import BUFFERS, LEFT_OUT, Saved, Tree, decode_saved
from paceline.runtime.state.script_state import ScriptState
from paceline.wire.messages.base import UNPLACED, Attempt
from paceline.wire.messages.feeds import Feed, ScriptPlace


class Schedule:
    """Schedulers and hyper-parameters of one worker, at the job's position.

    Args:
        optimizers: all that were prepared.
        schedulers: changed in place: their ``step`` follows the job's.
        count: samples of a feed in the model; asked where positions are of these.
        script: what the script keeps beside them (`Job.state`).
        modules: the models, whose buffers go along.

    Raises:
        ConfigError: a scheduler has state that cannot be handed to another worker.
    """

    def __init__(
        self,
        optimizers: Sequence[Optimizer],
        schedulers: Sequence[LRScheduler],
        count: Callable[[int], int] = lambda _: 0,
        script: ScriptState | None = None,
        modules: Sequence[nn.Module] = (),
    ) -> None:
        self._buffers = ModelBuffers(modules)
        self._optimizers, self._schedulers, self._count = optimizers, schedulers, count
        self._script = ScriptState() if script is None else script
        self.reckoning = Reckoning()
        """Counts of the samples in the model."""
        self.position = 0
        self._is_known = False
        self.before = 0
        """Position at which the batch in hand begins."""
        self.restores = -1
        """Value of `Trainer.restores` when the trainer had what this schedule has; -1: never."""
        self._feed, self._base = -1, 0
        self._opened: dict[int, Feed] = {}
        """Training feeds of the script so far, also those of which this worker has no batch."""
        self._by_samples = True
        """Whether positions are of samples in the model: alone every batch is a step."""
        self._ended: dict[int, int] = {}
        """Feeds that are complete, and the steps of all their samples."""
        self._inside = False
        #: Steps that a call in the body in hand is worth.
        self._times = 0
        self._synchronous = False
        #: Synchronous: the step in hand, and the state at its beginning.
        self._in_hand, self._sure = 0, (0, b"")
        #: Calls of a body that completed no global batch: of the next one, if it makes none.
        self._owed: list[Any] = [None] * len(schedulers)
        #: What the body before called, and the body in hand has called so far.
        self._called: list[Any] = [None] * len(schedulers)
        self._calling: list[Any] = [None] * len(schedulers)
        self._steps = [type(one).step for one in schedulers]
        self.between = Outside(schedulers, lambda _: 1 if self._inside else None, self._step)
        """The steps of schedulers between loops."""
        #: The loop that the script has come to (its epoch and feed), and the state when it began.
        self._start: tuple[tuple[ScriptPlace, int], bytes] = (START, -1), b""
        self._settings = SettingsBetween(optimizers)
        self._kinds = tuple(map(_kind, schedulers))
        self._begun = msgspec.msgpack.encode(pack(self._prepared()))
        self._num_steps = 0
        """Steps of the schedulers so far: each may change anything in their state."""
        self._num_before = 0
        """Value of `_num_steps` when the body in hand began."""
        self._has_left = False
        """Whether a body has ended."""
        self._first = b""
        """The state before the first body of this worker."""
        self._saved = b""
        self._fresh = False
        """Whether `_saved` is the state as it is now, but for what the script does meanwhile."""
        self._saved_of: tuple[Any, ...] | None = None

    # ------------------------------------------------------------------ positions

    @property
    def has_opened(self) -> bool:
        """Whether the script has come to a training loop."""
        return bool(self._opened)

    def opened(self, feed: Feed) -> None:
        """Note a training feed that the script goes through from now on."""
        self._opened[feed.feed] = feed

    def at(self, feed: Feed, counted: int) -> int:
        """The position of a model with so many samples of a feed, and all of those before it."""
        base = self._base if feed.feed == self._feed else self._next_base(feed)
        return base + feed.steps_in(counted)

    def step(self, *, in_hand: bool) -> int | None:
        """Return the schedule's position; ``in_hand``: a batch's gradients were not taken yet."""
        if not self._is_known:
            return None
        return self.before if in_hand else self.position

    def log_place(self, restores: int, *, in_body: bool) -> LogPlace:
        """Return where what the script logs now belongs.

        Args:
            restores: of the trainer, before the batch in hand was asked for.
            in_body: there is one.
        """
        if in_body:
            return LogPlace(Attempt(restores), self.before + 1, self.reckoning.with_step)
        samples = self.reckoning.now
        if not self._is_known or samples is None:
            return LogPlace(Attempt(), UNPLACED, UNPLACED, between=True)
        return LogPlace(Attempt(restores), self.position, samples, between=True)

    def enter(self, feed: Feed, work: Work, counted: int | None, whole: int = 0) -> bytes:
        """Bring the script where the model is that the next batch is computed with.

        A body takes one step at most: what the last step of an epoch is worth beyond that, if those
        before it lacked samples, is made up for before the next.

        Args:
            feed: what is trained on.
            work: the batch.
            counted: samples of the feed that come before it; None: every batch is a step.
            whole: samples of its step (synchronous).

        Returns:
            The state at `before`, if no body has ended with it; else nothing.
        """
        self._is_known = True
        self._synchronous, self._by_samples = bool(work.step), counted is not None
        self.opened(feed)
        edits = self._settings.end()
        if feed.feed != self._feed:
            self._feed, self._base, self._fresh = feed.feed, self._next_base(feed), False
        before, after = self.position, self.position + 1
        if counted is not None:
            new = work.num_samples if not work.step else whole if work.ends_step else 0
            before, after = self.at(feed, counted), self.at(feed, counted + new)
            after = min(after, before + 1) if work.step else after
        elif work.step:
            before, after = work.step - 1, work.step if work.ends_step else work.step - 1
        news = b""
        # A share of the step in hand that comes once its body is over begins where the step does.
        again = work.step == self._in_hand and bool(work.step) and self.position > before
        if counted is not None and (work.step != self._in_hand or again):
            news = self._begin_step(work.step, before, edits)
        self._catch_up(before - self.position)
        self.before, self._num_before = self.position, self._num_steps
        self._times = max(0, after - self.position)
        self.position += self._times
        self._inside = True
        return news

    def _begin_step(self, step: int, position: int, edits: Mapping[Setting, Any]) -> bytes:
        """Go back to where the step begins, if the last body took the script further.

        Args:
            step: of the job.
            position: where it begins.
            edits: hyper-parameters that the script has set since it left a loop.
        """
        self._in_hand = step
        held, state = self._sure
        if self.position > position and state and held <= position:
            called = self._called
            self._become(held, decode_saved(state))
            self._settings.put(edits)
            self._called = called
            self._owed = called if held == position else [None] * len(called)
        num_steps = self._num_steps
        self._catch_up(position - self.position)
        if not self._fresh:
            self.save()
        self._sure = self.position, self._saved
        return self._saved if self._num_steps > num_steps else b""

    def _next_base(self, feed: Feed) -> int:
        """Return where this feed begins: the same in all workers."""
        if not self._by_samples or (self._feed >= 0 and self._feed not in self._opened):
            return self.position
        # Not our own position: A had the last batch of the old feed, B had its last one before, or
        # none. What is left early, or a stream, is worth what the model has of it.
        passed = (
            self._ended[number] if number in self._ended else one.steps_in(self._count(number))
            for number, one in self._opened.items()
            if self._feed <= number < feed.feed
        )
        return self._base + sum(passed)

    def _catch_up(self, missing: int) -> None:
        """Take steps that others have taken, with what the last body did."""
        if missing <= 0:
            return
        for number, call in enumerate(self._called):
            for _ in range(missing if call is not None else 0):
                self._take(number, *call)
        self.position += missing

    def leave(self) -> None:
        """The loop's body is over."""
        self._has_left = True
        for number, call in enumerate(self._owed if self._times else ()):
            if call is not None and self._calling[number] is None:
                self._calling[number] = call
                for _ in range(self._times):
                    self._take(number, *call)
        if self._times or not self._synchronous:
            self._called = self._calling
            self._owed = [None] * len(self._schedulers)
        self._calling = [None] * len(self._schedulers)
        self._times = 0

    def break_off(self, *, pushed: bool) -> bool:
        """Leave the loop within a body; tell whether that is over, as far as can be told.

        It is not where a scheduler was not stepped that other bodies step: an error may have come
        before. A worker that goes on from the state of the body before makes up for it.

        Args:
            pushed: its gradients are on their way to the model.
        """
        whole = pushed and all(
            now is not None or (before is None and self._has_left)
            for now, before in zip(self._calling, self._called, strict=True)
        )
        if pushed:
            self.leave()
        elif self._num_steps == self._num_before:
            self.position, self._times = self.before, 0
        self._calling = [None] * len(self._schedulers)
        self._settings.begin()
        return whole

    def complete(self, feed: Feed) -> None:
        """Note that all samples of this feed are trained on, by whichever workers."""
        self.opened(feed)
        if feed.num_samples is None:
            return
        self._is_known = True
        self.reckoning.complete(feed)
        if self._by_samples and feed.feed >= self._feed:
            self._catch_up(self.at(feed, feed.num_samples * feed.epochs) - self.position)
        self._ended[feed.feed] = feed.steps_in(feed.num_samples * feed.epochs)

    def _take(self, number: int, *args: Any, **kwargs: Any) -> None:
        self._num_steps += 1
        self._fresh = False
        self._steps[number](self._schedulers[number], *args, **kwargs)

    def end(self) -> None:
        """The loop is over, or left."""
        self._inside = False

    def _step(self, number: int, scheduler: LRScheduler, *args: Any, **kwargs: Any) -> None:
        """A call of the script's."""
        if not self._inside:
            self._settings.note()
            self._take(number, *args, **kwargs)
            self._settings.stepped()
            return
        self._calling[number] = tuple(map(_number, (*args, *kwargs.values())))
        times = self._times
        if (
            not self._synchronous
            and self._called[number] is None
            and any(call is not None for call in self._called)
        ):
            times = 1  # of a scheduler that is not stepped in every body each call is a step
        at_most = 1 if isinstance(scheduler, ReduceLROnPlateau) else sys.maxsize
        for _ in range(min(times, at_most)):
            self._take(number, *args, **kwargs)

    # ------------------------------------------------------------------ state

    def _prepared(self) -> dict[str, Any]:
        return prepared(self._optimizers, self._schedulers)

    def save(self) -> bytes:
        """The state as it is now: the very same object as before if nothing changed."""
        found = self._look()
        if found is None or not _same(found, self._saved_of):
            self._saved, self._saved_of = self._pack_all(), found
        self._fresh = True
        return self._saved

    def _look(self) -> tuple[Any, ...] | None:
        """Return what tells cheaply whether the state changed; None: nothing does."""
        if self._script.state_of():
            return None
        try:
            return (
                self._num_steps,
                self._feed,
                self._base,
                self.between.counts(),
                self.between.place,
                self._called,
                [
                    [_glance(value) for key, value in group.items() if key != "params"]
                    for one in self._optimizers
                    for group in one.param_groups
                ],
                list(map(_look_at, self._schedulers)),
                self._buffers.look(),
            )
        except TypeError:
            return None

    def _pack_all(self) -> bytes:
        """Pack the whole state as it travels.

        Raises:
            ConfigError: servers would not take so much.
        """
        script = self._script.state_of()
        buffers, at_home = self._buffers.state()
        now = {
            "script": script,
            BUFFERS: buffers,
            LEFT_OUT: at_home,
            **self._prepared(),
            "outside": self.between.counts(),
            "called": [None if call is None else list(call) for call in self._called],
        }
        packed = msgspec.msgpack.encode(
            Saved(pack(now), self._begun, self._feed, self._base, self._kinds, self.between.place)
        )
        if len(packed) > MAX_SCRIPT_BYTES:
            parts = {f"job.state[{name!r}]": one for name, one in script.items()}
            parts |= {f"buffer {name}": one for name, one in buffers.items()}
            sizes = {name: len(msgspec.msgpack.encode(pack(one))) for name, one in parts.items()}
            name = max(sizes, key=lambda one: sizes[one], default="")
            raise ConfigError(
                f"job.state and the model's buffers have {len(packed):,} bytes, of which {name} "
                f"{sizes.get(name, 0):,}; parameter servers keep up to {MAX_SCRIPT_BYTES:,}: leave "
                "it out, or run the job with --strategy allreduce"
            )
        return packed

    def begin_loop(self, feed: int) -> None:
        """A loop over this feed begins: keep the state with which it does."""
        place = self.between.place, feed
        if self._start[0] < place:
            self._start = place, self.save()

    def keep_first(self) -> None:
        """Keep the state as it is before this worker trains: a job that goes back begins there."""
        self._first = self.save()

    def begin_again(self, position: int) -> None:
        """Become what this worker was before it trained: the model is as if nobody had."""
        if self._first:
            self.load(position, self._first)
        else:  # alone: there is nothing to go back to
            self.position = max(position, self.position)

    def load(self, position: int, data: bytes) -> None:
        """Become what was saved at this position.

        Raises:
            PermanentError: it is no such state.
            ConfigError: it is of other schedulers than the script's.
        """
        saved = decode_saved(data)
        begun, ours = _unpack_begun(saved.begun), _unpack_begun(self._begun)
        self._check_kinds(saved.kinds, len(unpack(saved.now)["schedulers"]))
        self._settings.end()
        tell_differences(ours, begun)
        self._begun = saved.begun
        self._feed, self._base = saved.feed, saved.base
        place, start = self._start
        self.between.check(saved.place)
        if saved.place is not None and (tuple(saved.place), saved.feed) < place:
            # It lacks what the script has done between two loops since.
            saved, data = decode_saved(start), start
        self._become(position, saved)
        with torch.no_grad():
            state = unpack(saved.now)
            self._script.become(state.get("script", {}))
            self._buffers.become(state.get(BUFFERS, {}))
        self._in_hand, self._sure = 0, (position, data)
        self._owed = [None] * len(self._schedulers)

    def _become(self, position: int, saved: Saved) -> None:
        state = unpack(saved.now)
        self._saved_of, self._fresh = None, False
        for optimizer, groups in zip(self._optimizers, state["groups"], strict=True):
            for group, values in zip(optimizer.param_groups, groups, strict=True):
                for key, value in values.items():
                    put(group, key, value)
        for scheduler, one in zip(self._schedulers, state["schedulers"], strict=True):
            scheduler.load_state_dict(one)
        inside, self._inside = self._inside, False
        self.between.became(state["outside"], saved.place)
        self._inside = inside
        self._called = [None if call is None else tuple(call) for call in state["called"]]
        self.position = position

    def _check_kinds(self, kinds: tuple[str, ...] | None, number: int) -> None:
        ours = self._kinds
        if ours == kinds or (kinds is None and len(ours) == number):
            return
        theirs = f"{number} schedulers" if kinds is None else ", ".join(kinds) or "no scheduler"
        raise ConfigError(
            f"job.prepare got {', '.join(ours) or 'no scheduler'}, but the job goes on with the "
            f"state of {theirs}; give it the same schedulers in the same order, or begin another "
            "job with the new ones"
        )


def place_of(data: bytes) -> tuple[ScriptPlace, Sequence[int]]:
    """Return where the script of a state was, and the steps of schedulers between its loops.

    Raises:
        PermanentError: it is no such state.
    """
    saved = decode_saved(data)
    return tuple(saved.place or START), unpack(saved.now)["outside"]


def _unpack_begun(data: bytes) -> Any:
    try:
        return unpack(msgspec.msgpack.decode(data, type=Tree))
    except msgspec.MsgspecError as error:
        raise PermanentError(f"the state of schedulers cannot be read: {error}") from error


def _kind(scheduler: LRScheduler) -> str:
    """A scheduler's class, and those of the schedulers that it is made of."""
    parts = ", ".join(map(_kind, getattr(scheduler, "_schedulers", ())))
    return type(scheduler).__name__ + (f"({parts})" if parts else "")


_FIXED = frozenset({float, int, bool, str, bytes, type(None)})
"""Types of values that nobody can change in place."""


def _glance(value: Any) -> Any:
    """A hyper-parameter, to be compared with itself later.

    Raises:
        TypeError: it may change without a trace.
    """
    if type(value) in _FIXED:
        return value
    if isinstance(value, tuple | list):
        return tuple(map(_glance, value))
    if isinstance(value, Tensor) and value.is_cpu and value.numel() == 1:
        return value.item()
    raise TypeError


def _look_at(scheduler: LRScheduler) -> list[Any]:
    """The attributes of a scheduler; what only its steps change is not looked into.

    Raises:
        TypeError: the script may have changed one without a trace.
    """
    found: list[Any] = []
    for key, value in vars(scheduler).items():
        if type(value) in _FIXED:
            found.append(value)
        elif key == "_schedulers":
            found.extend(map(_look_at, value))
        elif isinstance(value, list | tuple):
            found.append(tuple(value))
        elif isinstance(value, dict):
            found.append(tuple(value.items()))
        elif isinstance(value, Tensor | np.ndarray | set):
            raise TypeError
    return found


def _same(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except (RuntimeError, ValueError):  # of tensors or arrays, which are neither
        return False


def _number(value: Any) -> Any:
    return float(value) if isinstance(value, Tensor) else value

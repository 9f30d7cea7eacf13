"""Common part of strategies whose workers are members of a group."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.optim.swa_utils import AveragedModel

from paceline.base.errors import ConfigError, InternalError
from paceline.protocol.holding.group.division import Sharing
from paceline.runtime.data.growth import Growth
from paceline.runtime.data.reader import Reader
from paceline.runtime.group.closures import check_calls, step_by
from paceline.runtime.group.entries import EntriesOfMember
from paceline.runtime.group.loop import GroupLoop
from paceline.runtime.group.member import MemberClient
from paceline.runtime.group.reducer import Reducer
from paceline.runtime.group.shares import StepShares
from paceline.runtime.group.step import GroupStep
from paceline.runtime.group.watcher import Watcher
from paceline.runtime.process.feature_port import Links, LogPlace
from paceline.runtime.script.averages import KeptAverage, made, update_when
from paceline.runtime.script.stepping import Stepping
from paceline.runtime.script.strategy import Entries, Reached, begun_at
from paceline.runtime.state.outside import Outside
from paceline.runtime.state.replica import place_in_cut
from paceline.runtime.variables.forward import ForwardBuffers
from paceline.runtime.variables.variables import Variables
from paceline.wire.messages.base import UNPLACED, Attempt
from paceline.wire.messages.feeds import Feed, ScriptPlace, SourceLine, Underway
from paceline.wire.messages.group import NO_STEP


class Together(Stepping):
    """The part of a member's `Strategy` that makes ``optimizer.step()`` a step of all members."""

    takes_growth = is_alone = can_accumulate = meets_in_bodies = takes_uneven_steps = False
    takes_trainings = False
    checks_gradients = True
    has_turns = False
    """Whether an optimizer may have gradients computed, and averaged, again within its step."""
    _loop: GroupLoop | None
    _between: Outside
    _training = 0
    """Number of the script's newest training: each ``job.prepare`` begins one."""

    def __init__(self, client: MemberClient) -> None:
        super().__init__(client.process.spec, client.process.rank)
        self._member = client
        self._watcher: Watcher | None = None
        self._params: list[nn.Parameter] = []
        self.largest: int | None = None
        """Samples of a yielded batch at most; a larger share comes as several batches."""
        self.bodies = 0
        """See `StepShares`."""
        self.whole_steps = False
        """Whether every step waits for a late member, whatever a solution asks for."""
        #: Number of the script's averages that were put into `job.state` for it.
        self._num_averages = 0
        self.script_state.on_set = self._keep
        found = self.spec.script_state == "found"
        self.variables = client.variables = Variables(found=found)
        process = client.process
        self.variables.leaves_by_stop = lambda: process.stop_requested and process.script_hears_stop
        self.entries: Entries | None = None
        if found:
            self.entries = EntriesOfMember(client, lambda: self._training)

    @property
    def stands_in(self) -> bool:
        """See `Strategy.stands_in`: as the newest group was told that we worked in."""
        return self._member.state.stands_in

    def _num_schedules(self, scheduler: LRScheduler) -> int | None:
        """Return the steps that a scheduler's call in the body of a loop counts; None: no loop.

        A step that broke comes again. One that lacks samples may complete no global batch, or one
        more. What looks at a measure looks once for each step: it does not count batches.

        Raises:
            ConfigError: whether the step breaks is not known yet: the call would come to nothing.
        """
        step = self._loop.step if self._loop is not None else None
        if step is not None and not step.stepped:
            raise ConfigError(
                f"{type(scheduler).__name__}.step() was called before optimizer.step() of its "
                "batch; call it after it, or between two loops over job.batches"
            )
        if step is None or isinstance(scheduler, ReduceLROnPlateau):
            return None if self._loop is None else int(step is None or step.changes)
        return step.num_batches if step.changes else 0

    def _keep(self, value: Any) -> None:
        if not isinstance(value, AveragedModel):
            return
        self._follow_average(value)
        for name, kept in list(self.script_state.items()):
            if isinstance(kept, KeptAverage) and kept.holds(value):
                del self.script_state[name]  # the script has a name of its own for it

    def _keep_averages_of(self, modules: Sequence[nn.Module]) -> None:
        """Put each average of these that the script makes into `job.state`, as it would itself."""
        params = {id(param) for module in modules for param in module.parameters()}

        def keep(average: AveragedModel, source: nn.Module) -> None:
            held = [*modules, *self.script_state.values()]
            if any(one is average for one in held):
                return
            if any(isinstance(one, KeptAverage) and one.holds(average) for one in held):
                return
            if all(id(param) in params for param in source.parameters()):
                self._follow_average(average)
                self.script_state[f"AveragedModel {self._num_averages}"] = KeptAverage(average)
                self._num_averages += 1

        made.tell(keep)

    def _have_prepared(self, modules: Sequence[nn.Module], *others: Sequence[Any]) -> None:
        """The state of these is the job's; the script's variables lead to them, too."""
        parts = [one for module in modules for one in module.modules()]
        tensors = [one for part in modules for one in (*part.parameters(), *part.buffers())]
        held = [*others, parts, tensors]
        self.variables.others = {id(one) for some in held for one in some}
        self.variables.prepared = modules
        self.variables.beside.buffers = ForwardBuffers(modules)
        self.variables.kept = self.script_state.held

    def _average_once_per_step(self, modules: Sequence[nn.Module]) -> None:
        """Have averages of weights updated once for each step, also where one comes again."""
        for module in modules:
            if isinstance(module, AveragedModel):
                self._follow_average(module)

    def _follow_average(self, average: AveragedModel) -> None:
        last: tuple[int | None, int] = None, 0

        def is_due() -> bool:
            nonlocal last
            # The body of a step that broke runs again, with the weights of the step before.
            # So does the body for each batch of a step, of which only the last changes them.
            loop = self._loop
            now = loop.step if loop is not None else None
            within = 0 if loop is None else loop.average_within(average)
            unchanged = now is not None and bool(now.stepped) and not now.changes
            place = self.num_steps, within
            if unchanged or (self.num_steps is not None and place == last):
                return False
            last = place
            return True

        update_when(average, is_due)

    def check(self, measure: Callable[[Links], None]) -> None:
        self._member.check(measure)

    def _run(
        self, reducer: Reducer | None, sharing: Sharing, feed: Feed, reader: Reader, ahead: int
    ) -> Iterator[Any]:
        """Train on a feed; ``reducer``: averages the gradients, once there is a model."""
        if reducer is None or self._watcher is None:
            raise InternalError("the model was used before it was prepared")
        if reducer.by_closure and (self.accumulate > 1 or self.largest):
            raise ConfigError(
                "LBFGS needs a worker's whole share of a batch at once: leave out accumulate, and "
                "write the loop with job.batches, not with a Trainer or Accelerate"
            )
        shares = StepShares(
            sharing,
            feed,
            self._member.state,
            self.largest,
            self.accumulate,
            divides=not reducer.by_closure,
        )
        shares.bodies = self.bodies
        self._loop = GroupLoop(
            self._member,
            reducer,
            shares,
            reader,
            ahead,
            len(self._optimizers),
            watcher=self._watcher,
            whole_steps=self.whole_steps,
        )
        self._loop.may_accumulate, self._loop.regroup = self.can_accumulate, self._regroup
        try:
            with self._member.training(feed.feed):
                yield from self._loop.run()
        finally:
            self._loop = None

    def _regroup(self) -> Reducer | None:
        """Return another reducer, if the script trains something else than before this loop."""
        return None

    # ------------------------------------------------------------------ closures

    def _check_kind(self, optimizer: Optimizer) -> None:
        check_calls(optimizer, may_again=self.has_turns)

    def _step_by(self, closure: Callable[[], Any], number: int) -> Any:
        assert self._loop is not None
        return step_by(closure, self._optimizers[number], self._takes[number], self._loop, number)

    # ------------------------------------------------------------------ how far training is

    @property
    def global_batch(self) -> int | None:
        if self._loop is None or self._loop.step is None:
            return None
        return self._loop.global_batch

    @property
    def place_in_body(self) -> tuple[int, ...]:
        """See `Strategy.place_in_body`; before the step also which of its batches is in hand.

        A profiled batch is where the first one of the share is: others do not have it.
        """
        step = self._loop.step if self._loop is not None else None
        if self._loop is None or step is None:
            return (0,)
        begun = step.works[-1].step - 1
        if self._loop.in_step:
            return begun, max(0, step.batch_no - step.num_profiled)
        is_done = self._member.state.step > begun or self._half_done is not None
        return (begun + is_done,)

    @property
    def step(self) -> int | None:
        held, step = self._held, self._half_done
        if held is None:
            return None
        count = self._member.state.position.of_training(held, 0)[0]
        return count + (step.num_batches if step is not None else 0)

    @property
    def _held(self) -> int | None:
        """Global batches in the model, those of trainings that are over included."""
        state = self._member.state
        if state.step == NO_STEP:  # at most a cut of the end was read, for which no group is needed
            return state.position.value
        return state.position.at(state.step)

    @property
    def _half_done(self) -> GroupStep | None:
        """The step in hand, if an optimizer has stepped on it, and others may."""
        return self._loop.half_done if self._loop is not None else None

    @property
    def samples(self) -> int | None:
        state, step = self._member.state, self._half_done
        held = state.position.samples if state.step == NO_STEP else self._member.samples_with()
        if held is None:
            return None
        more = self._member.samples_with(step.whole) - held if step is not None else 0
        return state.position.of_training(0, held)[1] + more

    @property
    def num_workers(self) -> int | None:
        step = self._loop.step if self._loop is not None else None
        return len(step.run.members) if step is not None else None

    @property
    def log_place(self) -> LogPlace:
        step = self._loop.step if self._loop is not None else None
        if step is not None:
            # The step's attempt: its group may be over, and the next one known.
            attempt = Attempt(step.run.epoch_no, step.run.group)
            return LogPlace(attempt, step.begins_at + 1, self._member.samples_with(step.whole))
        at = self._held
        if at is None or self._member.state.step == NO_STEP:
            return LogPlace(Attempt(), UNPLACED, UNPLACED, between=True)
        return LogPlace(self._member.attempt, at, self._member.samples_with(), between=True)

    @property
    def num_steps(self) -> int | None:
        """Steps in the model, those that completed no global batch too; None: not known yet."""
        step = self._member.state.step
        return None if step == NO_STEP else step

    # ------------------------------------------------------------------ from loop to loop

    def _outside(self, schedulers: Sequence[LRScheduler]) -> Outside:
        self._between = Outside(schedulers, self._num_schedules)
        return self._between

    def begun(self) -> Reached | None:
        found = self._member.begun()
        feeds = [one for one in found.begun if one.training == self._training]
        if not feeds:
            return None
        if found.cut is None:
            return begun_at(feeds[-1].place[:2], feeds[-1].calls, feeds)
        # The cut may be from after the end of an epoch, and before a step of the next.
        places = self._member.process.cuts.places(found.cut)
        held = place_in_cut(self._training, *places)
        return None if held is None else begun_at(*held, feeds)

    def underway(self, place: ScriptPlace) -> Underway | None:
        return self._member.underway(place)

    @property
    def calls(self) -> tuple[int, ...]:
        return self._between.own()

    def meet(self, place: ScriptPlace, value: bytes, *, all_workers: bool) -> Sequence[bytes]:
        return self._member.meet(place, value, all_workers=all_workers)

    def enter_place(self, place: ScriptPlace) -> None:
        self._between.place = place

    def pass_over(self, begun: Reached) -> None:
        self._between.pass_over(begun.place, begun.calls)

    def open_feed(self, feed: Feed, growth: Growth | None = None) -> Feed:
        return self._member.open_feed(feed)

    def source_line(self, line: int) -> SourceLine:
        return self._member.source_line(line)

    def checkpoint(self) -> None:
        self._member.checkpoint()

    def hand_over(self) -> None:
        if self._loop is not None:
            self._loop.abandon()
        self._member.hand_over()

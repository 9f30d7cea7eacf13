"""What is alike in strategies whose workers are members of a group."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import nn
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.optim.swa_utils import AveragedModel

from paceline.base.errors import ConfigError, InternalError
from paceline.protocol.holding.group.division import Sharing
from paceline.runtime.data.growth import Growth
from paceline.runtime.data.reader import Reader
from paceline.runtime.group.closures import ByClosure
from paceline.runtime.group.entries import EntriesOfMember
from paceline.runtime.group.loop import GroupLoop
from paceline.runtime.group.member import MemberClient
from paceline.runtime.group.place import PlaceOfMember
from paceline.runtime.group.reducer import Reducer
from paceline.runtime.group.shares import StepShares
from paceline.runtime.group.watcher import Watcher
from paceline.runtime.group.way import WayOfMember
from paceline.runtime.script.averages import KeptAverage, made, update_when
from paceline.runtime.script.strategy import Entries
from paceline.runtime.variables.variables import Variables
from paceline.wire.messages.checks import Checked
from paceline.wire.messages.feeds import Feed, SourceLine


class Together(ByClosure, PlaceOfMember, WayOfMember):
    """The part of a member's `Strategy` that makes ``optimizer.step()`` a step of all members."""

    takes_growth = is_alone = can_accumulate = meets_in_bodies = takes_uneven_steps = False
    takes_trainings = False
    checks_gradients = True
    _loop: GroupLoop | None

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
        """No step goes on without who is late, whatever a solution asks for."""
        #: Of the script, that were put into `job.state` for it.
        self._num_averages = 0
        self.script_state.on_set = self._keep
        found = self.spec.script_state == "found"
        self.variables = client.variables = Variables(found=found)
        self.variables.is_stopping = lambda: client.process.stop_requested
        self.entries: Entries | None = None
        if found:
            self.entries = EntriesOfMember(client, lambda: self._training)

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
        self.variables.kept = self.script_state.held

    def _average_once_per_step(self, modules: Sequence[nn.Module]) -> None:
        """Have averages of weights updated once for each step, also where one comes again."""
        for module in modules:
            if isinstance(module, AveragedModel):
                self._follow_average(module)

    def _follow_average(self, average: AveragedModel) -> None:
        last: int | None = None

        def is_due() -> bool:
            nonlocal last
            # The body of a step that broke runs again, with the weights of the step before.
            # So does the body for each batch of a step, of which only the last changes them.
            now = self._loop.step if self._loop is not None else None
            self.close_step()
            unchanged = now is not None and bool(now.stepped) and not now.changes
            if unchanged or (self.num_steps is not None and self.num_steps == last):
                return False
            last = self.num_steps
            return True

        update_when(average, is_due)

    def check(self, measure: Callable[[], Checked]) -> None:
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
        self._loop.may_accumulate = self.can_accumulate
        try:
            with self._member.training(feed.feed):
                yield from self._loop.run()
        finally:
            self._loop = None

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

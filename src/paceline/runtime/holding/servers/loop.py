"""The training loop of one ``job.batches``: work in, batch out, gradients away.

A contribution may be computed in several batches: their gradients are kept until it is whole.
Order of one iteration: next work → its batch and rows → the user's forward and backward →
``optimizer.step()`` hands over the gradients. The pull of the next batch starts right after that,
or already before the user computes where the mode allows it (``trainer.overlap``).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, ClassVar

from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from paceline.base.errors import ConfigError
from paceline.runtime.data.reader import Reader
from paceline.runtime.data.work import Work
from paceline.runtime.holding.servers.accumulation import Accumulation
from paceline.runtime.holding.servers.gradient_edits import GradientEdits, Turns
from paceline.runtime.holding.servers.joining import Joining
from paceline.runtime.holding.servers.lookup import Call, Foreseen, Lookups, foresee
from paceline.runtime.holding.servers.model import Flat, Model
from paceline.runtime.holding.servers.port import PulledModel, TrainingPort
from paceline.runtime.holding.servers.recipes import Recipe, Recipes, Recorder
from paceline.runtime.holding.servers.schedule import Schedule
from paceline.runtime.script.step_frame import NO_GRADIENT, StepFrame, StepInHand
from paceline.runtime.server.store import Gradients
from paceline.wire.messages.data import Changed
from paceline.wire.messages.feeds import Feed

FIRST_STEPS, CHECK_EVERY = 3, 64
"""First batches of a loop in which all values are compared; then once in so many (`Noted`)."""


@dataclass(slots=True)
class Staged:
    """A work whose batch is here and whose pull was started."""

    work: Work
    batch: Any
    foreseen: dict[int, Foreseen]
    expected: list[tuple[Recipe, Call]]


@dataclass(slots=True)
class ServersStep(StepInHand):
    """The contribution in the user's hands."""

    staged: Staged
    grads: dict[int, Flat] = field(default_factory=dict)
    """Optimizer -> what its parameters' gradients were when it stepped."""
    restores: int = 0
    """Count of the trainer's restores (`TrainingPort.restores`) before the step began."""
    pushed: bool = False
    is_over: bool = False
    """Whether the script is through with its body."""


class ServersLoop(StepFrame[ServersStep]):
    """One pass over one feed, whose steps are contributions to a model that is held elsewhere."""

    def __init__(
        self,
        trainer: TrainingPort,
        model: Model,
        lookups: Lookups,
        schedule: Schedule,
        feed: Feed,
        reader: Reader,
        prefetch: int,
    ) -> None:
        super().__init__(len(model.optimizers))
        self._restores = 0
        self._trainer, self._model, self._lookups = trainer, model, lookups
        self._schedule, self._definition = schedule, feed
        self._feed, self._reader, self._prefetch = feed.feed, reader, prefetch
        self._joining = Joining(trainer, schedule)
        self._recipes = Recipes()
        self._recorder: Recorder | None = None
        self._staged: Staged | None = None
        self._sum = Accumulation()
        self._settings: tuple[int, tuple[float, ...], Changed] = (0, (), ())
        """The newest synchronous step, and the hyper-parameters (`Gradients`) of its first
        contribution, which are those of all."""
        self._handed_in = b""
        """The script's state that the servers have from here."""
        self._cold = False
        """Whether the last batch had look-ups that were not foreseen, but might have been."""
        self._edits: GradientEdits | None = None
        if trainer.sums_workers:
            self._edits = GradientEdits((one.param for one in model.dense), FIRST_STEPS)
        self._turns: Turns | None = None
        if len(model.optimizers) > 1:
            self._turns = Turns((one.param, one.optimizer) for one in model.dense)

    # ------------------------------------------------------------------ before the user computes

    def _begin_next(self) -> ServersStep | None:
        """Get work, batch and model ready."""
        asked_s, data_s = monotonic(), 0.0
        self._hand_in()
        while (work := self._next_work()) is not None:
            staged, self._staged = self._staged, None
            late = staged is None or staged.work is not work
            if staged is None or late:
                wanted_s = monotonic()
                batch = self._reader.get(work)
                data_s += monotonic() - wanted_s
                staged = self._stage(work, batch)
            pulled = self._trainer.wait_pull(work)
            if pulled is None:
                continue
            early = self.num_steps < FIRST_STEPS
            whole = early or self.num_steps % CHECK_EVERY == 0
            self._model.load(pulled.dense, whole=whole)
            if self._joining.is_due:
                if not self._joining.take_over(self._definition, work, pulled.counted):
                    self._trainer.give_back(work)
                    continue
                self._handed_in = b""
            self._lookups.begin(staged.foreseen, pulled.rows)
            step = ServersStep(
                staged,
                restores=self._restores,
                batch=staged.batch,
                samples=work.num_samples,
                data_s=data_s,
                server_s=pulled.server_s,
                message_s=pulled.message_s,
            )
            self._start(step, asked_s)
            self._enter(work, pulled)
            if self._trainer.overlap:
                self._stage_ahead()
            elif late:
                self._ask_ahead()
            self._maybe_record(staged)
            if self._trainer.spec.deterministic:
                self._reseed(self._trainer.spec.seed, work)
            return step
        self._record(asked_s)
        self.step = None
        return None

    def _next_work(self) -> Work | None:
        # Asked before: if the model goes back meanwhile, what comes of the work counts as old.
        self._restores = self._trainer.restores
        return self._trainer.next_work(self._feed)

    def _enter(self, work: Work, pulled: PulledModel) -> None:
        """Bring the script where the model is."""
        self._schedule.reckoning.begin(work, pulled.counted, pulled.whole)
        news = self._schedule.enter(self._definition, work, pulled.counted, pulled.whole)
        if news:
            self._handed_in = news
            self._trainer.keep_script(self._schedule.before, news)

    def _complete(self) -> None:
        """Have the script at the end: all of the feed is in the model, also if others trained it.

        What it computes before it asks for more, as a loss on held-out data, is on these values.
        """
        self._trainer.drain()
        self._model.load(self._trainer.dense())
        if self._joining.is_due:
            # The newest, which may be of a later feed: what comes in that takes over once more.
            found = self._trainer.script(None)
            if found is not None:
                self._schedule.load(*found)
        self._schedule.complete(self._definition)

    def _hand_in(self) -> None:
        """The body of the batch before is over: a worker that joins goes on from here."""
        if self.step is None:
            return
        self.step.is_over = True
        self._schedule.leave()
        self._hand_in_state()

    def _hand_in_state(self) -> None:
        if not self._trainer.keeps_script or self._joining.is_due:
            return
        state = self._schedule.save()
        if state != self._handed_in:
            self._handed_in = state
            self._trainer.keep_script(self._schedule.position, state)

    def _stage(self, work: Work, batch: Any) -> Staged:
        """Start the pull of all rows that ``batch`` is known to need."""
        by_table: dict[int, list[tuple[Recipe, Tensor]]] = {}
        for recipe, ids in self._recipes.ids_of(batch):
            by_table.setdefault(recipe.table, []).append((recipe, ids))
        staged = Staged(work, batch, {}, [])
        for table, known in by_table.items():
            found = foresee(self._lookups.tables[table], [ids for _, ids in known])
            if found is not None:
                staged.foreseen[table] = found
                staged.expected += zip((recipe for recipe, _ in known), found.calls, strict=True)
        self._trainer.start_pull(
            work, {table: found.unique for table, found in staged.foreseen.items()}
        )
        return staged

    def _stage_ahead(self) -> None:
        """Stage the next work, if it is known and its batch is made."""
        works = self._ask_ahead()
        if works and self._staged is None and self._reader.is_made(works[0]):
            self._staged = self._stage(works[0], self._reader.get(works[0]))

    def _ask_ahead(self) -> tuple[Work, ...]:
        """Have the coming batches made, as far as they are known."""
        works = self._trainer.upcoming(self._feed, self._prefetch)
        self._reader.ask(works)
        return works

    def _maybe_record(self, staged: Staged) -> None:
        if not self._lookups.tables or not self._recipes.recordings_left:
            return
        if self.num_steps == 1 or self._cold:
            self._recorder = Recorder(staged.batch)
            self._lookups.watch = self._recorder.note_lookup
            self._recorder.__enter__()

    # ------------------------------------------------------------------ after it

    def _take(self, step: ServersStep, optimizer: int) -> bool:
        if not step.stepped:
            aside_s = self._lookups.waited_s + self.excluded_s
            step.compute_s = monotonic() - step.start_s - aside_s
        if self._edits is not None:
            self._edits.check(
                [one.param for one in self._model.dense if one.optimizer == optimizer]
            )
        if self._turns is not None:
            self._turns.step(optimizer)
        step.grads[optimizer] = self._model.gradient_of(optimizer)
        step.stepped.add(optimizer)
        return False

    def _all_stepped(self, step: ServersStep) -> None:
        self._push(step)
        if self._recorder is None and self._staged is None:
            self._stage_ahead()

    def _push(self, step: ServersStep) -> None:
        grads = [step.grads[index] for index in range(len(step.grads))]
        sparse = self._lookups.gradients()
        dense = self._model.whole_gradient(grads)
        if not sparse and dense is None:
            raise ConfigError(NO_GRADIENT)
        lacking = self._model.lacking(grads)
        work = step.staged.work
        step.pushed = True
        self._schedule.reckoning.took()
        step.grads = {}
        cold = any(table.num_cold for table in self._lookups.tables)
        self._cold = cold and self._recorder is None
        if step.staged.expected:
            self._recipes.judge([(recipe, call.used) for recipe, call in step.staged.expected])
        step.wait_s += self._lookups.waited_s
        self._lookups.end()
        if not work.step or work.step != self._settings[0]:
            changed = tuple(one for flat in grads for one in flat.changed)
            self._settings = work.step, self._model.rates(grads), changed
        _, rates, changed = self._settings
        gradients = Gradients(
            dense or {},
            sparse,
            work.num_samples,
            rates,
            distinct=True,
            changed=changed,
            lacking=lacking,
            position=self._schedule.before,
        )
        self._sum.add(work, gradients)
        if work.ends_contribution:
            self._trainer.push(*self._sum.take(rates, changed, self._schedule.before))

    def _finish(self, step: ServersStep) -> None:
        self._stop_recording()
        if not step.pushed:
            raise self._not_stepped(step)
        self._model.check_values()
        if self._edits is not None:
            self._edits.stepped()
        if self._turns is not None:
            self._turns.end_batch()

    def _stop_recording(self) -> None:
        if self._recorder is not None:
            self._recorder.__exit__(None, None, None)
            self._recipes.learned(self._recorder)
            self._lookups.watch = self._recorder = None

    def _note(self, step: ServersStep, bpt_s: float) -> None:
        self._trainer.record(step.times(self.num_steps, bpt_s))

    def abandon(self) -> None:
        """The loop is left: nothing of an unfinished batch counts; again: nothing."""
        self._stop_recording()
        self._lookups.end()
        self._schedule.end()
        if self._edits is not None:
            self._edits.end()
        if self._turns is not None:
            self._turns.end()
        if self.step is not None and not self.step.pushed:
            self._trainer.give_back(self.step.staged.work)
        step = self.step
        in_body = step is not None and not step.is_over
        if step is not None and in_body and self._schedule.break_off(pushed=step.pushed):
            self._hand_in_state()
        for work in reversed(self._sum.works):
            self._trainer.give_back(work)
        self.step, self._sum = None, Accumulation()


class LeftLoop:
    """A loop that the script has left (`break`): the next call of the model brings new values.

    The worker still has those with which it computed its last batch. Waiting for new ones as the
    loop is left could block whatever thread drops it.

    Args:
        modules: of the model.
        refresh: called before the next forward pass of one of them, or of a part of theirs.
    """

    _newest: ClassVar["LeftLoop | None"] = None
    """The one that may wait for a call: a script may begin another job in the same process."""

    def __init__(self, modules: Iterable[nn.Module], refresh: Callable[[], None]) -> None:
        if LeftLoop._newest is not None:
            LeftLoop._newest.close()
        LeftLoop._newest = self
        self._refresh = refresh
        self._parts = {part for root in modules for part in root.modules()}
        # Not of the modules: copies of them would have it, too.
        self._hook = register_module_forward_pre_hook(self._before) if self._parts else None

    def _before(self, module: nn.Module, _: object) -> None:
        if getattr(module, "_orig_mod", module) in self._parts:  # that of a compiled one
            self.close()
            self._refresh()

    def close(self) -> None:
        """Remove the hook: newer values are here, or come with the next batch; again: nothing."""
        if self._hook is not None:
            self._hook.remove()
        self._hook = None

"""Stragglers in a master: asks the solution, has its actions carried out, writes both down.

`StragglersPart` is the port of the master; `Deciding` is the edge of the controller, which says
when to ask and what becomes of answers.
"""

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from numbers import Integral, Real
from pathlib import Path
from typing import assert_never, get_args

import msgspec

from paceline.base.errors import ConfigError
from paceline.base.pacing import Pacing
from paceline.features.stragglers.policy.controller import (
    Ask,
    CarryOut,
    Controller,
    Instruction,
    Period,
    Write,
)
from paceline.features.stragglers.policy.decision_log import AnyLine, Begun, Failed, Helped, log_of
from paceline.features.stragglers.policy.registry import solution
from paceline.features.stragglers.policy.solution import Solution
from paceline.features.stragglers.slow import compared, slow_parts
from paceline.features.stragglers.spells import Spells, SpellWatch, spells_of
from paceline.jobs.history import read_events
from paceline.jobs.restart_outcomes import helped_file, own_outcomes
from paceline.master.asking import PolicyAnswer, PolicyRaised
from paceline.master.decision_file import DecisionFile
from paceline.master.feature_port import AskPolicy, Core, MasterPart
from paceline.master.monitor import lengths_of
from paceline.master.restarts import StartMeasured
from paceline.master.scene import Scene
from paceline.policy.actions import AnyAction
from paceline.policy.observation import Observation, RestartOutcome
from paceline.wire.client import Shown, ShownFigure
from paceline.wire.events.base import Event, FeatureEvent
from paceline.wire.events.nodes import NotReplacedEvent
from paceline.wire.spec import JobSpec

LOOK_EVERY_S = 2.0
"""Seconds between two looks for slow nodes, where there are so few that a look takes no time."""

_log = logging.getLogger(__name__)


class SolutionFailedEvent(FeatureEvent, frozen=True):
    """The solution that decides about stragglers has raised an error."""

    feature_name = "stragglers"
    kind: str
    """The class of the error."""
    decision: int
    """The number of the decision in ``decisions.jsonl``."""

    clause_words = "{0.kind} (see logs/master.log); the job goes on"


class StragglersPart(MasterPart):
    """The decisions of one job, if its spec names a solution."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._deciding: Deciding | None = None
        self._watch = SpellWatch()
        self._spells = Spells()
        self._pace = Pacing(LOOK_EVERY_S)

    def begin(self) -> None:
        core = self._core
        self._spells = spells_of(read_events(core.job.events))  # told by masters before this one
        if core.spec.solution == "none":
            return
        try:
            self._deciding = Deciding(
                core.spec,
                log_of(core.job),
                core.scene,
                ask=core.ask,
                tell=core.tell,
                wall_clock=core.wall,
            )
        except ConfigError as error:  # where the job began, the solution was another version
            core.fail(str(error))

    def tick(self, now_s: float) -> None:
        if self._core.scene.is_ending():
            return
        if self._deciding is not None:
            self._deciding.tick(now_s)
        if self._pace.is_due(now_s):
            with self._pace.doing(now_s):
                self._look()

    def _look(self) -> None:
        """Look which nodes are slow, and tell when one has become so, or is well again."""
        seen = self._core.scene.now(self._core.steady())
        if seen is None:
            return
        now_s, names = self._core.wall(), compared(seen)
        slow = slow_parts(seen, now_s) if names else ()
        for event in self._watch.look(slow, names, now_s):
            self._core.tell(event)

    def works(self, measured: StartMeasured) -> None:
        if self._deciding is not None:
            self._deciding.works(measured, self._core.steady())

    def remember(self, outcomes: Sequence[RestartOutcome]) -> None:
        if self._deciding is not None:
            self._deciding.controller.remember(outcomes)

    def happened(self, event: Event) -> None:
        self._spells.note(event)
        if self._deciding is not None:
            self._deciding.note(event)

    def shown(self) -> Shown:
        decisions, actions = 0, dict[str, int]()
        if self._deciding is not None:
            controller = self._deciding.controller
            decisions, actions = controller.num_decisions, dict(controller.num_actions)
        figures = [
            ShownFigure(
                name="job_decisions",
                about="Times that the solution has decided, since the master's start.",
                value=decisions,
                counts=True,
            )
        ]
        figures += [
            ShownFigure(
                name="job_actions",
                about="Actions carried out since the master's start.",
                value=count,
                labels={"action": action},
                counts=True,
            )
            for action, count in actions.items()
        ]
        seen = self._core.scene.now(self._core.steady())
        slow = slow_parts(seen, self._core.wall()) if seen is not None else ()
        slow = tuple(self._spells.since(part) for part in slow)
        return Shown(figures=tuple(figures), slow=slow, relieved=self._spells.relieved)


class Deciding:
    """The decisions of one job whose spec names a solution."""

    def __init__(
        self,
        spec: JobSpec,
        log: Path,
        scene: Scene,
        *,
        ask: AskPolicy,
        tell: Callable[[Event], None],
        wall_clock: Callable[[], float],
    ) -> None:
        """Begin.

        Args:
            spec: names the solution, its parameters, windows and period.
            log: the decision log; goes on where a former master has ended.
            scene: the job.
            ask: asks the solution in a thread.
            tell: takes an event.
            wall_clock: for the log.

        Raises:
            ConfigError: there is no such solution, or it takes no such parameters.
        """
        self._solution = solution(spec.solution, spec.solution_args)
        self._scene, self._ask, self._tell = scene, ask, tell
        period = period_of(spec, self._solution)
        self._pace = Pacing()
        self._helped = helped_file(log.parent)
        outcomes = own_outcomes(log.parent)
        self._log = DecisionFile(log, wall_clock)
        self.controller = Controller(period, first_no=self._log.next_no, outcomes=outcomes)
        scene.since_action_s = self.controller.since_action_s
        begun = Begun(
            solution=spec.solution,
            args=dict(spec.solution_args),
            lengths=lengths_of(spec.windows),
            every_s=period.every_s,
            every_iterations=period.every_iterations,
        )
        self._log.begin(begun)

    def tick(self, now_s: float) -> None:
        """Ask the solution if it is time to, and somebody trains."""
        controller = self.controller
        self._do(controller.tick(now_s))
        progress = self._scene.progress(now_s)
        for no, index, action in controller.awaited():
            if self._scene.holds(action):
                self._do(controller.took_effect(no, index, progress))
        iterations = self._scene.iterations(progress)
        if not (controller.is_due(now_s, iterations) and self._pace.is_due(now_s)):
            return
        with self._pace.doing(now_s):
            seen = self._scene.observe(progress, controller.since_action_s(now_s))
        if seen is not None:
            self._do(controller.ask(seen, iterations, progress))

    def _answered(
        self, no: int, answer: PolicyAnswer[tuple[AnyAction, ...]] | PolicyRaised, now_s: float
    ) -> None:
        """What the solution's thread has posted."""
        if isinstance(answer, PolicyRaised):
            self._do(self.controller.failed(no, answer.kind, answer.traceback))
        else:
            self._do(self.controller.answered(no, answer.value, answer.took_s, now_s))

    def works(self, measured: StartMeasured, now_s: float) -> None:
        """A node works after a start."""
        if measured.role == "server" and not measured.replaces:
            return  # after a crash: a KILL_RESTART is over when another has its place
        progress = self._scene.progress(now_s)
        node = measured.replaces or measured.node
        works = self.controller.works(node, measured.cost, progress, successor=measured.node)
        self._do(works)

    def note(self, event: Event) -> None:
        """Take in an event of the membership."""
        if isinstance(event, NotReplacedEvent):
            reason = f"no other server has replaced {event.node}"
            self._do(self.controller.given_up(event.node, reason))

    # ------------------------------------------------------------------ instructions

    def _do(self, instructions: Iterable[Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case Ask(no=no, observation=seen):
                    self._ask(partial(self._decide, seen), partial(self._answered, no))
                case CarryOut():
                    self._carry_out(instruction)
                case Write(line=line):
                    self._write(line)
                case _:
                    assert_never(instruction)
        self._helped.flush()
        self._log.flush()

    def _decide(self, seen: Observation) -> tuple[AnyAction, ...]:
        return checked(self._solution.decide(seen))

    def _carry_out(self, order: CarryOut) -> None:
        try:
            self._scene.carry_out(order.action)
        except ConfigError as error:
            self._do(self.controller.refused(order.no, order.index, str(error)))
        else:
            self.controller.carried_out(order.action)

    def _write(self, line: AnyLine) -> None:
        self._log.add(line)
        if isinstance(line, Helped):
            self._helped.add(line.outcome)
        if isinstance(line, Failed):
            _log.error(
                "solution_failed kind=%s decision=%d\n%s", line.kind, line.no, line.traceback
            )
            self._tell(SolutionFailedEvent(kind=line.kind, decision=line.no))


def period_of(spec: JobSpec, chosen: Solution) -> Period:
    """How often to ask: as the spec says, else as the solution does."""
    if spec.decide_every_s is not None:
        return Period(every_s=spec.decide_every_s, every_iterations=0)
    return Period(every_s=chosen.every_s, every_iterations=chosen.every_steps)


def checked(actions: object) -> tuple[AnyAction, ...]:
    """What a solution returned, if it is a list of actions that can be written down and read again.

    Raises:
        TypeError: it is something else.
        ValueError: a gain or a cost is no number.
        ValidationError: another value is none that the action can have.
    """
    known = get_args(AnyAction)
    if not isinstance(actions, list | tuple) or not all(isinstance(one, known) for one in actions):
        names = ", ".join(kind.__name__ for kind in known)
        raise TypeError(f"decide() returned {actions!r:.200}; return a list of {names}")
    for one in actions:
        if not (math.isfinite(one.gain_s) and math.isfinite(one.cost_s)):
            raise ValueError(f"gain_s and cost_s are to be finite, 0 for not known; got {one}")
    # Nothing has looked at the values yet: a struct takes what it is given.
    read = msgspec.json.Decoder(tuple[AnyAction, ...])
    return read.decode(msgspec.json.encode(actions, enc_hook=_plain))


def _plain(value: object) -> int | float:
    """A number of another library."""
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    raise TypeError(f"an action holds {value!r:.100}, a {type(value).__name__}")

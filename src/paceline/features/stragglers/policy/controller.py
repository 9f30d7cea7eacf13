"""When the solution is asked, what becomes of its answers, and what they have changed: pure.

The controller knows neither solution nor job. It says when it is time (`is_due`), takes what the
edge has observed, and returns instructions: ask, carry out, write. Answers, refusals and effects
come back as calls; the clock is an argument. `paceline.features.stragglers.master` is its edge.

A solution may be wrong in every way and the job goes on. If it raises, or does not answer within
`LATE_S`, the log says so once per kind. It is asked again at the next time (if its answer has come
by then).

Reference: AntDT, section V-E (controller: monitor, decide, act).
"""

from collections import deque
from collections.abc import Sequence

import msgspec

from paceline.features.stragglers.policy.decision_log import (
    ActionRefused,
    AnyLine,
    Decided,
    Failed,
    Helped,
    Measured,
    TookEffect,
)
from paceline.features.stragglers.policy.restarts import slowness
from paceline.policy.actions import (
    AnyAction,
    BackupWorkers,
    KillRestart,
    Partial,
    Profile,
)
from paceline.policy.decisions.question import Question
from paceline.policy.observation import (
    MAX_OUTCOMES,
    JobProgress,
    Observation,
    RestartCost,
    RestartOutcome,
    ServerSeen,
    WorkerSeen,
)
from paceline.policy.stats.regimes import Regime

LATE_S = 5.0
"""A solution answers within this, or its answer counts for nothing."""
QUIET_S = 10.0
"""A decision without actions, after one without actions, is written down this often at most: what
another solution would have done can be asked for each that is (`paceline replay --solution`)."""
SPAN_S = 10.0
"""Speeds before and after an action are taken over so long at least, and a period at least."""
MAX_CHANGES = 20
"""So many changes of the plan a solution sees, the newest."""
LOST_S = 60.0
"""A global action that has not taken effect for so long does not hold up the next decision."""


class Period(msgspec.Struct, frozen=True, kw_only=True):
    """How often the solution is asked: when both have passed."""

    every_s: float
    every_iterations: int


class Ask(msgspec.Struct, frozen=True):
    """Have the solution decide, and say `Controller.answered` or `Controller.failed`."""

    no: int
    observation: Observation


class CarryOut(msgspec.Struct, frozen=True):
    """Do it, and say `Controller.refused` or (later) `Controller.took_effect`."""

    no: int
    index: int
    action: AnyAction


class Write(msgspec.Struct, frozen=True):
    """Add a line to the decision log, with the time of then."""

    line: AnyLine


Instruction = Ask | CarryOut | Write


class _Flight(msgspec.Struct):
    """An action from its decision until its outcome is measured."""

    no: int
    index: int
    action: AnyAction
    decided_s: float
    before: float | None
    effect: JobProgress | None = None
    seen: Observation | None = None
    """What a KILL_RESTART was decided on."""


class _Healing(msgspec.Struct, frozen=True):
    """A restarted node, until it is known whether that has helped."""

    flight: _Flight
    node: str
    """The one that has its place."""
    before: float
    """Times the usual that it took."""
    age_s: float
    """How long it had been so."""


class Controller:
    """The controller of one job, from the start of its master."""

    def __init__(
        self,
        period: Period,
        *,
        first_no: int = 1,
        outcomes: Sequence[RestartOutcome] = (),
    ) -> None:
        """Begin.

        Args:
            period: how often to ask.
            first_no: of the first decision.
            outcomes: of earlier restarts of the job, the oldest first.
        """
        self._period = period
        self._next_no = first_no
        self._question = Question[Ask](LATE_S)
        self._failures: set[str] = set()
        self._last: tuple[float, float] | None = None
        """Clock and iterations when the solution was last asked."""
        self._points: deque[JobProgress] = deque()
        """When the solution was asked, back to one that is a span old; since the last effect."""
        self._speed: float | None = None
        """Samples per second over them."""
        self._flights: list[_Flight] = []
        self._quiet_since_s: float | None = None
        """When the last line of a decision without actions was written."""
        self._effect_s: float | None = None
        self._changes: deque[float] = deque(maxlen=MAX_CHANGES)
        """When global actions were decided; those of one decision are one change."""
        self._outcomes = deque(outcomes, maxlen=MAX_OUTCOMES)
        self._healing: list[_Healing] = []
        self.num_decisions = 0
        self.num_actions: dict[str, int] = {}
        """Carried out, by class."""

    def remember(self, outcomes: Sequence[RestartOutcome]) -> None:
        """Take in what restarts of earlier jobs on this backend achieved, the oldest first."""
        self._outcomes = deque([*outcomes, *self._outcomes], maxlen=MAX_OUTCOMES)

    # ------------------------------------------------------------------ when

    def is_due(self, now_s: float, iterations: float) -> bool:
        """Whether to observe and `ask` now.

        Args:
            now_s: by the observations' clock.
            iterations: of the job; after a count that falls (a restore) it begins again.
        """
        if self._question.is_open or self._is_switching(now_s):
            return False
        if self._last is None or iterations < self._last[1]:
            self._last = (now_s, iterations)
            return False
        since_s, done = self._last
        period = self._period
        return now_s - since_s >= period.every_s and iterations - done >= period.every_iterations

    def _is_switching(self, now_s: float) -> bool:
        """A global action is on its way: the plan that is seen is not the one that will hold."""
        return any(
            flight.effect is None
            and not isinstance(flight.action, KillRestart)
            and now_s - flight.decided_s < LOST_S
            for flight in self._flights
        )

    @property
    def _span_s(self) -> float:
        return max(SPAN_S, self._period.every_s)

    def since_action_s(self, now_s: float) -> float | None:
        """Since the last action took effect; None: there was none."""
        return None if self._effect_s is None else now_s - self._effect_s

    # ------------------------------------------------------------------ asking

    def ask(
        self, observation: Observation, iterations: float, progress: JobProgress
    ) -> list[Instruction]:
        """Have the solution asked, now that it is due, and judge the effects of earlier actions."""
        while len(self._points) > 1 and progress.t_s - self._points[1].t_s >= self._span_s:
            self._points.popleft()
        self._speed = _speed(self._points[0], progress) if self._points else None
        self._points.append(progress)
        self._last = (progress.t_s, iterations)
        judged = self._judge(observation)
        observation = msgspec.structs.replace(
            observation,
            changes_s=tuple(progress.t_s - at_s for at_s in reversed(self._changes)),
            outcomes=tuple(self._outcomes),
        )
        asked = Ask(self._next_no, observation)
        self._question.ask(asked.no, asked, progress.t_s)
        self._next_no += 1
        return [*judged, *self._measure(progress), asked]

    def answered(
        self, no: int, actions: Sequence[AnyAction], took_s: float, now_s: float
    ) -> list[Instruction]:
        """The solution's decision; one that comes late counts for nothing."""
        asked = self._question.take(no)
        if asked is None:
            return []
        self.num_decisions += 1
        decided = Decided(
            no=no,
            observation=asked.observation,
            actions=tuple(actions),
            took_s=took_s,
        )
        done: list[Instruction] = [Write(decided)] if self._is_news(decided, now_s) else []
        for index, action in enumerate(actions):
            objection = self._objection(action, asked.observation)
            if objection:
                done.append(self._refusal(no, index, objection))
                continue
            done += self._replace_earlier(no, action)
            self._flights.append(
                _Flight(no, index, action, now_s, self._speed, seen=asked.observation)
            )
            done.append(CarryOut(no, index, action))
        if any(isinstance(each, CarryOut) and _is_change(each.action) for each in done):
            self._changes.append(now_s)
        return done

    def failed(self, no: int, kind: str, traceback: str) -> list[Instruction]:
        """The solution raised."""
        is_in_time = self._question.take(no) is not None
        return self._tell_failure(no, kind, traceback) if is_in_time else []

    def tick(self, now_s: float) -> list[Instruction]:
        """Look whether the solution is late."""
        missed = self._question.missed(now_s)
        if missed is None:
            return []
        return self._tell_failure(missed, "late", f"no answer within {LATE_S:g} s")

    def _tell_failure(self, no: int, kind: str, traceback: str) -> list[Instruction]:
        if kind in self._failures:
            return []
        self._failures.add(kind)
        return [Write(Failed(no=no, kind=kind, traceback=traceback))]

    def _is_news(self, decided: Decided, now_s: float) -> bool:
        if decided.actions:
            self._quiet_since_s = None
            return True
        if self._quiet_since_s is not None and now_s - self._quiet_since_s < QUIET_S:
            return False
        self._quiet_since_s = now_s
        return True

    def _objection(self, action: AnyAction, seen: Observation) -> str:
        if not isinstance(action, KillRestart):
            return ""
        names = {worker.node for worker in seen.workers} | {server.node for server in seen.servers}
        if action.node not in names:
            return f"there is no living node {action.node}"
        flight = self._restart_of(action.node)
        if flight is not None:
            return f"{action.node} is being restarted already, by decision {flight.no}"
        return ""

    # ------------------------------------------------------------------ what becomes of actions

    def refused(self, no: int, index: int, reason: str) -> list[Instruction]:
        """The edge could not carry it out."""
        self._flights = [one for one in self._flights if (one.no, one.index) != (no, index)]
        return [self._refusal(no, index, reason)]

    def given_up(self, node: str, reason: str) -> list[Instruction]:
        """A KILL_RESTART of this node came to nothing: the node goes on as it was."""
        flight = self._restart_of(node)
        return [] if flight is None else self.refused(flight.no, flight.index, reason)

    def _replace_earlier(self, no: int, action: AnyAction) -> list[Instruction]:
        """A global action replaces one of its kind that has not taken effect."""
        replaced = [
            (earlier, index)
            for earlier, index, awaited in self.awaited()
            if _kind(awaited) == _kind(action)
        ]
        reason = f"replaced by decision {no} before it took effect"
        return [done for one in replaced for done in self.refused(*one, reason)]

    def _refusal(self, no: int, index: int, reason: str) -> Write:
        return Write(ActionRefused(no=no, index=index, reason=reason))

    def carried_out(self, action: AnyAction) -> None:
        """Count an action that is on its way."""
        kind = type(action).__name__
        self.num_actions[kind] = self.num_actions.get(kind, 0) + 1

    def works(
        self, node: str, cost: RestartCost, progress: JobProgress, *, successor: str = ""
    ) -> list[Instruction]:
        """A node works after its start: with that a KILL_RESTART of it has taken effect.

        ``successor``: the node that has taken its place; empty: itself.
        """
        flight = self._restart_of(node)
        if flight is None:
            return []
        regime = _regime_of(flight.seen, node)
        before = slowness(flight.seen, node) if flight.seen else None
        if regime is not None and before is not None:
            age_s = max(flight.decided_s - regime.since_s, 1e-3)
            self._healing.append(_Healing(flight, successor or node, before, age_s))
        return self._in_effect(flight, progress, cost)

    def _judge(self, seen: Observation) -> list[Instruction]:
        """Outcomes of restarts whose nodes have shown how fast they are."""
        written: list[Instruction] = []
        for healing in list(self._healing):
            flight, regime = healing.flight, _regime_of(seen, healing.node)
            after = slowness(seen, healing.node)
            if regime is None or after is None or seen.now_s - regime.since_s < SPAN_S:
                continue
            self._healing.remove(healing)
            is_server = any(one.node == healing.node for one in seen.servers)
            spells = seen.server_spells if is_server else seen.worker_spells
            outcome = RestartOutcome(
                role="server" if is_server else "worker",
                before=healing.before,
                after=after,
                weight=spells.survival(healing.age_s, seen.now_s - flight.decided_s),
            )
            self._outcomes.append(outcome)
            line = Helped(no=flight.no, index=flight.index, outcome=outcome)
            written.append(Write(line))
        return written

    def awaited(self) -> list[tuple[int, int, AnyAction]]:
        """Global actions that are on their way: decision, index, action."""
        return [
            (flight.no, flight.index, flight.action)
            for flight in self._flights
            if flight.effect is None and not isinstance(flight.action, KillRestart)
        ]

    def took_effect(self, no: int, index: int, progress: JobProgress) -> list[Instruction]:
        """A global action holds for all workers."""
        for flight in self._flights:
            if (flight.no, flight.index) == (no, index) and flight.effect is None:
                return self._in_effect(flight, progress, None)
        return []

    def _restart_of(self, node: str) -> _Flight | None:
        for flight in self._flights:
            action = flight.action
            if isinstance(action, KillRestart) and action.node == node and flight.effect is None:
                return flight
        return None

    def _in_effect(
        self, flight: _Flight, progress: JobProgress, cost: RestartCost | None
    ) -> list[Instruction]:
        flight.effect, self._effect_s = progress, progress.t_s
        self._points = deque([progress])
        line = TookEffect(no=flight.no, index=flight.index, cost=cost)
        return [Write(line)]

    def _measure(self, progress: JobProgress) -> list[Instruction]:
        """Outcomes of what has been in effect for long enough."""
        ripe = [
            flight
            for flight in self._flights
            if flight.effect is not None and progress.t_s - flight.effect.t_s >= self._span_s
        ]
        self._flights = [flight for flight in self._flights if flight not in ripe]
        return [Write(self._outcome(flight, progress, len(ripe) - 1)) for flight in ripe]

    def _outcome(self, flight: _Flight, progress: JobProgress, others: int) -> Measured:
        assert flight.effect is not None
        before, after = flight.before, _speed(flight.effect, progress)
        gain_s = None
        if before and after and progress.total is not None:
            left = progress.total - flight.effect.committed
            gain_s = left / before - left / after
        return Measured(
            no=flight.no,
            index=flight.index,
            before=before,
            after=after,
            seconds=progress.t_s - flight.effect.t_s,
            gain_s=gain_s,
            others=others,
        )


def _regime_of(seen: Observation | None, node: str) -> Regime | None:
    nodes: list[WorkerSeen | ServerSeen] = [*seen.workers, *seen.servers] if seen else []
    return next((each.regime for each in nodes if each.node == node), None)


def _is_change(action: AnyAction) -> bool:
    """Whether it changes the plan."""
    return not isinstance(action, KillRestart | Profile)


def _kind(action: AnyAction) -> str:
    """Return the kind of a global action: one replaces another of its kind."""
    return "short steps" if isinstance(action, BackupWorkers | Partial) else type(action).__name__


def _speed(earlier: JobProgress | None, later: JobProgress) -> float | None:
    """Samples per second; None: a restore, or no time, lies between."""
    if earlier is None or later.t_s <= earlier.t_s or later.committed < earlier.committed:
        return None
    return (later.committed - earlier.committed) / (later.t_s - earlier.t_s)

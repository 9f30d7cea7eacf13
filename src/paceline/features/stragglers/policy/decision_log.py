"""Log of decisions: one JSON line each, in ``decisions.jsonl`` of a job.

A log is a list of *runs*, each begun by a `Begun` (of a master, or of the simulator): what solution
was asked, with which arguments. A `Decided` holds all that the solution saw and all that it
answered, so it can be asked again; what became of its actions follows in lines that name the
decision's number and the action's place in it. Numbers go on over all runs of a log.

Not every decision without actions is here: see `QUIET_S` in
`paceline.features.stragglers.policy.controller`.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from paceline.base.jobdir import JobDir
from paceline.features.stragglers.policy.solution import Solution
from paceline.policy.actions import AnyAction
from paceline.policy.decisions.past import Decider, decoded
from paceline.policy.observation import RESTART_PARTS, Observation, RestartCost, RestartOutcome
from paceline.policy.stats.history import Lengths
from paceline.wire.events.nodes import in_parts


def log_of(job: JobDir) -> Path:
    """Return the path of a job's log."""
    return job.path / "decisions.jsonl"


class DecisionLine(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """Base of all lines."""

    t: float = 0.0
    """Unix time at which it was written."""


class Begun(DecisionLine, frozen=True):
    """From here on this solution is asked, and it knows nothing of what was before."""

    solution: str
    args: dict[str, bool | int | float | str] = {}
    lengths: Lengths = Lengths()
    """Lengths of the windows in its observations."""
    every_s: float = 0.0
    """Least seconds between questions; ``every_iterations`` must have passed, too."""
    every_iterations: int = 0


class Decided(DecisionLine, frozen=True):
    """The solution was asked."""

    no: int
    observation: Observation
    actions: tuple[AnyAction, ...] = ()
    took_s: float = 0.0
    """The solution's own time."""

    @property
    def acts(self) -> tuple[AnyAction, ...]:
        """Actions of this decision, under the name that all lines of logs share."""
        return self.actions

    def acts_now(self, solution: Solution) -> tuple[AnyAction, ...]:
        """What a solution would do today."""
        return tuple(solution.decide(self.observation))


class Failed(DecisionLine, frozen=True):
    """The solution raised, or did not answer in time; told once per kind."""

    no: int
    kind: str
    """Class of the exception, or ``late``."""
    traceback: str = ""


class ActionRefused(DecisionLine, frozen=True, tag="Refused"):
    """An action was not carried out."""

    no: int
    index: int
    reason: str


class TookEffect(DecisionLine, frozen=True):
    """An action holds from here on: all workers follow the plan, the node works again."""

    no: int
    index: int
    cost: RestartCost | None = None
    """Measured, of a restart."""


class Measured(DecisionLine, frozen=True):
    """Change that an action has brought, some time after it took effect."""

    no: int
    index: int
    before: float | None
    """Samples per second that came into the model before the decision."""
    after: float | None
    """Samples per second since the action took effect."""
    seconds: float
    """Seconds that ``after`` was measured over."""
    gain_s: float | None = None
    """Estimate: what the rest of the job takes less at the speed of after. None: its length, or a
    speed, is not known."""
    others: int = 0
    """Actions that took effect in the same time: the change is theirs, too."""


class Helped(DecisionLine, frozen=True):
    """Whether the restart of a node has made it faster."""

    no: int
    index: int
    outcome: RestartOutcome


class PlannedElsewhere(DecisionLine, frozen=True, tag="CurePlanned"):
    """A line of another log, which stood here in earlier releases; readers pass over it."""


Aftermath = ActionRefused | TookEffect | Measured | Helped
"""What became of an action."""
AnyLine = Begun | Decided | Failed | Aftermath


def describe_cost(cost: RestartCost) -> str:
    """Say what it is as a whole, and in parts that took any time."""
    return in_parts({part.removesuffix("_s"): getattr(cost, part) for part in RESTART_PARTS})


_decoder = msgspec.json.Decoder(AnyLine | PlannedElsewhere)


def decode(lines: Iterable[bytes]) -> Iterator[AnyLine]:
    """Yield the lines of a log, as `decoded` does, but for those of another log."""
    for line in decoded(lines, _decoder):
        if not isinstance(line, PlannedElsewhere):
            yield line


def asked(lines: Iterable[AnyLine]) -> Iterator[tuple[Decider, Decided]]:
    """Decisions of solutions, each with the one that was asked; those before a `Begun` are not."""
    by: Decider | None = None
    for line in lines:
        if isinstance(line, Begun):
            by = Decider(line.solution, line.args)
        elif by is not None and isinstance(line, Decided):
            yield by, line

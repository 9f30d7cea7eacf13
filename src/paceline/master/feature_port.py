"""The port of features in the master: facts that a part gets, and acts that it may order.

A feature declares its part as the ``master`` of its `paceline.base.features.Feature`: a callable
that takes the `Core` and returns a `MasterPart`, or None where the feature has nothing to do in
this job. All methods of a part are called by the master's task, one after the other, and never
wait. An error that a part raises ends the part, and not the job.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec

from paceline.base.jobdir import JobDir
from paceline.base.numbering import Inc
from paceline.jobs.outcome import Outcome
from paceline.master.asking import PolicyAnswer, PolicyRaised
from paceline.master.exposed import Exposed
from paceline.master.holding.edge import ModelPlace
from paceline.master.monitor import Monitor
from paceline.master.node_acts import NodeActs
from paceline.master.restarts import StartMeasured
from paceline.master.scene import Scene
from paceline.policy.observation import RestartOutcome
from paceline.protocol.nodes.roster import Roster
from paceline.wire.client import Order, Shown
from paceline.wire.events.base import Event
from paceline.wire.messages.agent import NodeFacts
from paceline.wire.spec import JobSpec

T = TypeVar("T")


class AskPolicy(Protocol):
    """Asks a policy, which may be anybody's code and may take a while."""

    def __call__(
        self,
        decide: Callable[[], T],
        take: Callable[[PolicyAnswer[T] | PolicyRaised, float], None],
        /,
    ) -> None:
        """Ask in a thread.

        Args:
            decide: asks the policy; what it raises is a `PolicyRaised`.
            take: takes the answer in the master's task, and the time by `Core.steady`.
        """


class Core(NamedTuple):
    """Facts that a part may read, and acts that it may order; used in the master's task only."""

    job: JobDir
    spec: JobSpec
    roster: Roster
    """Nodes and their lives."""
    monitor: Monitor
    """Measurements of nodes."""
    wall: Callable[[], float]
    """Unix time by the job's clock, s."""
    steady: Callable[[], float]
    """Clock for times within the job, s."""
    place: Callable[[], ModelPlace]
    """Tells where the model is now."""
    tell: Callable[[Event], None]
    """Adds an event to the job's events. An event of a feature is a `FeatureEvent`."""
    keep: Callable[[Any], None]
    """Journals a record, a msgspec struct, before anything else of this batch of facts leaves."""
    send: Callable[[Inc, Any], None]
    """Sends a message, a msgspec struct, to the feature's part in the process of a life."""
    send_agent: Callable[[str, Any], None]
    """Sends a message, a msgspec struct, to the feature's part in the agent of a node; without that
    agent it is lost."""
    order: Callable[[Order], None]
    """Carries out an order as if a person had given it; raises ConfigError where it cannot."""
    scene: Scene
    """The training as a decision needs it: what there is to see, and what can be done about it."""
    nodes: NodeActs
    """Acts upon the number of nodes, and upon what each may use."""
    ask: AskPolicy
    """Asks a policy in a thread, and hands its answer to the part in the master's task."""
    remember: Callable[[Sequence[RestartOutcome]], None]
    """Tells all parts what restarts of earlier jobs on this backend have achieved."""
    fail: Callable[[str], None]
    """Ends the job as failed, for a reason."""


class MasterPart:
    """A feature's part in the master; each method may be left out.

    Bodies are msgpack: the part decodes them by a union of its own. A body that cannot be decoded
    is dropped (`MsgspecError`), as is one with impossible values (`ValueError`, `LookupError`,
    `TypeError`, `ArithmeticError`).
    """

    wants_links: bool = False
    """True: workers that begin the job together measure what their links carry, if their strategy
    can, for `paceline.runtime.process.feature_port.ProcessPart.measure`."""

    def begin(self) -> None:
        """Begin to work: the journal has been read."""

    def heard(self, node: str, inc: Inc, body: msgspec.Raw) -> None:
        """Take in a message of the feature's part in the process of a life that is alive."""

    def heard_agent(self, node: str, body: msgspec.Raw) -> None:
        """Take in a message of the feature's part in the agent of a node."""

    def agent_came(self, node: str) -> None:
        """Act on the first word of a node's agent; said again when agent or master is a new one."""

    def starts(self, node: str) -> Any:
        """Return a message, a msgspec struct, that comes with the order to start a life of a node.

        The feature's part in that process gets it before the script runs. It has 32 KiB at most,
        since it travels with the order. None: there is none.
        """
        return None

    def happened(self, event: Event) -> None:
        """Take in an event of the job, after it was told; also one of this part's own."""

    def at_once(self, event: Event) -> None:
        """Take in an event of a node before anything that follows from it is ordered.

        After a `ProcessExitedEvent` the node's next life is ordered: limits that are changed here
        (`NodeActs.resize`) hold for it. Nothing else should be ordered here, but in `happened`,
        which hears of the event later: what follows from it is decided by now.
        """

    def reported(self, node: str, facts: NodeFacts, now_s: float) -> None:
        """Take in what an agent says of its node's process with each heartbeat."""

    def apply(self, record: msgspec.Raw) -> None:
        """Take in a record that a master before this one has kept; before `begin`, in order."""

    def kept(self) -> list[Any]:
        """Return records, as msgspec structs, that take the place of all that were kept before."""
        return []

    def tick(self, now_s: float) -> None:
        """Do what is due; called about five times a second with the time of `Core.steady`.

        A part that acts on the training asks `Scene.is_ending` first.
        """

    def works(self, measured: StartMeasured) -> None:
        """Take in that a node works after a start, and what the start has cost."""

    def remember(self, outcomes: Sequence[RestartOutcome]) -> None:
        """Take in what restarts of earlier jobs on this backend have achieved, the oldest first."""

    def measured(self, figures: Exposed) -> None:
        """Take in the figures of this moment; called once a second if a part defines it."""

    def answer(self, call: msgspec.Raw) -> Any:
        """Return the answer, a msgspec struct, to a call of the feature's verb.

        Raises:
            ConfigError: the call asks for something that cannot be.
        """
        raise NotImplementedError

    def shown(self) -> Shown:
        """Return what status, metrics and the live view show of the feature."""
        return Shown()

    def close(self) -> None:
        """End, since the job has ended. An event that is told here is still written."""

    def ended(self, outcome: Outcome) -> Callable[[], None] | None:
        """Return what is still to be done when the outcome is written; None: nothing is.

        It is called in a thread, which has some seconds for it: the master waits no longer. If it
        raises, or takes too long, `not_done` follows.
        """
        return None

    def not_done(self, error: str) -> None:
        """Take in why the work that `ended` returned is not done, perhaps to tell an event."""

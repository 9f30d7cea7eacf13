"""The port between a job's `Training` and what it does for one kind of holder alone."""

import abc
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from paceline.base.numbering import CutNo, Inc
from paceline.master.cut_folders import CutChosen
from paceline.master.status import count_committed
from paceline.policy.actions import Profile
from paceline.protocol.holding.holder import Holder
from paceline.protocol.nodes.hangs import Hang
from paceline.protocol.records import Records
from paceline.wire.messages.agent import NodeFacts
from paceline.wire.messages.base import Attempt, Server
from paceline.wire.messages.node import NodeUp
from paceline.wire.spec import JobSpec

if TYPE_CHECKING:
    from paceline.master.training import Training

GATHER_S = 30.0
"""Seconds for which the first workers of a job wait for the others; later ones join them."""
RESEND_S = 1.0
"""Seconds after which what is unanswered is said again."""


class ModelPlace(NamedTuple):
    """Place of the model, as the master knows."""

    attempt: Attempt
    step: int
    samples: int
    """Number of samples in the model."""


class HolderEdge(abc.ABC):
    """Edge of a `Training`: what it does for one kind of holder alone.

    Args:
        spec: of the job.
    """

    @property
    @abc.abstractmethod
    def holder(self) -> Holder:
        """The state machine around which it lies."""

    training: "Training"
    """The training that it is a part of; set by it."""

    @abc.abstractmethod
    def __init__(self, spec: JobSpec) -> None: ...

    def ended(self) -> None:
        """Take in that the job has ended here, by the journal; it goes on with a script as then."""

    def measure_links(self) -> None:
        """Have those who begin the job together measure their links first, where they can."""

    def known(self) -> set[Inc]:
        """Return more workers of which the journal tells that they take part."""
        return set()

    @abc.abstractmethod
    def handle(self, node: str, message: NodeUp, now_s: float) -> bool:
        """Handle a message of a live process of ``node``; False: it concerns every job."""

    def before_record(self, record: Records) -> None:
        """Report a record that is about to be journalled."""

    @abc.abstractmethod
    def profile(self, action: Profile) -> None:
        """Set a `Profile` going.

        Raises:
            ConfigError: workers cannot compute batches that do not count.
        """

    @abc.abstractmethod
    def watch(self, now_s: float) -> None:
        """Look after what may make no progress."""

    @abc.abstractmethod
    def being_loaded(self) -> set[CutNo]:
        """Cuts that must stay though they are old."""

    @abc.abstractmethod
    def take_last_cut(self) -> CutNo | None:
        """Order the last cut: its number, 0 if none is needed; None: not now, ask again."""

    @abc.abstractmethod
    def epoch_is_due(self) -> bool:
        """Tell whether an epoch must begin, now."""

    @abc.abstractmethod
    def begin_epoch(self, chosen: CutChosen, now_s: float) -> None:
        """Begin an epoch from this cut."""

    @abc.abstractmethod
    def find_hang(self, bound_s: float, now_s: float) -> Hang | None:
        """Find the processes that hang; None: there are none.

        Args:
            bound_s: as long as a step may take.
            now_s: of the master's clock.
        """

    def facts_of(self, incs: Iterable[Inc]) -> dict[str, NodeFacts]:
        """The newest report of each of these lives whose script has not returned."""
        found = {}
        for inc in incs:
            node = self.training.members.roster.node_of(inc)
            seen = self.training.monitor.nodes.get(node.name) if node else None
            if node and not node.life.returned and seen and seen.facts.inc == inc:
                found[node.name] = seen.facts
        return found

    def reconnect(self, since_s: float) -> None:
        """Connect the members again: none hangs, and none has made progress for so long."""

    def change_servers(self, joining: tuple[Server, ...], leaving: tuple[Inc, ...]) -> None:
        """Have buckets moved to fresh servers, or off some; again: nothing."""

    @property
    def is_moving(self) -> bool:
        """Whether buckets are on their way to other servers."""
        return False

    def joiner_lost(self, inc: Inc) -> None:
        """A server that should join is dead."""

    def give_up_move(self) -> None:
        """Leave buckets where they are, unless they have moved meanwhile; again: nothing."""

    def place(self) -> ModelPlace:
        """Return where the model is now."""
        state = self.training.state
        return ModelPlace(
            Attempt(state.epoch_no, self.group_no), state.step, count_committed(state)
        )

    @property
    def group_no(self) -> int:
        """The number of the newest group that has trained; 0: there are none."""
        return 0

    @property
    def group_broke(self) -> bool:
        """Whether members say that they cannot work together."""
        return False

    @property
    def whole_at(self) -> frozenset[str]:
        """Nodes that hold the whole model now, each of them alone; empty: none does."""
        return frozenset()

    @property
    def last_cut_waits(self) -> bool:
        """Whether members have to stay: a cut of what they hold can be made after another one."""
        return False

    def before_stop(self) -> None:
        """Have those who hold the state keep it, before all workers leave."""

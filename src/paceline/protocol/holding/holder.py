"""The port between what is true of every job and who holds its state of training.

`paceline.protocol.training.MasterState` asks its holder: who can copy the state, what a lost life
leaves behind, what a committed plan changes, what a cut is worth. A kind of holder is one subclass
in a folder of its own, ``holding/*/master.py``; messages that concern it alone are its own methods.
"""

import abc
from typing import TYPE_CHECKING, Any

from paceline.base.numbering import Inc, StepNo
from paceline.protocol.acts import Instruction
from paceline.protocol.records import CutValid, Planned, Records
from paceline.protocol.samples.plans import GlobalAction
from paceline.wire.messages.base import CutRef
from paceline.wire.messages.feeds import Feed
from paceline.wire.messages.node import AskCut, FeedOpened, LeaseRequest
from paceline.wire.schema import ModelSchema

if TYPE_CHECKING:
    from paceline.protocol.snapshot import Snapshot
    from paceline.protocol.training import MasterState


class Holder(abc.ABC):
    """The master's part of who holds the state of training; it belongs to one `MasterState`."""

    leases_training: bool
    """Whether samples to train on are leased to single workers."""
    model: ModelSchema | None = None
    """Schema of the model, where it is known from the start."""
    core: "MasterState"
    """State that every job has, whoever holds the model; set when that is made."""

    # ------------------------------------------------------------------ where the training is

    @property
    @abc.abstractmethod
    def phase(self) -> str:
        """One word for where the training is: ``starting``, ``training``, or why it is not."""

    @property
    def waits_for(self) -> str:
        """Why workers that are ready do not train yet, for a person; empty: they do, or may."""
        return ""

    @property
    @abc.abstractmethod
    def is_training(self) -> bool:
        """Whether somebody holds the model, so that workers can train."""

    @property
    def has_model(self) -> bool:
        """Whether there is one that a machine could come to."""
        return bool(self.core.cuts.valid)

    @property
    def is_held(self) -> bool:
        """Whether what the ledger has is held; else the job is about to go back to a cut."""
        return True

    @property
    def holders(self) -> frozenset[Inc]:
        """Workers that hold the model themselves, and live."""
        return frozenset()

    @property
    def in_steps(self) -> frozenset[Inc]:
        """Workers that may be in a step together, where they do each step together."""
        return frozenset()

    @property
    def short_steps(self) -> int:
        """Steps that were decided while something of them was missing, restored ones included."""
        return 0

    @property
    def left_out(self) -> int:
        """Samples that were missing in them."""
        return 0

    @property
    def pace(self) -> str:
        """The mode as solutions know it."""
        return self.core.mode

    @property
    def sharers(self) -> tuple[str, ...]:
        """Nodes other than workers that hold a share of the model."""
        return ()

    # ------------------------------------------------------------------ records

    @abc.abstractmethod
    def apply(self, record: Records) -> bool:
        """Apply a record of its own; False: it belongs to every job."""

    def applied(self, record: Records) -> None:
        """Follow a record that belongs to every job and was just applied."""

    def proven_by(self, cut: CutValid) -> None:
        """Take what a cut proves that is becoming valid; no journal has it otherwise."""

    def proof_of(self, cut: CutValid) -> list[Records]:
        """Return the records of its own with which a cut becomes valid."""
        return []

    def resume(self) -> list[Instruction]:
        """After the journal was applied: which messages of this epoch have arrived is unknown."""
        return []

    @abc.abstractmethod
    def kept(self) -> dict[str, Any]:
        """Return its fields of a `Snapshot`."""

    @abc.abstractmethod
    def restore(self, kept: "Snapshot") -> bool:
        """Take them back; whether the cuts of this epoch prove steps that no record has."""

    # ------------------------------------------------------------------ lives

    def came(self, inc: Inc) -> None:
        """A worker's process is alive."""

    @abc.abstractmethod
    def lost(self, inc: Inc, *, returned: bool) -> list[Instruction]:
        """A worker is dead, or silent for too long: nothing of it may count from here on.

        ``returned``: its script had come to its end.
        """

    def is_given_up(self, inc: Inc) -> bool:
        """Whether others go on without this worker, and it must not come back."""
        return False

    def is_fenced(self, inc: Inc) -> bool:
        """Whether what this worker leases is being taken back."""
        return False

    def tell_epoch(self, inc: Inc) -> list[Instruction]:
        """Answer a worker that asks in an epoch that is over."""
        return []

    # ------------------------------------------------------------------ feeds, plans

    def asked(self, request: LeaseRequest) -> list[Instruction]:
        """Look at a request of this epoch before it is served."""
        return []

    @property
    def begins_with(self) -> CutRef | None:
        """The cut that workers would begin with; None: others hold the state."""
        return None

    def opened(self, opened: FeedOpened) -> FeedOpened:
        """Add what a worker that opens a feed has to know of the holder."""
        return opened

    @property
    def wait_behind(self) -> bool:
        """Whether scripts that have left a loop before its end wait for a cut of what they hold."""
        return False

    def left_loop(self, feed: int, step: StepNo, awaited: Inc) -> list[Instruction]:
        """Others left this loop after this step, and wait behind it for a life to do the same.

        If that has nothing of it, it needs a cut of what they held then.
        """
        return []

    def lead(self, action: GlobalAction, lead: int) -> int:
        """Return the steps from the undecided one to that from which a plan can hold.

        Raises:
            ConfigError: the action cannot be carried out.
        """
        return lead

    def plan_in_force(self) -> Planned:
        """The plan of the undecided step, and since when it holds."""
        plans = self.core.plans
        return plans.record_at(plans.place(plans.undecided()))

    @abc.abstractmethod
    def planned(self) -> list[Instruction]:
        """The newest plan is certain: tell those who have to know."""

    # ------------------------------------------------------------------ cuts

    @abc.abstractmethod
    def copiers(self) -> tuple[Inc, ...]:
        """Return the incarnations that hold the state and so copy it for a cut; empty: none can."""

    @abc.abstractmethod
    def may_copy(self, inc: Inc) -> bool:
        """Whether this incarnation's word about a cut counts."""

    @abc.abstractmethod
    def cut_valid(self, valid: CutValid) -> list[Instruction]:
        """A cut can be loaded, from memory or from disk."""

    @abc.abstractmethod
    def cut_stored(self) -> list[Instruction]:
        """A cut that was valid in memory is on disk."""

    def cut_wanted(self, message: AskCut) -> None:
        """A worker asks for a cut."""

    @property
    def wants_cut(self) -> bool:
        """Whether a worker asks for a cut that can be made now."""
        core = self.core
        return any(one.step <= core.step for one in core.cuts.wanted.values())

    # ------------------------------------------------------------------ loss of messages

    @abc.abstractmethod
    def resend(self) -> list[Instruction]:
        """Everything of its own that is unanswered, once more."""

    def not_kept(self) -> list[Feed]:
        """Feeds to train on that are not wholly in a cut on disk."""
        feeds, safe = self.core.ledger.feeds.values(), self.core.cuts.safe
        return [one for one in feeds if one.purpose == "train" and one.feed not in safe]

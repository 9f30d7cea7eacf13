"""Events of data and of the model's state: feeds, epochs, cuts, groups of workers."""

from paceline.base.numbering import CutNo, EpochNo, StepNo
from paceline.wire.events.base import Event, ReasonedEvent


class FeedOpenedEvent(Event, frozen=True):
    """A loop over data has begun."""

    feed: int
    purpose: str
    """``train`` or ``evaluate``."""

    is_usual = True
    clause_words = "feed {0.feed} ({0.purpose})"


class FeedCompleteEvent(Event, frozen=True):
    """Every sample of the feed is in the model, and in a cut on disk."""

    feed: int

    is_usual = True
    clause_words = "feed {0.feed}"


class EpochEvent(Event, frozen=True):
    """A model is loaded: the job begins, or goes back to a cut."""

    epoch_no: EpochNo
    cut_no: CutNo
    """0: what the script has built."""
    undone: int
    """Samples that this takes out of the model; they are trained again."""
    in_memory: bool = False
    """The cut is in the memory of nodes."""
    resumed: bool = False
    """The job had come to an end, and is resumed."""

    clause_words = "epoch {0.epoch_no} from {0.cut}"

    def sentence(self) -> str:
        """Say what is loaded, and what is trained again for that."""
        loaded = f"loaded from {self.cut}" if self.cut_no else "what the script has built, again"
        again = f"; {self.undone:,} samples are trained again" if self.undone else ""
        return f"the model is {loaded}{again}"

    @property
    def is_restore(self) -> bool:
        """Whether something was lost, and the model goes back to a cut, or to its beginning."""
        return self.undone > 0 or (self.cut_no > 0 and not self.resumed)

    @property
    def is_news(self) -> bool:
        return self.undone > 0 or self.cut_no > 0

    @property
    def cut(self) -> str:
        """``cut 3``, ``cut 3 in memory``."""
        return f"cut {self.cut_no}{' in memory' if self.in_memory else ''}"


class RestoredEvent(Event, frozen=True):
    """All servers hold the model: training can begin, or go on."""

    epoch_no: EpochNo

    is_usual = True
    clause_words = "epoch {0.epoch_no}"
    sentence_words = "training goes on: {0.clause}"


# --------------------------------------------------------------------------- cuts


class CutValidEvent(Event, frozen=True):
    """A cut can be loaded."""

    cut_no: CutNo
    step: StepNo

    is_usual = True
    clause_words = "cut {0.cut_no} at step {0.step}"


class CutStoredEvent(Event, frozen=True):
    """A cut that was valid in memory is on disk."""

    cut_no: CutNo

    is_usual = True
    clause_words = "cut {0.cut_no}"


class CutUploadedEvent(Event, frozen=True):
    """A cut is at the URL of ``checkpoint.dir``."""

    cut_no: CutNo

    is_usual = True
    clause_words = "cut {0.cut_no}"


class NotUploadedEvent(Event, frozen=True):
    """The job has ended, and its newest cut is not at the URL."""

    cut_no: CutNo

    clause_words = "cut {0.cut_no}"
    sentence_words = "{0.clause} is not at checkpoint.dir: the storage is away"


class UploadFailedEvent(ReasonedEvent, frozen=True):
    """The storage at the URL is away; it is asked again."""

    sentence_words = "cuts are not copied, the job goes on and tries again: {0.reason}"


class UploadTroubleEvent(Event, frozen=True):
    """A cut is not copied to the URL, or older ones there are not deleted."""

    cut_no: CutNo
    error: str
    copied: bool = False
    """The cut is there, and so are older ones."""

    sentence_words = "copying cuts: {0.clause}"

    @property
    def clause(self) -> str:
        return f"older cuts stay: {self.error}" if self.copied else self.error


class CutDamagedEvent(ReasonedEvent, frozen=True):
    """A cut cannot be loaded; an older one is used."""

    cut_no: CutNo | None = None
    """None: a line of before, which names it in words only."""


class CutsRarerEvent(Event, frozen=True):
    """Cuts come less often than was asked for: they would take more than their share."""

    least_s: float
    """Seconds between two cuts."""
    every_s: float | None
    every_steps: int | None
    """Steps between two cuts that were asked for; None: not asked for in steps."""
    cost_s: float
    """Seconds of a core that one cut takes."""
    share: float
    """``checkpoint.share``."""

    sentence_words = "{0.clause}"

    @property
    def clause(self) -> str:
        asked = [f"{self.every_s:g} s"] if self.every_s is not None else []
        asked += [f"{self.every_steps} steps"] if self.every_steps is not None else []
        return (
            f"cuts every {self.least_s:.3g} s instead of {' or '.join(asked)}: one costs "
            f"{self.cost_s:.2g} s, and checkpoint.share is {self.share:g}"
        )


# --------------------------------------------------------------------------- groups of workers


class GroupFormsEvent(Event, frozen=True):
    """Workers meet to train together."""

    group: int
    members: tuple[str, ...]

    is_usual = True

    @property
    def clause(self) -> str:
        return f"group {self.group} of {', '.join(self.members)}"


class GroupRunsEvent(Event, frozen=True):
    """Workers train together."""

    members: tuple[str, ...]
    step: StepNo
    """The newest step in their model."""

    sentence_words = "{0.clause}"

    @property
    def is_news(self) -> bool:
        return self.step > 0

    @property
    def clause(self) -> str:
        place = f"from step {self.step + 1} on" if self.step else "from the start"
        verb = "trains" if len(self.members) == 1 else "train"
        return f"{', '.join(self.members)} {verb} {place}"


class GroupBrokenEvent(ReasonedEvent, frozen=True):
    """A member can no longer work with the others."""

    sentence_words = "{0.node} can no longer work with the others: {0.reason}"


class PlanEvent(Event, frozen=True):
    """The workers divide their steps by another plan."""

    plan_no: int
    step: StepNo
    """The first by this plan."""

    is_usual = True
    clause_words = "plan {0.plan_no} from step {0.step} on"


class MemberSlowEvent(Event, frozen=True):
    """A member takes long for its part of a step, and all others wait for it."""

    node: str
    since_s: float
    """Seconds for which it has been in its part."""
    limit_s: float
    """Seconds after which it is treated as hung."""

    clause_words = "all wait for {0.node}, in its part of a step for {0.since_s:.0f} s"
    sentence_words = (
        "{0.clause}; its script reads, computes or sleeps, and has up to {0.limit_s:.0f} s "
        "(timeouts.hang_s sets another bound)"
    )


class GroupStuckEvent(Event, frozen=True):
    """All members wait for each other; they meet again."""

    since_s: float
    """Seconds for which there was no step."""

    clause_words = "no step for {0.since_s:.1f} s: all members wait for each other"
    sentence_words = "{0.clause}; they meet again"


class DivergedEvent(ReasonedEvent, frozen=True):
    """Members were found to hold different values."""

    sentence_words = "{0.reason}"

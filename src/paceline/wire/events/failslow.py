"""Events of a script that trains on its own and has become slow: when, and what is to blame."""

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from paceline.wire.events.base import Event, ReasonedEvent

Culprit = Literal["computation", "link", "nothing"]
"""Component that a diagnosis names; nothing: none was found."""


def blame(culprit: Culprit, nodes: tuple[str, ...], ratio: float) -> str:
    """Say who is slow, and how many times as long it takes."""
    match culprit:
        case "computation":
            return f"{nodes[0]} computes {ratio:.2f} times as long"
        case "link":
            return f"the link {' - '.join(nodes)} takes {ratio:.2f} times as long"
        case "nothing":
            return "no component was found to blame"


class ComparedPart(msgspec.Struct, frozen=True, array_like=True):
    """Time of one part of the job, beside its time at the job's start."""

    what: Literal["computing", "product", "link"]
    """Part that is compared: a rank's own part of a step, its matrix product, or a transfer between
    two ranks."""
    nodes: tuple[str, ...]
    now_s: float
    start_s: float | None
    """Seconds at the job's start; None: it was not measured then."""

    @property
    def ratio(self) -> float | None:
        """How many times as long as at the job's start; None: not known."""
        return self.now_s / self.start_s if self.start_s else None


class FollowsEvent(ReasonedEvent, frozen=True):
    """Other steps count from now on, those of this node: nothing is known of them so far."""

    sentence_words = (
        "the steps of {0.node} are followed from now on, and compared with each other: {0.reason}"
    )


class SlowedEvent(Event, frozen=True):
    """The job's steps have become longer, and stay so."""

    step: int
    """The first of them."""
    before_s: float
    """Time of a step before."""
    after_s: float

    clause_words = "since step {0.step:,} {0.slower}"
    sentence_words = "the job is slow: {0.clause}"

    @property
    def slower(self) -> str:
        """Return in words by how much a step is slower."""
        ratio = self.after_s / self.before_s
        return (
            f"a step takes {self.after_s * 1e3:.3g} ms, {ratio:.2f} times the "
            f"{self.before_s * 1e3:.3g} ms before"
        )


def gap_words(absent: Sequence[str], unseen: Mapping[str, str]) -> str:
    """Say which nodes did not come to be measured, and what is not known of others."""
    missing = [f"did not come to be measured: {', '.join(absent)}"] if absent else []
    return "; ".join([*missing, *(f"{node} {words}" for node, words in unseen.items())])


class StartUnseenEvent(ReasonedEvent, frozen=True):
    """Something of the job's start could not be looked at, so nothing is compared with it later."""

    sentence_words = "of the job's start not all is known: {0.reason}"


class DiagnosedEvent(Event, frozen=True):
    """Diagnosis of what makes the job slow, by a profile and a measurement of its parts."""

    culprit: Culprit
    nodes: tuple[str, ...] = ()
    """A link: its ends, or the members of the group whose links are slow."""
    ratio: float = 1.0
    """Time as a multiple of its reference."""
    evidence: str = ""
    cause: str = ""
    """Why it is slow: a row of `paceline.policy.failslow.causes`; empty: an event of before."""
    absent: tuple[str, ...] = ()
    """Nodes that did not come to be measured."""
    unseen: dict[str, str] = {}
    """Words for what else is not known of a node, as the end of a sentence, by node."""
    took_s: float = 0.0
    """Seconds from the moment at which the slowness was known."""
    parts: tuple[ComparedPart, ...] = ()
    """All parts that were looked at."""
    busy: bool = False
    """Whether other programs use the processors of most ranks, too: a restart does not help."""

    clause_words = "{0.blamed}{0.missing}"
    sentence_words = "{0.clause}"

    @property
    def who(self) -> str:
        """Return the culprit, in words."""
        if self.culprit == "nothing" and self.busy:
            return "the machine is busy, and no rank is to blame"
        return blame(self.culprit, self.nodes, self.ratio)

    @property
    def blamed(self) -> str:
        """Return the culprit and the evidence, in words."""
        return f"{self.who}: {self.evidence}" if self.evidence else self.who

    @property
    def missing(self) -> str:
        """Return words for what was not looked at, to follow the rest; empty: all was."""
        words = gap_words(self.absent, self.unseen)
        return f"; {words}" if words else ""


class RestartAdvisedEvent(Event, frozen=True):
    """The slowness has cost as much by now as a restart without its cause would."""

    nodes: tuple[str, ...]
    """Nodes to leave out: ranks, or the ends of a link."""
    lost_s: float
    start_s: float
    """Seconds that the script took to start, as it did the last time."""
    redo_s: float
    """Seconds since the script last saved, or since it began."""
    has_saved: bool

    clause_words = (
        "a restart without {0.whom} is worth its price by now: {0.lost_s:.3g} s are lost, and it "
        "would cost {0.cost_s:.3g} s ({0.start_s:.3g} s to start, {0.redo_s:.3g} s of work since "
        "{0.since})"
    )
    sentence_words = "{0.clause}"

    @property
    def whom(self) -> str:
        return " and ".join(self.nodes)

    @property
    def cost_s(self) -> float:
        return self.start_s + self.redo_s

    @property
    def since(self) -> str:
        """Point to which a restart goes back."""
        return "torch.save last ran" if self.has_saved else "the start: torch.save never ran"


class RelievedEvent(Event, frozen=True):
    """The job's steps have become shorter again."""

    step: int
    before_s: float
    after_s: float
    still_slow: bool = False
    """True: steps are still longer than when the job was healthy."""

    is_usual = True
    clause_words = "a step takes {0.after_ms:.3g} ms since step {0.step:,}{0.still}"
    sentence_words = "the job is faster: {0.clause}"

    @property
    def after_ms(self) -> float:
        return self.after_s * 1e3

    @property
    def still(self) -> str:
        return ", longer than when it was healthy" if self.still_slow else ""

"""Events of fail-slow: what nodes can do, when a script became slow, and what is to blame."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, assert_never

import msgspec

from paceline.features.failslow.wire import FEATURE, NodeSpeed
from paceline.wire.client import Culprit, blame
from paceline.wire.events.base import Event, FeatureEvent, known_by


class _Event(FeatureEvent, frozen=True, kw_only=True):
    """Base of the events here."""

    feature_name = FEATURE


class _ReasonedEvent(_Event, frozen=True, kw_only=True):
    """Base of those whose cause is known in words."""

    reason: str = ""

    clause_words = "{0.reason}"


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


class FollowsEvent(_ReasonedEvent, frozen=True):
    """Other steps count from now on, those of this node: nothing is known of them so far."""

    sentence_words = (
        "the steps of {0.node} are followed from now on, and compared with each other: {0.reason}"
    )


class SlowedEvent(_Event, frozen=True):
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


class StartUnseenEvent(_ReasonedEvent, frozen=True):
    """Something of the job's start could not be looked at, so nothing is compared with it later."""

    sentence_words = "of the job's start not all is known: {0.reason}"


class DiagnosedEvent(_Event, frozen=True):
    """Diagnosis of what makes the job slow, by a profile and a measurement of its parts."""

    culprit: Culprit
    nodes: tuple[str, ...] = ()
    """A link: its ends, or the members of the group whose links are slow."""
    ratio: float = 1.0
    """Time as a multiple of its reference."""
    evidence: str = ""
    cause: str = ""
    """Why it is slow: a row of `policy.causes`; empty: an event of before."""
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


class RestartAdvisedEvent(_Event, frozen=True):
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


class RelievedEvent(_Event, frozen=True):
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


# ------------------------------------------------------------------ checks of nodes

SlowResource = Literal["cpu quota", "cpu", "matmul", "memory", "links"]
"""Resource of which a node has less than others."""
SlowWay = Literal["link", "round trip"]
"""Property of a link that is slow."""


class CheckedEvent(_Event, frozen=True):
    """A node was measured before its first step."""

    speed: NodeSpeed

    is_usual = True
    sentence_words = "{0.node} was checked: {0.clause}"

    @property
    def clause(self) -> str:
        rates = [link.bytes_per_s for link in self.speed.links]
        parts = [
            _range("matmul", [self.speed.matmul_flops], "GFLOP/s"),
            _range("memory", [self.speed.copy_bytes_per_s], "GB/s"),
            *([_range("links", rates, "GB/s")] if rates else []),
        ]
        return ", ".join(parts)


def _range(what: str, values: list[float], unit: str) -> str:
    low, high = f"{min(values) / 1e9:.3g}", f"{max(values) / 1e9:.3g}"
    return f"{what} {low} {unit}" if low == high else f"{what} {low} to {high} {unit}"


class CheckFailedEvent(_ReasonedEvent, frozen=True):
    """The check of a node, or a part of it, has failed."""

    sentence_words = "the check of {0.node} failed, the job goes on without it: {0.reason}"


class SlowNodeEvent(_Event, frozen=True):
    """A node has less of something than the others of its job."""

    what: SlowResource
    value: float
    """Cores, part of the time, FLOP/s, bytes/s, bytes/s of its best link: as ``what`` says."""
    ratio: float
    """Ratio of the value to the median."""
    threads: int = 0
    """Number of torch's threads."""

    clause_words = "{0.measured}, {0.ratio:.2f} of the median"
    sentence_words = "{0.node} is slow: {0.clause}"

    @property
    def measured(self) -> str:
        """The value in words."""
        match self.what:
            case "cpu quota":
                threads = f"{self.threads} thread{'s' if self.threads > 1 else ''}"
                return f"a quota of {self.value:g} cores for {threads}"
            case "cpu":
                return f"its threads ran {self.value:.0%} of the time"
            case "matmul":
                return f"matmul {self.value / 1e9:.3g} GFLOP/s"
            case "memory":
                return f"memory {self.value / 1e9:.3g} GB/s"
            case "links":
                return f"its links carry at most {self.value / 1e9:.3g} GB/s"
            case _:
                assert_never(self.what)


class SlowLinkEvent(_Event, frozen=True):
    """The link between two nodes is slower than those of the others."""

    ends: tuple[str, str]
    what: SlowWay
    value: float
    """Bytes/s of a link, seconds of a round trip."""
    ratio: float
    """Ratio of the value to the median."""

    clause_words = "{0.ends[0]} - {0.ends[1]}: {0.measured}"
    sentence_words = "a link is slow: {0.clause}"

    @property
    def measured(self) -> str:
        """The value in words."""
        match self.what:
            case "link":
                return f"{self.value / 1e9:.3g} GB/s, {self.ratio:.2f} of the median"
            case "round trip":
                rtt = f"round trip {self.value * 1e3:.1f} ms"
                return f"{rtt}, {self.ratio:.1f} times the median"
            case _:
                assert_never(self.what)


AnyFailSlowEvent = (
    StartUnseenEvent
    | FollowsEvent
    | SlowedEvent
    | DiagnosedEvent
    | RelievedEvent
    | RestartAdvisedEvent
    | CheckedEvent
    | CheckFailedEvent
    | SlowNodeEvent
    | SlowLinkEvent
)
"""All kinds of events of the feature."""
_decode = msgspec.json.Decoder(AnyFailSlowEvent).decode


def read(events: Iterable[Event]) -> list[Event]:
    """Return the events of a job, with those of fail-slow as what they are."""
    return known_by(events, _decode)

"""Events of what nodes can do, and of what is decided by it."""

from typing import Literal, assert_never

from paceline.base.numbering import StepNo
from paceline.wire.events.base import Event, ReasonedEvent
from paceline.wire.messages.checks import NodeSpeed

SlowPart = Literal["cpu quota", "cpu", "matmul", "memory", "links"]
"""Resource of which a node has less than others."""
SlowWay = Literal["link", "round trip"]
"""Property of a link that is slow."""


class CheckedEvent(Event, frozen=True):
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


class CheckFailedEvent(ReasonedEvent, frozen=True):
    """The check of a node, or a part of it, has failed."""

    sentence_words = "the check of {0.node} failed, the job goes on without it: {0.reason}"


class SlowNodeEvent(Event, frozen=True):
    """A node has less of something than the others of its job."""

    what: SlowPart
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


class SlowLinkEvent(Event, frozen=True):
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


class PlanEvent(Event, frozen=True):
    """The workers divide their steps by another plan."""

    plan_no: int
    step: StepNo
    """The first by this plan."""

    is_usual = True
    clause_words = "plan {0.plan_no} from step {0.step} on"

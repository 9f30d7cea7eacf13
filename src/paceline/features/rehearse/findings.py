"""Findings of a rehearsal: differences, and a verdict on each act."""

from typing import Literal

from msgspec import Struct

State = Literal[
    "equal", "drifts", "refused", "not reached", "failed", "not run", "left out", "runs"
]
"""``left out``: the script has no such moment. ``runs``: it ended well, and is compared with
nothing."""
PASSES: frozenset[State] = frozenset({"equal", "left out", "runs"})
Kind = Literal["variable", "printed", "logged", "file", "weights", "exit"]


class Finding(Struct, frozen=True, kw_only=True):
    """One difference between an act and the act that it is compared with."""

    kind: Kind
    what: str
    where: str = ""
    """File and line of the script, or a file that was written."""
    remedy: str = ""
    lasts: bool = False
    """Whether the script carries the variable from epoch to epoch."""


class ActVerdict(Struct, frozen=True, kw_only=True):
    """Verdict on one act."""

    act: str
    strategy: str
    state: State
    seconds: float = 0.0
    message: str = ""
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()
    """Differences that are no faults."""


class Rehearsal(Struct, frozen=True, kw_only=True):
    """A whole rehearsal."""

    script: str
    args: tuple[str, ...]
    batches: int
    epochs: int
    workers: int
    verdicts: tuple[ActVerdict, ...]
    seconds: float
    tolerance: str
    links: tuple[str, ...] = ()
    """Files and folders that were linked, not copied."""

    @property
    def passes(self) -> bool:
        """Whether nothing is wrong with any act."""
        return all(one.state in PASSES for one in self.verdicts)


class Refusal(Struct, frozen=True, kw_only=True):
    """Refusals and notes of one strategy for a script."""

    strategy: str
    refused: bool
    messages: tuple[str, ...] = ()
    """Refusals, each with its remedy."""
    places: tuple[str, ...] = ()
    """File and line of each message; empty: not known."""
    notes: tuple[str, ...] = ()


class Check(Struct, frozen=True, kw_only=True):
    """A whole check."""

    script: str
    strategies: tuple[Refusal, ...]
    seconds: float
    error: str = ""
    """Error of the script itself; empty: it did not fail."""

    def passes(self, needed: tuple[str, ...]) -> bool:
        """Tell whether the script runs, each needed strategy takes it, and at least one does."""
        refused = {one.strategy for one in self.strategies if one.refused}
        each = {one.strategy for one in self.strategies}
        return not self.error and not refused & {*needed} and refused != each

"""Gaps of a diagnosis, and their reasons: its words must claim no more than was checked."""

import enum
from collections.abc import Mapping
from typing import Self

import msgspec
from msgspec.structs import replace


class NotProfiled(enum.StrEnum):
    """Why the calls of ranks were not compared, in words."""

    UNTOLD = "no agent has told the calls of its rank"
    BLIND = "torch does not say when a call on these devices ends"
    NO_STEP = "the ranks have noted no step in common"


class NotMeasured(enum.StrEnum):
    """Why ranks and links were not measured, in words, with the remedy if there is one."""

    OFF = "the job has preflight: false (without that, the ranks measure themselves)"
    ALONE = "the script has one rank, and ranks measure themselves together"
    INFERRED = (
        "steps are inferred from calls, so the ranks have no step at which to meet (each step of "
        "an optimizer of torch would be one)"
    )
    MISSED = (
        "the ranks missed each other at the job's start (they try again when the script is "
        "started again)"
    )
    APART = "the ranks are not at the same step"
    RESTING = "the ranks have met a short time ago"
    NOT_ALL = "not all ranks have come"


class Gaps(msgspec.Struct, frozen=True, kw_only=True):
    """Parts of a job that a diagnosis could not look at."""

    not_profiled: NotProfiled | None = None
    """None: calls were compared."""
    not_measured: NotMeasured | None = None
    """None: ranks have met, and measured themselves."""
    absent: tuple[int, ...] = ()
    """Ranks that did not come to be measured."""
    unseen: dict[int, str] = {}
    """Other ranks of which something is not known: what, as the end of a sentence."""

    @property
    def ranks(self) -> set[int]:
        """All ranks of which something is not known."""
        return {*self.absent, *self.unseen}

    def and_unseen(self, words: Mapping[int, str]) -> Self:
        """Add what is not known of some ranks."""
        both = {
            rank: " and ".join((self.unseen[rank], words[rank]))
            for rank in words.keys() & self.unseen.keys()
        }
        return replace(self, unseen={**self.unseen, **words, **both})

"""What is slow in a job, since when, and what is done about it, in words for people.

To a person a straggler and a fail-slow rank are the same thing: a `SlowPart`.
"""

from collections.abc import Sequence

from paceline.jobs.wording import clock
from paceline.wire.client import SlowPart

MAX_NAMED = 3
COLUMNS = ("slow", "times as long", "since", "what is done about it")


def rows(parts: Sequence[SlowPart], launched_s: float) -> list[tuple[str, ...]]:
    """One per part that is slow, or is well again, as `COLUMNS` has it."""
    return [
        (
            " - ".join(part.nodes) or "the job",
            f"{part.ratio:.2f}",
            _when(part, launched_s),
            part.done if part.until_s is None else f"well again; before: {part.done}",
        )
        for part in parts
    ]


def _when(part: SlowPart, launched_s: float) -> str:
    since = clock(part.since_s - launched_s)
    return since if part.until_s is None else f"{since} to {clock(part.until_s - launched_s)}"


def headline(parts: Sequence[SlowPart], launched_s: float) -> str:
    """Say in one line what makes a job slow, and since when; empty: nothing does."""
    if not parts:
        return ""
    return f"slow since {clock(parts[0].since_s - launched_s)}: {named(parts)}"


def named(parts: Sequence[SlowPart]) -> str:
    """Name what is slow; of many parts the first, which cost most."""
    more = len(parts) - MAX_NAMED
    told = ", ".join(part.sentence for part in parts[:MAX_NAMED])
    return f"{told} and {more} more" if more > 0 else told


def recovered(parts: Sequence[SlowPart], launched_s: float) -> str:
    """Say in one line what was slow and is well again; empty: nothing was."""
    told = [
        f"{part.sentence}, from {clock(part.since_s - launched_s)} "
        f"to {clock((part.until_s or part.since_s) - launched_s)}"
        for part in parts[-MAX_NAMED:]
    ]
    return f"was slow, is well again: {'; '.join(told)}" if told else ""

"""Why a job cannot go on, in the words that its user gets."""

from collections.abc import Collection

from paceline.protocol.samples.ledger import Ledger
from paceline.wire.messages.feeds import Feed
from paceline.wire.schema import ModelSchema

_OF_THE_FIRST = ("first_step", "of_epochs", "calls", "place", "site", "turn", "ends", "after")
"""Fields that nobody compares: they are as the first worker, or the master, has filled them in;
``ends`` are in ``contents``."""
_OF_DATA = ("num_samples", "contents")
_SAME_FILES = (
    "put the same files on all machines, or on storage that they share, and give a seed to what "
    "shuffles them"
)


_SAME_ORDER = (
    "a sampler must draw by its seed and the number of the pass. A new life cannot follow one that "
    "draws by what was trained (losses, weights): draw before the loop, and give job.batches a "
    "Subset of what was drawn"
)


def schema_difference(known: ModelSchema, other: ModelSchema) -> str:
    """Two workers prepared models that are not the same."""
    for field in ("dense", "tables", "groups"):
        mine, theirs = getattr(known, field), getattr(other, field)
        if mine != theirs:
            pairs = [pair for pair in zip(mine, theirs, strict=False) if pair[0] != pair[1]]
            shown = f"{pairs[0][0]} here and {pairs[0][1]} there" if pairs else "their number"
            return (
                f"workers prepared different models: {field} differ ({shown}); "
                "every worker must build the same model and optimizers"
            )
    return "workers prepared different models"


def late_records(ledger: Ledger, feed: int, name: str, end: int) -> str:
    """A source grew after it was said to be finished."""
    line = ledger.names[feed].get(name)
    before = ledger.lines[line].reach if line is not None else 0
    partition = f"partition {name!r}" if name else "the dataset"
    return (
        f"feed {feed} was said to be finished when {partition} had {before} records, and now it "
        f"has {end}; say so (with _END, for growing files) only after the last record"
    )


def feed_difference(known: Feed, other: Feed, first: str = "", second: str = "") -> str:
    """Two workers called the same ``job.batches`` or ``job.evaluate`` differently; empty: alike.

    Args:
        known: the feed of the job.
        other: as another worker has opened it.
        first: who has opened ``known``; empty: a life of before.
        second: who has opened ``other``.
    """
    other = other.numbered(known.feed, known.first_feed)
    for field in [name for name in Feed.__struct_fields__ if name not in _OF_THE_FIRST]:
        mine, theirs = getattr(known, field), getattr(other, field)
        unknown = field == "contents" and not (mine and theirs)
        if mine != theirs and not unknown:
            remedy = f"; {_SAME_FILES}" if field in _OF_DATA else ""
            if field == "contents" and "in the order" in mine and "in the order" in theirs:
                remedy = f"; {_SAME_ORDER}"
            return (
                f"workers opened feed {known.feed} differently: {field} is {mine} for "
                f"{first or 'the job so far'} and {theirs} for {second or 'another worker'}; every "
                f"worker must read the same data in the same order{remedy}"
            )
    return ""


def left_alone(leavers: Collection[str], others: Collection[str]) -> str:
    """Say that some members of a group of shards have left their loop, and the others go on."""
    gone, stay = " and ".join(leavers), " and ".join(others)
    return (
        f"{gone} left the loop over job.batches before its end, while {stay} went on to a step "
        "that needs all workers, so that no last cut can be made; with strategy fsdp all must "
        "leave after the same step: decide by job.step, or by a value that all workers share"
    )


def different_loops(detail: str) -> str:
    """A worker has left a loop over batches that another one is in."""
    return (
        f"the workers are in different loops over batches: {detail}. All of them leave a loop "
        "early (break) after the same step: decide it by job.step, which is the same in all "
        "workers, or by job.agree. A counter of the script begins again in a worker that is "
        "started again"
    )

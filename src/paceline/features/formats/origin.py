"""The origin of an exported file: its cut, the cut's ledger, and the deaths before it.

All of it is read from files: the manifest of the cut, the records that lie beside it (hand-over),
and the events of the job. A folder of cuts that was copied elsewhere has no events.
"""

import contextlib
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from paceline.base.errors import PacelineError, PermanentError
from paceline.base.jobdir import role_of
from paceline.base.samples import SampleSet, Span
from paceline.cuts.manifest import CutManifest
from paceline.cuts.remote import HANDOVER, Handover, unpack_handover
from paceline.features.formats.receipts import (
    CutOrigin,
    DeathsSurvived,
    EpochsTrained,
    LedgerCounts,
)
from paceline.jobs.cuts import FoundCut, FoundCuts
from paceline.jobs.facts import find_lives
from paceline.jobs.history import read_events
from paceline.master.journal import decode
from paceline.protocol.records import FeedAdded
from paceline.protocol.snapshot import Snapshot
from paceline.wire import spec as specs
from paceline.wire.events.job import MasterDiedEvent
from paceline.wire.events.lines import AnyEvent
from paceline.wire.events.state import CutValidEvent, EpochEvent
from paceline.wire.messages.feeds import Feed, feed_of
from paceline.wire.spec import JobSpec

DEAD = ("killed", "failed", "out of memory", "unreachable")
"""Ends of a life that nobody wanted, see `paceline.jobs.facts.ENDS`."""


def origin_of(found: FoundCuts, cut: FoundCut) -> CutOrigin:
    """Put together what is known of a cut.

    Raises:
        PermanentError: the cut has no readable manifest, or no spec is known of its job.
    """
    manifest, beside = cut.readable(), _handover(found, cut)
    job_id, spec = _job_of(found, beside)
    return CutOrigin(
        job_id=job_id,
        strategy=spec.strategy,
        mode=spec.mode,
        deterministic=spec.deterministic,
        seed=spec.seed,
        script=spec.script,
        script_sha256=_digest_of(Path(spec.script)),
        cut_no=manifest.cut_no,
        epoch_no=manifest.epoch_no,
        step=manifest.step,
        files=manifest.files,
        ledger=count(manifest, _feeds(beside), spec.samples),
        deaths=deaths_before(manifest, read_events(found.job.events)) if found.job else None,
    )


def _handover(found: FoundCuts, cut: FoundCut) -> Handover | None:
    """Read what lies beside a cut; None: nothing does.

    Nothing lies beside a cut in memory. What lies beside an older cut of the same job knows the
    loops that had begun by then.
    """
    others = found.cuts if found.job is not None else ()
    for one in (cut, *others):
        with contextlib.suppress(PacelineError, OSError):
            if found.remote is not None:
                return found.remote.handover(one.number)
            path = one.places[-1] / HANDOVER
            return unpack_handover(path.read_bytes(), str(path))
    return None


def _job_of(found: FoundCuts, beside: Handover | None) -> tuple[str, JobSpec]:
    if found.job is not None:
        return found.job.job_id, specs.load(found.job.spec)
    if beside is not None:
        return beside.job_id, beside.spec
    raise PermanentError(
        f"{found.where}: nothing beside the cut says which job made it, so it gets no receipt; "
        "export it from the job"
    )


def _digest_of(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""


def _feeds(beside: Handover | None) -> dict[int, Feed]:
    """Read the loops over data that the master knew when the cut was made."""
    feeds: dict[int, Feed] = {}
    with contextlib.suppress(msgspec.MsgspecError):
        for record in map(decode, beside.journal if beside is not None else ()):
            if isinstance(record, Snapshot):
                feeds |= {feed.feed: feed for feed in record.feeds}
            elif isinstance(record, FeedAdded):
                feeds[record.feed.feed] = record.feed
    return feeds


# --------------------------------------------------------------------------- the ledger


def count(manifest: CutManifest, feeds: dict[int, Feed], promise: str) -> LedgerCounts:
    """Count what is in the model, by epochs; samples of `job.evaluate` are not in it.

    Args:
        manifest: of the cut.
        feeds: loops over data by number; samples of others are counted, but not by epoch.
        promise: ``samples`` of the spec.
    """
    known = [one for one in manifest.committed if _is_trained(one, feeds)]
    committed = SampleSet(known)
    lines = msgspec.json.encode(committed.spans())
    return LedgerCounts(
        samples=len(committed),
        promise=promise,
        epochs=tuple(_epochs(committed, feeds)),
        sha256=hashlib.sha256(lines).hexdigest(),
    )


def _is_trained(span: Span, feeds: dict[int, Feed]) -> bool:
    feed = feeds.get(feed_of(span.line))
    return feed is None or feed.purpose == "train"


def _epochs(committed: SampleSet, feeds: dict[int, Feed]) -> Iterator[EpochsTrained]:
    by_feed: dict[int, list[int]] = {}
    for line in sorted(committed.lines):
        by_feed.setdefault(feed_of(line), []).append(line)
    for number, lines in by_feed.items():
        if (feed := feeds.get(number)) is None:
            continue
        size = feed.num_samples
        if size is None:  # partitions of a stream: all that they have so far is one epoch
            trained = sum(len(committed.lines[line]) for line in lines)
            yield EpochsTrained(feed=number, first=1, last=1, trained=trained, size=None)
        elif size:
            yield from _runs(number, size, _by_epoch(committed, lines, size))


def _by_epoch(committed: SampleSet, lines: Sequence[int], size: int) -> dict[int, int]:
    """Count the samples of each epoch, from 1 on; an interval may reach over several."""
    found: dict[int, int] = {}
    for start, stop in (edges for line in lines for edges in committed.lines[line]):
        for epoch in range(start // size, (stop - 1) // size + 1):
            low, high = max(start, epoch * size), min(stop, (epoch + 1) * size)
            found[epoch + 1] = found.get(epoch + 1, 0) + high - low
    return found


def _runs(feed: int, size: int, by_epoch: dict[int, int]) -> Iterator[EpochsTrained]:
    """Put epochs together that follow each other and have equally many samples in the model."""
    first = last = trained = 0
    for epoch, samples in sorted(by_epoch.items()):
        if first and (epoch, samples) == (last + 1, trained):
            last = epoch
            continue
        if first:
            yield EpochsTrained(feed=feed, first=first, last=last, trained=trained, size=size)
        first = last = epoch
        trained = samples
    if first:
        yield EpochsTrained(feed=feed, first=first, last=last, trained=trained, size=size)


# --------------------------------------------------------------------------- deaths


def deaths_before(manifest: CutManifest, events: Iterable[AnyEvent]) -> DeathsSurvived:
    """Count the deaths in the events until the cut was valid."""
    told = list(events)
    valid = [
        at
        for at, one in enumerate(told)
        if isinstance(one, CutValidEvent) and one.cut_no == manifest.cut_no
    ]
    before = told[: valid[-1]] if valid else told
    ends = [one for one in find_lives(before, 0.0) if one.how in DEAD]
    return DeathsSurvived(
        workers=sum(role_of(one.node) == "worker" for one in ends),
        servers=sum(role_of(one.node) == "server" for one in ends),
        masters=sum(isinstance(one, MasterDiedEvent) for one in before),
        restores=sum(isinstance(one, EpochEvent) and one.is_restore for one in before),
    )

"""A journal that ends before the newest cut: the job goes on from that cut all the same.

A cut is synced to disk at once, the journal only now and then. So a power cut may leave a journal
that is older than cuts, or empty. Each cut on disk has beside it what the journal knew when the cut
was made (`paceline.master.handover`); that becomes the journal. This is done when a job is resumed
and nothing of it lives: while workers live they hold more than any cut, and no power cut has been.
"""

from collections.abc import Iterable
from pathlib import Path

from paceline.base.errors import PermanentError
from paceline.base.jobdir import JobDir
from paceline.base.numbering import NO_CUT, CutNo
from paceline.cuts.manifest import MANIFEST, read_manifest
from paceline.cuts.remote import HANDOVER, Handover, unpack_handover
from paceline.cuts.store import FolderStore
from paceline.master.job_clock import MasterStarted
from paceline.master.journal import Journal, JournalRecord, decode
from paceline.protocol.nodes.node import JobEnded
from paceline.protocol.records import CutValid
from paceline.protocol.snapshot import Snapshot
from paceline.wire.events.job import JournalShortEvent

NO_RECORD = CutNo(-1)
"""The newest cut of a journal that knows none."""


def mend(job: JobDir, journal: Journal, disk: FolderStore) -> JournalShortEvent | None:
    """Begin the journal again from the newest cut on disk, if it ends before that.

    Args:
        job: the job's directory.
        journal: as a power cut may have left it.
        disk: the cuts.

    Returns:
        What to tell people; None: the journal knows all cuts.

    Raises:
        PermanentError: the journal is damaged; or it is short, and nothing lies beside a newer cut.
    """
    if not job.resumed.exists():
        _check_not_lost(job, journal, disk)
        return None
    known = newest_known(journal.replay())
    told = _begin_again(job, journal, disk, known)
    newest = known if told is None else told.cut_no
    for number in disk.numbers():
        if number > newest and not _is_whole(disk.folder(CutNo(number))):
            disk.delete(CutNo(number))  # half a cut, whose files must not get into another
    job.resumed.unlink()
    return told


def _begin_again(
    job: JobDir, journal: Journal, disk: FolderStore, known: CutNo
) -> JournalShortEvent | None:
    newer = [number for number in disk.numbers() if number > max(known, NO_CUT)]
    strange = []
    for number in sorted(newer, reverse=True):
        folder = disk.folder(CutNo(number))
        if not _is_whole(folder):
            continue
        try:
            found = _read_handover(folder / HANDOVER)
        except PermanentError as error:
            strange.append(f"cut {number}, expected one that knows it: {error}")
            continue
        if found.job_id == job.job_id:
            begun = MasterStarted(started_s=found.launched_s or job.launched_s())
            journal.compact([begun, *map(decode, found.journal), JobEnded()])
            return JournalShortEvent(path=str(job.journal), knew=known, cut_no=CutNo(number))
    if strange:
        raise PermanentError(
            f"{job.journal}: got a journal that ends before {strange[0]}; move the folders of "
            f"newer cuts out of {disk.root} to go on from what the journal knows"
        )
    return None


def _is_whole(folder: Path) -> bool:
    """Tell whether a folder has a manifest that can be read; files are verified when one loads."""
    try:
        read_manifest(folder)
    except PermanentError:
        return False
    return True


def newest_known(records: Iterable[JournalRecord]) -> CutNo:
    """Return the newest cut that a journal tells of; `NO_RECORD`: it tells of none."""
    newest = NO_RECORD
    for record in records:
        if isinstance(record, CutValid):
            newest = max(newest, record.cut.cut_no)
        elif isinstance(record, Snapshot):
            newest = max(newest, record.last_cut_no)
    return newest


def _read_handover(path: Path) -> Handover:
    try:
        image = path.read_bytes()
    except OSError as error:
        raise PermanentError(f"{path}: {error.strerror}") from error
    return unpack_handover(image, str(path))


def _check_not_lost(job: JobDir, journal: Journal, disk: FolderStore) -> None:
    """Raise PermanentError if an empty journal meets cuts: somebody has moved it away."""
    if journal.num_records:
        return
    made = (disk.folder(number) for number in disk.numbers())
    for folder in made:
        if (folder / MANIFEST).exists() and _is_of(job, folder / HANDOVER):
            raise PermanentError(
                f"{job.journal}: got no record, expected those of {folder} and what came after; go "
                f"on exactly from the newest cut with `paceline run --resume {job.job_id}`"
            )


def _is_of(job: JobDir, path: Path) -> bool:
    try:
        return _read_handover(path).job_id == job.job_id
    except PermanentError:
        return False

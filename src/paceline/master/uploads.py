"""The cuts of a job at a URL: what is stored on disk is copied there beside the job.

By docs/decisions/0019-cuts-at-urls.md a cut counts by the local disk, and the URL follows: one cut
at a time, in a thread, the newest that there is when the one before is done. A storage that is
away is asked again without end; the job does not wait for it.
"""

import asyncio
import functools
import queue
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import assert_never

import msgspec

from paceline.base.errors import TransientError
from paceline.base.files import write_file
from paceline.base.numbering import CutNo
from paceline.cuts.lease import LeaseKeeper, UrlLease
from paceline.cuts.remote import Handover, RemoteCuts, pack_handover
from paceline.master.cut_keeping import CutKeeping
from paceline.master.handover import handover_of
from paceline.master.parts import MasterParts
from paceline.protocol.training import MasterState
from paceline.wire.events.base import Event
from paceline.wire.events.state import (
    CutUploadedEvent,
    NotUploadedEvent,
    UploadFailedEvent,
    UploadTroubleEvent,
)
from paceline.wire.messages.base import CutRef

RETRY_S, RETRY_MAX_S = 1.0, 30.0
"""Seconds before a second try, and the longest wait before any."""
AWAY_S = 30.0
"""Seconds without an answer after which an ended job no longer waits for a storage that has
failed."""
LOOK_S = 0.2
"""Seconds between looks at the storage when the job has ended."""


class Upload(msgspec.Struct, frozen=True):
    """One cut to be copied."""

    cut_no: CutNo
    folder: Path
    handover: bytes


class Uploaded(msgspec.Struct, frozen=True):
    """News of a cut: all of it is in the storage, or it was ``given_up`` for this reason."""

    cut_no: CutNo
    given_up: str = ""
    trouble: str = ""
    """Reason why older cuts are still there."""


class UploadFailed(msgspec.Struct, frozen=True):
    """The storage is away; it is asked again, for the newest cut then."""

    reason: str


class Uploader:
    """A thread that copies; all else is the master's task's."""

    def __init__(self, remote: RemoteCuts, keep: int) -> None:
        """``keep``: cuts to be kept there."""
        self.remote, self._keep = remote, keep
        self.busy: CutNo | None = None
        """The cut that is being copied: its folder must stay."""
        self.done_no = CutNo(-1)
        """The newest that is done with."""
        self.num_failed = 0
        """Tries that have failed since one succeeded."""
        self._again_s = 0.0
        self._uploads: queue.SimpleQueue[Upload] = queue.SimpleQueue()
        self._news: queue.SimpleQueue[Uploaded | UploadFailed] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="paceline-upload", daemon=True).start()

    def begin(self, upload: Upload) -> None:
        """Copy a cut; none must be `busy`."""
        self.busy = upload.cut_no
        self._uploads.put(upload)

    @property
    def is_free(self) -> bool:
        """Whether it can begin with the next: after a failure not at once."""
        return self.busy is None and time.monotonic() >= self._again_s

    def news(self) -> Iterator[Uploaded | UploadFailed]:
        """Yield what has happened and is worth telling: of an outage the first failure only."""
        while not self._news.empty():
            news = self._news.get()
            match news:
                case Uploaded():
                    self.busy, self.done_no, self.num_failed = None, news.cut_no, 0
                    yield news
                case UploadFailed():
                    wait_s = min(RETRY_S * 2.0 ** min(self.num_failed, 10), RETRY_MAX_S)
                    self._again_s, self.busy = time.monotonic() + wait_s, None
                    self.num_failed += 1
                    if self.num_failed == 1:
                        yield news
                case _:
                    assert_never(news)

    # ------------------------------------------------------------------ the thread

    def _run(self) -> None:
        while True:
            upload = self._uploads.get()
            try:
                news = self._copied(upload)
            except Exception as error:  # noqa: BLE001 - of the files here, or whatever it is
                news = Uploaded(upload.cut_no, given_up=str(error) or repr(error))
            self._news.put(news)

    def _copied(self, upload: Upload) -> Uploaded | UploadFailed:
        try:
            self.remote.upload(upload.cut_no, upload.folder, upload.handover)
        except TransientError as error:
            return UploadFailed(str(error))
        try:
            self.remote.trim(upload.cut_no, self._keep)
        except TransientError as error:
            return Uploaded(upload.cut_no, trouble=str(error))
        return Uploaded(upload.cut_no)


class Uploads:
    """Decisions about what to copy next, and what is said of it.

    Args:
        uploader: idle.
        cuts: of the job.
        handover: what must lie beside a cut, by its number.
        tell: takes an event.
        lease: of the URL; nothing is copied there once another run has it.
        fail: ends the job for a reason.
    """

    def __init__(
        self,
        uploader: Uploader,
        cuts: CutKeeping,
        handover: Callable[[CutNo], Handover],
        tell: Callable[[Event], None],
        lease: LeaseKeeper,
        fail: Callable[[str], None],
    ) -> None:
        self._uploader, self._cuts = uploader, cuts
        self._handover, self._tell = handover, tell
        self._lease, self._fail = lease, fail

    def tick(self) -> None:
        """Have the newest cut on disk copied, once the one before is."""
        if self._lease.taken_by:
            self._fail(
                f"{self._uploader.remote.url}: another run of this job, on {self._lease.taken_by}, "
                "writes its cuts there now; this run ends"
            )
            return
        uploader = self._uploader
        for news in uploader.news():
            self._say(news)
        cut = self._missing()
        if cut is not None and uploader.is_free:
            handover = pack_handover(self._handover(cut.cut_no))
            folder = self._cuts.folders.disk.folder(cut.cut_no)
            uploader.begin(Upload(cut.cut_no, folder, handover))
        self._cuts.uploading = uploader.busy

    def _missing(self) -> CutRef | None:
        """The newest cut on disk, unless that is done with."""
        cut = self._cuts.newest_stored()
        return cut if cut is not None and cut.cut_no > self._uploader.done_no else None

    def _say(self, news: Uploaded | UploadFailed) -> None:
        match news:
            case UploadFailed(reason=reason):
                self._tell(UploadFailedEvent(reason=reason))
            case Uploaded(cut_no=cut_no, given_up=error) if error:
                self._tell(UploadTroubleEvent(cut_no=cut_no, error=error))
            case Uploaded(cut_no=cut_no, trouble=error):
                self._tell(CutUploadedEvent(cut_no=cut_no))
                if error:
                    self._tell(UploadTroubleEvent(cut_no=cut_no, error=error, copied=True))
            case _:
                assert_never(news)

    async def finish(self, flush: Callable[[], None], hurried: Callable[[], bool]) -> None:
        """The job has ended: its last cut should be there, too, but not at any price.

        Args:
            flush: lets out what was told.
            hurried: whether somebody does not want to wait.
        """
        uploader, began_s = self._uploader, time.monotonic()
        while True:
            self.tick()
            flush()
            silent_s = time.monotonic() - max(uploader.remote.answered_s, began_s)
            missing = self._missing()
            given_up = (uploader.num_failed and silent_s > AWAY_S) or self._lease.taken_by
            if missing is None or given_up or hurried():
                break
            await asyncio.sleep(LOOK_S)
        await asyncio.to_thread(self._lease.close, give_back=True)
        if missing is not None:
            self._tell(NotUploadedEvent(cut_no=missing.cut_no))
            flush()


def open_uploads(
    parts: MasterParts, cuts: CutKeeping, state: MasterState, fail: Callable[[str], None]
) -> Uploads | None:
    """Copy cuts to where the spec says; None: they stay here."""
    checkpoint, holder = parts.spec.checkpoint, parts.job.url_holder
    if not checkpoint.url:
        return None
    if not holder.exists():
        write_file(holder, UrlLease.new_holder().encode())
    lease = LeaseKeeper(UrlLease(checkpoint.url, holder.read_text()))
    uploader = Uploader(RemoteCuts(checkpoint.url), checkpoint.keep)
    handover = functools.partial(handover_of, parts, state)
    return Uploads(uploader, cuts, handover, parts.outbox.tell, lease, fail)

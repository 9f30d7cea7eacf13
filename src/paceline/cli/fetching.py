"""A cut at a URL becomes a job directory: made aside, and renamed when all of it is there."""

import os
import shutil
from contextlib import suppress

from msgspec import MsgspecError

from paceline.base.errors import ConfigError
from paceline.base.jobdir import JobDir, home
from paceline.base.numbering import CutNo
from paceline.base.private_folders import check_place
from paceline.base.processes import try_lock
from paceline.base.record_log import encode
from paceline.cuts.manifest import verify
from paceline.cuts.remote import Handover, RemoteCuts
from paceline.jobs.sent import keep_sent
from paceline.master.job_clock import MasterStarted
from paceline.master.journal import Journal, decode
from paceline.protocol.nodes.node import JobEnded
from paceline.protocol.records import CutStored
from paceline.wire import spec as specs
from paceline.wire.messages.base import CutRef
from paceline.wire.spec import JobSpec


def fetch_cut(remote: RemoteCuts, number: int, handover: Handover, spec: JobSpec) -> JobDir:
    """Make a job directory of one cut.

    Args:
        remote: the job's cuts.
        number: the cut's.
        handover: what lies beside it.
        spec: of the job as it goes on here.

    Raises:
        ConfigError: the job is on this machine, or another command fetches it.
        PermanentError: the cut is damaged.
        TransientError: the storage does not answer, or refuses.
    """
    job = JobDir(home() / "jobs" / handover.job_id)
    # Made aside and renamed: until all of it is there, no command finds it or removes it.
    aside = JobDir(home() / "fetched" / handover.job_id)
    aside.path.parent.mkdir(0o700, parents=True, exist_ok=True)
    lock = try_lock(aside.path.with_name(f"{handover.job_id}.lock"))
    if lock is None:
        raise ConfigError(f"job {job.job_id} is being fetched by another command; follow that one")
    try:
        if job.path.exists():
            raise ConfigError(
                f"job {job.job_id} is on this machine, with cuts as new or newer; go on with "
                f"`paceline run --resume {job.job_id}`, or remove {job.path} first"
            )
        shutil.rmtree(aside.path, ignore_errors=True)  # of a command that was killed
        aside.fill_on_disk(_launched_s(handover))
        _fetch(remote, number, aside, handover)
        keep_sent(aside)
        specs.save(spec, aside.spec)
        job.path.parent.mkdir(0o755, parents=True, exist_ok=True)
        check_place(job.path.parent)
        aside.path.rename(job.path)
    finally:
        shutil.rmtree(aside.path, ignore_errors=True)
        os.close(lock)
    return job


def _launched_s(handover: Handover) -> float | None:
    """Unix time of the job's launch; None: nobody wrote it down."""
    if handover.launched_s is not None:
        return handover.launched_s
    with suppress(MsgspecError):  # the master says it better that it cannot read its journal
        records = map(decode, handover.journal)
        started = (record for record in records if isinstance(record, MasterStarted))
        return next((record.started_s for record in started), None)
    return None


def _fetch(remote: RemoteCuts, number: int, job: JobDir, handover: Handover) -> None:
    folder = job.cuts / f"{number:06d}"
    remote.fetch_manifest(number, folder)
    remote.fetch_files(number, folder)
    verify(folder)
    journal = Journal(job.journal)
    here = CutStored(cut=CutRef(cut_no=CutNo(number)))
    journal.adopt([*handover.journal, encode(here), encode(JobEnded())])
    journal.close()

"""Jobs that go on from a URL: on a machine that has never seen them."""

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from msgspec import MsgspecError
from msgspec.structs import replace

from paceline.base.errors import ConfigError, PermanentError
from paceline.base.jobdir import JobDir, home
from paceline.base.numbering import CutNo
from paceline.base.processes import can_enter
from paceline.base.record_log import encode
from paceline.cuts.manifest import verify
from paceline.cuts.remote import Handover, RemoteCuts
from paceline.jobs.modules import module_fault
from paceline.jobs.sent import keep_sent
from paceline.master.job_clock import MasterStarted
from paceline.master.journal import Journal, decode
from paceline.protocol.nodes.node import JobEnded
from paceline.protocol.records import CutStored
from paceline.wire import spec as specs
from paceline.wire.messages.base import CutRef
from paceline.wire.spec import JobSpec


def check_unused(url: str) -> None:
    """Before a job starts that will copy its cuts there.

    Raises:
        ConfigError: there are cuts already.
        TransientError: the storage does not answer, or nothing can be written there.
    """
    remote = RemoteCuts(url)
    if remote.numbers():
        raise ConfigError(
            f"checkpoint.dir: got {url}, which holds the cuts of a job, expected none; go on with "
            f"it by `paceline run --resume {url}`, or name another"
        )
    remote.probe()


def fetch_job(
    url: str,
    check: Callable[[JobSpec], None],
    tell: Callable[[str], None],
    script: str | None = None,
) -> JobDir:
    """Make a job directory of the newest undamaged cut at a URL, to be resumed like any other.

    Args:
        url: where the job has copied its cuts.
        check: of what is asked for beside; raises what is wrong with it.
        tell: takes a line for people.
        script: where the script is now; None: where it was.

    Raises:
        ConfigError: no cut is there, or the job is on this machine, or something that it needs is
            not.
        PermanentError: all cuts are damaged.
        TransientError: the storage does not answer, or refuses.
    """
    remote = RemoteCuts(url)
    numbers = remote.numbers()
    if not numbers:
        raise ConfigError(f"{url} holds no cut; look with `paceline checkpoint ls {url}`")
    for number in numbers:
        try:
            handover = remote.handover(number)
            spec = _here(handover.spec, url, script)
            check(spec)
            job = _make(handover)
            try:
                _fetch(remote, number, job, handover)
            except BaseException:
                for folder in (job.path, job.run_dir):
                    shutil.rmtree(folder, ignore_errors=True)
                raise
        except PermanentError as error:
            tell(f"cut {number} cannot be used: {error}")
        else:
            keep_sent(job)
            specs.save(spec, job.spec)  # last: it is what makes it a job
            tell(f"fetched cut {number} from {url}")
            return job
    raise PermanentError(f"{url}: none of the cuts there can be used")


def _here(spec: JobSpec, url: str, script: str | None) -> JobSpec:
    """The spec with what is of this machine; its cuts go where they were found."""
    checkpoint = replace(spec.checkpoint, dir=url)
    script = script or spec.script
    cwd = spec.cwd if spec.cwd and can_enter(spec.cwd) else os.getcwd()
    if spec.run_as == "module":
        if fault := module_fault(script, cwd):
            raise ConfigError(
                f"the job's module {script}: got {fault} in {cwd}, expected it there; call this "
                "command in the folder that has its package, or name it with --set script=MODULE"
            )
    elif not Path(script := os.path.abspath(script)).is_file():
        raise ConfigError(
            f"the job's script {script} is not on this machine; put it there, or say where it "
            "is with --set script=PATH"
        )
    spec = replace(spec, script=script, cwd=cwd, checkpoint=checkpoint)
    missing = [name for name in spec.env if name not in os.environ]
    if missing:
        raise ConfigError(
            f"the job's env.{missing[0]} is not known here, since values may be secrets and are "
            f"not copied; set {', '.join(missing)} in the environment of this command"
        )
    return replace(spec, env={name: os.environ[name] for name in spec.env})


def _make(handover: Handover) -> JobDir:
    job_id = handover.job_id
    known = JobDir(home() / "jobs" / job_id)
    if known.spec.exists():
        raise ConfigError(
            f"job {job_id} is on this machine, with cuts as new or newer; go on with `paceline run "
            f"--resume {job_id}`, or remove {known.path} first"
        )
    if known.path.exists():
        shutil.rmtree(known.path)  # of a command that was killed
    return JobDir.make(job_id, _launched_s(handover))


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

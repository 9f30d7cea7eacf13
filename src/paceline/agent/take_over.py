"""The next master of a job, on this machine: a job directory from what its keeper holds."""

import contextlib
import os
from collections.abc import Iterable

import msgspec

from paceline.base.files import write_file
from paceline.base.jobdir import JobDir, home
from paceline.base.processes import is_locked, start_detached
from paceline.base.record_log import RecordLog
from paceline.jobs.handed_on import MasterTerm, TakenOver, write_term
from paceline.protocol.nodes.journal_keeper import JournalKeeper
from paceline.protocol.nodes.resizing import NodesSized
from paceline.wire import spec as specs
from paceline.wire.messages.keeping import KeeperGround
from paceline.wire.spec import JobSpec


def take_over(
    node: JobDir, spec: JobSpec, ground: KeeperGround, keeper: JournalKeeper, taken: TakenOver
) -> JobDir:
    """Make the job's directory here, and start a supervisor in it, which starts the master.

    Args:
        node: directory of the node whose agent keeps the journal.
        spec: of the job, for this machine, as the node has got it when it joined.
        ground: what the master needs beside the journal.
        keeper: the one that was elected, with the journal.
        taken: from whom.

    Raises:
        OSError: it cannot be made.
        ConfigError: others could exchange what lies there.
    """
    job = JobDir(home() / "jobs" / ground.job_id)
    if may_be_put_aside(job):
        job.path.rename(job.path.with_name(f"{ground.job_id}.before-{keeper.term}"))
    job.fill(ground.launched_s)
    specs.save(_with_ordered_sizes(spec, keeper.records), job.spec)
    _write_private(job.secret_file.with_suffix(".new"), node.secret())
    job.secret_file.with_suffix(".new").replace(job.secret_file)
    if ground.identity:
        job.tls.mkdir(mode=0o700)
        _write_private(job.authority, node.authority_pem())
        _write_private(job.authority_key, ground.authority_key)
        _write_private(job.master_identity, ground.identity)
    if ground.url_holder:
        write_file(job.url_holder, ground.url_holder)
    journal: RecordLog[bytes] = RecordLog(job.journal, bytes, "a job", "")
    journal.adopt(keeper.records)
    journal.close()
    write_file(job.taken_over, msgspec.json.encode(taken))
    write_term(job, MasterTerm(seat=keeper.seat, term=keeper.term, is_elected=True))
    log = job.logs / "master.log"
    log.write_text(f"the master was on {taken.before} before; what it has logged is there\n")
    start_detached("paceline.supervisor", [str(job.path)], job.path, job.logs / "supervisor.log")
    return job


def may_be_put_aside(job: JobDir) -> bool:
    """Tell whether this is what an earlier master left here, from which the job has gone on."""
    return job.gone_on.exists() and not is_locked(job.supervisor_lock)


def _with_ordered_sizes(spec: JobSpec, journal: Iterable[bytes]) -> JobSpec:
    """Return the spec with the sizes of nodes as they were ordered last."""
    for record in journal:
        with contextlib.suppress(msgspec.ValidationError):  # a record about something else
            spec = msgspec.msgpack.decode(record, type=NodesSized).put_into(spec)
    return spec


def _write_private(path: "os.PathLike[str]", data: bytes) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)

"""Jobs that go on from a URL: on a machine that has never seen them."""

import os
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from paceline.base.errors import ConfigError, PermanentError
from paceline.base.files import write_file
from paceline.base.jobdir import JobDir
from paceline.base.processes import can_enter
from paceline.cli.fetching import fetch_cut
from paceline.cuts.lease import LeaseKeeper, UrlLease
from paceline.cuts.remote import RemoteCuts
from paceline.jobs.modules import module_fault
from paceline.wire.spec import JobSpec


def check_unused(url: str) -> None:
    """Check a URL before a job starts that will copy its cuts there.

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
        ConfigError: no cut is there, or another run has the job, or the job is on this machine, or
            something that it needs is not.
        PermanentError: all cuts are damaged.
        TransientError: the storage does not answer, or refuses.
    """
    remote, lease = RemoteCuts(url), UrlLease(url, UrlLease.new_holder())
    if not remote.numbers():
        raise ConfigError(f"{url} holds no cut; look with `paceline checkpoint ls {url}`")
    lease.take(tell)
    keeper = LeaseKeeper(lease)
    done = False
    try:
        for number in remote.numbers():
            try:
                handover = remote.handover(number)
                spec = _here(handover.spec, url, script)
                check(spec)
                job = fetch_cut(remote, number, handover, spec)
            except PermanentError as error:
                tell(f"cut {number} cannot be used: {error}")
            else:
                write_file(job.url_holder, lease.holder.encode())
                tell(f"fetched cut {number} from {url}")
                done = True
                return job
    finally:
        keeper.close(give_back=not done)
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

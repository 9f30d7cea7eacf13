"""The job directory: everything another shell needs to find, watch and resume a job.

``$PACELINE_HOME/jobs/<id>`` (mode 0700) outlives the job. Beside it each run has a *run directory*
in memory (sockets, step ledgers, tensors in flight), which is removed when the job ends.
"""

import contextlib
import grp
import os
import pwd
import secrets
import stat
import tempfile
import time
from pathlib import Path

import msgspec

from paceline.base.errors import ConfigError

SHARED_MEMORY = Path("/dev/shm")
RUN_PREFIX = "paceline-"
"""Of the names of run directories; a job's id follows."""
MAX_LISTED = 5
"""Jobs named in one message."""


def role_of(node: str) -> str:
    """``worker`` of ``worker-3``."""
    return node.rpartition("-")[0]


def number_of(node: str) -> int:
    """3 of ``worker-3``."""
    return int(node.rpartition("-")[2])


def home() -> Path:
    """``$PACELINE_HOME``, by default ``~/.paceline``."""
    return Path(os.environ.get("PACELINE_HOME", "~/.paceline")).expanduser().absolute()


def run_place() -> Path:
    """Where run directories lie: in memory, if there is a memory file system to write to."""
    return SHARED_MEMORY if os.access(SHARED_MEMORY, os.W_OK) else Path(tempfile.gettempdir())


def make_private(folder: Path) -> None:
    """Make a folder (0700) in a place that others may write to, or see that it is ours already.

    Once it is ours only root and the owner of the place can exchange it: see `check_place`.

    Raises:
        ConfigError: the place is not safe, or what has the folder's name is not a folder of this
            user that is closed to others.
        OSError: it cannot be made.
    """
    check_place(folder.parent)
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        _check_private(folder)


def is_own_folder(path: Path) -> bool:
    """Tell whether a path is a folder of this user; a link to one is not."""
    try:
        found = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()


def check_place(folder: Path) -> None:
    """Check that neither every user nor a group of several can exchange what lies in a folder.

    The folder's owner is trusted, and so is who has write access by an access control list.

    Raises:
        ConfigError: they can.
        OSError: there is no such folder.
    """
    found = folder.stat()
    if found.st_mode & stat.S_ISVTX:
        return
    if found.st_mode & stat.S_IWOTH:
        who = "every user"
    elif found.st_mode & stat.S_IWGRP and not _is_private_group(found.st_gid):
        who = f"every member of group {found.st_gid}"
    else:
        return
    raise ConfigError(
        f"{folder}: got a folder in which {who} may rename and remove what others have there, "
        f"expected one with the sticky bit; run `chmod +t {folder}`, or set TMPDIR and "
        "PACELINE_HOME to folders of your own"
    )


def _is_private_group(group: int) -> bool:
    """Tell whether a group is root's or has this user alone, as systems make one for each user."""
    if group == 0:
        return True
    try:
        members = grp.getgrgid(group)
    except KeyError:  # in a container users and groups often have no names
        return group == os.getegid()
    try:
        user = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return False
    return members.gr_name == user and set(members.gr_mem) <= {user}


def _check_private(folder: Path) -> None:
    remedy = f"it may be another user's trap: look at it, then remove {folder}"
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError as error:
        raise ConfigError(
            f"{folder}: got {_describe(folder, error)}, expected a folder of this user; {remedy}"
        ) from error
    try:
        found = os.fstat(descriptor)
    finally:
        os.close(descriptor)
    if found.st_uid != os.geteuid() or found.st_mode & 0o077:
        got = f"a folder of user {found.st_uid} with mode {stat.S_IMODE(found.st_mode):04o}"
        expected = f"one of user {os.geteuid()} with mode 0700"
        raise ConfigError(f"{folder}: got {got}, expected {expected}; {remedy}")


def _describe(path: Path, error: OSError) -> str:
    if path.is_symlink():
        return "a symbolic link"
    return "no folder" if isinstance(error, NotADirectoryError) else str(error.strerror)


class Launched(msgspec.Struct, frozen=True):
    """The first line of ``events.jsonl``."""

    t: float
    """Unix time of the launch."""
    event: str = "launched"


class JobDir:
    """Paths of one job; creating the object touches nothing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.spec = path / "job.json"
        self.secret_file = path / "secret"
        self.master_address = path / "master.address"
        """``host:port`` of the master, kept across its restarts while the port is free."""
        self.supervisor_lock = path / "supervisor.lock"
        self.master_lock = path / "master.lock"
        self.resume_lock = path / "resume.lock"
        """Held by the command that resumes the job; says which that is."""
        self.journal = path / "journal.sqlite"
        self.events = path / "events.jsonl"
        self.metrics = path / "metrics.jsonl"
        self.curves = path / "curves.jsonl"
        """What the script has logged."""
        self.metrics_address = path / "metrics.address"
        """``host:port`` of the Prometheus endpoint, where the spec asks for one."""
        self.decisions = path / "decisions.jsonl"
        """What was seen, decided and achieved against stragglers."""
        self.sharing = path / "sharing.jsonl"
        """What was decided about a device that the job shares."""
        self.sizing = path / "sizing.jsonl"
        """What was seen, planned and achieved by changes of the job's size."""
        self.logs = path / "logs"
        self.cuts = path / "cuts"
        self.sent = path / "sent"
        """A copy of the folder that `paceline submit` has sent along."""
        self.sent_from = path / "sent.from"
        """Where that folder was."""
        self.evaluations = path / "evaluations"
        """What `job.evaluate` computed; removed when the job ends."""
        self.outcome = path / "outcome.json"
        """Written once by the master: how the job ended. Removed by ``--resume``."""
        self.file_servers = path / "files.json"
        """Who serves the files of cuts; only where the master is on another machine."""
        self.resize = path / "resize.json"
        """With how many nodes a resumed job is to go on; removed once the master knows it."""
        self.report = path / "report.html"

    @property
    def job_id(self) -> str:
        return self.path.name

    @property
    def run_dir(self) -> Path:
        """Memory-backed where possible; short, since unix socket paths end at 107 bytes."""
        return run_place() / f"{RUN_PREFIX}{self.job_id}"

    @property
    def is_joined(self) -> bool:
        """Whether this is the directory of one node, whose master is on another machine."""
        return self.file_servers.exists()

    @property
    def has_memory(self) -> bool:
        """Whether this machine has a memory file system that we may write to."""
        return run_place() == SHARED_MEMORY

    @property
    def memory(self) -> Path:
        """Cuts in the memory of nodes: ``memory/<number>/<node>/<file>``."""
        return self.run_dir / "memory"

    def launched_s(self) -> float:
        """Read when the job was launched, in Unix time: from then on all its clocks count.

        It is the time of the first event; of a job without events, that of its spec.

        Raises:
            OSError: there is no such job.
        """
        missing = contextlib.suppress(FileNotFoundError, msgspec.MsgspecError)
        with missing, self.events.open("rb") as events:
            return msgspec.json.decode(events.readline(), type=Launched).t
        return self.spec.stat().st_mtime

    def secret(self) -> bytes:
        """The job's secret, 32 random bytes as hex text."""
        return self.secret_file.read_bytes().strip()

    @classmethod
    def create(cls, name: str) -> "JobDir":
        """Make a fresh job directory with a secret of its own."""
        job = cls.fresh(name)
        job.fill()
        return job

    @classmethod
    def make(cls, job_id: str, launched_s: float | None = None) -> "JobDir":
        """The same for a job that has its id; ``launched_s`` as in `fill`."""
        job = cls(home() / "jobs" / job_id)
        job.fill(launched_s)
        return job

    @classmethod
    def fresh(cls, name: str) -> "JobDir":
        """Name a job directory that is not there yet."""
        stamp = time.strftime("%m%d-%H%M%S")
        return cls(home() / "jobs" / f"{name[:24]}-{stamp}-{secrets.token_hex(2)}")

    def fill(self, launched_s: float | None = None) -> None:
        """Make the directory and what every job has in it.

        Args:
            launched_s: Unix time of the job's launch; None: now.

        Raises:
            ConfigError: others could exchange what lies there.
            OSError: it cannot be made.
        """
        # Never open to the group, whatever the umask: `check_place` would refuse it.
        self.path.parent.mkdir(0o755, parents=True, exist_ok=True)
        check_place(self.path.parent)
        self.path.mkdir(mode=0o700)
        descriptor = os.open(self.secret_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_hex(32))
        launched = Launched(time.time() if launched_s is None else launched_s)
        self.events.write_bytes(msgspec.json.encode(launched) + b"\n")
        self.logs.mkdir()
        self.cuts.mkdir()
        self.make_run_dir()

    def make_run_dir(self) -> None:
        """Create the run directory (0700) where it is missing.

        Raises:
            ConfigError: something else is in its place, or others could put something there.
            OSError: it cannot be made.
        """
        make_private(self.run_dir)

    @classmethod
    def all(cls) -> list["JobDir"]:
        """All jobs of this user, the oldest first."""
        ages = {}
        for spec in (home() / "jobs").glob("*/job.json"):
            with contextlib.suppress(FileNotFoundError):  # one that is being removed now
                ages[spec] = spec.stat().st_mtime_ns
        return [cls(spec.parent) for spec in sorted(ages, key=lambda spec: ages[spec])]

    @classmethod
    def find(cls, name: str | None) -> "JobDir":
        """The job called ``name`` (an id, a unique beginning of one, or a path); None: the newest.

        Raises:
            ConfigError: no such job, or several; the message lists what there is.
        """
        if name and "/" in name and (Path(name) / "job.json").exists():
            return cls(Path(name).absolute())
        known = [job.path for job in cls.all()]
        jobs = [path for path in known if not name or path.name.startswith(name)]
        exact = [p for p in jobs if p.name == name]
        if exact or (jobs and (not name or len(jobs) == 1)):
            return cls((exact or jobs)[-1])
        if jobs:
            raise ConfigError(
                f"{name!r} is the beginning of {len(jobs)} jobs: {_listed(jobs)}; write more of it"
            )
        what = f"no job matches {name!r}" if name else "there is no job yet"
        where = home() / "jobs"
        if not known:
            raise ConfigError(f"{what} in {where}, which has no job yet")
        raise ConfigError(f"{what} in {where} (known: {_listed(known)}); see `paceline ps`")


def _listed(jobs: list[Path]) -> str:
    """The newest few, by name."""
    more = f" and {len(jobs) - MAX_LISTED} more" if len(jobs) > MAX_LISTED else ""
    return ", ".join(path.name for path in jobs[-MAX_LISTED:]) + more

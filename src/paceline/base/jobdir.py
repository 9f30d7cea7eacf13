"""The job directory: everything another shell needs to find, watch and resume a job.

``$PACELINE_HOME/jobs/<id>`` (mode 0700) outlives the job. Beside it each run has a *run directory*
in memory (sockets, step ledgers, tensors in flight), which is removed when the job ends.
"""

import contextlib
import os
import secrets
import shutil
import tempfile
import time
from pathlib import Path

import msgspec

from paceline.base.errors import ConfigError
from paceline.base.private_folders import check_place, claim, claimed

SHARED_MEMORY = Path("/dev/shm")
RUN_PREFIX = "paceline-"
"""Beginning of the name of a run directory; the job's id follows."""
UNIX = "unix:"
"""Beginning of an address that is the path of a unix socket."""
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


class Launched(msgspec.Struct, frozen=True):
    """The first line of ``events.jsonl``."""

    t: float
    """Unix time of the launch."""
    event: str = "launched"


class JobDir:
    """Paths of one job; creating the object touches nothing. Features name their own files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.spec = path / "job.json"
        self.secret_file = path / "secret"
        self.run_note = path / "run.dir"
        """Path of the run directory, if another user has taken its usual name."""
        self.master_address = path / "master.address"
        """``host:port`` at which other machines reach the master; it stays across its restarts
        while the port is free. Missing: the job is one of this machine, see `control_address`."""
        self.ticket = path / "ticket"
        """Ticket with which a machine joins, to be copied there; missing like the address."""
        self.tls = path / "tls"
        """Folder of the job's authority; missing: no port of the master is encrypted."""
        self.authority = self.tls / "authority.crt"
        """Certificate of the authority, by which clients know the master."""
        self.authority_key = self.tls / "authority.key"
        """Private key of the authority; on the master's machine only."""
        self.master_identity = self.tls / "master.pem"
        """Private key and certificate of the master; on its machine only."""
        self.supervisor_lock = path / "supervisor.lock"
        self.master_lock = path / "master.lock"
        self.resume_lock = path / "resume.lock"
        """Held by the command that resumes the job; says which that is."""
        self.journal = path / "journal.sqlite"
        self.events = path / "events.jsonl"
        self.metrics = path / "metrics.jsonl"
        self.curves = path / "curves.jsonl"
        """Values that the script has logged, by step."""
        self.features_left_out = path / "features_left_out"
        """Names of features that the next master leaves out, one per line."""
        self.logs = path / "logs"
        self.cuts = path / "cuts"
        self.script_digest = path / "script.sha256"
        """Digest of the script's file, as it was when this run of the job began."""
        self.sent = path / "sent"
        """A copy of the folder that `paceline submit` has sent along."""
        self.sent_from = path / "sent.from"
        """Path from which that folder was sent."""
        self.evaluations = path / "evaluations"
        """Results of `job.evaluate`; removed when the job ends."""
        self.outcome = path / "outcome.json"
        """Written once by the master: how the job ended. Removed by ``--resume``."""
        self.file_servers = path / "files.json"
        """Servers of the files of cuts; written only where the master is on another machine."""
        self.resumed = path / "resumed"
        """Nothing of an earlier run lives here. Removed once the master has looked at the cuts."""
        self.url_holder = path / "url.holder"
        """The name under which this run of the job holds the lease at the URL of its cuts."""
        self.resize = path / "resize.json"
        """Numbers of nodes with which a resumed job goes on; removed once the master knows them."""
        self.report = path / "report.html"

    @property
    def job_id(self) -> str:
        return self.path.name

    @property
    def life_address(self) -> Path:
        """Address of a port that takes connections as long as the supervisor lives."""
        return self.path / "supervisor.address"

    @property
    def term(self) -> Path:
        """Seat and newest term of the master here, once the journal is kept elsewhere, too."""
        return self.path / "term.json"

    @property
    def taken_over(self) -> Path:
        """Where the job's master was before; removed once the master here has said so."""
        return self.path / "taken_over.json"

    @property
    def gone_on(self) -> Path:
        """Where the job goes on, in one line: the part of this directory in it has ended."""
        return self.path / "gone_on"

    @property
    def run_dir(self) -> Path:
        """Memory-backed where possible; short, since unix socket paths end at 107 bytes."""
        return claimed(self._usual_run_dir, self.run_note)

    @property
    def _usual_run_dir(self) -> Path:
        return run_place() / f"{RUN_PREFIX}{self.job_id}"

    @property
    def master_socket(self) -> Path:
        """The socket at which processes of this machine reach the master."""
        return self.run_dir / "master.sock"

    def control_address(self) -> str:
        """Return the master's address as seen from here: ``unix:PATH`` or ``host:port``."""
        path = self.master_socket
        if not path.exists():
            with contextlib.suppress(FileNotFoundError):
                return self.master_address.read_text().strip()
        return f"{UNIX}{path}"

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

    def authority_pem(self) -> bytes:
        """The certificate of the job's authority; empty: no port of the master is encrypted."""
        try:
            return self.authority.read_bytes()
        except FileNotFoundError:
            return b""

    def renew_secret(self) -> None:
        """Give the job another secret; processes of an earlier run have nothing to say any more.

        With it ends the job's authority. The next master makes another one.

        Raises:
            OSError: it cannot be written.
        """
        fresh = self.secret_file.with_suffix(".new")
        fresh.unlink(missing_ok=True)
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_hex(32))
        fresh.replace(self.secret_file)
        self.ticket.unlink(missing_ok=True)
        self.term.unlink(missing_ok=True)
        if self.tls.exists():
            shutil.rmtree(self.tls)

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
        """Make the directory and what every job has in it, with a run directory.

        Args:
            launched_s: Unix time of the job's launch; None: now.

        Raises:
            ConfigError: others could exchange what lies there.
            OSError: it cannot be made.
        """
        self.fill_on_disk(launched_s)
        self.make_run_dir()

    def fill_on_disk(self, launched_s: float | None = None) -> None:
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
        self.renew_secret()
        launched = Launched(time.time() if launched_s is None else launched_s)
        self.events.write_bytes(msgspec.json.encode(launched) + b"\n")
        self.logs.mkdir()
        self.cuts.mkdir()

    def make_run_dir(self) -> None:
        """Create the run directory (0700) where it is missing; under another name if that is taken.

        Raises:
            ConfigError: others could exchange what lies in its place.
            OSError: it cannot be made.
        """
        claim(self._usual_run_dir, self.run_note)

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
            what = f"no job matches {name!r}: there is no job yet" if name else what
            raise ConfigError(f"{what} in {where}; start one with `paceline run SCRIPT`")
        raise ConfigError(f"{what} in {where} (known: {_listed(known)}); see `paceline ps`")


def _listed(jobs: list[Path]) -> str:
    """The newest few, by name."""
    more = f" and {len(jobs) - MAX_LISTED} more" if len(jobs) > MAX_LISTED else ""
    return ", ".join(path.name for path in jobs[-MAX_LISTED:]) + more

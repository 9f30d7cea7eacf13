"""The job directory: everything another shell needs to find, watch and resume a job.

``$PACELINE_HOME/jobs/<id>`` (mode 0700) outlives the job. Beside it each run has a *run directory*
in memory (sockets, step ledgers, tensors in flight), which is removed when the job ends.
"""

import os
import secrets
import tempfile
import time
from pathlib import Path

from paceline.base.errors import ConfigError

SHARED_MEMORY = Path("/dev/shm")


def role_of(node: str) -> str:
    """``worker`` of ``worker-3``."""
    return node.rpartition("-")[0]


def number_of(node: str) -> int:
    """3 of ``worker-3``."""
    return int(node.rpartition("-")[2])


def home() -> Path:
    """``$PACELINE_HOME``, by default ``~/.paceline``."""
    return Path(os.environ.get("PACELINE_HOME", "~/.paceline")).expanduser().absolute()


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
        self.journal = path / "journal.sqlite"
        self.events = path / "events.jsonl"
        self.metrics = path / "metrics.jsonl"
        self.metrics_address = path / "metrics.address"
        """``host:port`` of the Prometheus endpoint, where the spec asks for one."""
        self.decisions = path / "decisions.jsonl"
        """What was seen, decided and achieved against stragglers."""
        self.logs = path / "logs"
        self.cuts = path / "cuts"
        self.evaluations = path / "evaluations"
        """What `job.evaluate` computed; removed when the job ends."""
        self.outcome = path / "outcome.json"
        """Written once by the master: how the job ended. Removed by ``--resume``."""
        self.resize = path / "resize.json"
        """With how many nodes a resumed job is to go on; removed once the master knows it."""
        self.report = path / "report.html"

    @property
    def job_id(self) -> str:
        return self.path.name

    @property
    def run_dir(self) -> Path:
        """Memory-backed where possible; short, since unix socket paths end at 107 bytes."""
        base = SHARED_MEMORY if self.has_memory else Path(tempfile.gettempdir())
        return base / f"paceline-{self.job_id}"

    @property
    def has_memory(self) -> bool:
        """Whether this machine has a memory file system that we may write to."""
        return os.access(SHARED_MEMORY, os.W_OK)

    @property
    def memory(self) -> Path:
        """Cuts in the memory of nodes: ``memory/<number>/<node>/<file>``."""
        return self.run_dir / "memory"

    def secret(self) -> bytes:
        """The job's secret, 32 random bytes as hex text."""
        return self.secret_file.read_bytes().strip()

    @classmethod
    def create(cls, name: str) -> "JobDir":
        """Make a fresh job directory with a secret of its own."""
        stamp = time.strftime("%m%d-%H%M%S")
        return cls.make(f"{name[:24]}-{stamp}-{secrets.token_hex(2)}")

    @classmethod
    def make(cls, job_id: str) -> "JobDir":
        """The same for a job that has its id."""
        path = home() / "jobs" / job_id
        path.mkdir(parents=True, mode=0o700)
        job = cls(path)
        descriptor = os.open(job.secret_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_hex(32))
        job.logs.mkdir()
        job.cuts.mkdir()
        job.make_run_dir()
        return job

    def make_run_dir(self) -> None:
        """Create the run directory (0700) where it is missing."""
        self.run_dir.mkdir(mode=0o700, exist_ok=True)

    @classmethod
    def find(cls, name: str | None) -> "JobDir":
        """The job called ``name`` (an id, a unique beginning of one, or a path); None: the newest.

        Raises:
            ConfigError: no such job, or several; the message lists what there is.
        """
        if name and "/" in name and (Path(name) / "job.json").exists():
            return cls(Path(name).absolute())
        known = sorted((home() / "jobs").glob("*/job.json"), key=lambda p: p.stat().st_mtime_ns)
        jobs = [p.parent for p in known if not name or p.parent.name.startswith(name)]
        exact = [p for p in jobs if p.name == name]
        if exact or (jobs and (not name or len(jobs) == 1)):
            return cls((exact or jobs)[-1])
        listed = ", ".join(p.name for p in (jobs or [k.parent for k in known])[-5:]) or "none"
        what = f"no job matches {name!r}" if name else "there is no job yet"
        raise ConfigError(f"{what} in {home() / 'jobs'} (known: {listed}); see `paceline status`")

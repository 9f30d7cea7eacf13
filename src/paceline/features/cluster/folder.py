"""The folder of a cluster's scheduler: what it consists of, journal, address, secret, log."""

import contextlib
import hashlib
import os
import re
import secrets
import shutil
from pathlib import Path

import msgspec

from paceline.base.devices import cores_of
from paceline.base.errors import ConfigError, PermanentError
from paceline.base.files import write_file
from paceline.base.jobdir import RUN_PREFIX, UNIX, home, run_place
from paceline.base.private_folders import claim, claimed, make_private
from paceline.features.cluster.policy.facts import Tenant
from paceline.features.cluster.policy.registry import SCHEDULERS

_TENANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


class ClusterConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a cluster: what it consists of."""

    devices: tuple[str, ...]
    """Cores of this machine, as ``cpu:0`` or ``cpu:0-1``."""
    tenants: tuple[Tenant, ...]
    policy: str = "antman"
    parameters: dict[str, str] = {}
    """Parameters of the scheduling policy."""

    def check(self) -> None:
        """See that it can be.

        Raises:
            ConfigError: it cannot; names what is wrong and the remedy.
        """
        SCHEDULERS.make(self.policy, self.parameters)
        cores: list[int] = []
        for name in self.devices:
            try:
                cores += (found := cores_of(name))
            except ConfigError as error:
                raise ConfigError(f"--devices: {error}") from error
            if not found:
                raise ConfigError(f"--devices: got {name!r}, expected cores: no GPU is granted yet")
        if len(set(cores)) < max(1, len(cores)):
            raise ConfigError(f"--devices: got {','.join(self.devices)}, expected each core once")
        names = [tenant.name for tenant in self.tenants]
        if len(set(names)) < len(names) or not all(map(_TENANT.fullmatch, names)):
            raise ConfigError(
                f"--tenant: got {', '.join(names)}, expected a name for each, of letters, digits, "
                "'.', '_' and '-'"
            )
        total = sum(tenant.quota for tenant in self.tenants)
        if total > len(self.devices):
            raise ConfigError(
                f"--tenant: got quotas of {total} devices, expected {len(self.devices)} at most, "
                "which is all there are; lower one"
            )


class ClusterDir:
    """Paths of the scheduler of this user's cluster; creating the object touches nothing."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or home() / "cluster"
        self.config = self.path / "cluster.json"
        self.wanted = self.path / "cluster.wanted.json"
        """Settings that hold from the start that is under way on."""
        self.journal = self.path / "journal.db"
        self.lock = self.path / "lock"
        self.run_note = self.path / "run.dir"
        """Path of the run directory, if another user has taken its usual name."""
        self.secret_file = self.path / "secret"
        self.log = self.path / "scheduler.log"

    def make(self) -> None:
        """Make the folder and its secret where they are missing.

        Raises:
            ConfigError: others could exchange what lies there.
            OSError: it cannot be made.
        """
        self.path.parent.mkdir(0o755, parents=True, exist_ok=True)
        make_private(self.path)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        fresh = self.path / f"secret.{os.getpid()}"
        with os.fdopen(os.open(fresh, flags, 0o600), "w") as file:
            file.write(secrets.token_hex(32))
        try:
            with contextlib.suppress(FileExistsError):
                os.link(fresh, self.secret_file)
        finally:
            fresh.unlink()

    @property
    def socket(self) -> Path:
        """The socket of the scheduler; short, wherever the folder is."""
        return claimed(self._usual_run_dir, self.run_note) / "scheduler.sock"

    @property
    def address(self) -> str:
        """Address at which the scheduler is reached."""
        return f"{UNIX}{self.socket}"

    @property
    def _usual_run_dir(self) -> Path:
        name = hashlib.sha256(os.fsencode(self.path)).hexdigest()[:16]
        return run_place() / f"{RUN_PREFIX}cluster-{name}"

    def make_run_dir(self) -> None:
        """Make the folder of the socket where it is missing; raises as `make`."""
        claim(self._usual_run_dir, self.run_note)

    def remove_run_dir(self) -> None:
        """Remove that folder."""
        shutil.rmtree(self.socket.parent, ignore_errors=True)

    def secret(self) -> bytes:
        """Read the secret."""
        return self.secret_file.read_bytes().strip()

    def want(self, config: ClusterConfig) -> None:
        """Write down what the cluster will consist of, once its scheduler has started."""
        image = msgspec.json.format(msgspec.json.encode(config), indent=2) + b"\n"
        write_file(self.wanted, image)

    def settle(self) -> None:
        """Make it what the cluster consists of: the scheduler has started with it."""
        with contextlib.suppress(FileNotFoundError):
            self.wanted.replace(self.config)

    def load(self, path: Path | None = None) -> ClusterConfig | None:
        """Read what the cluster consists of; None: nobody has said it.

        Args:
            path: of another file than `config`.

        Raises:
            PermanentError: the file is damaged or of another version.
        """
        path = path or self.config
        try:
            return msgspec.json.decode(path.read_bytes(), type=ClusterConfig)
        except FileNotFoundError:
            return None
        except msgspec.MsgspecError as error:
            raise PermanentError(
                f"{path}: got a file that describes no cluster ({error}); remove it, and "
                "say --devices and --tenant again"
            ) from error

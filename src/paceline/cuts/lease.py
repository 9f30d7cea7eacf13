"""The lease of a job at a URL: one run of the job writes there, and no two.

Storage offers no lock that all kinds of it have. So the holder writes a file, again and again. A
command that wants the lease watches whether the file changes, by its own clock alone, since those
of two machines may differ. It then writes its own name, and reads it again after a while: of two
commands at once only one finds its name. A holder that finds another name has lost the lease, and
must write nothing more.
"""

import contextlib
import secrets
import socket
import threading
import time
from collections.abc import Callable

import msgspec

from paceline.base.errors import ConfigError, TransientError
from paceline.cuts.remote import RemoteCuts

LEASE = "lease.json"
RENEW_S = 4.0
"""Between two words of the holder."""
WATCH_S = 15.0
"""A lease that is not renewed for so long is nobody's."""
SETTLE_S = 1.5
"""After which a command reads whether its own name is still there."""
LOOK_S = 0.5


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """State of the folder at the URL."""

    holder: str
    """Random name of a run of the job."""
    host: str
    renewals: int = 0


BEING_WRITTEN = Lease(holder="", host="", renewals=0)
"""Half of a lease, which some storages show while it is written. Its run may live: a run that took
it for none would take the lease from a living one."""


class UrlLease:
    """One run's part of the lease.

    Args:
        url: of the job's cuts.
        holder: name of the run.
    """

    def __init__(self, url: str, holder: str) -> None:
        self.holder = holder
        self._remote = RemoteCuts(url)
        self._renewals = 0

    @staticmethod
    def new_holder() -> str:
        """Make a name for a run of a job."""
        return secrets.token_hex(8)

    def take(self, tell: Callable[[str], None]) -> None:
        """Take the lease; it must be renewed from then on.

        Args:
            tell: takes a line for people, if the lease of a run that has died must run out.

        Raises:
            ConfigError: another run has it, or another command takes it now.
            TransientError: the storage does not answer, or refuses.
        """
        found = self._read()
        if found is not None and found.holder != self.holder:
            where = found.host or "another machine"
            tell(
                f"a run on {where} had the lease of this job; waiting {WATCH_S:.0f} s to see that "
                "it does not renew it"
            )
            self._see_it_run_out(found)
        self._write()
        time.sleep(SETTLE_S)  # noqa: TID251 - what others write then is to be seen
        now = self._read()
        if now is None or now.holder != self.holder:
            on = f", on {now.host}" if now is not None and now.host else ""
            raise ConfigError(
                f"{self._remote.url}: another command resumes this job now{on}; follow it there"
            )

    def _see_it_run_out(self, found: Lease) -> None:
        deadline_s = time.monotonic() + WATCH_S
        while time.monotonic() < deadline_s:
            time.sleep(LOOK_S)  # noqa: TID251 - storage tells nobody that a file has changed
            now = self._read()
            if now is None:
                return  # the run has ended, in order
            if now not in (found, BEING_WRITTEN):  # what that becomes is seen at the next look
                raise ConfigError(
                    f"{self._remote.url}: got a job that runs on {now.host}, expected one that has "
                    "ended; stop it there with `paceline stop`, or follow it with `paceline attach`"
                )

    def renew(self) -> str:
        """Renew the lease.

        Returns:
            The host of the run that has it meanwhile; empty: this one still has it.

        Raises:
            TransientError: the storage does not answer, or refuses.
        """
        found = self._read()
        if found not in (None, BEING_WRITTEN) and found.holder != self.holder:
            return found.host
        self._write()
        return ""

    def give_back(self) -> None:
        """Remove the lease, unless another run has it; raises as `renew`."""
        found = self._read()
        if found is not None and found.holder == self.holder:
            self._remote.remove_note(LEASE)

    def _read(self) -> Lease | None:
        image = self._remote.read_note(LEASE)
        try:
            return None if image is None else msgspec.json.decode(image, type=Lease)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return BEING_WRITTEN

    def _write(self) -> None:
        self._renewals += 1
        lease = Lease(holder=self.holder, host=socket.gethostname(), renewals=self._renewals)
        self._remote.write_note(LEASE, msgspec.json.encode(lease))


class LeaseKeeper:
    """A thread that renews a lease as long as its run lives."""

    def __init__(self, lease: UrlLease) -> None:
        """Begin at once."""
        self.taken_by = ""
        """The host of the run that has taken the lease; empty: none has."""
        self._lease, self._over = lease, threading.Event()
        self._thread = threading.Thread(target=self._run, name="paceline-lease", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self.taken_by:
            # A storage that is away is asked again; the lease is renewed, or found lost, then.
            with contextlib.suppress(TransientError):
                self.taken_by = self._lease.renew()
            if self._over.wait(RENEW_S):
                return

    def close(self, *, give_back: bool = False) -> None:
        """Renew it no more; ``give_back``: the next run need not wait."""
        self._over.set()
        self._thread.join(LOOK_S)
        if give_back and not self.taken_by and not self._thread.is_alive():
            with contextlib.suppress(TransientError):  # else it runs out
                self._lease.give_back()

"""The ticket of a job: all that a machine needs to join it, as one word in one file.

It has the address of the master, the job's secret, and the certificate of the job's authority, by
which the master is known. Anyone with the ticket may join, so the file has mode 0600, and people
copy it over a channel that nobody else can read.
"""

import base64
import binascii
import os
import ssl
import stat
import sys
from pathlib import Path

import msgspec

from paceline.base.errors import ConfigError
from paceline.base.jobdir import JobDir

STDIN = Path("-")
NUM_PORTS = 65536
BEGINNING = "paceline1."
"""Begins each ticket of this version."""
_REMEDY = "copy the file `ticket` of the job's directory from the master's machine"


class Ticket(msgspec.Struct, frozen=True, kw_only=True):
    """Ticket of a job: all that another machine needs to join it."""

    address: str
    """Address of the master, ``HOST:PORT``."""
    secret: str
    """The job's secret."""
    authority: bytes
    """Certificate of the job's authority, DER; empty: the master's port is not encrypted."""
    keepers: tuple[str, ...] = ()
    """Where one can ask for the master if it is at ``address`` no more; see `wire.keepers`."""

    @property
    def authority_pem(self) -> bytes:
        """Certificate of the authority as PEM; empty: the job has none."""
        return ssl.DER_cert_to_PEM_cert(self.authority).encode() if self.authority else b""

    def word(self) -> str:
        """Return the ticket as one word of letters, digits, ``-``, ``_`` and ``.``."""
        return BEGINNING + base64.urlsafe_b64encode(msgspec.msgpack.encode(self)).decode()


def ticket_of(job: JobDir, keepers: tuple[str, ...] = ()) -> Ticket:
    """Return the ticket of a job whose master listens for other machines.

    Args:
        job: the job.
        keepers: addresses of those that keep its journal.

    Raises:
        OSError: no master has listened yet.
    """
    pem = job.authority_pem().decode()
    return Ticket(
        address=job.master_address.read_text().strip(),
        secret=job.secret().decode(),
        authority=ssl.PEM_cert_to_DER_cert(pem) if pem else b"",
        keepers=keepers,
    )


def write_ticket(job: JobDir, keepers: tuple[str, ...] = ()) -> None:
    """Write down the ticket of a job whose master listens; ``keepers`` as in `ticket_of`.

    Raises:
        OSError: it cannot be written.
    """
    fresh = job.ticket.with_suffix(".new")
    fresh.unlink(missing_ok=True)
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(f"{ticket_of(job, keepers).word()}\n")
    fresh.replace(job.ticket)


def read_ticket(path: Path, option: str = "--join") -> Ticket:
    """Read a ticket.

    Args:
        path: of a copy of it; ``-``: the standard input.
        option: the flag or variable that named it.

    Raises:
        ConfigError: it cannot be read, or is none.
    """
    try:
        word = sys.stdin.buffer.read() if path == STDIN else path.read_bytes()
        if path != STDIN and _is_open(path.absolute()):
            sys.stderr.write(
                f"{option}: other users of this machine can read {path}, and so join the job and "
                f"end it; chmod 600 {path}\n"
            )
    except OSError as error:
        raise ConfigError(
            f"{option}: got {path}, which cannot be read ({error.strerror}); {_REMEDY}"
        ) from error
    return decode_ticket(word, option, str(path))


def _is_open(path: Path) -> bool:
    """Whether every user of this machine can read a file."""
    enters = all(folder.stat().st_mode & stat.S_IXOTH for folder in path.parents)
    return enters and bool(path.stat().st_mode & stat.S_IROTH)


def decode_ticket(word: bytes, option: str, where: str) -> Ticket:
    """Decode a ticket.

    Args:
        word: as `Ticket.word` makes it; space around it does not matter.
        option: the flag or variable that named it.
        where: the place where it was found.

    Raises:
        ConfigError: it is none.
    """
    try:
        coded = word.strip().decode("ascii")
        data = base64.urlsafe_b64decode(coded.removeprefix(BEGINNING))
        found = msgspec.msgpack.decode(data, type=Ticket)
    except (UnicodeDecodeError, binascii.Error, msgspec.MsgspecError) as error:
        raise ConfigError(f"{option}: {where} holds no whole ticket of a job; {_REMEDY}") from error
    if not coded.startswith(BEGINNING):
        raise ConfigError(f"{option}: {where} holds no ticket of this version; {_REMEDY}")
    return found


def is_address(text: str) -> bool:
    """Tell whether it is HOST:PORT."""
    host, _, port = text.rpartition(":")
    return bool(host) and ":" not in host and port.isdecimal() and 0 < int(port) < NUM_PORTS


def at_address(ticket: Ticket, at: str | None) -> Ticket:
    """Return the ticket with another address of the master.

    Args:
        ticket: of the job.
        at: value of ``--at``, HOST:PORT; None: the ticket's address stays.

    Raises:
        ConfigError: it is none.
    """
    if at is None:
        return ticket
    if not is_address(at):
        raise ConfigError(
            f"--at: got {at!r}, expected HOST:PORT; without it the address of the ticket is taken, "
            "which `master.address` of the job's directory has, too"
        )
    return msgspec.structs.replace(ticket, address=at)

"""The ticket of a job: all that a machine needs to join it, as one word in one file.

It has the address of the master, the job's secret, and the certificate of the job's authority, by
which the master is known. Anyone with the ticket may join, so the file has mode 0600, and people
copy it over a channel that nobody else can read.
"""

import base64
import binascii
import os
import ssl
import sys
from pathlib import Path

import msgspec

from paceline.base.errors import ConfigError
from paceline.base.jobdir import JobDir

STDIN = Path("-")
_BEGINNING = "paceline1."
_REMEDY = "copy the file `ticket` of the job's directory from the master's machine"


class Ticket(msgspec.Struct, frozen=True, kw_only=True):
    """Ticket of a job: all that another machine needs to join it."""

    address: str
    """Address of the master, ``HOST:PORT``."""
    secret: str
    """The job's secret."""
    authority: bytes
    """Certificate of the job's authority, DER; empty: the master's port is not encrypted."""

    @property
    def authority_pem(self) -> bytes:
        """Certificate of the authority as PEM; empty: the job has none."""
        return ssl.DER_cert_to_PEM_cert(self.authority).encode() if self.authority else b""

    def word(self) -> str:
        """Return the ticket as one word of letters, digits, ``-``, ``_`` and ``.``."""
        return _BEGINNING + base64.urlsafe_b64encode(msgspec.msgpack.encode(self)).decode()


def ticket_of(job: JobDir) -> Ticket:
    """Return the ticket of a job whose master listens for other machines.

    Raises:
        OSError: no master has listened yet.
    """
    pem = job.authority_pem().decode()
    return Ticket(
        address=job.master_address.read_text().strip(),
        secret=job.secret().decode(),
        authority=ssl.PEM_cert_to_DER_cert(pem) if pem else b"",
    )


def write_ticket(job: JobDir) -> None:
    """Write down the ticket of a job whose master listens.

    Raises:
        OSError: it cannot be written.
    """
    fresh = job.ticket.with_suffix(".new")
    fresh.unlink(missing_ok=True)
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(f"{ticket_of(job).word()}\n")
    fresh.replace(job.ticket)


def read_ticket(path: Path) -> Ticket:
    """Read a ticket.

    Args:
        path: of a copy of it; ``-``: the standard input.

    Raises:
        ConfigError: it cannot be read, or is none.
    """
    try:
        word = (sys.stdin.buffer.read() if path == STDIN else path.read_bytes()).strip()
    except OSError as error:
        raise ConfigError(
            f"--join: got {path}, which cannot be read ({error.strerror}); {_REMEDY}"
        ) from error
    try:
        coded = word.decode("ascii")
        data = base64.urlsafe_b64decode(coded.removeprefix(_BEGINNING))
        found = msgspec.msgpack.decode(data, type=Ticket)
    except (UnicodeDecodeError, binascii.Error, msgspec.MsgspecError) as error:
        raise ConfigError(f"--join: {path} holds no whole ticket of a job; {_REMEDY}") from error
    if not coded.startswith(_BEGINNING):
        raise ConfigError(f"--join: {path} holds no ticket of this version; {_REMEDY}")
    return found

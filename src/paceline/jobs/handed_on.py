"""Files of a job whose master may move: whose term it is, and from where it came."""

import secrets

import msgspec

from paceline.base.errors import ConfigError, PermanentError
from paceline.base.files import write_file
from paceline.base.jobdir import JobDir


class TakenOver(msgspec.Struct, frozen=True):
    """The file ``taken_over.json``: another machine had the job's master before."""

    before: str
    """Name of that machine."""
    lost_s: float
    """Unix time of its last word."""
    beside: tuple[str, ...] = ()
    """Nodes that had joined from there."""


class MasterTerm(msgspec.Struct, frozen=True):
    """The file ``term.json``: what a master must know of its turn beside the journal."""

    seat: str
    """Name of its seat."""
    term: int
    """Newest term in which it was elected, or tried to be."""
    is_elected: bool = False
    """Whether a keeper here has been elected, and its master is to begin this term."""


def read_term(job: JobDir) -> MasterTerm | None:
    """Return it; None: the journal is on this machine alone.

    Raises:
        PermanentError: the file is damaged.
    """
    try:
        return msgspec.json.decode(job.term.read_bytes(), type=MasterTerm)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        raise PermanentError(f"{job.term}: got a damaged file ({error})") from error


def first_term(job: JobDir, before: int) -> MasterTerm:
    """Begin to keep the journal elsewhere, too; ``before``: the newest term in the journal."""
    fresh = MasterTerm(seat=secrets.token_hex(8), term=before + 1)
    write_term(job, fresh)
    return fresh


def write_term(job: JobDir, term: MasterTerm) -> None:
    """Write it down."""
    write_file(job.term, msgspec.json.encode(term))


def read_taken(job: JobDir) -> TakenOver | None:
    """Return where the master was before; None: here, or it has been said."""
    try:
        return msgspec.json.decode(job.taken_over.read_bytes(), type=TakenOver)
    except FileNotFoundError:
        return None


def check_not_gone_on(job: JobDir) -> None:
    """Raises ConfigError if the job goes on with a master on another machine."""
    if job.gone_on.exists():
        text = job.gone_on.read_text().strip()
        raise ConfigError(f"job {job.job_id} is not resumed here: {text}")

"""A running job whose master is on another machine, reached by its ticket: no file of it is here.

Everything is asked of the master, over the port at which agents of other machines reach it.
"""

import os
import sys
import time
from pathlib import Path
from typing import TypeVar

import msgspec

from paceline.base.errors import ConfigError, PermanentError, TransientError
from paceline.jobs.tickets import (
    BEGINNING,
    STDIN,
    Ticket,
    at_address,
    decode_ticket,
    is_address,
    read_ticket,
)
from paceline.wire.client import (
    Call,
    Done,
    FollowJobFiles,
    GetObservation,
    GetSpec,
    GetStatus,
    JobFileNews,
    JobInfo,
    ListJobFiles,
    ReadJobFile,
    Reply,
)
from paceline.wire.control import ControlClient
from paceline.wire.keepers import Keepers

TICKET_VARIABLE = "PACELINE_TICKET"
"""Environment variable with a ticket, or its path, for a job that is named by its address."""
ANSWER_S = 10.0
"""Seconds for one answer of the master."""
AWAY_S = 20.0
"""Seconds for which a master may be away: it is being started again."""
SAY_S = 2.0
"""Seconds without a master after which a command says that it waits."""
RETRY_S = 0.5
_REPEATED = (GetStatus, GetObservation, GetSpec, ListJobFiles, ReadJobFile, FollowJobFiles)
"""Questions, which may be asked again; an order is sent once."""
T = TypeVar("T")


def ticket_of_option(job: str, at: str | None = None) -> Ticket:
    """Read what ``--job`` and ``--at`` say.

    Args:
        job: path of a ticket; ``-``: the standard input; or the master's address, ``HOST:PORT``,
            of a job whose ticket is in the environment.
        at: address at which the master is reached from here; None: the ticket's.

    Raises:
        ConfigError: there is no such ticket.
    """
    path = Path(job)
    if job == str(STDIN) or path.exists():
        return at_address(read_ticket(path, "--job"), at)
    if not is_address(job):
        raise ConfigError(
            f"--job: got {job!r}, which is neither a file nor HOST:PORT; copy the file `ticket` of "
            "the job's directory from the master's machine, and give its path"
        )
    kept = os.environ.get(TICKET_VARIABLE, "")
    if not kept:
        raise ConfigError(
            f"--job: got the address {job}, and no secret; give the path of the job's ticket, or "
            f"set {TICKET_VARIABLE} to it"
        )
    if kept.startswith(BEGINNING):
        ticket = decode_ticket(kept.encode(), TICKET_VARIABLE, "the variable")
    else:
        ticket = read_ticket(Path(kept), TICKET_VARIABLE)
    return at_address(ticket, at or job)


def client_of(ticket: Ticket) -> ControlClient:
    """Return the client of the master at the ticket's address."""
    return ControlClient(ticket.address, ticket.secret.encode(), ticket.authority_pem)


def find_master(ticket: Ticket) -> Ticket:
    """Ask those that keep the job's journal where its master is now; the ticket with that."""
    keepers = Keepers(ticket.secret.encode(), ticket.authority_pem)
    found = keepers.master_sync(ticket.keepers)
    return ticket if found is None else msgspec.structs.replace(ticket, address=found.address)


class FarJob:
    """A job that runs, and of which this machine has the ticket alone.

    Args:
        ticket: the job's.

    Raises:
        ConfigError: what answers there is not this job's master.
        TransientError: nobody answers there.
    """

    def __init__(self, ticket: Ticket) -> None:
        self._ticket = ticket
        self._client = client_of(ticket)
        info = self.get(GetSpec(), JobInfo)
        self.job_id = info.job_id
        self.spec = info.spec

    @property
    def address(self) -> str:
        """Address of the master, ``HOST:PORT``."""
        return self._client.address

    def ask(self, call: Call) -> Reply:
        """Ask the master; an order is sent once, to a master that answers.

        Raises:
            ConfigError: what answers there is not this job's master.
            TransientError: nobody answers, or the answer to an order was lost.
        """
        if isinstance(call, _REPEATED):
            return self._repeat(call)
        self._repeat(GetSpec())
        try:
            return self._client.call_sync(call, ANSWER_S)
        except TransientError as error:
            raise TransientError(
                f"job {self.job_id}: its master did not answer ({error}), so it is not known "
                "whether it has the order; look at its status before you repeat it"
            ) from error

    def get(self, call: Call, kind: type[T]) -> T:
        """Ask the master a question, for an answer of this kind.

        Raises:
            ConfigError: the master refuses, since the job has ended or for another reason.
            TransientError: nobody answers.
        """
        reply = self._repeat(call)
        if isinstance(reply, kind):
            return reply
        raise self._refused(reply)

    def follow(self, upto: dict[str, int], *, every: bool, wait_s: float) -> JobFileNews | None:
        """Wait for what comes to files; None: nobody answers any more.

        Args:
            upto: see `FollowJobFiles`.
            every: the same.
            wait_s: seconds after which it returns in any case.
        """
        call = FollowJobFiles(upto=upto, every=every, wait_s=wait_s)
        until_s = time.monotonic() + AWAY_S
        while True:
            try:
                reply = self._client.call_sync(call, wait_s + ANSWER_S)
            except TransientError:
                self._look_elsewhere()
                if time.monotonic() > until_s:
                    return None
                time.sleep(RETRY_S)  # noqa: TID251
                continue
            if isinstance(reply, JobFileNews):
                return reply
            raise self._refused(reply)

    def _look_elsewhere(self) -> None:
        """Go to the master that those who keep the journal know; it may have moved."""
        self._ticket = find_master(self._ticket)
        if self._ticket.address != self._client.address:
            self._client = client_of(self._ticket)

    def _refused(self, reply: Reply) -> ConfigError:
        why = reply.error if isinstance(reply, Done) else f"got {reply!r:.100}"
        return ConfigError(f"the job at {self.address}: {why}")

    def _repeat(self, call: Call) -> Reply:
        begun_s, said = time.monotonic(), False
        while True:
            try:
                return self._client.call_sync(call, ANSWER_S)
            except TransientError as error:
                self._look_elsewhere()
                away_s = time.monotonic() - begun_s
                if away_s > AWAY_S:
                    raise TransientError(
                        f"no master answers at {self.address}; the job has ended, or its master "
                        "is being started again, or a firewall lies between"
                    ) from error
                if away_s > SAY_S and not said:
                    said = True
                    sys.stderr.write(self._waits())
            except PermanentError as error:
                raise ConfigError(
                    f"{error}; expected the file `ticket` of the job's directory, as it is on the "
                    "master's machine now"
                ) from error
            time.sleep(RETRY_S)  # noqa: TID251

    def _waits(self) -> str:
        return (
            f"paceline: no master answers at {self.address} yet; it may be being started again, "
            f"so it is asked for {AWAY_S:.0f} s\n"
        )

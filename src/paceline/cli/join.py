"""``paceline agent --join``: this machine becomes a worker of a job whose master is elsewhere."""

import contextlib
import os
import socket
import sys
from pathlib import Path
from typing import NoReturn

import msgspec

from paceline.base.errors import ConfigError, PermanentError, TransientError
from paceline.base.jobdir import JobDir
from paceline.base.joined import joined_directory, remove_joined
from paceline.base.processes import JOB_DIR, SAFE_PATH, find_job_processes
from paceline.jobs.joining import check_script, make_directory, of_this_machine
from paceline.jobs.leftovers import clear_leftovers
from paceline.jobs.tickets import Ticket, read_ticket
from paceline.wire.client import Call, Done, GetSpec, JobInfo, Join, NodeAdded, Reply
from paceline.wire.control import ControlClient
from paceline.wire.spec import JobSpec

JOIN_TIMEOUT_S = 10.0


def join_job(path: Path, at: str | None) -> NoReturn:
    """Become the agent of a new node of a job; the process is replaced by it.

    Args:
        path: of the job's ticket; ``-``: the standard input.
        at: where the master is reached from here, ``HOST:PORT``; None: where the ticket says.

    Raises:
        ConfigError: the ticket is another job's or none, or this machine lacks the script.
        TransientError: nobody answers there.
    """
    ticket = read_ticket(path)
    if at is not None:
        ticket = msgspec.structs.replace(ticket, address=check_address(at))
    client = ControlClient(ticket.address, ticket.secret.encode(), ticket.authority_pem)
    info = _ask(client, GetSpec(), path)
    assert isinstance(info, JobInfo)
    check_spec(info.spec, ticket.address)
    spec = of_this_machine(info.spec, ticket.address)
    # Now, as this process never comes to what other commands do at their end. A machine on which
    # nothing but this command runs would keep the memory of each node that lost its power.
    with contextlib.suppress(OSError):
        clear_leftovers()
    joined = _ask(client, Join(host=socket.gethostname()), path)
    assert isinstance(joined, NodeAdded)
    if spec.cwd != info.spec.cwd:
        print(f"{info.spec.cwd} cannot be entered on this machine: the job's script runs in / here")
    job = make_joined(info.job_id, spec, joined.node, ticket)
    print(f"joined job {info.job_id} as {joined.node}; logs: {job.logs}; Ctrl-C leaves", flush=True)
    arguments = ["--job-dir", str(job.path), "--node", joined.node]
    os.execve(
        sys.executable,
        [sys.executable, *SAFE_PATH, "-m", "paceline.agent", *arguments],
        {**os.environ, JOB_DIR: str(job.path)},
    )


def check_address(address: str) -> str:
    """Raises ConfigError unless it is HOST:PORT."""
    host, _, port = address.rpartition(":")
    if not (host and port.isdecimal()):
        raise ConfigError(
            f"--at: got {address!r}, expected HOST:PORT; without it the address of the ticket is "
            "taken, which `master.address` of the job's directory has, too"
        )
    return address


def check_spec(spec: JobSpec, address: str) -> None:
    """Raises ConfigError if a worker of this job could not run on this machine."""
    check_script(spec)
    host = address.rpartition(":")[0]
    if spec.data_plane.transport != "tcp" and host not in ("127.0.0.1", "localhost"):
        raise ConfigError(
            f"the job's data_plane.transport is {spec.data_plane.transport!r}, which stays on the "
            "master's machine; start it with --set data_plane.transport=tcp to join it from here"
        )


def make_joined(job_id: str, spec: JobSpec, node: str, ticket: Ticket) -> JobDir:
    """Make a job directory of this one node, apart from those of the jobs of this machine.

    The logs of an earlier node of this name stay.

    Raises:
        ConfigError: the earlier node still runs here.
    """
    path = joined_directory(job_id, node)
    if path.exists():
        if find_job_processes(path):
            raise ConfigError(
                f"{node} of job {job_id} still runs here; join again when it has ended"
            )
        remove_joined(JobDir(path))
        JobDir(path).file_servers.unlink(missing_ok=True)
    return make_directory(path, spec, ticket)


def _ask(client: ControlClient, call: Call, path: Path) -> Reply:
    try:
        reply = client.call_sync(call, JOIN_TIMEOUT_S)
    except TransientError as error:
        raise TransientError(
            f"--join: {path} names {client.address}, where no master answers; see whether the job "
            "runs, copy its `ticket` again, and check that no firewall lies between"
        ) from error
    except PermanentError as error:
        raise ConfigError(
            f"--join: {path}: {error}; expected the file `ticket` of the job's directory on the "
            "master's machine"
        ) from error
    if isinstance(reply, Done):
        raise ConfigError(f"the job at {client.address}: {reply.error}")
    return reply

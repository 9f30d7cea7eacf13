"""Job directory of a node on another machine: one of its own, made there."""

import hashlib
import os
import shutil
import socket
from pathlib import Path

import msgspec

from paceline.base.errors import ConfigError
from paceline.base.files import write_file
from paceline.base.jobdir import JobDir
from paceline.base.processes import can_enter
from paceline.cuts.reach import keep_servers
from paceline.jobs.modules import module_fault
from paceline.jobs.tickets import Ticket
from paceline.wire import spec as specs
from paceline.wire.messages.agent import FileServers
from paceline.wire.spec import JobSpec


def check_script(spec: JobSpec) -> None:
    """Raises ConfigError if the job's script, or module, is not on this machine."""
    if spec.run_as == "module" and module_fault(spec.script, spec.cwd or "/"):
        raise ConfigError(
            f"the job's module {spec.script} is not found from {spec.cwd or '/'} on "
            f"{socket.gethostname()}; put its package (and its data) at the same path there, on "
            "storage that all machines share, or install it"
        )
    if spec.run_as == "file" and not Path(spec.script).is_file():
        raise ConfigError(
            f"the job's script {spec.script} is not on {socket.gethostname()}; put it (and its "
            "data) at the same path there, or on storage that all machines share"
        )


def script_digest(spec: JobSpec) -> str:
    """Return the digest of the script's file on this machine; empty: it is no file."""
    if spec.run_as != "file":
        return ""
    try:
        return hashlib.sha256(Path(spec.script).read_bytes()).hexdigest()
    except OSError:
        return ""


def check_same_script(spec: JobSpec, digest: str) -> None:
    """Raises ConfigError if the job has begun with another script than is on this machine.

    Args:
        spec: of the job.
        digest: of its script, when it began; empty: not known.
    """
    if digest and script_digest(spec) != digest:
        raise ConfigError(
            f"the job's script {spec.script} is another one on {socket.gethostname()} than the job "
            "has begun with, and would train another model; copy it from the master's machine, as "
            "it was when the job began"
        )


def own_address(address: str) -> str:
    """The IPv4 address of this machine that the way to HOST:PORT leads from; nothing is sent.

    Raises:
        ConfigError: there is no way.
    """
    host, _, port = address.rpartition(":")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, int(port)))
        except OSError as error:
            raise ConfigError(f"no way leads from here to {host} ({error})") from error
        found: str = probe.getsockname()[0]
        return found


def of_this_machine(spec: JobSpec, address: str) -> JobSpec:
    """The spec for a node here: its peers reach it where it reaches the master.

    Its script runs in the job's folder if that is here, too, and else in ``/``.
    """
    cwd = spec.cwd if can_enter(spec.cwd) else None
    return msgspec.structs.replace(spec, listen=own_address(address), advertise=None, cwd=cwd)


def make_directory(path: Path, spec: JobSpec, ticket: Ticket) -> JobDir:
    """Make the job directory of one node, or make it fit; the logs of an earlier node stay.

    Args:
        path: of the directory, see `paceline.base.joined.joined_directory`.
        spec: see `of_this_machine`.
        ticket: of the job.
    """
    job = JobDir(path)
    path.mkdir(parents=True, mode=0o700, exist_ok=True)
    specs.save(spec, job.spec)
    with os.fdopen(os.open(job.secret_file, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
        file.write(ticket.secret.encode())
    # Before the address: with that alone an agent would speak in clear.
    if ticket.authority:
        job.tls.mkdir(mode=0o700, exist_ok=True)
        write_file(job.authority, ticket.authority_pem)
    else:
        shutil.rmtree(job.tls, ignore_errors=True)
    job.master_address.write_text(f"{ticket.address}\n")
    if not job.is_joined:
        keep_servers(job, FileServers())  # the master says who they are when it knows the node
    job.logs.mkdir(exist_ok=True)
    job.make_run_dir()
    return job

"""``paceline agent --join``: this machine runs workers of a job whose master is elsewhere."""

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import NoReturn

from paceline.base.errors import ConfigError, PermanentError, TransientError
from paceline.base.jobdir import JobDir
from paceline.base.joined import LEFT_ALONE, LEFT_OUT, joined_directory, remove_joined
from paceline.base.processes import JOB_DIR, SAFE_PATH, find_job_processes
from paceline.jobs.joining import (
    check_same_script,
    check_script,
    make_directory,
    of_this_machine,
)
from paceline.jobs.leftovers import clear_leftovers
from paceline.jobs.tickets import Ticket, at_address, read_ticket
from paceline.jobs.zygotes import has_template
from paceline.supervisor.templates import start_template
from paceline.wire.client import Call, Done, GetSpec, JobInfo, Join, NodesAdded, Reply
from paceline.wire.control import ControlClient
from paceline.wire.spec import JobSpec

JOIN_TIMEOUT_S = 10.0
ASK_AGAIN_S = 1.0
"""Seconds between two questions to a job that has no model yet."""
AGAIN_S = 0.2
"""Seconds after which an agent that was killed is started again."""
MOST_AGAIN = 20
"""Times in all that agents are started again; then the command ends."""


def join_job(path: Path, at: str | None, workers: int | None = None) -> NoReturn:
    """Run new nodes of a job here. The agent of one takes the place of this process.

    Args:
        path: of the job's ticket; ``-``: the standard input.
        at: where the master is reached from here, ``HOST:PORT``; None: where the ticket says.
        workers: how many; None: as many as the job's machines have, and else one.

    Raises:
        ConfigError: the ticket is another job's or none, or this machine lacks the script.
        TransientError: nobody answers there.
    """
    ticket = at_address(read_ticket(path), at)
    client = ControlClient(ticket.address, ticket.secret.encode(), ticket.authority_pem)
    named = f"--join: {path}" if at is None else f"--at: {at}"
    info = _ask(client, GetSpec(), named, path)
    assert isinstance(info, JobInfo)
    check_spec(info.spec, ticket.address)
    check_same_script(info.spec, info.script_digest)
    spec = of_this_machine(info.spec, ticket.address)
    # Now, as this process never comes to what other commands do at their end. A machine on which
    # nothing but this command runs would keep the memory of each node that lost its power.
    with contextlib.suppress(OSError):
        clear_leftovers()
    nodes = _be_taken_in(client, workers or 0, named, path)
    if spec.cwd != info.spec.cwd:
        print(f"{info.spec.cwd} cannot be entered on this machine: the job's script runs in / here")
    jobs = {node: make_joined(info.job_id, spec, node, ticket) for node in nodes}
    names, logs = ", ".join(jobs), ", ".join(str(job.logs) for job in jobs.values())
    print(f"joined job {info.job_id} as {names}; logs: {logs}; Ctrl-C leaves", flush=True)
    if len(jobs) > 1:
        raise SystemExit(JoinedAgents(jobs, spec).run())
    ((node, job),) = jobs.items()
    os.execve(sys.executable, _command(node, job), {**os.environ, JOB_DIR: str(job.path)})


def _be_taken_in(client: ControlClient, workers: int, named: str, path: Path) -> tuple[str, ...]:
    """Return the names of our nodes, once the job has a model that they can copy."""
    is_told = False
    while True:
        joined = _ask(client, Join(host=socket.gethostname(), workers=workers), named, path)
        assert isinstance(joined, NodesAdded)
        if joined.nodes:
            return joined.nodes
        if not is_told:
            print("the job has no model yet: this machine joins when it trains", flush=True)
        is_told = True
        time.sleep(ASK_AGAIN_S)  # noqa: TID251 - nobody tells of it


def _command(node: str, job: JobDir) -> list[str]:
    arguments = ["--job-dir", str(job.path), "--node", node]
    return [sys.executable, *SAFE_PATH, "-m", "paceline.agent", *arguments]


class JoinedAgents:
    """The agents of several nodes that this machine runs: started, watched, ended together.

    An agent that ends in order ends its node. One that was killed is started again, and takes the
    node's process over, or the worker's next life begins in it.
    """

    def __init__(self, jobs: dict[str, JobDir], spec: JobSpec) -> None:
        self._jobs, self._spec = jobs, spec
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._due_s: dict[str, float] = {}
        self._again = 0

    def run(self) -> int:
        """Return when all agents have ended; the exit code for the shell."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._pass_on)
        self._start_template()
        for node in self._jobs:
            self._start(node)
        code = 0
        while self._running or self._due_s:
            self._wait()
            code = max(code, self._collect())
            for node in [node for node, due_s in self._due_s.items() if time.monotonic() > due_s]:
                del self._due_s[node]
                self._start(node)
        return code

    def _start_template(self) -> None:
        """Have one process import what all nodes need: they are forks of it."""
        node, *_ = self._jobs
        if has_template(node, self._spec):
            with contextlib.suppress(OSError):  # nodes do without
                start_template(node, self._spec, [*self._jobs.values()])

    def _start(self, node: str) -> None:
        job = self._jobs[node]
        # In a group of its own: Ctrl-C reaches it once, through this process.
        self._running[node] = subprocess.Popen(
            _command(node, job),
            env={**os.environ, JOB_DIR: str(job.path)},
            process_group=0,
        )

    def _wait(self) -> None:
        """Wait until an agent ends, for `AGAIN_S` at most."""
        with contextlib.ExitStack() as stack:
            ends = [os.pidfd_open(agent.pid) for agent in self._running.values()]
            for end in ends:
                stack.callback(os.close, end)
            select.select(ends, [], [], AGAIN_S if self._due_s else None)

    def _collect(self) -> int:
        """Take in which agents have ended; those that were killed are due again."""
        worst = 0
        for node, agent in list(self._running.items()):
            code = agent.poll()
            if code is None:
                continue
            del self._running[node]
            is_final = code in (LEFT_ALONE, LEFT_OUT)
            if code and not is_final and self._again < MOST_AGAIN:
                self._again += 1
                self._due_s[node] = time.monotonic() + AGAIN_S
            if code and node not in self._due_s:
                worst = max(worst, code if is_final else 1)
        return worst

    def _pass_on(self, _number: int, _frame: object) -> None:
        """Have all agents end in order, at the second signal at once; none starts again."""
        self._again = MOST_AGAIN
        self._due_s.clear()
        for agent in self._running.values():
            agent.terminate()


def check_spec(spec: JobSpec, address: str) -> None:
    """Raises ConfigError if a worker of this job could not run on this machine."""
    check_script(spec)
    host = address.rpartition(":")[0]
    if not spec.traits.trains or spec.machines > 1 or spec.data_plane.transport == "tcp":
        return
    if host not in ("127.0.0.1", "localhost"):
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


def _ask(client: ControlClient, call: Call, named: str, path: Path) -> Reply:
    """Ask the master.

    Args:
        client: speaks to it.
        call: the question.
        named: the option that named its address, and its value.
        path: of the ticket.
    """
    try:
        reply = client.call_sync(call, JOIN_TIMEOUT_S)
    except TransientError as error:
        raise TransientError(
            f"{named} names {client.address}, where no master answers; see whether the job "
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

"""The launcher: an actor on one place that starts the node's agent there, and waits for its end.

The agent is the very program that runs on a laptop, in a session of its own. It outlives its
launcher: when Ray dies here, it works on as long as the master answers. It is no child of the
launcher: when Ray ends a worker in order, as it does a minute after the head is gone, the worker
kills its children.
"""

import asyncio
import contextlib
import functools
import os
import signal
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec.structs import replace

from paceline.base.cgroups import machine_oom_kills
from paceline.base.jobdir import JobDir, role_of
from paceline.base.joined import clear_joined, joined_directory, remove_joined
from paceline.base.processes import (
    ProcessWatch,
    code_of_shell,
    find_job_processes,
    kill_quietly,
    start_grandchild,
)
from paceline.jobs.joining import check_script, make_directory, of_this_machine
from paceline.jobs.tickets import Ticket
from paceline.protocol.nodes.ends import AgentEnd, end_of
from paceline.wire import last_words
from paceline.wire.spec import JobSpec, NodeSize

IDLE_S = 60.0
"""A launcher without an agent that hears nothing for so long, from its start on, ends itself:
nobody is left who could, once the master and its gateway have died for good."""
GONE_S = 5.0
"""Seconds that killed processes have to vanish."""
_OF_RAY = ("RAY_", "OMP_NUM_THREADS")
"""Beginnings of the environment variables that an agent does not inherit from its launcher."""


class AgentOrder(msgspec.Struct, frozen=True, kw_only=True):
    """Order to a launcher, with what it needs to start an agent."""

    job_id: str
    path: str
    """Path of the job's directory on the master's machine."""
    node: str
    ticket: Ticket
    """Address and secret of the job, and the certificate by which its master is known."""
    spec: JobSpec


class AgentStarted(msgspec.Struct, frozen=True, kw_only=True):
    """The agent of a launch runs, or has run."""

    launch: str
    host: str
    place: str
    """Ray's name of the machine."""
    pid: int
    sees_job: bool
    """Whether the job's directory is here, too."""
    size: NodeSize
    """Size for which the place was reserved: its node gets no more, whatever is ordered later."""
    reserved_together: bool
    """Whether the place is one of those that were reserved together."""


class Launcher:
    """One node's launcher; everything runs in one event loop.

    Args:
        place: Ray's name of the machine.
        end: ends this actor, and gives its place back.
        size: of the place.
        reserved_together: the place is one of those that were reserved together.
    """

    def __init__(
        self,
        place: str,
        end: Callable[[], None],
        size: NodeSize,
        *,
        reserved_together: bool = False,
    ) -> None:
        self._end = end
        self._parent = os.getppid()
        self._started = AgentStarted(
            launch="",
            host="",
            place=place,
            pid=0,
            sees_job=False,
            size=size,
            reserved_together=reserved_together,
        )
        self._ended: asyncio.Future[AgentEnd] | None = None
        self._oom_kills = 0
        self._job: JobDir | None = None
        self._clearing: asyncio.Future[None] | None = None
        self._idle: asyncio.TimerHandle | None = None
        self.was_asked = False
        """Whether somebody has called it."""

    async def state(self) -> bytes:
        """Return what was started last: `AgentStarted`, as JSON."""
        self._touch()
        return msgspec.json.encode(self._started)

    async def start(self, launch: str, order: bytes) -> bytes:
        """Start an agent unless that was done for this launch already: `AgentStarted`.

        Args:
            launch: its name.
            order: an `AgentOrder`, as JSON.

        Raises:
            ConfigError: this machine lacks what the job needs.
        """
        self._touch()
        wanted = msgspec.json.decode(order, type=AgentOrder)
        if self._clearing is None:
            # Beside the start, which it would hold up where a machine has lost its power. Nodes of
            # the same job may start here in the same moment, so what they left is theirs.
            loop = asyncio.get_running_loop()
            self._clearing = loop.run_in_executor(None, _clear, wanted.job_id)
        if launch != self._started.launch:
            self._start(launch, wanted)
        return msgspec.json.encode(self._started)

    async def wait(self, launch: str) -> bytes:
        """Wait until the agent of a launch has ended: `AgentEnd`, as JSON."""
        if launch != self._started.launch or self._ended is None:
            return msgspec.json.encode(AgentEnd(why="its launcher began again"))
        return msgspec.json.encode(await asyncio.shield(self._ended))

    async def stop(self, grace_s: float = 0.0) -> bool:
        """End the agent and all that it started, and remove what the node had here.

        Returns:
            Whether nothing of it runs any more; False: a process does not even end when killed.
        """
        job, ended = self._job, self._ended
        if job is None or ended is None:
            return True
        if grace_s > 0 and not ended.done():
            kill_quietly(self._started.pid, signal.SIGTERM)
            await asyncio.wait({ended}, timeout=grace_s)
        # First the agent, whose end is awaited; what it has started is found by its environment.
        if self._kill_agent():
            await asyncio.wait({ended}, timeout=GONE_S)
        deadline_s = asyncio.get_running_loop().time() + GONE_S
        while found := find_job_processes(job.path):
            for process in found:
                kill_quietly(process.pid, signal.SIGKILL)
            if asyncio.get_running_loop().time() > deadline_s:
                break
            await asyncio.sleep(0.01)
        await asyncio.to_thread(remove_joined, job)
        return not found

    def _kill_agent(self) -> bool:
        """Kill the agent that was started last; False: it has ended."""
        runs = self._ended is not None and not self._ended.done()
        if runs:
            kill_quietly(self._started.pid)
        return runs

    def _start(self, launch: str, order: AgentOrder) -> None:
        check_script(order.spec)
        # The agent could still come up, and take the node from the next one.
        self._kill_agent()
        spec = of_this_machine(self._of_this_place(order), order.ticket.address)
        path = joined_directory(order.job_id, order.node)
        # What runs there goes on: the new agent takes it over, as on the master's machine. What is
        # left of a run before a resume has another secret, with which it reaches nobody.
        if not _has_secret(path, order):
            for process in find_job_processes(path):
                kill_quietly(process.pid, signal.SIGKILL)
        self._job = make_directory(path, spec, order.ticket)
        words, theirs = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._oom_kills = machine_oom_kills()
        arguments = ["--job-dir", str(path), last_words.OPTION, str(theirs)]
        arguments += ["--launch", launch, "--node", order.node]
        log = self._job.logs / "agents.log"
        try:
            shell, pid = start_grandchild(
                "paceline.agent", arguments, path, log, _environment(order), [theirs]
            )
        finally:
            os.close(theirs)
        self._started = replace(
            self._started,
            launch=launch,
            host=socket.gethostname(),
            pid=pid,
            sees_job=_has_secret(Path(order.path), order),
        )
        self._ended = asyncio.get_running_loop().create_future()
        ended = functools.partial(self._on_end, self._ended, shell, words)
        ProcessWatch(shell.pid, ended)
        self._touch()

    def _of_this_place(self, order: AgentOrder) -> JobSpec:
        """Return the spec with the size of this place, which that of the order may exceed."""
        role = role_of(order.node)
        sized = order.spec.of_role(role).sized(self._started.size)
        return replace(order.spec, **{f"{role}s": sized})

    def _on_end(
        self,
        ended: "asyncio.Future[AgentEnd]",
        shell: "subprocess.Popen[bytes]",
        words: int,
    ) -> None:
        code, said = code_of_shell(shell.wait()), last_words.read(words)
        os.close(words)
        oom_kills = machine_oom_kills() - self._oom_kills
        ended.set_result(end_of(code, said.reason if said else "", oom_kills=oom_kills))
        if os.getppid() != self._parent:
            self._end()  # Ray is dead here: nobody could ask for anything any more
        self._touch()

    def _touch(self) -> None:
        """Put off the end that comes when nobody asks any more, and no agent runs."""
        self.was_asked = True
        if self._idle is not None:
            self._idle.cancel()
        runs = self._ended is not None and not self._ended.done()
        loop = asyncio.get_running_loop()
        self._idle = None if runs else loop.call_later(IDLE_S, self._end)


def _environment(order: AgentOrder) -> dict[str, str]:
    """Return the environment of an agent: what the raylet was started with, but for Ray's own.

    Where a node asks for no GPU, Ray leaves all of its machine visible.
    """
    found = {name: value for name, value in os.environ.items() if not name.startswith(_OF_RAY)}
    gpus = order.spec.of_role(role_of(order.node)).gpus
    return found if gpus else {**found, "CUDA_VISIBLE_DEVICES": ""}


def _clear(job_id: str) -> None:
    """Remove what nodes of other jobs left here that are gone, as `paceline agent --join` does."""
    with contextlib.suppress(OSError):
        clear_joined(but=job_id)


def _has_secret(path: Path, order: AgentOrder) -> bool:
    """Tell whether a job directory has the job's secret, as no other job's has."""
    with contextlib.suppress(OSError):
        return JobDir(path).secret() == order.ticket.secret.encode()
    return False

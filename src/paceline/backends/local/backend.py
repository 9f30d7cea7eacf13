"""Nodes as processes of this machine: one agent each, in a session of its own.

Agents outlive the master that launched them; the next one adopts them by process number.
"""

import asyncio
import functools
import os
import secrets
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterable

import msgspec

from paceline.base.jobdir import JobDir
from paceline.base.processes import (
    ProcessWatch,
    find_job_processes,
    kill_quietly,
    start_detached,
)
from paceline.protocol.nodes.platform import AgentGone, AnyWord
from paceline.wire import last_words
from paceline.wire.spec import JobSpec


class LaunchedAgent(msgspec.Struct, eq=False):
    """The newest agent of a node."""

    node: str
    token: str
    asked_s: float
    started_s: float | None = None
    timer: asyncio.TimerHandle | None = None
    pid: int = 0
    child: subprocess.Popen[bytes] | None = None
    """None: not started yet, or by a former master."""
    words: int = -1
    """The end of the pipe by which the child says what it dies of."""
    came_up: bool = False
    """Whether the agent has spoken."""
    older: tuple[str, int] | None = None
    """Launch and PID of an agent that answered while this one was starting; None: none did."""


class LocalBackend:
    """`paceline.master.ports.Backend` on this machine; create it in a running event loop."""

    def __init__(self, job: JobDir, pending_s: Callable[[], float] = lambda: 0.0) -> None:
        """``pending_s``: how long a launch of now is held back, as a busy cluster would."""
        self._job = job
        self._pending_s = pending_s
        self._loop = asyncio.get_running_loop()
        self._launches: dict[str, LaunchedAgent] = {}
        self._exits: asyncio.Queue[AgentGone] = asyncio.Queue()

    #: The agents of this machine change the control groups of their nodes.
    resizes_live = True

    def resized(self, spec: JobSpec) -> None:
        """Do nothing more: each agent reads the spec in the job's directory when it starts."""

    def launch(self, node: str, *, may_move: bool = False) -> None:
        """Start an agent now, or when it has waited as long as the spec says."""
        former = self._launches.get(node)
        if former and former.child and not former.came_up:
            # Both come up: B takes the node's lock first, then A, which is older, takes it from B.
            former.child.kill()
        self._forget(node)
        self._launches[node] = launch = LaunchedAgent(
            node, secrets.token_hex(8), asked_s=self._loop.time()
        )
        launch.timer = self._loop.call_later(self._pending_s(), self._start, launch)

    def adopt(self, node: str, launch: str, pid: int) -> None:
        """Watch an agent by its process number; nothing where it is watched already.

        Nor where a newer one is on its way, which ends this one when it comes: if that were news,
        yet another agent would be launched, and so on.
        """
        known = self._launches.get(node)
        if known and (known.token, known.pid) == (launch, pid):
            known.came_up = True
            return
        if known and known.child and not known.came_up and known.child.poll() is None:
            known.older = launch, pid
            return
        self._forget(node)
        now_s = self._loop.time()
        adopted = LaunchedAgent(node, launch, asked_s=now_s, started_s=now_s, pid=pid)
        self._launches[node] = adopted
        self._watch(self._launches[node])

    def stop(self, node: str) -> None:
        """Kill the agent and all its processes."""
        self._forget(node)
        for process in find_job_processes(self._job.path):
            is_agent = process.runs("paceline.agent") and process.argv[-1] == node
            if is_agent or process.node == node:
                kill_quietly(process.pid, signal.SIGKILL)

    async def watch(self) -> AsyncIterator[AnyWord]:
        """Ends of agents, as they happen."""
        while True:
            yield await self._exits.get()

    def left_running(self, nodes: Iterable[str]) -> set[str]:
        """Return those nodes whose agent runs on this machine."""
        agents = (p for p in find_job_processes(self._job.path) if p.runs("paceline.agent"))
        return {agent.argv[-1] for agent in agents}.intersection(nodes)

    def pending_s(self) -> float:
        """Return what the spec says for now; `launch` holds to it."""
        return self._pending_s()

    def room(self, role: str) -> None:
        """Return None: nobody counts room, since processes share the machine."""

    def waited_s(self, node: str) -> float:
        """Seconds since the launch was asked for, until the agent was started."""
        launch = self._launches.get(node)
        if launch is None:
            return 0.0
        until_s = self._loop.time() if launch.started_s is None else launch.started_s
        return until_s - launch.asked_s

    async def close(self) -> None:
        """Do nothing more: the supervisor ends what is left of the job."""

    def _forget(self, node: str) -> None:
        """Forget a launch: its end, if that is still to come, will be nobody's news."""
        launch = self._launches.pop(node, None)
        if launch and launch.timer:
            launch.timer.cancel()

    def _start(self, launch: LaunchedAgent) -> None:
        launch.started_s = self._loop.time()
        log = self._job.logs / "agents.log"
        launch.words, theirs = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        words = [last_words.OPTION, str(theirs)]
        words += ["--launch", launch.token]
        # The node comes last: it is what a process is known by.
        arguments = ["--job-dir", str(self._job.path), *words, "--node", launch.node]
        try:
            launch.child = start_detached(
                "paceline.agent", arguments, self._job.path, log, descriptors=[theirs]
            )
        except OSError as error:
            os.close(launch.words)
            self._exits.put_nowait(AgentGone(node=launch.node, reason=str(error)))
            return
        finally:
            os.close(theirs)
        launch.pid = launch.child.pid
        self._watch(launch)

    def _watch(self, launch: LaunchedAgent) -> None:
        ProcessWatch(launch.pid, functools.partial(self._ended, launch))

    def _ended(self, launch: LaunchedAgent) -> None:
        code, said = launch.child.wait() if launch.child else None, ""
        if launch.child:
            words = last_words.read(launch.words)
            said = words.reason if words else ""
            os.close(launch.words)
        if self._launches.get(launch.node) is launch:
            reason = said or ("" if code is None else f"exit code {code}")
            gone = AgentGone(node=launch.node, launch=launch.token, reason=reason)
            self._exits.put_nowait(gone)
            if launch.older is not None:
                self.adopt(launch.node, *launch.older)


def prepare(spec: JobSpec) -> JobSpec:
    """Fill in what this machine asks of a spec: nothing."""
    return spec


def open_backend(job: JobDir, spec: JobSpec) -> LocalBackend:
    """The backend of a job, as its spec asks for it; call it in a running event loop."""
    launched_s = job.launched_s()
    return LocalBackend(job, lambda: spec.pending_at(time.time() - launched_s))

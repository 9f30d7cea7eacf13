"""Nodes as processes of this machine: one agent each, in a session of its own.

Agents outlive the master that launched them; the next one adopts them by process number.
"""

import asyncio
import functools
import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterable

import msgspec

from paceline.base.cgroups import machine_oom_kills
from paceline.base.jobdir import JobDir
from paceline.base.processes import (
    FoundProcess,
    ProcessWatch,
    find_job_processes,
    kill_quietly,
    start_detached,
)
from paceline.protocol.nodes.ends import AgentEnd, end_of
from paceline.protocol.nodes.platform import AgentGone, AnyWord, NodeStopped, PlaceTaken
from paceline.wire import last_words
from paceline.wire.places import AskedPlace, Resized, Resizing, Room
from paceline.wire.spec import JobSpec

LOOK_S = 0.02
"""Seconds between looks at processes that were killed."""


class LaunchedAgent(msgspec.Struct, eq=False):
    """The newest agent of a node."""

    node: str
    token: str
    timer: asyncio.TimerHandle | None = None
    pid: int = 0
    child: subprocess.Popen[bytes] | None = None
    """None: not started yet, or by a former master."""
    words: int = -1
    """The end of the pipe by which the child says what it dies of."""
    oom_kills: int = 0
    """Processes that the kernel had killed for memory when it was started."""
    came_up: bool = False
    """Whether the agent has spoken."""
    older: tuple[str, int] | None = None
    """Launch and PID of an agent that answered while this one was starting; None: none did."""


class StopUnderWay(msgspec.Struct, eq=False):
    """A node that is stopped, and of which something may still run."""

    word: NodeStopped
    kill_at_s: float
    timer: asyncio.TimerHandle | None = None


class LocalBackend:
    """`paceline.master.ports.Backend` on this machine; create it in a running event loop."""

    def __init__(self, job: JobDir, pending_s: Callable[[], float] = lambda: 0.0) -> None:
        """``pending_s``: how long a launch of now is held back, as a busy cluster would."""
        self._job = job
        self._pending_s = pending_s
        self._loop = asyncio.get_running_loop()
        self._launches: dict[str, LaunchedAgent] = {}
        self._stops: dict[str, StopUnderWay] = {}
        self._words: asyncio.Queue[AnyWord] = asyncio.Queue()

    def resize(self, node: str, place: AskedPlace) -> Resizing:
        """Do nothing more: the agents of this machine change the control groups of their nodes."""
        return Resized()

    def launch(self, node: str, place: AskedPlace, token: str, *, may_move: bool = False) -> None:
        """Start an agent now, or when it has waited as long as the spec says.

        A stop of the node ends here, whatever still runs: it would kill this agent, too.
        """
        self._end_stop(node)
        former = self._launches.get(node)
        if former and former.child and not former.came_up:
            # Both come up: B takes the node's lock first, then A, which is older, takes it from B.
            former.child.kill()
        self._forget(node)
        self._launches[node] = launch = LaunchedAgent(node, token)
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
        self._launches[node] = LaunchedAgent(node, launch, pid=pid)
        self._watch(self._launches[node])

    def stop(self, node: str, grace_s: float = 0.0) -> None:
        """Terminate the agent, which ends its process; after the grace, kill all of the node."""
        launch, before = self._forget(node), self._end_stop(node)
        token = launch.token if launch else ""
        if grace_s > 0:
            for process in self._processes_of(node):
                if process.runs("paceline.agent"):
                    kill_quietly(process.pid, signal.SIGTERM)
        stop = StopUnderWay(NodeStopped(node=node, launch=token), self._loop.time() + grace_s)
        if before is not None:  # one word about both
            stop.kill_at_s = min(stop.kill_at_s, before.kill_at_s)
            stop.word = stop.word if token else before.word
        self._stops[node] = stop
        self._end(stop)

    def _end(self, stop: StopUnderWay) -> None:
        """Say that nothing of a node runs any more, once that is so."""
        node = stop.word.node
        found = self._processes_of(node)
        if self._loop.time() >= stop.kill_at_s:
            for process in found:
                kill_quietly(process.pid, signal.SIGKILL)
        if found:
            stop.timer = self._loop.call_later(LOOK_S, self._end, stop)
        else:
            del self._stops[node]
            self._words.put_nowait(stop.word)

    def _end_stop(self, node: str) -> StopUnderWay | None:
        """Look no more for what is left of a node."""
        stop = self._stops.pop(node, None)
        if stop and stop.timer:
            stop.timer.cancel()
        return stop

    def _processes_of(self, node: str) -> list[FoundProcess]:
        """The agent of a node, and all that it has started."""
        return [
            process
            for process in find_job_processes(self._job.path)
            if process.node == node or (process.runs("paceline.agent") and process.argv[-1] == node)
        ]

    async def watch(self) -> AsyncIterator[AnyWord]:
        """Yield what becomes of agents, as it happens."""
        while True:
            yield await self._words.get()

    async def picture(self, nodes: Iterable[str]) -> set[str]:
        """Return those nodes whose agent runs on this machine."""
        agents = (p for p in find_job_processes(self._job.path) if p.runs("paceline.agent"))
        return {agent.argv[-1] for agent in agents}.intersection(nodes)

    def room(self, place: AskedPlace) -> Room:
        """Say how long the spec holds launches back; processes share the machine."""
        return Room(pending_s=self._pending_s())

    async def close(self) -> None:
        """Do nothing more: the supervisor ends what is left of the job."""

    def _forget(self, node: str) -> LaunchedAgent | None:
        """Forget a launch: its end, if that is still to come, will be nobody's news."""
        launch = self._launches.pop(node, None)
        if launch and launch.timer:
            launch.timer.cancel()
        return launch

    def _start(self, launch: LaunchedAgent) -> None:
        launch.oom_kills = machine_oom_kills()
        self._words.put_nowait(PlaceTaken(node=launch.node))
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
            gone = AgentGone(node=launch.node, end=AgentEnd(why=str(error)))
            self._words.put_nowait(gone)
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
            end = end_of(code, said, oom_kills=machine_oom_kills() - launch.oom_kills)
            gone = AgentGone(node=launch.node, launch=launch.token, end=end)
            self._words.put_nowait(gone)
            if launch.older is not None:
                self.adopt(launch.node, *launch.older)


def open_backend(job: JobDir, spec: JobSpec) -> LocalBackend:
    """The backend of a job, as its spec asks for it; call it in a running event loop."""
    launched_s = job.launched_s()
    return LocalBackend(job, lambda: spec.pending_at(time.time() - launched_s))

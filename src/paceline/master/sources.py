"""Sources of the master's facts: streams of agents, calls, the backend, the clock."""

import asyncio
from collections.abc import Coroutine

from paceline.master.facts import Asked, FromAgent, FromPlatform, StopAsked, StreamEnded, Tick
from paceline.master.inbox import Inbox
from paceline.master.job_files import JobFiles
from paceline.master.listener import MasterListener
from paceline.master.parts import MasterParts
from paceline.protocol.nodes.node import BROKEN_RETURN_S, RETURN_S
from paceline.wire.client import Call, Done, FileCall, Reply, StopJob
from paceline.wire.control import AgentStream

TICK_S = 0.2
HANDLED_S = 0.01
"""Seconds left for the end of a stream to be handled."""
HAS_ENDED = "the job has ended"


class Sources:
    """The listener and the tasks of one master; they only put facts into its inbox."""

    def __init__(self, parts: MasterParts, inbox: Inbox) -> None:
        self._backend, self._inbox = parts.backend, inbox
        self._door = MasterListener(parts.job, parts.spec, self._on_agent, self._on_call)
        self._files = JobFiles(parts.job)
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    async def open(self) -> None:
        """Listen from now on.

        Raises:
            ConfigError: the path of the run directory is too long for a socket.
            TransientError: the host has no free port.
        """
        await self._door.open()

    def begin(self) -> None:
        """Watch the backend and the clock from now on."""
        self.spawn(self._watch_backend())
        self.spawn(self._keep_time())

    def spawn(self, work: Coroutine[None, None, None]) -> None:
        """Run this beside the master's task, until `close`."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def refuse_calls(self) -> None:
        """The job has ended: answer all calls so, those that wait, too."""
        self._closed = True
        for fact in self._inbox.facts:
            if isinstance(fact, Asked):
                fact.reply(Done(error=HAS_ENDED))

    async def close(self) -> None:
        """End all tasks, and all streams once what is queued is written."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._files.close()
        await self._door.close()

    async def _on_agent(self, stream: AgentStream) -> None:
        async for message in stream:
            self._inbox.put(FromAgent(stream, message))
        self._inbox.put(FromAgent(stream, StreamEnded()))
        loop = asyncio.get_running_loop()
        for wait_s in (BROKEN_RETURN_S, RETURN_S):  # not at the next tick: others wait for that
            loop.call_later(wait_s + HANDLED_S, self._inbox.put, Tick())

    async def _on_call(self, call: Call) -> Reply:
        if isinstance(call, FileCall):
            return await self._files.answer(call)
        if self._closed:
            if isinstance(call, StopJob) and call.now:
                self._inbox.put(StopAsked())  # the last cut is not waited for
                return Done()
            return Done(error=HAS_ENDED)
        answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._inbox.put(Asked(call, answer))
        return await answer

    async def _watch_backend(self) -> None:
        async for word in self._backend.watch():
            self._inbox.put(FromPlatform(word))

    async def _keep_time(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self._inbox.put(Tick())

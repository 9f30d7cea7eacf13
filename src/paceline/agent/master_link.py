"""The agent's stream to the master, made again whenever it is lost."""

import asyncio
import logging
import time
from collections.abc import Callable

from paceline.base.errors import PacelineError
from paceline.base.jobdir import JobDir
from paceline.wire.control import ControlClient, MasterStream
from paceline.wire.messages.agent import AgentDown, AgentUp, FromProcess
from paceline.wire.messages.group import Progress

RETRY_S = 0.05
"""Seconds before the second attempt to reach the master; doubles up to RETRY_MAX_S."""
RETRY_MAX_S = 0.2
"""Most seconds between two attempts: agents lie idle without a master."""
MAX_QUEUED = 10_000
"""Messages for a master that does not read; more are dropped, as without a master."""
BEHIND = 4
"""Messages that wait for a master or a line that is slow: what is not urgent waits, too."""

_log = logging.getLogger(__name__)


class MasterLink:
    """One agent's stream.

    Args:
        job: says where the master listens.
        node: of the agent.
        on_connected: called with each new stream; sends what a master must know.
        on_message: called with what the master says.
    """

    def __init__(
        self,
        job: JobDir,
        node: str,
        on_connected: Callable[[], None],
        on_message: Callable[[AgentDown], None],
    ) -> None:
        self._job, self._node = job, node
        self._on_connected, self._on_message = on_connected, on_message
        self._stream: MasterStream | None = None
        #: The newest attempt to make one.
        self._attempt: asyncio.Task[MasterStream] | None = None
        #: Word of a member on its progress that goes with the next message, and the newest sent.
        self._waits: FromProcess | None = None
        self._progress: Progress | None = None
        self._told = ""
        self._heard_s = time.monotonic()

    def send(self, message: AgentUp) -> None:
        """Send to the master that listens now; without one it is lost.

        A member's further progress goes with the next message, the report of its node at the
        latest: what a thousand nodes send costs the master by the batch more than by the message.
        """
        if self._is_further_progress(message):
            return
        waits, self._waits = self._waits, None
        for each in (waits, message):
            if each is not None and self._stream and self._stream.num_queued < MAX_QUEUED:
                self._stream.send_nowait(each)

    def _is_further_progress(self, message: AgentUp) -> bool:
        """Tell whether it is a word on progress that can wait, and let it wait."""
        if not isinstance(message, FromProcess) or not isinstance(message.body, Progress):
            return False
        before, self._progress = self._progress, message.body
        if before is None or not before.is_like(message.body):
            return False
        self._waits = message
        return True

    def drop(self) -> None:
        """End the stream, or the attempt to make one, as the master is elsewhere.

        Also that of a master that answers nothing; `follow` makes another.
        """
        if self._stream is not None:
            self._stream.drop()
        elif self._attempt is not None:
            self._attempt.cancel()

    @property
    def is_behind(self) -> bool:
        """Whether the master is away, or reads more slowly than is sent."""
        return self._stream is None or self._stream.num_queued > BEHIND

    def silent_s(self) -> float:
        """Return the seconds since the last call that found a master; 0: there is one now."""
        now_s = time.monotonic()
        if self._stream is not None:
            self._heard_s = now_s
        return now_s - self._heard_s

    async def flush(self, within_s: float) -> None:
        """Give what was sent last a moment to arrive; the master also sees the stream end."""
        if self._stream:
            if self._waits is not None:
                self._stream.send_nowait(self._waits)
            await self._stream.say_last_words(within_s)

    async def follow(self) -> None:
        """Stay connected, and hear the master; never returns."""
        wait_s = RETRY_S
        while True:
            try:
                stream = await self._try()
            except (PacelineError, OSError) as error:
                self._tell_once(f"master_unreachable error={error}")
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, RETRY_MAX_S)
                continue
            wait_s = RETRY_S
            if stream is not None:
                await self._hear(stream)
                await asyncio.sleep(RETRY_S)

    async def _try(self) -> MasterStream | None:
        """Connect; None: `drop` has ended the attempt."""
        self._attempt = attempt = asyncio.create_task(self._connect())
        try:
            await asyncio.wait({attempt})
        finally:
            attempt.cancel()
        return None if attempt.cancelled() else attempt.result()

    async def _connect(self) -> MasterStream:
        return await ControlClient.to(self._job).connect_agent()

    async def _hear(self, stream: MasterStream) -> None:
        self._tell_once(f"master_connected address={stream.peer}")
        self._stream = stream
        self._waits = self._progress = None
        self._on_connected()
        try:
            async for message in stream:
                self._on_message(message)
        except PacelineError as error:
            self._tell_once(f"master_lost error={error}")
        finally:
            self._stream = None
            await stream.close()

    def _tell_once(self, text: str) -> None:
        """Log, but not the same thing again and again."""
        if text != self._told:
            self._told = text
            _log.info("%s node=%s", text, self._node)

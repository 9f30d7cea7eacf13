"""Where the master is reached: its listener, and the address that others read in the job directory.

Agents read the address at each attempt; only those of other hosts know none but the first, so a
master listens where the one before it did, if it can.
"""

import logging
from collections.abc import Awaitable, Callable

from paceline.base.errors import TransientError
from paceline.base.jobdir import JobDir
from paceline.wire.client import Call, Reply
from paceline.wire.control import AgentStream, ControlServer

_log = logging.getLogger(__name__)


class MasterListener:
    """The listener of one job's master."""

    def __init__(
        self,
        job: JobDir,
        host: str,
        on_agent: Callable[[AgentStream], Awaitable[None]],
        on_call: Callable[[Call], Awaitable[Reply]],
    ) -> None:

        self._job, self._host = job, host
        self._server = ControlServer(job.secret(), on_agent, on_call)

    async def open(self) -> None:
        """Listen, and write down where.

        Raises:
            TransientError: the host has no free port.
        """
        port = await self._listen()
        fresh = self._job.master_address.with_suffix(".new")
        fresh.write_text(f"{self._host}:{port}\n")
        fresh.replace(self._job.master_address)

    async def close(self) -> None:
        """Stop listening and end all streams, once what is queued is written."""
        await self._server.stop()

    async def _listen(self) -> int:
        known = self._known_port()
        if known:
            try:
                return await self._server.start(self._host, known)
            except TransientError as error:
                _log.warning("port_taken port=%d error=%s: taking another", known, error)
        return await self._server.start(self._host)

    def _known_port(self) -> int:
        """The port of the master before this one; 0: there was none."""
        path = self._job.master_address
        return int(path.read_text().strip().rpartition(":")[2]) if path.exists() else 0

"""Listener of the master: its socket in the run directory, and a port for other machines.

Only a job that spans machines has a port. Its address is in the job directory. Agents of other
hosts know none but the first address, so a master listens where the one before it did, if it can.
"""

import logging
from collections.abc import Awaitable, Callable

from paceline.base.errors import TransientError
from paceline.base.files import write_file
from paceline.base.jobdir import JobDir
from paceline.wire.client import Call, Reply
from paceline.wire.control import AgentStream, ControlServer

_log = logging.getLogger(__name__)


class MasterListener:
    """The listener of one job's master.

    Args:
        job: the job's directory.
        host: address of this machine for others; empty: the job does not span machines.
        on_agent: see `ControlServer`.
        on_call: the same.
    """

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
            ConfigError: the path of the run directory is too long for a socket.
            TransientError: the host has no free port.
        """
        path, address = self._job.master_socket, self._job.master_address
        if not self._host:
            await self._server.start(path=path)
            address.unlink(missing_ok=True)
            return
        port = await self._listen_at(self._known_port())
        write_file(address, f"{self._host}:{port}\n".encode())

    async def close(self) -> None:
        """Stop listening and end all streams, once what is queued is written."""
        await self._server.stop()

    async def _listen_at(self, known: int) -> int:
        path = self._job.master_socket
        if known:
            try:
                return await self._server.start(path=path, host=self._host, port=known)
            except TransientError as error:
                _log.warning("port_taken port=%d error=%s: taking another", known, error)
        return await self._server.start(path=path, host=self._host)

    def _known_port(self) -> int:
        """The port of the master before this one; 0: there was none."""
        path = self._job.master_address
        return int(path.read_text().strip().rpartition(":")[2]) if path.exists() else 0

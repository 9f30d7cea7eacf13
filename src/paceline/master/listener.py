"""Listener of the master: its socket in the run directory, and a port for other machines.

Only a job that spans machines has a port. Its address is in the job directory, and in the ticket
there. Agents of other hosts know none but the first address, so a master listens where the one
before it did, if it can. It shows the same certificate there.
"""

import functools
import logging
from collections.abc import Awaitable, Callable

from paceline.base.errors import TransientError
from paceline.base.files import write_file
from paceline.base.jobdir import JobDir
from paceline.jobs.tickets import write_ticket
from paceline.wire.client import Call, Reply
from paceline.wire.control import AgentStream, ControlServer
from paceline.wire.spec import JobSpec

_log = logging.getLogger(__name__)


class MasterListener:
    """The listener of one job's master.

    Args:
        job: the job's directory.
        spec: of the job; says whether it spans machines, and how its port is protected.
        on_agent: see `ControlServer`.
        on_call: the same.
    """

    def __init__(
        self,
        job: JobDir,
        spec: JobSpec,
        on_agent: Callable[[AgentStream], Awaitable[None]],
        on_call: Callable[[Call], Awaitable[Reply]],
    ) -> None:
        self._job, self._host = job, spec.listen if spec.spans_machines else ""
        host, _, port = (spec.advertise or "").rpartition(":")
        self._known_as = host or self._host
        self._fixed_port = int(port or 0)
        self._is_encrypted = spec.control_plane.encryption == "tls"
        self._server = ControlServer(job.secret(), on_agent, on_call)

    async def open(self) -> None:
        """Listen, and write down where.

        Raises:
            ConfigError: the path of the run directory is too long for a socket.
            TransientError: the host has no free port, or the port that the spec names is taken.
        """
        path, address = self._job.master_socket, self._job.master_address
        if not self._host:
            await self._server.start(path=path)
            address.unlink(missing_ok=True)
            self._job.ticket.unlink(missing_ok=True)
            return
        port = await self._listen_at(self._known_port())
        write_file(address, f"{self._known_as}:{port}\n".encode())
        write_ticket(self._job)

    async def close(self) -> None:
        """Stop listening and end all streams, once what is queued is written."""
        await self._server.stop()

    async def _listen_at(self, known: int) -> int:
        start = functools.partial(
            self._server.start,
            path=self._job.master_socket,
            host=self._host,
            identity=self._identity() if self._is_encrypted else b"",
        )
        if self._fixed_port:
            return await start(port=self._fixed_port)
        if known:
            try:
                return await start(port=known)
            except TransientError as error:
                _log.warning("port_taken port=%d error=%s: taking another", known, error)
        return await start()

    def _identity(self) -> bytes:
        """Return what the master shows; the first one makes it."""
        if not self._job.tls.exists():
            # Imported late, with cryptography: see there.
            from paceline.jobs.authority import make_authority

            make_authority(self._job, self._host)
        return self._job.master_identity.read_bytes()

    def _known_port(self) -> int:
        """The port of the master before this one; 0: there was none."""
        path = self._job.master_address
        return int(path.read_text().strip().rpartition(":")[2]) if path.exists() else 0

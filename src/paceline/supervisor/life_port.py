"""A port that takes connections as long as the supervisor lives, so that other machines can tell.

Agents that keep the job's journal elsewhere start the next master when this machine is lost. A
master that was killed is started again here, which may take long on a busy machine; while somebody
is there to do that, they wait. Nothing is read from a connection, and nothing is sent.
"""

import contextlib
import logging
import socket

from paceline.base.errors import PacelineError
from paceline.base.files import write_file
from paceline.base.jobdir import JobDir
from paceline.wire.spec import LOOPBACK, load

BACKLOG = 64

_log = logging.getLogger(__name__)


class LifePort:
    """The port of one supervisor; none, where no other machine can take the job over."""

    def __init__(self, job: JobDir) -> None:
        self._socket: socket.socket | None = None
        with contextlib.suppress(OSError, PacelineError):  # the master says what is wrong
            spec = load(job.spec)
            if spec.listen != LOOPBACK and spec.is_on_one_machine:
                self._socket = _listening(spec.listen, job)

    def look(self) -> None:
        """Take what has connected, and let it go."""
        for _ in range(BACKLOG):  # not for ever: who connects all the time must not hold it up
            try:
                if self._socket is not None:
                    self._socket.accept()[0].close()
            except OSError:  # nobody
                return

    def close(self) -> None:
        """Take no connection any more."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _listening(host: str, job: JobDir) -> socket.socket:
    """Listen where the supervisor before did, and else at any port."""
    try:
        before = int(job.life_address.read_text().rpartition(":")[2])
    except (OSError, ValueError):
        before = 0
    found = socket.socket()
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((host, before))
    except OSError:
        _log.info("life_port_taken port=%d", before)
        found.bind((host, 0))
    found.listen(BACKLOG)
    found.setblocking(False)
    write_file(job.life_address, f"{host}:{found.getsockname()[1]}\n".encode())
    return found

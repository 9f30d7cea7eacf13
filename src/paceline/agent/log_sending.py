"""Sends what a node on another machine prints to the master, which has it in the job's directory.

The log itself stays as on the master's machine: the node's processes write it, and the agent only
reads. Nothing waits for a line, and an agent without a master goes on later.
"""

import logging
import os
import socket
import threading
from pathlib import Path

from paceline.agent.master_link import MasterLink
from paceline.base.log_cap import LEAST_BYTES, LogCap
from paceline.protocol.nodes.log_lines import LogPart, LogSending
from paceline.wire.messages.agent import SendLog

_log = logging.getLogger(__name__)


class LogSender:
    """The log of one node, which is kept from growing too large, and sent where it is far away.

    Args:
        path: of the log.
        node: the agent's.
        cap: cuts it.
        master: hears of it.
    """

    def __init__(self, path: Path, node: str, cap: LogCap, master: MasterLink) -> None:
        self._path, self._cap, self._master = path, cap, master
        self._sending = LogSending(node)
        #: Held while the log is cut, or read: a cut moves what a reader looks for.
        self._still = threading.Lock()
        #: Whether the master wants the log, and has said how far it is: none does where the log is
        #: in the job's directory.
        self.is_asked = False
        self.source = f"{socket.gethostname()}:{path}"
        """Where the log is, for the master and for people."""

    def connected(self) -> None:
        """Send nothing on a new stream before its master has said what it has.

        What the former stream has lost would be left out of the log for good.
        """
        self.is_asked = False

    def told(self, order: SendLog) -> None:
        """Begin to send, or go on, as this master says."""
        self.is_asked = True
        with self._still:
            self._sending.told(order, self._size())

    @property
    def may_be_large(self) -> bool:
        """Whether there is something to `look` at; costs a hundredth of a look in a thread."""
        return self._size() > LEAST_BYTES

    def look(self) -> None:
        """Cut the log if it is too large; takes the disk a while, so in a thread."""
        with self._still:
            self._sending.cut(self._cap.look())

    def send(self, now_s: float) -> None:
        """Send what is due."""
        waits = not self.is_asked or self._master.is_behind
        if not waits and self._still.acquire(blocking=False):
            try:
                self._send_part(self._sending.due(self._size(), now_s), now_s)
            finally:
                self._still.release()

    def send_last(self, now_s: float) -> None:
        """Send what was printed last, before the master hears how its process has ended."""
        if not self.is_asked:
            return
        with self._still:
            while self._send_part(self._sending.due(self._size(), now_s, ends=True), now_s):
                pass

    def _send_part(self, part: LogPart | None, now_s: float) -> bool:
        """Send a part of the log; False: nothing was sent."""
        if part is None:
            return False
        try:
            with self._path.open("rb") as file:
                file.seek(part.offset)
                data = file.read(part.num_bytes)
        except OSError as error:
            _log.warning("log_not_read path=%s error=%s", self._path, error.strerror)
            return False
        lines = self._sending.take(part, data, now_s)
        if lines is not None:
            self._master.send(lines)
        return lines is not None

    def _size(self) -> int:
        try:
            return os.stat(self._path).st_size
        except OSError:
            return 0  # no process has begun

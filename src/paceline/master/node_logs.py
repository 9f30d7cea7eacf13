"""Logs of nodes on other machines, in the job's directory, where those of this machine are too.

Readers of a log there need not know where its node is. The file ``NODE.from`` beside a log says how
far it has come, for the next master.
"""

import contextlib
import logging
import os
import threading
import time
from pathlib import Path

import msgspec

from paceline.base.disk import describe
from paceline.base.log_cap import LogCap
from paceline.base.node_files import CHIEF
from paceline.master.parts import MasterParts
from paceline.protocol.nodes.log_lines import LogAddition, LogJoin, pace
from paceline.wire.control import AgentStream
from paceline.wire.messages.agent import AgentHello, LogLines

LOOK_S = 1.0
"""Seconds between looks at how large the logs are."""

_log = logging.getLogger(__name__)


class NodeLogs:
    """Adds what agents of other machines send.

    Args:
        parts: of the master.
    """

    def __init__(self, parts: MasterParts) -> None:
        self._folder, self._spec = parts.job.logs, parts.spec
        self._members = parts.members
        self._logs: dict[str, NodeLog] = {}
        self._grown: set[NodeLog] = set()
        self._next_s = 0.0
        self._looking: threading.Thread | None = None

    def hello(self, stream: AgentStream, hello: AgentHello) -> None:
        """A node's agent is there: have it send its log, if that is on another machine."""
        if not hello.log:
            return
        num_nodes = len(self._members.roster.nodes)
        log = self._logs.get(hello.node)
        if log is None:
            path = self._folder / f"{hello.node}.log"
            log = NodeLog(path, LogCap(path, self._spec.log_bytes, num_nodes))
            self._logs[hello.node] = log
        log.source = hello.log
        every_s = pace(num_nodes, is_chief=hello.node == CHIEF)
        stream.send_nowait(log.join.order(hello.log, every_s))

    def add(self, lines: LogLines) -> None:
        """Add lines of a node to its log."""
        log = self._logs.get(lines.node)
        if log is not None:
            log.add(lines)
            self._grown.add(log)

    def tick(self, now_s: float) -> None:
        """Note when logs grew, and cut those that are too large, now and then."""
        if now_s < self._next_s or not self._grown:
            return
        self._next_s = now_s + LOOK_S
        for log in self._grown:
            log.cap.times.note(time.time(), last=True)
        if self._looking is None or not self._looking.is_alive():
            # In a thread: the tail of a large log takes the disk a while.
            work = list(self._grown)
            self._looking = threading.Thread(
                target=_look, args=(work,), name="paceline-logs", daemon=True
            )
            self._looking.start()
            self._grown.clear()

    def close(self) -> None:
        """Note when the last lines came: the job has ended."""
        for log in self._grown:
            log.cap.times.note(time.time(), last=True)


class NodeLog:
    """The log of one node, as far as it is here."""

    def __init__(self, path: Path, cap: LogCap) -> None:
        self._path, self._beside = path, path.with_suffix(".from")
        self.cap = cap
        self.source = ""
        """Where the agent reads what it sends."""
        with contextlib.suppress(OSError):
            path.touch()  # as a process of this machine does before it prints
        self.join = _read(self._beside)
        self.join.recover(self._size())

    def add(self, lines: LogLines) -> None:
        """Add what of these lines is not there yet; a disk that refuses them is no reason to stop.

        The node is not held up either: what was refused is said to be missing by the next lines.
        """
        addition = self.join.add(self.source, lines, self._size())
        if addition is None:
            return
        written, why = 0, ""
        try:
            self._keep()
            written = self._append(addition)
        except OSError as error:
            why = describe(error, self._path)
        if written < len(addition.text):
            self.join.refused(addition, written)
            missing = len(addition.text) - written
            _log.warning("log_refused path=%s bytes=%d error=%s", self._path, missing, why)

    def _keep(self) -> None:
        descriptor = os.open(self._beside, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            # In place, in one call, and a reader takes the first line: a fresh file for each
            # message would cost the master more than the message.
            os.pwrite(descriptor, msgspec.json.encode(self.join) + b"\n", 0)
        finally:
            os.close(descriptor)

    def _append(self, addition: LogAddition) -> int:
        """Return how many bytes of the text the disk has taken."""
        with self._path.open("ab+", buffering=0) as file:
            head = self._note(addition.left_out).encode() if addition.left_out else b""
            size = file.seek(0, os.SEEK_END)
            if head and size:
                file.seek(size - 1)
                head = head if file.read(1) == b"\n" else b"\n" + head
            return max(0, (file.write(head + addition.text) or 0) - len(head))

    def _note(self, left_out: int) -> str:
        return (
            f"[paceline] {left_out:,} bytes are left out here: more was printed than is sent; the "
            f"whole log is at {self.source}\n"
        )

    def _size(self) -> int:
        try:
            return os.stat(self._path).st_size
        except FileNotFoundError:
            return 0


def _read(path: Path) -> LogJoin:
    """Read how far the log has come; a note that is damaged is as none."""
    try:
        return msgspec.json.decode(path.read_bytes().partition(b"\n")[0], type=LogJoin)
    except (FileNotFoundError, msgspec.MsgspecError):
        return LogJoin()


def _look(logs: list[NodeLog]) -> None:
    for log in logs:
        log.cap.look()

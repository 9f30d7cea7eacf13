"""How the log of a node on another machine reaches the job's directory. Pure.

Bytes are counted from the first one that was ever written to the log, also where its file was cut
since. The agent sends whole lines with the count of their first byte (`LogSending`), and the master
adds what it does not have yet (`LogJoin`). So nothing is acknowledged: a master that begins says on
each new stream how far it is, and the agent goes on from there. What comes from further on tells
how much was left out, whether the agent skipped it, or the disk refused it.

The rejected way is to have the agent write down what the master has. It would have to be told for
each message, and a master that dies between the log and the answer would get these lines twice.
"""

import msgspec

from paceline.wire.messages.agent import LogLines, SendLog

CHUNK_BYTES = 16 << 10
"""Most bytes of one message: a heartbeat behind it waits for no more on a slow line."""
EVERY_S = 0.25
"""Least seconds between two messages of an agent: 64 KiB a second."""
MESSAGES_PER_S = 200
"""Messages of all agents together, which cost the master some percent of a core."""
LAG_BYTES = 256 << 10
"""An agent that is further behind leaves out all but the newest lines."""
LAST_BYTES = 64 << 10
"""Most bytes that are sent at once when a process ends: why it did stands at the end."""


def pace(num_agents: int, *, is_chief: bool = False) -> float:
    """Seconds between two messages of an agent; the chief's lines are what a person looks at."""
    return EVERY_S if is_chief else max(EVERY_S, num_agents / MESSAGES_PER_S)


class LogPart(msgspec.Struct, frozen=True):
    """A part of a log's file, to be read and given to `LogSending.take`."""

    offset: int
    num_bytes: int
    skips: bool = False
    """Whether what comes before it is left out, so that it may begin within a line."""
    is_last: bool = False
    """Whether it ends where the file does, and more is not awaited: a line may lack its end."""


class LogSending:
    """Part of a growing log that an agent sends, and when; its file may be cut meanwhile.

    Args:
        node: the agent's.
    """

    def __init__(self, node: str) -> None:
        self._node = node
        self._every_s: float | None = None
        self._knows_base = False
        #: Counts of the first byte of the file, and of the first one that was not sent.
        self._base = self._next = 0
        self._next_s = 0.0
        #: Count of the end of a file in which no line had ended.
        self._no_line = -1

    def told(self, order: SendLog, size: int) -> None:
        """Go on from what the master has.

        Args:
            order: the master's; the first one says what an earlier agent of the node has counted.
            size: of the file.
        """
        if not self._knows_base:
            self._base += order.base
            self._knows_base = True
        self._every_s, self._next, self._no_line = order.every_s, order.upto, -1
        self._fit(size)

    def cut(self, num_bytes: int) -> None:
        """Take in that so many bytes at the beginning of the file are gone."""
        self._base += num_bytes
        self._no_line = -1

    def due(self, size: int, now_s: float, *, ends: bool = False) -> LogPart | None:
        """Return what should be read and sent now, of a file of this size; None: nothing.

        Args:
            size: of the file.
            now_s: by a steady clock.
            ends: the process is about to end, or has: more is sent at once, and paid for later.
        """
        if self._every_s is None:
            return None
        self._fit(size)
        begin, end = max(self._next, self._base), self._base + size
        most = self._most(now_s, ends=ends)
        if begin == end or most <= 0 or (end == self._no_line and not ends):
            return None
        skips = end - begin > (most if ends else LAG_BYTES)
        if skips:
            begin = end - most
        num_bytes = min(end - begin, CHUNK_BYTES)
        is_last = ends and begin + num_bytes == end
        return LogPart(begin - self._base, num_bytes, skips, is_last)

    def take(self, part: LogPart, data: bytes, now_s: float) -> LogLines | None:
        """Return the message with a part that was read; None: no line has ended in it.

        A line that is longer than a message goes in pieces.
        """
        assert self._every_s is not None
        begin = self._base + part.offset
        head = data.find(b"\n") + 1 if part.skips else 0
        text = data[head:]
        ended = text.rfind(b"\n") + 1
        if not part.is_last and (ended or len(data) < CHUNK_BYTES):
            text = text[:ended]
        if not text:
            self._no_line = begin + len(data)
            return None
        self._next = begin + head + len(text)
        paid_s = self._every_s * len(text) / CHUNK_BYTES if part.is_last else self._every_s
        self._next_s = max(self._next_s, now_s) + paid_s
        return LogLines(node=self._node, start=begin + head, base=self._base, text=text)

    def _most(self, now_s: float, *, ends: bool) -> int:
        early_s = max(0.0, self._next_s - now_s)
        if not ends:
            return 0 if early_s else CHUNK_BYTES
        assert self._every_s is not None
        return LAST_BYTES - int(early_s / self._every_s * CHUNK_BYTES)

    def _fit(self, size: int) -> None:
        """Take a file that is too short for another one: it was cut, or removed, by somebody."""
        if self._next > self._base + size:
            self._base = self._next


class LogAddition(msgspec.Struct, frozen=True):
    """Lines that the master adds to a log."""

    left_out: int
    """Bytes that are missing before it."""
    text: bytes


class LogReach(msgspec.Struct):
    """How far the log of one machine has come."""

    base: int = 0
    upto: int = 0
    """See `SendLog`."""


class LogJoin(msgspec.Struct):
    """How far the logs of one node have come, of each machine that it was on; kept as JSON.

    A master may be killed between this and the lines. So the place of the last lines is noted
    before they are written, and the log's size tells the next master whether they were.
    """

    sources: dict[str, LogReach] = {}
    """By ``HOST:PATH`` of the log there."""
    last: str = ""
    """The source of the last lines."""
    before: int = 0
    """Byte of that source up to which its lines were here before them."""
    size_bytes: int = 0
    """Size of the log here before them."""

    def recover(self, size_bytes: int) -> None:
        """Take back the last lines if the log here, of this size, lacks them."""
        kept = self.sources.get(self.last)
        if kept is not None and size_bytes == self.size_bytes:
            kept.upto = self.before

    def order(self, source: str, every_s: float) -> SendLog:
        """Return the order to the agent whose log is at this source."""
        kept = self.sources.get(source, LogReach())
        return SendLog(every_s=every_s, upto=kept.upto, base=kept.base)

    def add(self, source: str, lines: LogLines, size_bytes: int) -> LogAddition | None:
        """Return what these lines add to the log here, of this size; None: nothing."""
        kept = self.sources.setdefault(source, LogReach())
        kept.base = lines.base
        text = lines.text[max(0, kept.upto - lines.start) :]
        if not text:
            return None
        self.last, self.before, self.size_bytes = source, kept.upto, size_bytes
        left_out = max(0, lines.start - kept.upto)
        kept.upto = lines.start + len(lines.text)
        return LogAddition(left_out, text)

    def refused(self, addition: LogAddition, num_written: int) -> None:
        """Take in that the disk has taken so many bytes of the last lines, and no more.

        The rest counts as left out by what comes next.
        """
        kept = self.sources[self.last]
        kept.upto -= len(addition.text) - num_written
        if not num_written:
            kept.upto = self.before

"""What an agent sends of a log, and when, over the streams of several masters."""

from pathlib import Path

import pytest

from paceline.agent.log_sending import LogSender
from paceline.base.log_cap import LogCap
from paceline.wire.messages.agent import LogLines, SendLog


class Link:
    """A stream that keeps what is sent."""

    is_behind = False

    def __init__(self) -> None:
        self.sent: list[LogLines] = []

    def send(self, message: LogLines) -> None:
        self.sent.append(message)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "worker-1.log"


def test_lines_that_a_dead_master_had_not_written_are_sent_to_the_next_one(path: Path) -> None:
    link = Link()
    sender = LogSender(path, "worker-1", LogCap(path, 1 << 20, 1), link)  # type: ignore[arg-type]
    sender.connected()
    sender.told(SendLog(every_s=0.25))
    path.write_text("a\n")
    sender.send(10.0)
    path.write_text("a\nb\n")
    sender.send(11.0)  # on its way, the master dies
    sender.connected()
    path.write_text("a\nb\nc\n")
    sender.send(12.0)
    assert [lines.text for lines in link.sent] == [b"a\n", b"b\n"], "it has not said what it has"
    sender.told(SendLog(every_s=0.25, upto=2))
    sender.send(13.0)
    assert [lines.text for lines in link.sent[2:]] == [b"b\nc\n"]
    assert link.sent[2].start == 2

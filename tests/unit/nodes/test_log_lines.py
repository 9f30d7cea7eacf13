"""What of a log far away is sent, and how the master puts it together. No file, no clock."""

import random

import pytest

from paceline.protocol.nodes.log_lines import (
    CHUNK_BYTES,
    EVERY_S,
    LAG_BYTES,
    LAST_BYTES,
    LogJoin,
    LogSending,
    pace,
)
from paceline.wire.messages.agent import LogLines, SendLog

NODE, SOURCE = "worker-1", "host:/logs/worker-1.log"


class Far:
    """A log far away, with its agent."""

    def __init__(self, data: bytes = b"") -> None:
        self.data, self.now_s = bytearray(data), 0.0
        self.agent = LogSending(NODE)

    def told(self, order: SendLog) -> None:
        self.agent.told(order, len(self.data))

    def cut(self) -> None:
        self.agent.cut(len(self.data))
        self.data.clear()

    def sent(self, *, ends: bool = False) -> LogLines | None:
        """What is sent now."""
        part = self.agent.due(len(self.data), self.now_s, ends=ends)
        if part is None:
            return None
        data = bytes(self.data[part.offset : part.offset + part.num_bytes])
        return self.agent.take(part, data, self.now_s)

    def all_within(self, duration_s: float) -> list[LogLines]:
        """What is sent within so long, at looks ten times a second."""
        found = []
        for _ in range(round(duration_s * 10)):
            self.now_s += 0.1
            if (lines := self.sent()) is not None:
                found.append(lines)
        return found

    def last(self) -> list[LogLines]:
        """What is sent at once when the process ends."""
        found = []
        while (lines := self.sent(ends=True)) is not None:
            found.append(lines)
        return found


class Here:
    """The log of the node at the master, and how many bytes it was told are missing."""

    def __init__(self) -> None:
        self.join, self.data, self.left_out = LogJoin(), b"", 0

    def order(self, source: str = SOURCE) -> SendLog:
        return self.join.order(source, EVERY_S)

    def add(self, *messages: LogLines, source: str = SOURCE) -> None:
        for lines in messages:
            addition = self.join.add(source, lines, len(self.data))
            if addition is not None:
                self.data += addition.text
                self.left_out += addition.left_out


def text(lines: list[LogLines]) -> bytes:
    return b"".join(one.text for one in lines)


def test_nothing_is_sent_before_a_master_asks() -> None:
    far = Far(b"one\n")
    assert far.sent(ends=True) is None
    far.told(SendLog(every_s=EVERY_S))
    assert far.sent() == LogLines(node=NODE, start=0, base=0, text=b"one\n")
    assert far.all_within(1.0) == []


def test_whole_lines_are_sent_and_the_rest_when_the_process_ends() -> None:
    far = Far(b"one\ntwo\nthr")
    far.told(SendLog(every_s=EVERY_S))
    assert text(far.all_within(1.0)) == b"one\ntwo\n"
    far.data += b"ee\nfour"
    assert text(far.all_within(1.0)) == b"three\n"
    assert text(far.last()) == b"four"
    assert far.last() == []
    far.data += b"\nfive\n"
    assert text(far.all_within(1.0)) == b"\nfive\n", "what the next life ends, and begins with"


def test_a_line_that_is_longer_than_a_message_goes_in_pieces() -> None:
    line = b"x" * (2 * CHUNK_BYTES + 5)
    far, here = Far(line), Here()
    far.told(here.order())
    sent = far.all_within(2.0)
    assert [len(one.text) for one in sent] == [CHUNK_BYTES] * 2
    far.data += b"\n"
    here.add(*sent, *far.all_within(1.0))
    assert here.data == line + b"\n"


def test_a_burst_comes_through_at_the_bound() -> None:
    burst = b"".join(b"line %06d\n" % n for n in range(LAG_BYTES // 12))
    far, here = Far(burst), Here()
    far.told(here.order())
    sent = far.all_within(2.0)
    assert all(len(one.text) <= CHUNK_BYTES for one in sent)
    assert len(text(sent)) <= (2.0 / EVERY_S + 1) * CHUNK_BYTES
    here.add(*sent, *far.all_within(5.0))
    assert (here.data, here.left_out) == (burst, 0)


def test_of_a_flood_the_newest_whole_lines_come_and_the_rest_is_counted() -> None:
    far, here = Far(), Here()
    far.told(here.order())
    for second in range(10):
        far.data += b"".join(b"line %03d %06d\n" % (second, n) for n in range(50_000))
        here.add(*far.all_within(1.0))
    assert len(here.data) <= 10.0 / EVERY_S * CHUNK_BYTES
    assert here.left_out > 0
    here.add(*far.last())
    assert len(here.data) + here.left_out == len(far.data), "each byte is there, or counted"
    assert here.data.endswith(b"line 009 049999\n")
    whole = {*bytes(far.data).splitlines()}
    assert {*here.data.splitlines()} <= whole, "no line is torn"


def test_a_process_that_dies_again_and_again_gets_no_more_through() -> None:
    far, here = Far(), Here()
    far.told(here.order())
    for life in range(100):
        far.now_s += 0.1
        far.data += b"life %05d\n" % life * 100_000
        here.add(*far.last())
    assert len(here.data) <= LAST_BYTES + 10.0 / EVERY_S * CHUNK_BYTES
    assert here.data.count(b"life 00099\n") > 0


def test_a_new_master_gets_what_the_one_before_it_lacked() -> None:
    far, here = Far(b"one\n"), Here()
    far.told(here.order())
    here.add(*far.all_within(1.0))
    far.data += b"two\n"
    assert text(far.all_within(1.0)) == b"two\n", "which is lost with the master"
    far.data += b"three\n"
    far.told(here.order())
    here.add(*far.all_within(1.0))
    assert (here.data, here.left_out) == (b"one\ntwo\nthree\n", 0)


@pytest.mark.parametrize("are_there", [True, False])
def test_a_master_that_dies_at_a_line_has_it_once(are_there: bool) -> None:
    far, here = Far(b"one\n"), Here()
    far.told(here.order())
    here.add(*far.all_within(1.0))
    far.data += b"two\n"
    before = here.data
    here.add(*far.all_within(1.0))
    if not are_there:
        here.data = before  # it was killed between its note and the line
    here.join.recover(len(here.data))
    far.told(here.order())
    here.add(*far.all_within(1.0))
    assert here.data == b"one\ntwo\n"


def test_a_new_agent_goes_on_where_the_one_before_it_died() -> None:
    far, here = Far(b"one\n"), Here()
    far.told(here.order())
    here.add(*far.all_within(1.0))
    far.cut()
    far.data += b"after the cut\n"
    here.add(*far.all_within(1.0))
    far.data += b"two\n"
    far.agent = LogSending(NODE)
    far.told(here.order())
    here.add(*far.all_within(1.0))
    assert (here.data, here.left_out) == (b"one\nafter the cut\ntwo\n", 0)


def test_what_was_cut_off_before_it_was_sent_is_counted() -> None:
    far, here = Far(b"one\n"), Here()
    far.cut()  # before any master has asked
    far.data += b"two\n"
    far.told(here.order())
    here.add(*far.all_within(1.0))
    assert (here.data, here.left_out) == (b"two\n", 4)
    far.data += b"three\n"
    far.cut()
    far.data += b"four\n"
    here.add(*far.all_within(1.0))
    assert (here.data, here.left_out) == (b"two\nfour\n", 10)


def test_a_log_that_was_removed_begins_again() -> None:
    far, here = Far(b"a rather long line\n"), Here()
    far.told(here.order())
    here.add(*far.all_within(1.0))
    far.data[:] = b"new\n"
    here.add(*far.all_within(1.0))
    assert here.data == b"a rather long line\nnew\n"


def test_a_node_may_return_to_a_machine_that_it_was_on() -> None:
    here, first, second = Here(), Far(b"one\n"), Far(b"two\n")
    first.told(here.order())
    here.add(*first.all_within(1.0))
    second.told(here.order("elsewhere"))
    here.add(*second.all_within(1.0), source="elsewhere")
    first.data += b"three\n"
    first.agent = LogSending(NODE)
    first.told(here.order())
    here.add(*first.all_within(1.0))
    assert (here.data, here.left_out) == (b"one\ntwo\nthree\n", 0)


def test_what_a_disk_refuses_counts_as_left_out() -> None:
    far, here = Far(b"one\n"), Here()
    far.told(here.order())
    (lines,) = far.all_within(1.0)
    addition = here.join.add(SOURCE, lines, 0)
    assert addition is not None
    here.join.refused(addition, 0)
    far.data += b"two\n"
    here.add(*far.all_within(1.0))
    assert (here.data, here.left_out) == (b"two\n", 4)
    far.data += b"three\n"
    (lines,) = far.all_within(1.0)
    addition = here.join.add(SOURCE, lines, 4)
    assert addition is not None
    here.join.refused(addition, 2)
    assert here.order().upto == 10


def test_agents_of_a_large_job_send_more_seldom_but_for_the_chief() -> None:
    assert pace(8) == EVERY_S
    assert pace(1_000) == 5.0
    assert pace(1_000, is_chief=True) == EVERY_S


@pytest.mark.parametrize("seed", range(10))
def test_whatever_happens_each_byte_comes_once_in_order_or_is_counted(seed: int) -> None:
    dice = random.Random(seed)
    far, here = Far(), Here()
    printed: list[bytes] = []

    def say() -> None:
        for _ in range(dice.randrange(1, 40)):
            line = b"%d %s\n" % (len(printed), b"." * dice.randrange(2_000))
            far.data += line
            printed.append(line)

    for _ in range(100):
        match dice.choice(["master", "agent", "link", "end", "cut", *["say"] * 4]):
            case "master":
                here.join.recover(len(here.data))
                far.told(here.order())
            case "agent":
                far.agent = LogSending(NODE)
            case "link":
                far.all_within(0.3)  # lost on the way
                far.told(here.order())
            case "end":
                here.add(*far.last())
            case "cut":
                far.told(here.order())
                far.cut()
                say()
                here.add(*far.all_within(3.0))  # else the next agent could not know of it
            case _:
                say()
                here.add(*far.all_within(0.5))
    far.told(here.order())
    here.add(*far.all_within(60.0))
    assert len(here.data) + here.left_out == len(b"".join(printed))
    numbers = [int(line.split()[0]) for line in here.data.splitlines()]
    assert numbers == sorted({*numbers})
    assert {*here.data.splitlines()} <= {line[:-1] for line in printed}

"""The call ring: what was written is read, and what is torn or overwritten is not."""

import os
import signal
from pathlib import Path

import pytest

from paceline.base.numbering import Inc
from paceline.features.failslow.call_ring import (
    CallGroup,
    CallRingReader,
    CallRingWriter,
    NotedStep,
    RingContents,
)

INC = Inc(7)
GROUPS = (CallGroup("0", (0, 1, 2, 3), "gloo"), CallGroup("tp", (2, 3), "gloo"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "worker-0.calls"


def writer(path: Path, num_slots: int = 8) -> CallRingWriter:
    ring = CallRingWriter(path, INC, num_slots)
    for group in GROUPS:
        ring.add_group(group)
    return ring


def test_calls_are_read_as_they_were_noted(path: Path) -> None:
    ring = writer(path)
    first = ring.begin(0, 3, 4096, 1)
    ring.begin(1, 16, 1 << 40, 1)
    ring.begin(0, 3, 4096, 2)
    ring.end(first, 1.5)
    ring.add_step(2, 10.0, 0.25)
    noted = CallRingReader(path).read(INC)
    assert noted.groups == GROUPS
    assert noted.steps == (NotedStep(2, 10.0, 0.25),)
    calls = noted.calls
    found = [(one.group, one.op, one.num_bytes, one.step, one.seq) for one in calls]
    assert found == [(0, 3, 4096, 1, 0), (1, 16, 1 << 40, 1, 0), (0, 3, 4096, 2, 1)]
    assert 0 < calls[0].start_s <= calls[0].end_s
    assert (calls[0].wait_s, calls[1].wait_s) == (1.5, 0.0)
    assert calls[1].end_s == calls[2].end_s == 0, "they are under way"


def test_a_slot_that_was_taken_again_keeps_its_call(path: Path) -> None:
    ring = writer(path, num_slots=4)
    entries = [ring.begin(0, 0, n, n) for n in range(6)]
    ring.end(entries[0])  # its slot is that of number 4 now
    ring.end(entries[3])
    calls = CallRingReader(path).read(INC).calls
    assert [(one.num_bytes, one.seq, one.end_s > 0) for one in calls] == [
        (2, 2, False),
        (3, 3, True),
        (4, 4, False),
        (5, 5, False),
    ]


def test_nothing_is_read_of_another_life_or_of_no_ring(path: Path) -> None:
    reader = CallRingReader(path)
    assert reader.read(INC) == RingContents()
    writer(path).begin(0, 0, 1, 1)
    assert reader.read(Inc(8)) == RingContents()
    path.write_bytes(b"")
    assert reader.read(INC) == RingContents()


def test_a_writer_that_is_killed_leaves_what_it_noted(path: Path) -> None:
    pid = os.fork()
    if not pid:
        ring = writer(path)
        ring.begin(1, 2, 64, 3)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    (call,) = CallRingReader(path).read(INC).calls
    assert (call.group, call.op, call.num_bytes, call.step) == (1, 2, 64, 3)

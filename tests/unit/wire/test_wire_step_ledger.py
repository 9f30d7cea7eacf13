"""The step ledger: what a training process has done, readable whatever happens to it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from paceline.base.errors import ConfigError
from paceline.wire.step_ledger import (
    LedgerPage,
    StepLedgerReader,
    StepLedgerWriter,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "worker-0.ledger"


def write(ledger: StepLedgerWriter, step: int) -> None:
    ledger.write(
        step=step,
        t_start_s=step * 1.0,
        bpt_s=0.5,
        compute_s=0.25,
        server_s=0.125,
        message_s=0.0625,
        wait_s=0.03125,
        samples=10,
    )


def read(reader: StepLedgerReader) -> LedgerPage:
    page = reader.read()
    assert page is not None
    return page


def test_the_step_under_way_is_seen_before_it_is_noted(path: Path) -> None:
    ledger, reader = StepLedgerWriter(path, inc=3), StepLedgerReader(path)
    assert read(reader).step == 0
    ledger.begin(8)
    assert (read(reader).step, read(reader).newest) == (8, None)


def test_there_is_nothing_before_the_first_writer(path: Path) -> None:
    assert StepLedgerReader(path).read() is None


def test_a_reader_gets_each_step_once_with_totals(path: Path) -> None:
    ledger, reader = StepLedgerWriter(path, inc=3), StepLedgerReader(path)
    page = read(reader)
    assert (page.inc, page.pid, page.newest, page.records) == (3, os.getpid(), None, ())
    for step in (1, 2, 3):
        write(ledger, step)
    page = read(reader)
    assert [r.step for r in page.records] == [1, 2, 3]
    assert page.newest is not None
    assert page.newest == page.records[-1]
    assert (page.newest.total_steps, page.newest.total_samples) == (3, 30)
    assert page.newest.total_compute_s == 0.75
    assert page.newest.total_server_s == 0.375
    assert page.newest.total_message_s == 0.1875
    assert page.newest.total_wait_s == 0.09375
    write(ledger, 4)
    assert [r.step for r in read(reader).records] == [4]
    page = read(reader)
    assert page.records == ()
    assert page.newest is not None
    assert page.newest.step == 4


def test_a_slow_reader_gets_the_newest_round_and_right_totals(path: Path) -> None:
    ledger, reader = StepLedgerWriter(path, inc=3, num_slots=8), StepLedgerReader(path)
    for step in range(1, 101):
        write(ledger, step)
    page = read(reader)
    assert [r.step for r in page.records] == list(range(93, 101))
    assert page.newest is not None
    assert page.newest.total_samples == 1000


def test_a_new_incarnation_replaces_the_page_and_the_old_one_cannot_disturb_it(path: Path) -> None:
    old, reader = StepLedgerWriter(path, inc=3), StepLedgerReader(path)
    write(old, 1)
    assert read(reader).inc == 3
    new = StepLedgerWriter(path, inc=4)
    write(old, 2)
    page = read(reader)
    assert (page.inc, page.newest, page.records) == (4, None, ())
    write(new, 5)
    assert [r.step for r in read(reader).records] == [5]
    assert os.listdir(path.parent) == [path.name]


def test_a_file_that_is_no_ledger_is_named(path: Path) -> None:
    path.write_bytes(b"something else entirely, long enough to be a header, or so it seems" * 2)
    with pytest.raises(ConfigError, match="another version"):
        StepLedgerReader(path).read()


@pytest.mark.parametrize("stop_after", range(8, 128, 8))
def test_a_record_cut_short_at_any_word_is_not_shown(path: Path, stop_after: int) -> None:
    ledger, reader = StepLedgerWriter(path, inc=3, num_slots=4), StepLedgerReader(path)
    for step in range(1, 5):
        write(ledger, step)
    whole = path.read_bytes()
    write(ledger, 5)
    longer = path.read_bytes()
    start = next(i for i in range(64, len(whole)) if whole[i] != longer[i]) // 8 * 8
    # Step 5 replaces step 1; the writer dies after `stop_after` bytes, before it counts the step.
    torn = whole[:start] + longer[start : start + stop_after] + whole[start + stop_after :]
    path.write_bytes(torn)
    page = read(reader)
    assert [r.step for r in page.records] == ([1, 2, 3, 4] if torn == whole else [2, 3, 4])


_WRITER = """
import sys, itertools
from pathlib import Path
from paceline.wire.step_ledger import StepLedgerWriter
ledger = StepLedgerWriter(Path(sys.argv[1]), inc=1, num_slots=16)
print("ready", flush=True)
for n in itertools.count(1):
    ledger.write(step=n, t_start_s=n, bpt_s=n, compute_s=n, server_s=n, message_s=n, wait_s=n,
                 samples=1)
"""


def test_no_torn_record_is_seen_beside_a_racing_writer_nor_after_its_death(path: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", _WRITER, str(path)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": "src"},
    )
    assert child.stdout is not None
    child.stdout.readline()
    reader = StepLedgerReader(path)
    seen, last, until_s = 0, 0, time.monotonic() + 0.5
    while time.monotonic() < until_s:
        for r in read(reader).records:
            assert r.step == r.t_start_s == r.bpt_s == r.wait_s == r.total_steps == r.total_samples
            assert r.step > last
            last = r.step
            seen += 1
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    page = read(reader)
    assert page.newest is not None
    assert page.newest.step >= last
    assert seen > 100

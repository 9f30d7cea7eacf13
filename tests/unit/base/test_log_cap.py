"""A worker that prints without end fills no disk, and a full one does not end it."""

import io
import os
from pathlib import Path

import pytest

from paceline.agent.facts import read_log_tail
from paceline.base import log_cap
from paceline.base.log_cap import LEAST_BYTES, LogCap, limit_bytes
from paceline.jobs.history import Tail
from paceline.runtime.process.output import open_lossy
from tests.conftest import fill

MIB = 1 << 20


def test_a_log_has_what_the_spec_says_or_its_part_of_a_small_disk() -> None:
    assert limit_bytes(256 * MIB, 100_000 * MIB, 10 * MIB, 4) == 256 * MIB
    assert limit_bytes(256 * MIB, 80 * MIB, 0, 4) == 5 * MIB
    assert limit_bytes(256 * MIB, 0, 5 * MIB, 4) == 5 * MIB // 4
    assert limit_bytes(256 * MIB, 0, 0, 4) == LEAST_BYTES


def test_a_log_that_is_too_large_is_cut_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "worker-0.log"
    cap = LogCap(path, MIB, 1)
    cap.look()
    with path.open("ab", buffering=0) as process:
        process.write(b"x" * MIB)
        cap.look()
        assert path.stat().st_size == MIB
        process.write(b"the last line\n")
        cap.look()
        process.write(b"one more\n")
    first, second = path.read_text().splitlines()
    assert "1,048,590 bytes of this log were cut off here" in first
    assert "worker-0.1.log" in first
    assert second == "one more"
    kept = (tmp_path / "worker-0.1.log").read_bytes()
    assert len(kept) == MIB // log_cap.KEPT_PART
    assert kept.endswith(b"the last line\n")


@pytest.mark.parametrize("dies_at", ["replace", "truncate"])
def test_an_agent_that_dies_while_it_cuts_loses_no_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dies_at: str
) -> None:
    path, kept = tmp_path / "worker-0.log", tmp_path / "worker-0.1.log"
    kept.write_text("before\n")
    path.write_bytes(b"x" * MIB + b"the last line\n")
    whole = path.read_bytes()

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    if dies_at == "replace":
        monkeypatch.setattr(Path, "replace", die)
    else:  # truncating is what follows the rename
        real = Path.replace

        def replace_and_die(fresh: Path, target: Path) -> None:
            real(fresh, target)
            die()

        monkeypatch.setattr(Path, "replace", replace_and_die)
    with pytest.raises(KeyboardInterrupt):
        LogCap(path, MIB, 1).look()
    assert path.read_bytes() == whole
    if dies_at == "replace":
        assert kept.read_text() == "before\n"
    else:
        assert kept.read_bytes().endswith(b"the last line\n")
    monkeypatch.undo()
    LogCap(path, MIB, 1).look()
    assert kept.read_bytes().endswith(b"the last line\n")
    assert {one.name for one in tmp_path.iterdir()} == {path.name, kept.name}


def test_a_log_on_a_full_disk_makes_room_for_others(small_disk: Path) -> None:
    path = small_disk / "worker-0.log"
    path.write_bytes(b"x" * 200_000)
    fill(small_disk)
    LogCap(path, MIB, 1).look()
    assert path.stat().st_size < 1_000
    assert (small_disk / "worker-0.1.log").stat().st_size == LEAST_BYTES // log_cap.KEPT_PART
    assert not (small_disk / "worker-0.1.new").exists()
    (small_disk / "journal").write_bytes(bytes(100_000))


def test_who_reads_a_log_that_was_cut_goes_on_at_its_beginning(tmp_path: Path) -> None:
    path = tmp_path / "worker-0.log"
    path.write_text("one\ntwo\n")
    tail = Tail(path)
    assert tail.lines() == [b"one", b"two"]
    path.write_text("3\n")
    assert tail.lines() == [b"3"]
    assert read_log_tail(path, start=8) == "3"


def test_what_a_full_disk_refuses_is_dropped_and_nobody_notices(small_disk: Path) -> None:
    descriptor = os.open(small_disk / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    stream = open_lossy(io.TextIOWrapper(io.BytesIO(), encoding="utf-8"), descriptor)
    print("before", file=stream)
    ballast = fill(small_disk)
    for _ in range(100):
        print("x" * 4096, file=stream)
    ballast.unlink()
    print("after", file=stream)
    lines = (small_disk / "log").read_text().splitlines()
    assert lines[0] == "before"
    assert lines[-1].endswith("after")
    os.close(descriptor)


def test_another_error_of_a_stream_is_raised() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    stream = open_lossy(io.TextIOWrapper(io.BytesIO(), encoding="utf-8"), writer)
    with pytest.raises(BrokenPipeError):
        print("x", file=stream)
    with pytest.raises(BrokenPipeError):
        stream.close()
    os.close(writer)

"""What members tell each other goes by memory where all have it, and else over sockets."""

import gc
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from paceline.runtime.group import group as group_module
from paceline.runtime.group.group import Group, RowsTold
from paceline.runtime.group.rows import MOST_NUMBERS, RowsMaker, rows_at
from paceline.runtime.group.store import GroupOver

from .test_reducer import in_group


def test_rows_are_there_once_all_are_written() -> None:
    maker = RowsMaker(2)
    other = rows_at(maker.where, 2, 1)
    assert other is not None
    maker.close()
    maker.rows.write(1, [5, -6])
    assert other.read(1) is None
    other.write(1, [(1 << 63) - 1, 8])
    assert maker.rows.read(1) == other.read(1) == [[5, -6], [(1 << 63) - 1, 8]]
    # Who is ahead may write once more before the others have read.
    other.write(2, range(MOST_NUMBERS))
    assert maker.rows.read(1) == [[5, -6], [(1 << 63) - 1, 8]]
    assert maker.rows.read(2) is None


def test_a_row_that_is_half_written_is_not_read() -> None:
    maker = RowsMaker(1)
    maker.rows.write(1, [3, 4])
    maker.rows.write(3, [5, 6])
    maker.rows._own[1][-3] = 9  # nothing of the row
    assert maker.rows.read(3) == [[5, 6]]
    maker.rows._own[1][4] = 4  # of the row before
    assert maker.rows.read(3) is None
    maker.close()


def test_memory_that_is_not_here_is_not_mapped(tmp_path: Path) -> None:
    maker = RowsMaker(2)
    pid, file, sign = maker.where.split()
    assert rows_at(f"{pid} {file} {int(sign) + 1}", 2, 1) is None, "another group's"
    assert rows_at(maker.where, 3, 1) is None, "of another size"
    assert rows_at(f"{1 << 22} {file} {sign}", 2, 1) is None, "no such process"
    assert rows_at("nonsense", 2, 1) is None
    with (tmp_path / "other").open("w+b") as other:
        os.ftruncate(other.fileno(), 100)
        assert rows_at(f"{pid} {other.fileno()} {sign}", 2, 1) is None, "something else there"
    maker.close()
    maker.close()
    assert rows_at(maker.where, 2, 1) is None, "it is closed"


def tell_often(group: Group) -> list[Any]:
    """What a member hears in three calls, and how it came."""
    heard: list[Any] = []
    for number in range(3):
        told = group.tell([group.rank, number])
        assert told.wait() == [[rank, number] for rank in range(group.size)]
        assert told.wait() == [[rank, number] for rank in range(group.size)], "again"
        heard.append(told.by_memory)
    return heard


def test_members_of_one_machine_tell_by_memory() -> None:
    before = len(files_of_rows())
    assert in_group(3, tell_often) == [[False, True, True]] * 3
    gc.collect()
    assert len(files_of_rows()) <= before, "it is gone with the group"


def files_of_rows() -> list[str]:
    """The files of this process that are such memory."""
    files = Path("/proc/self/fd").iterdir()
    return [
        one.name for one in files if one.is_symlink() and "paceline-rows" in str(one.readlink())
    ]


def test_all_tell_over_sockets_if_one_member_is_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(where: str, size: int, rank: int) -> Any:
        return None if rank == 2 else rows_at(where, size, rank)

    monkeypatch.setattr(group_module, "rows_at", found)
    assert in_group(3, tell_often) == [[False] * 3] * 3


def test_all_tell_over_sockets_if_there_is_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(size: int) -> RowsMaker:
        raise OSError(size)

    monkeypatch.setattr(group_module, "RowsMaker", full)
    assert in_group(2, tell_often) == [[False] * 3] * 2


def test_who_does_not_wait_for_what_was_told_hears_the_next_all_the_same() -> None:
    def member(group: Group) -> Any:
        for number in range(6):
            told = group.tell([10 * group.rank + number])
            if group.rank == 0 and number % 2:  # a script that has left its loop
                continue
            assert told.wait() == [[number], [10 + number]]
        return told.by_memory

    assert in_group(2, member) == [True, True]


def test_who_waits_for_memory_hears_that_the_group_was_dropped() -> None:
    done = threading.Barrier(2, timeout=10.0)

    def member(group: Group) -> None:
        group.tell([1]).wait()
        done.wait()
        if group.rank:
            threading.Timer(0.2, group.drop).start()
            told = group.tell([2])
            assert isinstance(told, RowsTold)
            with pytest.raises(GroupOver, match="dropped"):
                told.wait()
        done.wait()

    in_group(2, member)

"""Lines of files are found by number, while they are counted and after, whatever their form."""

import os
import pickle
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paceline.base.errors import PermanentError
from paceline.runtime.data import line_index
from paceline.runtime.data.line_index import BLOCK_BYTES, LineIndex
from paceline.runtime.data.lines import LineFiles, expand_paths

LINES = st.lists(
    st.binary(max_size=30).map(lambda b: b.replace(b"\n", b"").replace(b"\r", b""))
    | st.just(b"x" * (BLOCK_BYTES + 7))
    | st.just(b"y" * (BLOCK_BYTES - 1)),
    max_size=40,
)


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An index directory that is used for short files, too."""
    monkeypatch.setattr(line_index, "SIDECAR_MIN_BYTES", 0)
    return tmp_path / "index"


@settings(
    deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(lines=LINES, end=st.sampled_from([b"\n", b"\r\n"]), last_has_end=st.booleans())
def test_every_line_is_found_by_its_number(
    tmp_path: Path, lines: list[bytes], end: bytes, last_has_end: bool
) -> None:
    data = end.join(lines) + (end if lines and last_has_end else b"")
    expected = data.replace(b"\r\n", b"\n").split(b"\n") if data else []
    if data.endswith(b"\n"):
        expected.pop()
    files = LineFiles(write(tmp_path / "a", data))
    assert files.wait_known() == (len(expected), True)
    order = np.random.default_rng(len(data)).permutation(len(expected))
    assert files.read(order) == [expected[i] for i in order]


def test_files_are_numbered_one_after_the_other(tmp_path: Path) -> None:
    for name, data in (("b", b"3\n4"), ("a", b"h\n1\n2\n"), ("c", b""), ("d", b"h\n5\n")):
        write(tmp_path / name, b"h\n" + data[2:] if name in "ad" else data)
    files = LineFiles([tmp_path / "a", tmp_path / "b", tmp_path / "c", tmp_path / "d"])
    assert files.read([5, 0, 3, 1, 6]) == [b"h", b"h", b"3", b"1", b"5"]
    assert files.where(4) == f"{tmp_path / 'b'}, line 2"


def test_a_header_is_no_record(tmp_path: Path) -> None:
    paths = [write(tmp_path / "a", b"h\n1\n"), write(tmp_path / "b", b"h\n2\n")]
    files = LineFiles(paths, num_header_lines=1)
    assert files.read([0, 1]) == [b"1", b"2"]
    assert files.where(1) == f"{paths[1]}, line 2"


def test_a_record_beyond_the_end_is_refused(tmp_path: Path) -> None:
    with pytest.raises(IndexError, match="record 2 of 2"):
        LineFiles(write(tmp_path / "a", b"1\n2\n")).read([2])


class StepByStep:
    """Lets a builder advance by one chunk at a time."""

    def __init__(self, index: LineIndex) -> None:
        self.seen: list[tuple[int, bool]] = []
        self.index = index

    def advanced(self) -> None:
        self.seen.append((self.index.num_lines(), self.index.is_final))


def test_the_index_grows_from_the_front_until_it_is_final(tmp_path: Path) -> None:
    path = write(tmp_path / "a", b"0123456\n" * (1 << 19) + b"end")
    index = LineIndex(path, tmp_path / "index")
    steps = StepByStep(index)
    index.build(lambda _: False, steps.advanced)
    counts = [count for count, _ in steps.seen]
    assert counts == [(1 << 20) // 8, 3 * (1 << 20) // 8, (1 << 19) + 1]
    assert [final for _, final in steps.seen] == [False, False, True]


def test_a_finished_index_is_read_and_not_built_again(tmp_path: Path, kept: Path) -> None:
    path = write(tmp_path / "a", b"1\n2\n3")
    first = LineFiles(path, index_dir=kept)
    assert first.wait_known() == (3, True)
    first.close()
    again = LineIndex(path, kept)
    again._count = None  # type: ignore[assignment,method-assign]  # would fail when called
    again.build(lambda _: False, lambda: None)
    assert again.num_lines() == 3
    assert [p.suffix for p in kept.iterdir()] == [".lines"]


def test_the_index_of_another_state_of_the_file_is_not_used(tmp_path: Path, kept: Path) -> None:
    path = write(tmp_path / "a", b"1\n2\n3")
    first = LineFiles(path, index_dir=kept)
    first.wait_known()
    first.close()
    write(path, b"1\n2\n3\n4\n5")
    assert LineFiles(path, index_dir=kept).wait_known() == (5, True)
    write(path, b"1\n2222\n55")
    os.utime(path, ns=(1, 1))
    assert LineFiles(path, index_dir=kept).read([2]) == [b"55"]


def test_a_process_follows_the_one_that_counts(tmp_path: Path, kept: Path) -> None:
    path = write(tmp_path / "a", b"1\n" * 600_000)
    builder, follower = LineIndex(path, kept), LineIndex(path, kept)
    seen: list[int] = []

    def follow_one_step() -> None:
        if not builder.is_final:
            turns = iter([False, True, True, True])
            follower.build(lambda _: next(turns), lambda: seen.append(follower.num_lines()))

    builder.build(lambda _: False, follow_one_step)
    assert seen == [524_288]
    follower.build(lambda _: False, lambda: None)
    assert follower.num_lines() == 600_000


def test_a_builder_that_died_is_replaced(tmp_path: Path, kept: Path) -> None:
    path = write(tmp_path / "a", b"1\n" * 600_000)
    dead = LineIndex(path, kept)
    turns = iter([False, False, True])
    dead.build(lambda _: next(turns, True), lambda: None)
    assert not dead.is_final
    assert LineFiles(path, index_dir=kept).wait_known() == (600_000, True)


def test_a_directory_that_cannot_be_written_costs_only_the_keeping(
    tmp_path: Path, kept: Path
) -> None:
    write(kept, b"a file where the directory should be")
    path = write(tmp_path / "a", b"1\n2\n")
    assert LineFiles(path, index_dir=kept).wait_known() == (2, True)


def test_a_file_that_becomes_shorter_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path / "a", b"1\n2\n" * 10)
    files = LineFiles(path)
    assert files.wait_known() == (20, True)
    os.truncate(path, 5)
    with pytest.raises(PermanentError, match="was changed"):
        files.read([3])


def test_a_file_that_changes_while_it_is_counted_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path / "a", b"1\n2\n")
    files = LineFiles(path)
    write(path, b"")
    with pytest.raises(PermanentError, match="was changed"):
        files.wait_known()


def test_pickled_and_forked_copies_read_the_same(tmp_path: Path) -> None:
    files = LineFiles(write(tmp_path / "a", b"1\n2\n3\n"))
    assert files.read([2]) == [b"3"]
    assert pickle.loads(pickle.dumps(files)).read([1]) == [b"2"]


def test_no_thread_is_left_when_all_is_counted(tmp_path: Path) -> None:
    others = set(threading.enumerate())  # of tests before this one
    files = LineFiles(write(tmp_path / "a", b"1\n2\n3\n"))
    files.wait_known()
    files.close()
    ours = set(threading.enumerate()) - others
    assert "paceline-line-index" not in [thread.name for thread in ours]


def test_patterns_are_expanded_in_sorted_order(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt", "c.csv"):
        write(tmp_path / name, b"")
    assert [p.name for p in expand_paths(str(tmp_path / "*.txt"))] == ["a.txt", "b.txt"]

"""Which lines `paceline logs` prints: the last ones, those since a time, one without an end."""

import os
import time
from pathlib import Path

import msgspec
import pytest

from paceline.agent.facts import end_last_line
from paceline.base.errors import ConfigError
from paceline.base.jobdir import JobDir
from paceline.base.log_cap import LEAST_BYTES, LogCap
from paceline.base.log_times import LogTimes, start_since, times_of
from paceline.cli import logs
from paceline.cli.logs import LogFilter, find_last, parse_since, show_logs
from paceline.jobs.history import Tail
from paceline.jobs.log_files import NearLogs
from paceline.jobs.spec_values import parse_ago_s


@pytest.fixture
def job(tmp_path: Path) -> JobDir:
    found = JobDir(tmp_path / "job")
    found.logs.mkdir(parents=True)
    return found


def of_one(folder: Path, text: str) -> NearLogs:
    """The logs of a job whose only log, named ``log``, has this text."""
    job = JobDir(folder / "one")
    job.logs.mkdir(parents=True)
    (job.logs / "log").write_text(text)
    return NearLogs(job)


def since(log: Path, unix_s: float) -> int | None:
    noted = times_of(log).read_bytes() if times_of(log).exists() else None
    return start_since(noted, log.stat().st_size, unix_s)


def printed(job: JobDir, capsys: pytest.CaptureFixture[str], **wanted: object) -> list[str]:
    show_logs(NearLogs(job), LogFilter(**wanted))  # type: ignore[arg-type]
    return capsys.readouterr().out.splitlines()


def test_a_last_line_without_an_end_is_printed(
    job: JobDir, capsys: pytest.CaptureFixture[str]
) -> None:
    (job.logs / "worker-0.log").write_text("one\ntwo")
    for follow in (False, True):
        assert printed(job, capsys, follow=follow) == ["worker-0 | one", "worker-0 | two"]
    assert printed(job, capsys, node="worker-0", tail=1) == ["two"]


def test_the_rest_of_a_log_is_what_no_line_was() -> None:
    tail = Tail(Path("nowhere"))
    assert tail.rest() == []


def test_a_tail_gives_the_rest_once(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"one\ntwo")
    tail = Tail(path)
    assert tail.lines() == [b"one"]
    assert tail.rest() == [b"two"]
    assert tail.rest() == tail.lines() == []


@pytest.mark.parametrize("block_bytes", [1, 3, 1 << 16])
@pytest.mark.parametrize(
    ("text", "count", "last"),
    [
        ("", 3, ""),
        ("a\nb\nc\n", 0, ""),
        ("a\nb\nc\n", 1, "c\n"),
        ("a\nb\nc\n", 2, "b\nc\n"),
        ("a\nb\nc\n", 3, "a\nb\nc\n"),
        ("a\nb\nc\n", 9, "a\nb\nc\n"),
        ("a\nb\nc", 1, "c"),
        ("a\nb\nc", 2, "b\nc"),
        ("\n\n", 1, "\n"),
        ("long line\nlast", 1, "last"),
    ],
)
def test_the_last_lines_are_found_from_the_end(
    text: str,
    count: int,
    last: str,
    block_bytes: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(logs, "BLOCK_BYTES", block_bytes)
    assert text[find_last(of_one(tmp_path, text), "log", count)[0] :] == last


def test_lines_are_found_by_when_they_were_printed(
    job: JobDir, capsys: pytest.CaptureFixture[str]
) -> None:
    log = job.logs / "worker-0.log"
    times = LogTimes(log)
    times.note(90.0)  # no log yet
    for t, text in ((100.0, "one\n"), (100.1, "two\n"), (102.0, ""), (110.0, "three\n")):
        with log.open("a") as file:
            file.write(text)
        times.note(t)
    with log.open("a") as file:
        file.write("four\n")
    found = {
        t: printed(job, capsys, node="worker-0", since_s=t) for t in (0.0, 101.0, 105.0, 111.0)
    }
    assert found == {
        0.0: ["one", "two", "three", "four"],
        101.0: ["two", "three", "four"],  # noted at 102: it may have been printed since 101
        105.0: ["three", "four"],
        111.0: ["four"],  # printed after the last note
    }
    assert printed(job, capsys, node="worker-0", since_s=105.0, tail=1) == ["four"]


def test_times_of_a_log_that_was_cut_or_has_none_leave_nothing_out(tmp_path: Path) -> None:
    log = tmp_path / "worker-0.log"
    log.write_text("one\n")
    assert since(log, 0.0) is None
    LogTimes(log).note(1.0)
    log.write_text("x")
    with times_of(log).open("ab") as file:
        file.write(b"half")  # its writer was killed
    assert since(log, 2.0) == 0


def test_a_log_that_was_cut_off_since_is_shown_from_its_beginning(tmp_path: Path) -> None:
    log = tmp_path / "worker-0.log"
    times = LogTimes(log)
    for t, text in ((1.0, "one\ntwo\n"), (5.0, "3\n"), (9.0, "3\nfour\nfive\n")):
        log.write_text(text)
        times.note(t)
    assert [since(log, t) for t in (2.0, 6.0, 9.0)] == [0, 2, 12]


@pytest.mark.parametrize(
    ("wanted", "lines"),
    [
        ({}, ["one", "two", "three", "four"]),
        ({"tail": 1}, ["four"]),
        ({"tail": 2}, ["three", "four"]),
        ({"tail": 3}, ["two", "three", "four"]),
        ({"since_s": 50.0}, ["one", "two", "three", "four"]),
        ({"since_s": 150.0}, ["three", "four"]),
        ({"follow": True, "as_json": False}, ["one", "two", "three", "four"]),
    ],
)
def test_what_is_kept_of_a_log_that_was_cut_off_comes_before_it(
    wanted: dict[str, object], lines: list[str], job: JobDir, capsys: pytest.CaptureFixture[str]
) -> None:
    log, kept = job.logs / "worker-0.log", job.logs / "worker-0.1.log"
    log.write_text("three\nfour\n")
    kept.write_text("one\ntwo\n")
    os.utime(kept, (100.0, 100.0))
    times_of(log).write_bytes(b"")
    assert printed(job, capsys, **wanted) == [f"worker-0 | {line}" for line in lines]
    assert printed(job, capsys, node="worker-0", **wanted) == lines


def test_an_unfinished_line_is_one_of_the_last_lines_that_are_wanted(
    job: JobDir, capsys: pytest.CaptureFixture[str]
) -> None:
    (job.logs / "worker-0.log").write_text("three\nfour")
    (job.logs / "worker-0.1.log").write_text("one\ntwo\n")
    assert printed(job, capsys, node="worker-0", tail=3) == ["two", "three", "four"]


@pytest.mark.parametrize(
    ("text", "missing"), [("", 5), ("a\nb\n", 3), ("a\nb", 3), ("a\n" * 5, 0), ("a\n" * 7, 0)]
)
def test_what_a_log_lacks_of_the_wanted_lines_is_counted_without_reading_it_all(
    text: str, missing: int, tmp_path: Path
) -> None:
    assert find_last(of_one(tmp_path, text), "log", 5)[1] == missing


def test_what_cannot_be_noted_ends_nobody(tmp_path: Path) -> None:
    log = tmp_path / "worker-0.log"
    log.write_text("one\n")
    times_of(log).mkdir()
    LogTimes(log).note(1.0)


def test_the_last_note_does_not_wait(tmp_path: Path) -> None:
    log = tmp_path / "worker-0.log"
    times = LogTimes(log)
    log.write_text("one\n")
    times.note(1.0)
    log.write_text("one\ntwo\n")
    times.note(1.1, last=True)
    assert since(log, 1.2) == 8


def test_lines_of_paceline_itself_are_found_by_their_stamps(
    job: JobDir, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "2026-11-25 15:00:00,100 INFO a\nTraceback\n2026-11-25 15:10:00,100 INFO b\n  more\n"
    (job.logs / "master.log").write_text(text)
    since_s = parse_since("2026-11-25 15:05", 0.0)
    assert printed(job, capsys, node="master", since_s=since_s) == [*text.splitlines()[2:]]
    assert printed(job, capsys, node="master", since_s=since_s + 3600) == []


def test_json_has_the_time_that_paceline_stamps_its_lines_with(
    job: JobDir, capsys: pytest.CaptureFixture[str]
) -> None:
    (job.logs / "master.log").write_text("2026-11-27 20:16:43,422 INFO started\nno stamp\n")
    stamped, plain = printed(job, capsys, as_json=True)
    expected_s = time.mktime((2026, 11, 27, 20, 16, 43, 0, 0, -1))
    assert msgspec.json.decode(stamped)["time_s"] == expected_s
    assert msgspec.json.decode(plain)["time_s"] is None


def test_json_has_a_line_for_each_line(job: JobDir, capsys: pytest.CaptureFixture[str]) -> None:
    (job.logs / "worker-0.log").write_bytes(b'"\xff"\n')
    (line,) = printed(job, capsys, as_json=True)
    assert line == '{"node":"worker-0","line":"\\"\ufffd\\"","time_s":null}'


def test_lines_have_the_time_by_which_they_were_printed(
    job: JobDir, capsys: pytest.CaptureFixture[str]
) -> None:
    log = job.logs / "worker-0.log"
    times, begun_s = LogTimes(log), 1_750_000_000.0
    for seconds, text in ((0.0, "one\ntwo\n"), (2.0, "three\n"), (4.0, "four\n")):
        with log.open("a") as file:
            file.write(text)
        if seconds < 4.0:
            times.note(begun_s + seconds)
    stamps = [time.strftime(logs.STAMP, time.localtime(begun_s + each)) for each in (0.0, 2.0)]
    assert printed(job, capsys, timestamps=True, node="worker-0") == [
        f"{stamps[0]} one",
        f"{stamps[0]} two",
        f"{stamps[1]} three",
        "four",  # not noted yet
    ]
    assert f"worker-0 | {stamps[1]} three" in printed(job, capsys, timestamps=True, tail=2)
    found = [msgspec.json.decode(line) for line in printed(job, capsys, as_json=True)]
    assert [each["time_s"] for each in found] == [begun_s, begun_s, begun_s + 2.0, None]
    log.write_text("cut\n")
    times.note(begun_s + 6.0)
    again = time.strftime(logs.STAMP, time.localtime(begun_s + 6.0))
    assert printed(job, capsys, timestamps=True, node="worker-0") == [f"{again} cut"]


def test_what_was_cut_off_keeps_its_times(job: JobDir, capsys: pytest.CaptureFixture[str]) -> None:
    log = job.logs / "worker-0.log"
    cap = LogCap(log, LEAST_BYTES, num_nodes=1)
    now_s = time.time() - 100.0
    for seconds, text in ((0.0, "x" * LEAST_BYTES + "\none\n"), (40.0, "two\n")):
        with log.open("a") as file:
            file.write(text)
        cap.times.note(now_s + seconds)
    with log.open("a") as file:
        file.write("three\n")
    cap.look()
    assert b"three" not in log.read_bytes()
    with log.open("a") as file:
        file.write("four\n")
    cap.times.note(now_s + 102.0)
    shown = [msgspec.json.decode(line) for line in printed(job, capsys, as_json=True)]
    times = [(one["line"], round(one["time_s"] - now_s)) for one in shown if len(one["line"]) < 9]
    assert times == [("one", 0), ("two", 40), ("three", 100), ("four", 102)]
    since = printed(job, capsys, node="worker-0", since_s=now_s + 20.0)
    assert [line for line in since if "cut off" not in line] == ["two", "three", "four"]


def test_times_are_ago_or_absolute() -> None:
    assert parse_since("10m", 1000.0) == 400.0
    assert parse_since("2d", 200_000.0) == 200_000.0 - 2 * 86_400
    day = time.strptime("2026-11-25", "%Y-%m-%d")
    assert parse_since("2026-11-25", 0.0) == time.mktime(day)
    for wrong in ("10", "", "soon", "5 weeks"):
        with pytest.raises(ConfigError, match="--since: got"):
            parse_since(wrong, 0.0)
    assert parse_ago_s("1.5d") == 129_600.0
    assert parse_ago_s("d") is None


def test_a_life_begins_on_a_line_of_its_own(tmp_path: Path) -> None:
    log = tmp_path / "worker-0.log"
    assert end_last_line(log) == 0
    log.write_text("loss 0.3")
    assert end_last_line(log) == end_last_line(log) == 9
    assert log.read_text() == "loss 0.3\n"

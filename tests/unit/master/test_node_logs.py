"""Logs of nodes on other machines, as the master keeps them: files, limits, a full disk."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec

from paceline.base.jobdir import JobDir
from paceline.base.log_cap import LEAST_BYTES
from paceline.base.log_times import printed_by, times_of
from paceline.master.node_logs import NodeLogs
from paceline.master.parts import MasterParts
from paceline.wire.control import AgentStream
from paceline.wire.messages.agent import AgentHello, LogLines, SendLog
from paceline.wire.spec import JobSpec
from tests.conftest import fill

SOURCE = "host-b:/logs/worker-1.log"
MIB = 1 << 20


class Stream:
    """A stream that keeps what an agent is told."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def send_nowait(self, message: Any) -> None:
        self.told.append(message)


def a_master(folder: Path, log_bytes: int = 256 * MIB) -> NodeLogs:
    job = JobDir(folder)
    job.logs.mkdir(exist_ok=True)
    members = SimpleNamespace(roster=SimpleNamespace(nodes={"worker-0": None, "worker-1": None}))
    spec = JobSpec(script="train.py", log_bytes=log_bytes)
    return NodeLogs(cast("MasterParts", SimpleNamespace(job=job, spec=spec, members=members)))


def hello(logs: NodeLogs, source: str = SOURCE) -> list[Any]:
    """Messages that the agent of worker-1 gets."""
    stream = Stream()
    message = AgentHello(node="worker-1", agent="b", agent_pid=1, host="host-b", log=source)
    logs.hello(cast("AgentStream", stream), message)
    return stream.told


def lines(start: int, text: bytes) -> LogLines:
    return LogLines(node="worker-1", start=start, base=0, text=text)


def test_a_node_whose_log_is_in_the_directory_sends_none(tmp_path: Path) -> None:
    logs = a_master(tmp_path)
    assert hello(logs, "") == []
    logs.add(lines(0, b"one\n"))
    assert list((tmp_path / "logs").iterdir()) == []


def test_lines_are_where_those_of_this_machine_would_be_and_the_next_master_goes_on(
    tmp_path: Path,
) -> None:
    log = tmp_path / "logs" / "worker-1.log"
    for master in range(3):
        logs = a_master(tmp_path)
        assert hello(logs) == [SendLog(every_s=0.25, upto=4 * master)]
        assert log.exists(), "also before it prints, as on this machine"
        logs.add(lines(0, b"one\ntwo\nsix\n"[: 4 * master + 4]))
        logs.tick(0.0)
        logs.close()
        assert log.stat().st_mode & 0o777 == 0o644
    assert log.read_bytes() == b"one\ntwo\nsix\n"
    assert printed_by(times_of(log).read_bytes())(12) is not None


def test_what_is_missing_is_said_on_a_line_of_its_own(tmp_path: Path) -> None:
    logs = a_master(tmp_path)
    hello(logs)
    logs.add(lines(0, b"torn"))
    logs.add(lines(1_004, b"new\n"))
    torn, note, new = (tmp_path / "logs" / "worker-1.log").read_text().splitlines()
    assert (torn, new) == ("torn", "new")
    assert "1,000 bytes are left out here" in note
    assert SOURCE in note


def test_a_log_stays_within_its_limit_here_too(tmp_path: Path) -> None:
    logs = a_master(tmp_path, log_bytes=MIB)
    hello(logs)
    log, block = tmp_path / "logs" / "worker-1.log", b"x" * 1023 + b"\n"
    for second in range(40):
        logs.add(lines(second * 64 * len(block), block * 64))
        logs.tick(float(second))
        if logs._looking is not None:
            logs._looking.join()
        assert log.stat().st_size <= MIB + 64 * len(block)
    assert "were cut off here" in log.read_text()
    kept = log.with_suffix(".1.log")
    assert 0 < kept.stat().st_size <= MIB // 4 + LEAST_BYTES
    assert hello(a_master(tmp_path))[0].upto == 40 * 64 * len(block)


def test_a_full_disk_stops_no_master_and_what_it_refused_is_said(small_disk: Path) -> None:
    logs = a_master(small_disk)
    hello(logs)
    logs.add(lines(0, b"one\n"))
    ballast = fill(small_disk)
    logs.add(lines(4, b"x" * 2 * MIB))
    logs.tick(0.0)
    ballast.unlink()
    logs.add(lines(4 + 2 * MIB, b"three\n"))
    first, *_, note, third = (small_disk / "logs" / "worker-1.log").read_text().splitlines()
    assert (first, third) == ("one", "three")
    assert "are left out here" in note


def test_a_torn_note_of_the_places_is_as_none(tmp_path: Path) -> None:
    logs = a_master(tmp_path)
    hello(logs)
    logs.add(lines(0, b"one\n"))
    beside = tmp_path / "logs" / "worker-1.from"
    assert msgspec.json.decode(beside.read_bytes())["sources"] == {SOURCE: {"base": 0, "upto": 4}}
    beside.write_bytes(beside.read_bytes()[:-5])
    assert hello(a_master(tmp_path)) == [SendLog(every_s=0.25)]

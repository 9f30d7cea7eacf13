"""The tutorial: its scripts run as its commands say, and print what its pages show.

Numbers, ids and paths differ from run to run. A page may leave lines out, and may show no other.
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from paceline.base.jobdir import JobDir
from paceline.jobs.history import read_last_metrics
from paceline.wire.events.job import MasterStartedEvent
from paceline.wire.events.state import GroupRunsEvent
from tests.integration.running import RunningJob, until
from tests.pages import ROOT, Block, blocks_of

PAGES = ROOT / "docs" / "tutorial"
PROGRAMS = {
    "python": [sys.executable],
    "paceline": [sys.executable, "-c", "from paceline.cli.main import app; app()"],
}
LEFT_OUT = "..."
JOB_ID = re.compile(r"\b(\w+)-\d{4}-\d{6}-[0-9a-f]{4}\b")


def plain(line: str) -> str:
    """A line without what differs from run to run."""
    line = JOB_ID.sub(r"\1-ID", line)
    line = re.sub(r"(?<!\S)/\S*/", "/", line)
    line = re.sub(r"\d[\d,.:]*", "#", line)
    line = re.sub(r"# (?:ms|s|min|[KMG]iB|B)\b", "# U", line)
    return re.sub(r"[─\s]+", " ", line).strip()


def check(shown: Block, said: str) -> None:
    """Assert that all lines that a page shows were printed, in its order."""
    assert shown.language == "text", shown.place
    printed = iter([plain(line) for line in said.splitlines()])
    for line in shown.body.splitlines():
        if line.strip() != LEFT_OUT and line.strip():
            assert plain(line) in printed, f"{shown.place}: {line}\nprinted:\n{said}"


class Reader:
    """Somebody who does what a page says, in a folder of their own.

    Args:
        edits: what to write into the page's files in place of something else, to be quicker.
    """

    def __init__(self, folder: Path, edits: dict[str, str]) -> None:
        self.folder, self._edits = folder, edits
        own = {"PACELINE_HOME": str(folder / ".paceline"), "OMP_NUM_THREADS": "1"}
        own |= {"PYTHONUNBUFFERED": "1"}
        self._env = os.environ | own

    def save(self, block: Block, text: str | None = None) -> None:
        for old, new in self._edits.items():
            text = (text or block.body).replace(old, new)
        (self.folder / block.title).write_text(text or block.body)

    def start(self, words: list[str], out: Path) -> subprocess.Popen[bytes]:
        with out.open("wb") as file:
            return subprocess.Popen(
                [*PROGRAMS[words[0]], *words[1:]],
                cwd=self.folder,
                env=self._env,
                stdout=file,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
            )

    def run(self, block: Block) -> str:
        """All commands of a block; what they print."""
        said = ""
        assert block.language == "sh", block.place
        for number, words in enumerate(block.commands()):
            out = self.folder / f"{number}.out"
            try:
                self.start([self._own(word) for word in words], out).wait(100)
            finally:
                said += out.read_text()
        return said

    def _own(self, word: str) -> str:
        """The newest job of this folder, in place of a job's id."""
        if not JOB_ID.fullmatch(word):
            return word
        jobs = self.folder.glob(".paceline/jobs/*/job.json")
        return max(jobs, key=lambda path: path.stat().st_mtime).parent.name

    def job(self) -> RunningJob:
        (path,) = self.folder.glob(".paceline/jobs/*/job.json")
        return RunningJob(JobDir(path.parent), self.folder)


def follow(page: str, reader: Reader) -> int:
    """Do all of a page; how many outputs were compared."""
    said, compared = "", 0
    for block in blocks_of(PAGES / page):
        if block.title:
            reader.save(block)
        elif block.language == "text":
            check(block, said)
            compared += 1
        elif block.language == "sh" and not block.not_run:
            said = reader.run(block)
    return compared


# As long as its commands take on two cores that three other jobs use.
@pytest.mark.timeout(300)
def test_the_first_page(tmp_path: Path) -> None:
    assert follow("1-first-job.md", Reader(tmp_path, {"range(10)": "range(2)"})) == 6
    lines = {name: (tmp_path / name).read_text().splitlines() for name in ("plain.py", "train.py")}
    (diff,) = [b for b in blocks_of(PAGES / "1-first-job.md") if b.language == "diff"]
    added = [f"+{line.strip()}" for line in lines["train.py"] if line not in lines["plain.py"]]
    assert diff.body.splitlines() == [line for line in added if "print" not in line]


@pytest.mark.soak
def test_the_third_page(tmp_path: Path) -> None:
    assert follow("3-make-it-yours.md", Reader(tmp_path, {})) >= 6


# --------------------------------------------------------------------------- the second page


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    found = Reader(tmp_path, {"range(100)": "range(40)"})
    try:
        yield found
    finally:
        if list(tmp_path.glob(".paceline/jobs/*/job.json")):
            with closing(found.job()):
                pass


@pytest.mark.soak  # the first and the third are run by CI, and deaths by other tests
def test_the_second_page(reader: Reader) -> None:
    (script,) = [b for b in blocks_of(PAGES / "1-first-job.md") if b.title == "train.py"]
    blocks = iter(blocks_of(PAGES / "2-break-it.md"))
    change = next(blocks)
    old, new = (line[1:] for line in change.body.splitlines())
    assert script.body.count(old) == 1
    reader.save(change, script.body.replace(old, new))

    (words,) = next(blocks).commands()
    first = reader.folder / "first terminal"
    command = reader.start(words, first)
    until(lambda: list(reader.folder.glob(".paceline/jobs/*/job.json")), "a job")
    job = reader.job()
    until(lambda: (last := read_last_metrics(job.job.metrics)) and last.committed, "a sample")

    said = reader.run(next(blocks))
    check(next(blocks), said)
    until(lambda: len(job.told(GroupRunsEvent)) >= 3, "the group with its new life")
    check_soon(next(blocks), first)

    said = reader.run(next(blocks))
    check(next(blocks), said)
    until(lambda: len(job.told(MasterStartedEvent)) == 2, "another master")
    check_soon(next(blocks), first)

    command.send_signal(signal.SIGINT)
    assert command.wait(60) == 130
    check(next(blocks), first.read_text())

    said = reader.run(next(blocks))
    check(next(blocks), said)
    said = reader.run(next(blocks))
    check(next(blocks), said)
    assert not list(blocks)


def check_soon(shown: Block, terminal: Path) -> None:
    """As `check`, where the lines are printed a moment later."""

    def is_shown() -> bool:
        try:
            check(shown, terminal.read_text())
        except AssertionError:
            return False
        return True

    try:
        until(is_shown, "what the page shows", 15.0)
    except AssertionError:
        check(shown, terminal.read_text())
        raise

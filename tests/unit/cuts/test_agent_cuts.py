"""What an agent does with the copies of its process, and how often it says so."""

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.agent.cuts import CutsKept
from paceline.base.jobdir import JobDir
from paceline.cuts.manifest import checksum
from paceline.cuts.memory import image_path
from paceline.wire.messages.node import Copied, CutKept, KeepCut
from paceline.wire.spec import JobSpec

NAME = "worker-0-7.safetensors"
BYTES = bytes(range(256)) * 64
COPIED = Copied(
    epoch_no=1,
    inc=7,
    cut_no=3,
    position=1,
    step=1,
    committed=(),
    sharers=(7,),
    file=NAME,
    num_bytes=len(BYTES),
)


@pytest.fixture
def job(tmp_path: Path) -> Iterator[JobDir]:
    job = JobDir(tmp_path / f"agent-cuts-{os.getpid()}")
    job.path.mkdir()
    job.make_run_dir()
    yield job
    shutil.rmtree(job.run_dir)


async def answers(job: JobDir, *asks: KeepCut) -> list[CutKept]:
    """All that the agent says, each ask coming after the answers to the one before."""
    said: list[CutKept] = []
    over = asyncio.Event()

    def hear(kept: CutKept) -> None:
        said.append(kept)
        if kept.gone or kept.copied.stored:
            over.set()

    cuts = CutsKept(job, "worker-0", JobSpec(script="x.py"), hear, lambda _: None)
    for ask in asks:
        over.clear()
        cuts.ask(ask)
        async with asyncio.timeout(10):
            await over.wait()
    return said


def test_a_copy_is_kept_once_and_told_as_often_as_it_is_asked_for(job: JobDir) -> None:
    own = image_path(job, 3, "worker-0", NAME)
    own.parent.mkdir(parents=True)
    own.write_bytes(BYTES)
    ask = KeepCut(inc=7, copied=COPIED, partner="worker-1")
    memory, stored, *again = asyncio.run(answers(job, ask, ask))
    assert again == [memory, stored]
    assert (memory.copied.stored, stored.copied.stored) == (False, True)
    assert stored.copied.checksum == checksum(BYTES)
    assert image_path(job, 3, "worker-1", NAME).read_bytes() == BYTES
    assert (job.cuts / "000003" / NAME).read_bytes() == BYTES


def test_a_copy_that_is_not_there_is_left_to_the_process(job: JobDir) -> None:
    (said,) = asyncio.run(answers(job, KeepCut(inc=7, copied=COPIED)))
    assert said.gone


LEAVES = """
import asyncio, os, sys, threading
from pathlib import Path
from paceline.base.jobdir import JobDir
from tests.unit.cuts.test_agent_cuts import COPIED, answers
from paceline.wire.messages.node import KeepCut

syncs = threading.Event()
def stand_still(descriptor):
    syncs.set()
    threading.Event().wait(60)
os.fsync = stand_still

async def main():
    asking = asyncio.ensure_future(answers(JobDir(Path(sys.argv[1])), KeepCut(inc=7, copied=COPIED)))
    while not syncs.is_set():
        await asyncio.sleep(0.01)
    asking.cancel()
asyncio.run(main())
"""


def test_an_agent_that_ends_waits_for_no_disk(job: JobDir) -> None:
    path = image_path(job, COPIED.cut_no, "worker-0", NAME)
    path.parent.mkdir(parents=True)
    path.write_bytes(BYTES)
    done = subprocess.run(
        [sys.executable, "-c", LEAVES, str(job.path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert (done.returncode, done.stderr) == (0, "")

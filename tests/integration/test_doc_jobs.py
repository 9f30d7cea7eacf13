"""The commands of the everyday path run against real jobs: README, and five how-to pages.

A command belongs to a stage of a job's life. A page that gets a command without a stage fails.
The tutorial has tests of its own (`test_tutorial.py`).
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from typer.testing import CliRunner

from paceline.base.jobdir import JobDir
from paceline.base.processes import find_job_processes
from paceline.cli.main import app
from paceline.jobs.history import read_last_metrics
from paceline.wire.events.nodes import ReplacedEvent, ServersChangedEvent
from tests.integration.running import RunningJob, until
from tests.pages import ROOT, Block, blocks_of

PAGES = [
    ROOT / "README.md",
    *(
        ROOT / "docs/howto" / f"{name}.md"
        for name in ("strategies", "loops", "data", "cuts", "watch")
    ),
]
PROGRAMS = {
    "python": [sys.executable],
    "paceline": [sys.executable, "-c", "from paceline.cli.main import app; app()"],
}
STAGES = {
    "make": "elsewhere",
    "paceline run --resume s3://": "elsewhere",
    "paceline strategies": "before",
    "paceline data": "before",
    "python": "runs",
    "paceline run --resume": "resumed",
    "paceline run": "runs",
    "paceline rehearse": "runs",
    "paceline ps --state": "ended",
    "paceline ps": "trains",
    "paceline status": "trains",
    "paceline logs --tail": "trains",
    "paceline why": "trains",
    "paceline ui": "elsewhere",
    "paceline explain": "trains",
    "paceline failslow": "trains",
    "paceline scale --servers": "servers",
    "paceline replace --server": "servers",
    "paceline scale": "trains",
    "paceline kill": "trains",
    "paceline stop": "stopped",
    "paceline attach": "ended",
    "paceline logs -f": "ended",
    "paceline report": "ended",
    "paceline checkpoint": "ended",
    "paceline prune": "ended",
    "paceline rm": "removed",
}
"""The stage of each command, by how it begins; the first that fits counts.

before: without a job; trains, servers: while a job trains; stopped, ended, removed: when it stops,
and after that; resumed: as a job that was stopped; runs: as a job of its own; elsewhere: such as
the demo and `paceline ui`, which have tests of their own, and a storage that no test has.
"""
LONG = [pytest.mark.soak, pytest.mark.timeout(400)]
"""Marks of runs; a rehearsal alone has five minutes."""
SMALLER = {"400000": "4000", "--workers 8": "--workers 3"}
"""What is smaller here, so that CI has the time."""
STOPPED_BY_ORDER = 4
ENDS_BY_ORDER = {"paceline attach": STOPPED_BY_ORDER, "paceline run --resume": STOPPED_BY_ORDER}

RECORDS = 8_000
BEGIN = """
import torch
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset
import paceline as pl

torch.manual_seed(0)
x = torch.randn(8_000, 20)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=400)
model = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
"""
TRAIN = (
    BEGIN
    + """
job = pl.init()
if SHARDED:
    fully_shard(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
model, optimizer, loader = job.prepare(model, optimizer, loader)
for epoch in job.epochs(EPOCHS):
    for features, target in loader:
        torch.nn.functional.mse_loss(model(features), target).backward()
        optimizer.step()
        optimizer.zero_grad()
"""
)
FOR_TORCHRUN = (
    BEGIN
    + """
torch.distributed.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for features, target in loader:
    torch.nn.functional.mse_loss(model(features), target).backward()
    optimizer.step()
    optimizer.zero_grad()
torch.distributed.destroy_process_group()
"""
)


class Command(NamedTuple):
    """A command of a page."""

    block: Block
    words: list[str]

    @property
    def text(self) -> str:
        return " ".join(self.words)

    @property
    def stage(self) -> str:
        """The stage in which it runs; empty: none is known."""
        return next((stage for start, stage in STAGES.items() if self.text.startswith(start)), "")


COMMANDS = [
    Command(block, words)
    for page in PAGES
    for block in blocks_of(page)
    if block.language == "sh"
    for words in block.commands()
]


def of(stage: str) -> list[Command]:
    return [command for command in COMMANDS if command.stage == stage]


class Reader:
    """A reader of the pages, with a folder and jobs of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        own = {"PACELINE_HOME": str(folder / "home"), "OMP_NUM_THREADS": "1"}
        own |= {"PACELINE_REPORT": "off"}  # a command draws it
        self.env = os.environ | own

    def save(self, script: str, *, epochs: int, sharded: bool = False) -> None:
        script = script.replace("EPOCHS", str(epochs)).replace("SHARDED", str(sharded))
        (self.folder / "train.py").write_text(script)

    def job(self) -> JobDir:
        jobs = self.folder.glob("home/jobs/*/job.json")
        return JobDir(max(jobs, key=lambda path: path.stat().st_mtime).parent)

    def run(self, words: list[str]) -> tuple[int, str]:
        """Run a command in a process of its own: its exit code, and what it says."""
        done = subprocess.run(
            [*PROGRAMS[words[0]], *words[1:]],
            cwd=self.folder,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=350,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    def do(self, commands: list[Command]) -> None:
        """Run commands in this process, which is quicker."""
        for command in commands:
            words = [self._own(word) for word in small(command.text).split()[1:]]
            done = CliRunner().invoke(app, words, env={"PACELINE_HOME": self.env["PACELINE_HOME"]})
            wanted = expected(command)
            assert done.exit_code == wanted, f"{command.block.place}: {words}\n{done.output}"

    def _own(self, word: str) -> str:
        return self.job().job_id if word == "JOB" else word


def small(text: str) -> str:
    for old, new in SMALLER.items():
        text = text.replace(old, new)
    return text


def expected(command: Command) -> int:
    found = (code for start, code in ENDS_BY_ORDER.items() if command.text.startswith(start))
    return next(found, 0)


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Reader]:
    monkeypatch.chdir(tmp_path)
    found = Reader(tmp_path)
    yield found
    for path in tmp_path.glob("home/jobs/*/job.json"):
        if find_job_processes(path.parent):
            found.run(["paceline", "stop", "--now", path.parent.name])


def test_each_command_of_the_everyday_path_has_a_stage() -> None:
    assert [f"{one.block.place}: {one.text}" for one in COMMANDS if not one.stage] == []


def begin(reader: Reader, *flags: str) -> JobDir:
    """Start a job that trains until it is stopped."""
    reader.save(TRAIN, epochs=1_000_000)
    code, said = reader.run(["paceline", "run", "--detach", "train.py", *flags])
    assert code == 0, said
    job = reader.job()
    until(lambda: (last := read_last_metrics(job.metrics)) and last.committed, "a sample")
    return job


def test_commands_of_the_everyday_path_run(reader: Reader) -> None:
    reader.do(of("before"))
    begin(reader, "--workers", "2")
    for stage in ("trains", "stopped", "ended", "removed"):
        reader.do(of(stage))
    assert not list(reader.folder.glob("home/jobs/*/job.json"))


@pytest.mark.soak
def test_commands_for_servers_run(reader: Reader) -> None:
    job = RunningJob(begin(reader, "--workers", "2", "--servers", "2"), reader.folder)
    scaled, replaced = of("servers")
    reader.do([scaled])
    until(lambda: job.told(ServersChangedEvent), "the new servers")
    reader.do([replaced])
    until(lambda: job.told(ReplacedEvent), "the server in its place")
    reader.do(of("stopped"))


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_a_stopped_job_is_resumed_as_the_page_says(reader: Reader) -> None:
    for command in of("resumed"):
        begin(reader, "--workers", "2")
        reader.do(of("stopped"))
        last = read_last_metrics(reader.job().metrics)
        assert last is not None
        reader.save(TRAIN, epochs=last.committed // RECORDS + 2)
        code, said = reader.run([reader.job().job_id if w == "JOB" else w for w in command.words])
        assert code == 0, said


@pytest.mark.parametrize(
    "command",
    [pytest.param(one, id=f"{one.block.place} {one.text}", marks=LONG) for one in of("runs")],
)
def test_a_run_of_the_everyday_path_trains(command: Command, reader: Reader) -> None:
    script = FOR_TORCHRUN if "--nproc-per-node" in command.words else TRAIN
    reader.save(script, epochs=2, sharded="fsdp" in command.words)
    code, said = reader.run(command.words)
    assert code == 0, said


SCRIPTS = [
    block for page in sorted((ROOT / "docs/loops").glob("*.md")) for block in blocks_of(page)
]


@pytest.mark.soak
@pytest.mark.parametrize("block", [b for b in SCRIPTS if b.title], ids=lambda block: block.title)
def test_the_script_of_a_page_on_loops_is_a_job(block: Block, reader: Reader) -> None:
    (reader.folder / block.title).write_text(block.body)
    code, said = reader.run(["paceline", "run", block.title, "--workers", "2"])
    assert code == 0, said
    assert "Nothing went wrong" in said

"""Programs in the shape of well-known ones end as their plain versions, with kills.

What they print, and the weights that they write, are compared in float64.
"""

import ast
import difflib
import math
import os
import re
import signal
import statistics
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import closeness
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from paceline.base.node_files import CHIEF, NodeFiles
from paceline.jobs.launch import launch
from paceline.wire.spec import JobSpec, NodeSpec, RestartSpec
from tests.integration.running import RunningJob, until
from tests.integration.test_integrations import LIGHTNING, TRAINER

REAL = Path(__file__).parents[2] / "examples" / "real"
NAMES = sorted(path.parent.name for path in REAL.glob("*/train.py"))
LIMIT, ROUNDING = 1e-9, 1e-10
ALL_REDUCE: dict[str, Any] = {"strategy": "allreduce"}
SERVERS: dict[str, Any] = {"strategy": "ps", "mode": "bsp", "servers": NodeSpec(count=1)}


@dataclass(frozen=True)
class Program:
    """One of them, and how it is run.

    Attributes:
        samples: that it trains on in all.
        args: its own options without which it could not end equal; `examples/real/README.md` says why.
        spec: of its job.
        prints: its lines are compared.
        weights: files that it writes.
    """

    name: str
    samples: int
    args: tuple[str, ...] = ()
    spec: Mapping[str, Any] = field(default_factory=lambda: ALL_REDUCE)
    prints: bool = True
    weights: str = ""

    def arguments(self) -> tuple[str, ...]:
        return "--dtype", "float64", *self.args


CHAR_GPT = Program("char_gpt", 200 * 16, weights="out-char-gpt/ckpt.pt")
IMAGES = Program(
    "image_classification", 6 * 1200, ("--norm", "group"), weights="out-images/epoch-*.pt"
)
GAN = Program("gan", 6 * 3200)
LANGUAGE = Program("language_model", 5 * 54 * 20)
DLRM = Program("dlrm", 30_000, spec=SERVERS)
DEEP_FM = Program("deepfm", 4 * 10_240, spec=SERVERS)
MASKED = Program(
    "masked_language",
    3 * 1600,
    ("--dropout", "0", "--order", "sequential"),
    ALL_REDUCE | {"batch_size": 32},
    prints=False,
    weights="out-mlm/final/model.safetensors",
)
CLASSIFIER = Program(
    "lightning_classifier",
    4 * 6400,
    ("--no-shuffle",),
    ALL_REDUCE | {"batch_size": 64},
    prints=False,
    weights="out-lightning/final.pt",
)
SEQ2SEQ = Program("seq2seq", 4 * 1920, ("--dropout", "0"))
K_FOLD = Program("k_fold", 4 * 3 * 3000)
pytestmark = pytest.mark.timeout(300)


def proves(program: Program, *forms: str, more: tuple[pytest.MarkDecorator, ...] = ()) -> Any:
    """Mark a program with the forms of a loop that it has."""
    strategy = program.spec["strategy"]
    mark = pytest.mark.proves(form=forms, strategy=strategy, death=("worker", "master"))
    return pytest.param(program, marks=(mark, *more))


PROGRAMS = [
    proves(CHAR_GPT, "batches"),
    proves(IMAGES, "epochs", "loader", "averages"),
    proves(GAN, "epochs", "loader", "turns"),
    proves(LANGUAGE, "epochs", "batches"),
    DLRM,
    proves(DEEP_FM, "epochs", "loader"),
    proves(MASKED, "trainers", more=(TRAINER,)),
    proves(CLASSIFIER, "trainers", more=(LIGHTNING,)),
    proves(SEQ2SEQ, "epochs", "loader", "accumulation"),
    proves(K_FOLD, "epochs", "loader", "folds"),
]


def found_in(said: str) -> dict[Any, dict[str, float]]:
    """What a program found, by the leading words and whole numbers of its line."""
    found = {}
    for line in re.findall(r"^\{.*\}$", said, re.MULTILINE):
        items = list(ast.literal_eval(line).items())
        count = next(k for k, (_, value) in enumerate(items) if isinstance(value, float))
        found[tuple(items[:count])] = dict(items[count:])
    return found


def tensors_of(value: Any, name: str = "") -> dict[str, Any]:
    """All tensors of nested dicts, and other values as tensors, too."""
    if not isinstance(value, dict):
        return {name: torch.as_tensor(value).numpy()}
    parts = (tensors_of(one, f"{name}.{key}") for key, one in value.items())
    return {key: one for part in parts for key, one in part.items()}


def written(out: Path, files: str) -> dict[str, dict[str, Any]]:
    """The tensors of each file."""
    found = {}
    for path in out.glob(files):
        safe = path.suffix == ".safetensors"
        value = load_file(path) if safe else torch.load(path, weights_only=True)
        # The gradient of the bias of keys (attention) is 0 but for rounding, and so is the bias.
        found[path.name] = {
            name: np.where(np.abs(one) < ROUNDING, 0.0, one)
            for name, one in tensors_of(value).items()
        }
    return found


def run(program: Program, script: str, out: Path) -> str:
    """What a script prints without a job."""
    out.mkdir()
    env = {name: value for name, value in os.environ.items() if not name.startswith("PACELINE_")}
    done = subprocess.run(
        [sys.executable, str(REAL / program.name / script), *program.arguments()],
        env=env | {"OMP_NUM_THREADS": "1"},
        cwd=out,
        check=True,
        timeout=100,
        capture_output=True,
        text=True,
    )
    return done.stdout


def apart(program: Program, plain: tuple[str, Path], other: tuple[str, Path]) -> tuple[float, str]:
    """How far two runs are apart at most, relative to what is compared, and where."""
    found = [(0.0, "nowhere")]
    if program.prints:
        expected, said = found_in(plain[0]), found_in(other[0])
        assert expected
        assert expected.keys() <= said.keys()
        for key, values in expected.items():
            assert said[key].keys() == values.keys()
            found += [
                (abs(said[key][name] - value) / (abs(value) or 1.0), f"{key} {name}")
                for name, value in values.items()
            ]
    if program.weights:
        files, theirs = written(plain[1], program.weights), written(other[1], program.weights)
        assert files
        assert theirs.keys() == files.keys()
        for file, tensors in files.items():
            name, far = closeness.farthest(theirs[file], tensors)
            found.append((far, f"{file} {name}"))
    worst = max(found, key=lambda one: one[0] if math.isfinite(one[0]) else math.inf)
    print(f"{program.name}: {worst[0]:.1e}, {worst[1]}")
    return worst


@pytest.mark.soak
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda one: one.name)
def test_with_a_worker_and_the_master_killed_it_is_the_plain_program(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))
    plain = run(program, "plain.py", tmp_path / "plain"), tmp_path / "plain"
    out = tmp_path / "job"
    out.mkdir()
    fields: dict[str, Any] = {
        "script": str(REAL / program.name / "train.py"),
        "args": program.arguments(),
        "name": program.name.replace("_", "-"),
        "cwd": str(out),
        "workers": NodeSpec(count=2),
        "torch_threads": 1,
        "restart": RestartSpec(backoff_s=0.1),
        "solution": "none",
        "preflight": False,
    }
    job = RunningJob(launch(JobSpec(**(fields | dict(program.spec)))), out)
    try:
        job.until_committed(program.samples // 5)
        killed = job.living("worker-1")
        os.kill(killed.pid, signal.SIGKILL)
        until(lambda: job.node("worker-1").inc > killed.inc, "a new life")
        committed = job.until_committed(program.samples // 2)
        os.kill(committed.master_pid, signal.SIGKILL)
        until(lambda: job.status().master_pid != committed.master_pid, "another master")
        outcome = job.end()
        assert outcome.state == "finished", outcome
        assert [one["node"] for one in job.deaths()] == ["worker-1"]
        assert not job.events("diverged")
        said = NodeFiles(job.job, CHIEF).log.read_text()
        far, where = apart(program, plain, (said, out))
        assert far < LIMIT, where
    finally:
        job.close()


@pytest.mark.soak
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda one: one.name)
def test_started_without_a_job_it_is_the_plain_program(program: Program, tmp_path: Path) -> None:
    plain, other = tmp_path / "plain", tmp_path / "other"
    said = run(program, "plain.py", plain)
    far, where = apart(program, (said, plain), (run(program, "train.py", other), other))
    assert far < LIMIT, where


# ------------------------------------------------------------------ what a migration takes


def changed_lines(name: str) -> int:
    """Lines of train.py that plain.py lacks, or that take the place of its lines.

    A line that is only removed counts, too; empty lines do not.
    """
    plain, train = (
        [line for line in (REAL / name / file).read_text().splitlines() if line.strip()]
        for file in ("plain.py", "train.py")
    )
    matcher = difflib.SequenceMatcher(None, plain, train, autojunk=False)
    edits = [edit for edit in matcher.get_opcodes() if edit[0] != "equal"]
    return sum(max(end - start, last - first) for _, start, end, first, last in edits)


def test_programs_change_four_lines_in_the_median_and_ten_at_most() -> None:
    counts = {name: changed_lines(name) for name in NAMES}
    assert len(counts) == 10
    assert statistics.median(counts.values()) <= 4, counts
    assert max(counts.values()) <= 10, counts


def test_the_table_says_how_many_lines_each_changes() -> None:
    rows = re.findall(
        r"^\| \[(\w+)\]\(\1/\) \|.*\| (\d+) \|", (REAL / "README.md").read_text(), re.MULTILINE
    )
    assert {name: int(count) for name, count in rows} == {
        name: changed_lines(name) for name in NAMES
    }

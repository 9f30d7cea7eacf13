"""A script's own accumulation, and skipped steps, end as in one process.

A worker dies, and the master.
"""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.jobs.launch import launch
from paceline.wire.spec import JobSpec, NodeSpec
from paceline.wire.strategies import Strategy
from tests.integration.running import RunningJob, run_group

SCRIPT = Path(__file__).with_name("jobs") / "accumulated.py"


def found(out: Path) -> list[list[float]]:
    lines = [path.read_text().split() for path in sorted(out.glob("*.end"))]
    return [[int(one[0]), *map(float.fromhex, one[1:])] for one in lines]


def plain(out: Path, *flags: str) -> list[float]:
    out.mkdir()
    env = {name: value for name, value in os.environ.items() if not name.startswith("PACELINE_")}
    command = [sys.executable, str(SCRIPT), "--out", str(out), *flags]
    subprocess.run(command, env=env, check=True, timeout=100)
    (values,) = found(out)
    return values


@pytest.mark.soak
@pytest.mark.parametrize(
    ("form", "accumulate", "steps"), [("accumulation", 4, 32), ("skipped", 1, 126)]
)
@pytest.mark.proves(form="{form}", strategy="allreduce", death=("worker", "master"))
def test_with_two_deaths_it_is_the_model_of_one_process(
    form: str, accumulate: int, steps: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))
    flags = ("--accumulate", str(accumulate))
    expected = plain(tmp_path / "alone", *flags)
    assert expected[0] == steps
    out = tmp_path / "job"
    out.mkdir()
    soon_after = 7 * 16 * accumulate  # the worker's next life comes
    run_group(SCRIPT, out, *flags, "--die", "1:5", "--step-s", "0.02", master_dies_at=soon_after)
    ends = found(out)
    assert len(ends) == 3
    for values in ends:
        assert values == pytest.approx(expected, rel=1e-9)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("strategy", "flags"),
    [("fsdp", ("--sharded",)), ("ps", ())],
)
@pytest.mark.parametrize(
    ("form", "accumulate", "said"),
    [
        ("accumulation", 4, "accumulate=4, and here each batch is a step"),
        ("skipped", 1, "a batch went by without optimizer.step()"),
    ],
)
@pytest.mark.refuses(form="{form}", strategy="{strategy}")
def test_where_each_batch_is_a_step_both_are_refused(
    strategy: Strategy,
    flags: tuple[str, ...],
    form: str,
    accumulate: int,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))
    spec = JobSpec(
        script=str(SCRIPT),
        args=("--out", str(tmp_path), "--accumulate", str(accumulate), *flags),
        name="refused",
        strategy=strategy,
        workers=NodeSpec(count=2),
        solution="none",
        preflight=False,
    )
    with contextlib.closing(RunningJob(launch(spec), tmp_path)) as job:
        outcome = job.end()
        assert outcome.state == "failed", outcome
        assert said in outcome.error

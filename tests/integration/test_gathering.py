"""Calls that wait for all workers in the body of a loop, when a worker dies before its call.

In the first case the master, by which they hear each other, dies as well.
"""

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from tests.integration.running import run_group

SCRIPT = Path(__file__).with_name("jobs") / "gathering.py"
proves = partial(pytest.mark.proves, form=("gather", "agree", "uneven"), strategy="allreduce")


def ends(out: Path) -> list[list[float]]:
    lines = [path.read_text().split() for path in sorted(out.glob("*.end"))]
    return [[int(one[0]), *map(float.fromhex, one[1:])] for one in lines]


@pytest.mark.soak
@pytest.mark.parametrize(
    "die",
    [
        pytest.param("1:after:9", marks=proves(death=("worker", "master"))),
        *("0:after:3", "2:after:24", "1:before:4", "0:within:0", "2:within:12"),
    ],
)
@proves(death="worker")
def test_nobody_waits_for_a_worker_that_is_in_no_step(
    die: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))
    alone, out = tmp_path / "alone", tmp_path / "job"
    for folder in (alone, out):
        folder.mkdir()
    env = {name: value for name, value in os.environ.items() if not name.startswith("PACELINE_")}
    command = [sys.executable, str(SCRIPT), "--out", str(alone)]
    subprocess.run(command, env=env, check=True, timeout=100)
    (expected,) = ends(alone)
    master = 256 // 2 if die == "1:after:9" else None
    run_group(SCRIPT, out, "--die", die, "--step-s", "0.03", master_dies_at=master)
    for values in ends(out):
        assert values == pytest.approx(expected, rel=1e-9)
    next_lives = {path.stem for path in out.glob(f"{die[0]}-*.end")}
    told: dict[int, set[str]] = {}
    back = 24  # from when on the next life of the worker that died is heard
    for path in out.glob("*.told"):
        for line in path.read_text().splitlines():
            step, rest = line.split(maxsplit=1)
            told.setdefault(int(step), set()).add(rest)
            if path.stem in next_lives:
                back = min(back, int(step))
    assert {*told} - {0} == set(range(3, 25, 3))
    died = int(die.split(":")[2])
    for step, said in told.items():
        (one,) = said  # the same in all workers
        values = one.split(maxsplit=1)[1].strip("[]").split(", ")
        assert len(set(values)) == 1  # of one model
        if 0 < step < died or step > back + 3:
            assert len(values) == 3, (step, died, back)

"""The solution of docs/howto/write-a-solution.md, installed as a package of somebody else."""

import os
import re
from pathlib import Path

import pytest

from paceline.features.stragglers.policy.decision_log import Decided, log_of
from paceline.features.stragglers.stories import read_log
from paceline.policy.actions import AdjustBatch
from paceline.wire.spec import WindowSpec
from tests.integration.running import install, running, until

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "write-a-solution.md"


def block(kind: str) -> str:
    """The page's code of this kind."""
    (found,) = re.findall(rf"```{kind}\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return str(found)


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """What ``pip install`` leaves of it."""
    group, line = block("toml").splitlines()
    name = re.findall(r'"(.*)"', group)[0]
    return install(tmp_path / "site", "leveling", block("python"), name, line.replace('"', ""))


def test_it_is_short() -> None:
    assert len(block("python").splitlines()) <= 30


@pytest.mark.soak
def test_a_job_runs_it(package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))
    paths = [str(package), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    with running(
        tmp_path,
        "--num-samples",
        "8192",
        mode="bsp",
        solution="level",
        solution_args={"tolerance": "0.0"},
        decide_every_s=0.5,
        windows=WindowSpec(short_steps=10, long_steps=20),
    ) as job:
        until(lambda: job.events("plan"), "a plan")
        job.check_finished()
        decided = [line for line in read_log(log_of(job.job)) if isinstance(line, Decided)]
        (first, *_) = (one for one in decided if one.actions)
        (action,) = first.actions
        assert isinstance(action, AdjustBatch)
        assert action.reason.startswith("level: ")
        assert sum(share.batch_size for share in action.shares.values()) == (
            first.observation.global_batch
        )

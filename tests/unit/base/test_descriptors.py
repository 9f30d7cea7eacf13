"""Descriptors: as many as the machine allows, and a job that needs more does not begin."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.base import descriptors
from paceline.base.errors import ConfigError
from paceline.jobs.ground import check_ground
from paceline.master.orders import check_size
from paceline.wire.spec import JobSpec, NodeSpec

ALLREDUCE = JobSpec(script="/train.py", strategy="allreduce", workers=NodeSpec(count=2))


@pytest.fixture
def hard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the machine allow 1,024."""
    limits = (256, 1024)
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits)


def test_a_process_gets_what_the_machine_allows() -> None:
    code = (
        "import resource; from paceline.base.descriptors import raise_limit;"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 512));"
        "print(raise_limit(), resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "512 (512, 512)\n"


@pytest.mark.usefixtures("hard")
def test_a_job_that_needs_more_names_the_limit_the_value_and_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))
    check_ground(ALLREDUCE)
    many = JobSpec(script="/train.py", strategy="allreduce", workers=NodeSpec(count=1_000))
    with pytest.raises(ConfigError) as refused:
        check_ground(many)
    told = str(refused.value)
    assert told.startswith("open files (ulimit -Hn): got 1,024, expected 2,032 for a master of")
    assert "1,000 nodes; raise the hard limit" in told
    assert not descriptors.complaint(990, on_this_machine=False)


@pytest.mark.usefixtures("hard")
def test_a_job_is_not_scaled_beyond_it() -> None:
    check_size(ALLREDUCE, "scale to", 496)
    with pytest.raises(ConfigError, match=r"cannot scale to 497 workers: open files.*got 1,024"):
        check_size(ALLREDUCE, "scale to", 497)


def test_without_a_limit_there_is_nothing_to_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, resource.RLIM_INFINITY))
    assert not descriptors.complaint(10_000, on_this_machine=True)

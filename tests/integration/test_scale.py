"""A thousand connections to one real master: light agents and members, and what they cost it.

What counts is the master's processor time, by the kernel, since other work shares the machine. What
happens once (a group forms) is counted beyond what the running nodes cost meanwhile anyway.
"""

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from paceline_experiments.fleet import FleetCosts, costs_of, fleet_master

from paceline.base import descriptors
from paceline.base.jobdir import JobDir

FORMING_S, STEADY, STATUS_S = 1.0, 0.25, 0.5
"""Most seconds of the master's processor for a group to form, part of a processor that it takes
while members train, and seconds of its processor for an answer with the status."""
NEAR = 10
"""Descriptors that come and go with a call, a file that is written, a thread."""


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[JobDir]:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))
    job = JobDir.create("fleet")
    yield job
    shutil.rmtree(job.run_dir)


def costs(job: JobDir, size: int, steady_s: float) -> FleetCosts:
    descriptors.raise_limit()
    with fleet_master(job, size) as master:
        found = asyncio.run(costs_of(master, size, steady_s))
    assert abs(found.descriptors - descriptors.needed(size, on_this_machine=True)) <= NEAR, found
    return found


def test_a_hundred_connections_form_groups_and_lose_a_member(job: JobDir) -> None:
    found = costs(job, 100, steady_s=2.0)
    assert found.forming_s < FORMING_S
    assert found.death_s < FORMING_S
    assert found.steady < STEADY


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_thousand_connections_cost_the_master_little(job: JobDir) -> None:
    found = costs(job, 1_000, steady_s=10.0)
    assert found.forming_s <= FORMING_S, found
    assert found.death_s <= FORMING_S, found
    assert found.steady <= STEADY, found
    assert found.status_s <= STATUS_S, found


def test_a_master_opens_more_files_than_its_shell_may(job: JobDir) -> None:
    code = (
        "import resource, sys; from paceline_experiments import fleet;"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 4096));"
        "from pathlib import Path; from paceline.base.jobdir import JobDir; import asyncio;"
        "job = JobDir(Path(sys.argv[1]))\n"
        "with fleet.fleet_master(job, 5) as master:\n"
        "    asyncio.run(fleet.costs_of(master, 5, 0.5))\n"
        "    print(Path(f'/proc/{master.process.pid}/limits').read_text())"
    )
    command = [sys.executable, "-c", code, str(job.path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ)
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("Max open files"))
    assert line.split()[3:5] == ["4096", "4096"]

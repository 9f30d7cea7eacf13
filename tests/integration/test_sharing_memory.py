"""Jobs that share a device's memory: what the guaranteed one needs comes from the other."""

import contextlib
import functools
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from paceline.base.processes import kill_quietly
from paceline.features.sharing.gate_page import GatePage, page_of
from paceline.features.sharing.wire import MemoryLimit
from paceline.jobs.launch import launch
from paceline.jobs.outcome import read_outcome
from paceline.wire.events.nodes import Verdict
from paceline.wire.spec import JobSpec, NodeSpec, ShareClass, ShareSpec
from tests.integration.running import until
from tests.integration.test_sharing import CORE, Sharer

SCRIPT = Path(__file__).parents[2] / "experiments" / "benchmarks" / "jobs" / "phases.py"
MIB = 1 << 20
ROOM = 160 * MIB
MINUTES = float(os.environ.get("PACELINE_SOAK_MINUTES", "2"))
"""Of the job with phases; 30 for a thorough run."""

pytestmark = [pytest.mark.soak, pytest.mark.timeout(300 + 600 * MINUTES)]


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path / "home"))


class MemorySharer(Sharer):
    """A job that shares the core and its memory."""

    @property
    def limits(self) -> list[MemoryLimit]:
        """Decided for it so far."""
        found = [line.decision.memory for line in self.decided]
        return [one for one in found if one and one.worker.startswith(self.job.job_id)]

    @property
    def page(self) -> GatePage:
        return GatePage.open(page_of(self.job, "worker-0"))


@contextlib.contextmanager
def sharing_memory(
    out: Path, kind: ShareClass, cycles: int, *phases: str, minimum: int | None = None
) -> Iterator[MemorySharer]:
    spec = JobSpec(
        script=str(SCRIPT),
        args=(str(out), str(cycles), *phases),
        name=kind,
        strategy="script",
        solution="none",
        workers=NodeSpec(count=1),
        share=ShareSpec(
            kind=kind, device=CORE, device_memory_bytes=ROOM, minimum_memory_bytes=minimum
        ),
    )
    with contextlib.closing(MemorySharer(launch(spec), out)) as job:
        yield job


def check_same(out: Path, cycles: int, *phases: str) -> None:
    """Check that the script computes the same, bit by bit, without paceline."""
    alone = out.with_suffix(".alone")
    command = [sys.executable, str(SCRIPT), str(alone), str(cycles), *phases]
    subprocess.run(command, check=True, env=os.environ | {"PHASES_WAIT": "0"})
    assert out.read_text() == alone.read_text()


def test_a_guaranteed_job_that_spills_gets_memory_from_the_other(tmp_path: Path) -> None:
    phases = "train:2500:20", "decode:400:120"
    with sharing_memory(tmp_path / "b", "opportunistic", 1, "train:1000000:100") as other:
        until(lambda: len(other.losses) > 20, "steps")
        assert other.page.memory.spilled == 0, "it is alone"
        with sharing_memory(tmp_path / "a", "guaranteed", 1, *phases) as kept:
            until(lambda: [one for one in other.limits if one.cause == "arrival"], "an arrival")
            until(lambda: [one for one in kept.limits if one.cause == "unused"], "it needs less")
            until(lambda: other.page.memory.limit > 100 * MIB, "which the other gets")
            until(lambda: [one for one in other.limits if one.cause == "spill"], "it needs more")
            spilling = next(one for one in other.limits if one.cause == "spill")
            assert spilling.by == f"{kept.job.job_id}/worker-0" and spilling.seen_bytes > MIB
            until(lambda: kept.page.memory.limit > 120 * MIB, "which it gets")
            before = kept.page.memory.spilled
            until(lambda: kept.shown("memory") == msgspec.to_builtins(kept.limits[-1]), "status")
            assert kept.page.memory.spilled == before
            assert kept.end().state == "finished"
        until(lambda: other.limits[-1].cause == "alone", "no limit")
        assert not other.deaths()
    check_same(tmp_path / "a", 1, *phases)


def test_a_job_whose_minimum_does_not_fit_ends_and_starts_again(tmp_path: Path) -> None:
    phases = ("train:2500:120",)
    minimum = 100 * MIB
    with sharing_memory(
        tmp_path / "b", "opportunistic", 1, "train:1000000:60", minimum=minimum
    ) as other:
        until(lambda: len(other.losses) > 20, "steps")
        with sharing_memory(tmp_path / "a", "guaranteed", 1, *phases) as kept:
            until(lambda: [one for one in other.limits if one.cause == "no room"], "its end", 60)
            until(lambda: kept.page.memory.limit > 120 * MIB, "which the guaranteed job gets")
            spilled, steps = kept.page.memory.spilled, len(other.losses)
            until(lambda: len(kept.losses) > 1500, "steps without it", 60)
            assert kept.page.memory.spilled == spilled
            assert len(other.losses) == steps
            assert other.shown("memory") == msgspec.to_builtins(other.limits[-1])
            # The order to wait is on the page, so it outlives the agent.
            kill_quietly(other.node("worker-0").agent_pid)
            assert kept.end().state == "finished"
        until(lambda: len(other.losses) > steps + 20, "steps again", 60)
        assert other.status().state == "running"
        verdicts = [one["verdict"] for one in other.deaths()]
        assert verdicts == [Verdict.MADE_ROOM, Verdict.NOT_STARTED]
    check_same(tmp_path / "a", 1, *phases)


def test_jobs_with_phases_go_on_for_long(tmp_path: Path) -> None:
    """No limit ends a job, and each notes as many steps as it must, also one that begins again."""
    phases = "train:300:30", "decode:150:150", "idle:4"
    cycles = max(round(MINUTES * 60 / 12), 1)
    with (
        sharing_memory(tmp_path / "b", "opportunistic", cycles, *phases, minimum=8 * MIB) as other,
        sharing_memory(tmp_path / "a", "guaranteed", cycles, *phases) as kept,
    ):
        until(lambda: kept.losses and other.losses, "steps")
        end_s = time.monotonic() + 60 * MINUTES / 2
        until(lambda: time.monotonic() > end_s, "half of it", 120 * MINUTES + 60)
        # The first agent on the device holds its lock: that of the opportunistic job, whose
        # script ends with it, and begins again.
        kill_quietly(other.node("worker-0").agent_pid)
        for job in (kept, other):
            until(functools.partial(read_outcome, job.job.outcome), "its end", 300 * MINUTES + 60)
            assert job.end().state == "finished"
            assert len(job.losses) == 450 * cycles
            assert job.limits
        assert not kept.deaths()
    check_same(tmp_path / "a", cycles, *phases)

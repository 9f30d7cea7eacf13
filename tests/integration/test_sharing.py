"""Two jobs on one core: the opportunistic one lives on what the guaranteed one leaves."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from paceline.base.errors import ConfigError
from paceline.base.processes import kill_quietly
from paceline.features.sharing.log import SharingLine, log_of, read_sharing
from paceline.features.sharing.wire import GateMode
from paceline.jobs.history import read_events
from paceline.jobs.launch import launch
from paceline.wire.client import StopJob
from paceline.wire.events.base import PlainEvent
from paceline.wire.events.nodes import HungEvent
from paceline.wire.spec import JobSpec, NodeSpec, ShareClass, ShareSpec
from tests.chaos.oracle import leftovers
from tests.integration.running import RunningJob, devices, running, until
from tests.integration.test_allreduce import finals, group
from tests.integration.test_deterministic import Model
from tests.integration.test_fsdp import sharded

SCRIPT = Path(__file__).parents[2] / "experiments" / "benchmarks" / "jobs" / "shared.py"
SIZES = ("64", "96")
"""Of a batch, which takes a core for a moment."""
CORES = sorted(os.sched_getaffinity(0))
# Tests that run at the same time must not share a core.
CORE = f"cpu:{CORES[int(os.environ.get('PYTEST_XDIST_WORKER', 'gw0')[2:]) % len(CORES)]}"
ENDLESS = 10_000_000


@pytest.fixture(autouse=True)
def _device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path / "home"))
    with devices(every=False):
        yield


class Sharer(RunningJob):
    """A job that shares the core, and what it has noted."""

    @property
    def losses(self) -> list[str]:
        """Of its steps so far."""
        with contextlib.suppress(FileNotFoundError):
            return self.out.read_text().split()
        return []

    @property
    def decided(self) -> list[SharingLine]:
        """What its master knows of decisions."""
        return read_sharing(log_of(self.job))

    def shown(self, name: str) -> object:
        """What ``paceline status --json`` has of its worker under that name."""
        return self.status().nodes[0].shown.get(name)

    def causes(self) -> list[str]:
        """Why anything was decided, in order."""
        return [line.decision.cause for line in self.decided]

    def until_decided(self, cause: str, after: int = 0) -> SharingLine:
        """Wait for a decision with this cause."""
        found: SharingLine = until(
            lambda: next((d for d in self.decided[after:] if d.decision.cause == cause), None),
            f"a decision: {cause}",
        )
        return found


@contextlib.contextmanager
def sharing(
    out: Path,
    kind: ShareClass,
    steps: int = ENDLESS,
    wait_s: float = 0.01,
    *,
    device: str = CORE,
    more: tuple[str, ...] = (),
) -> Iterator[Sharer]:
    spec = JobSpec(
        script=str(SCRIPT),
        args=(str(out), str(steps), str(wait_s), *SIZES, *more),
        name=kind,
        strategy="script",
        solution="none",
        workers=NodeSpec(count=1),
        share=ShareSpec(kind=kind, device=device),
    )
    with contextlib.closing(Sharer(launch(spec), out)) as job:
        yield job


def cores_of(job: RunningJob) -> set[int]:
    return os.sched_getaffinity(job.pid_of("worker-0"))


@pytest.mark.soak
def test_an_opportunistic_job_gives_way_and_gets_all_when_it_is_alone(tmp_path: Path) -> None:
    with sharing(tmp_path / "b", "opportunistic", wait_s=0.0) as other:
        until(lambda: len(other.losses) > 20, "steps")
        assert not other.decided, "nobody else is there"
        with sharing(tmp_path / "a", "guaranteed", steps=600) as kept:
            arrived = other.until_decided("arrival")
            assert arrived.decision.mode is not GateMode.OFF
            assert arrived.decision.guaranteed == kept.job.job_id
            until(lambda: kept.losses, "steps")
            assert cores_of(kept) == cores_of(other) == {int(CORE.partition(":")[2])}
            measured = other.until_decided("measured")
            assert measured.decision.alone_s > 0.01
            assert kept.until_decided("measured").decision == measured.decision
            until(
                lambda: other.shown("sharing") == msgspec.to_builtins(other.decided[-1].decision),
                "status",
            )
            with (
                pytest.raises(ConfigError, match="one guaranteed job"),
                sharing(tmp_path / "c", "guaranteed"),
            ):
                pass
            assert kept.end().state == "finished"
            until(lambda: not leftovers(kept.job), "a clean machine")
        other.until_decided("departure")
        before = len(other.losses)
        until(lambda: len(other.losses) > before + 200, "steps at full speed")
        assert not other.events("hung")
        events = read_events(other.job.events)
        told = [one.sentence() for one in events if isinstance(one, PlainEvent)]
        assert "does not run steadily yet" in told[0] and "no guaranteed job" in told[-1]
        assert not any(isinstance(event, HungEvent) for event in events)
        losses, alone = (tmp_path / "a").read_text(), tmp_path / "solo"
        subprocess.run([sys.executable, str(SCRIPT), str(alone), "600", "0", *SIZES], check=True)
        assert losses == alone.read_text(), "sharing changes nothing of what is computed"


@pytest.mark.soak  # on a busy machine it takes long; CI has the election and the gates by processes
def test_the_device_coordinator_may_be_killed_at_any_time(tmp_path: Path) -> None:
    with sharing(tmp_path / "b", "opportunistic", wait_s=0.0) as other:
        until(lambda: other.losses, "steps")
        with sharing(tmp_path / "a", "guaranteed") as kept:
            other.until_decided("measured")
            so_far = len(kept.decided)
            # The first agent on the device holds its lock: that of the opportunistic job.
            kill_quietly(other.node("worker-0").agent_pid)
            again = kept.until_decided("arrival", after=so_far)
            kept.until_decided("measured", after=so_far)
            assert again.decision.guaranteed == kept.job.job_id
            assert not kept.deaths()


@pytest.mark.soak
def test_who_leaves_it_open_is_guaranteed_while_nobody_else_is(tmp_path: Path) -> None:
    with sharing(tmp_path / "a", "auto") as first:
        until(lambda: first.losses, "steps")
        with sharing(tmp_path / "b", "auto", wait_s=0.0) as second:
            second.until_decided("measured")
            assert second.decided[-1].decision.guaranteed == first.job.job_id


@pytest.mark.soak
def test_a_job_that_is_held_counts_each_sample_once(tmp_path: Path) -> None:
    share = ShareSpec(kind="opportunistic", device=CORE)
    with (
        sharing(tmp_path / "a", "guaranteed") as kept,
        running(tmp_path, "--num-samples", "2048", workers=1, share=share) as held,
    ):
        until(lambda: kept.losses, "steps")
        held.until_committed(100)
        first = held.living("worker-0")
        os.kill(first.pid, signal.SIGTERM)  # not by its agent, which would free it
        until(lambda: held.node("worker-0").inc != first.inc, "the end of its life", 10.0)
        held.check_finished()
        decided = read_sharing(log_of(held.job))
        assert decided[0].decision.guaranteed == kept.job.job_id
        assert not held.events("hung")


@pytest.mark.soak
@pytest.mark.parametrize("strategy", ["allreduce", "fsdp"])
def test_a_member_that_is_held_holds_its_peers_and_nothing_else_changes(
    tmp_path: Path, strategy: str
) -> None:
    start = group if strategy == "allreduce" else sharded
    flags = {"deterministic": True} if strategy == "allreduce" else {}
    with start(tmp_path / "alone", **flags) as alone:
        wanted = finals_of(alone)
    # Only the first worker has a neighbour.
    share = ShareSpec(kind="opportunistic", devices=tuple(f"cpu:{core}" for core in CORES[:2]))
    with (
        sharing(tmp_path / "a", "guaranteed", device=share.devices[0]) as kept,
        start(tmp_path / "held", "--step-s", "0.001", share=share, **flags) as held,
    ):
        kept.until_decided("measured")
        held.until_committed(held.status().committed + 200)  # at 2 %, a step takes a second
        kept.tell(StopJob())
        found = finals_of(held)
        decided = read_sharing(log_of(held.job))
        assert {line.node for line in decided} == {"worker-0"}
        assert not held.events("hung") and not held.deaths()
    assert found.keys() == wanted.keys()
    for name, values in wanted.items():
        assert values.tobytes() == found[name].tobytes(), name


def finals_of(job: RunningJob) -> Model:
    """What all members held at the end of a job, which is the same."""
    assert job.end().state == "finished"
    first, other = finals(job).values()
    assert all(values.tobytes() == other[name].tobytes() for name, values in first.items())
    return first


@pytest.mark.soak
def test_a_script_that_torch_compiles_is_held_at_its_steps(tmp_path: Path) -> None:
    compiled = ("aot_eager",)
    with (
        sharing(tmp_path / "b", "opportunistic", 300, 0.0, more=compiled) as other,
        sharing(tmp_path / "a", "guaranteed") as kept,
    ):
        other.until_decided("measured")
        before = len(other.losses)
        until(lambda: len(other.losses) > before + 5, "steps while it is held")
        kept.tell(StopJob())
        assert other.end().state == "finished"
    solo = [sys.executable, str(SCRIPT), str(tmp_path / "solo"), "300", "0", *SIZES, *compiled]
    subprocess.run(solo, check=True)
    assert (tmp_path / "b").read_text() == (tmp_path / "solo").read_text()

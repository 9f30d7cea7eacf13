"""Whatever is killed, the job goes on, and every sample is in the model exactly once."""

import os
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file

from paceline.base.cgroups import create_node_group, remove_job
from paceline.cuts.manifest import copies, read_manifest
from paceline.cuts.store import LocalCuts
from paceline.master.journal import Journal
from paceline.protocol.holding.servers.master import ServerHolder
from paceline.protocol.records import CutValid, Records
from paceline.protocol.training import MasterState
from paceline.wire.client import Scale, StopJob
from paceline.wire.events.state import CutDamagedEvent, EpochEvent
from paceline.wire.spec import NodeSpec, TimeoutSpec
from tests.chaos.faults import supervisor_pid
from tests.chaos.oracle import Counts, committed_counts, feed_of_job
from tests.chaos.run import slow_disk
from tests.integration.running import RunningJob, running, until

pytestmark = pytest.mark.soak

N = 4096
MODES = pytest.mark.parametrize("mode", ["asp", "bsp"])


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))


@MODES
@pytest.mark.proves(form="batches", strategy="ps {mode}", death="worker", ends="counted")
def test_of_a_killed_worker_only_uncommitted_samples_are_redone(tmp_path: Path, mode: str) -> None:
    with running(tmp_path, mode=mode) as job:
        job.until_committed(N // 3)
        victim = job.living("worker-1")
        os.kill(victim.pid, signal.SIGKILL)
        job.check_finished()
        assert [e["node"] for e in job.deaths()] == ["worker-1"]
        assert len(job.events("epoch")) == 1
        done = job.samples()
        counts = np.bincount(np.concatenate(list(done.values())), minlength=N)
        redone = set(np.flatnonzero(counts > 1))
        lost = done[f"worker-1.{victim.inc}"]
        # In hand, and pushed but not in the order (asynchronous: two may be).
        assert redone <= set(lost[-3 * 16 :])
        assert len(redone) < len(lost)


@MODES
@pytest.mark.proves(form="batches", strategy="ps {mode}", death="server", ends="counted")
def test_a_killed_server_brings_all_back_to_the_last_cut(tmp_path: Path, mode: str) -> None:
    with running(tmp_path, mode=mode) as job:
        job.until_committed(N // 3, cuts=1)
        os.kill(job.pid_of("server-1"), signal.SIGKILL)
        job.check_finished()
        first, second = job.told(EpochEvent)
        assert (first.epoch_no, first.cut_no) == (1, 0)
        assert second.epoch_no == 2
        assert second.cut_no > 0
        assert [e["node"] for e in job.deaths()] == ["server-1"]


@pytest.mark.proves(form="batches", strategy="ps bsp", death="master", ends="counted")
def test_workers_go_on_without_a_master_and_get_grants_from_its_successor(tmp_path: Path) -> None:
    with running(tmp_path, "--num-samples", str(3 * N), mode="bsp") as job:
        master = job.until_committed(N // 2).master_pid
        supervisor = supervisor_pid(job.job)
        assert supervisor is not None
        # Held, so that nobody replaces the master while we look.
        os.kill(supervisor, signal.SIGSTOP)
        os.kill(master, signal.SIGKILL)
        before = job.num_batches()
        until(lambda: job.num_batches() >= before + 20, "10 steps of two workers")
        _until_out_of_work(job)
        os.kill(supervisor, signal.SIGCONT)
        job.check_finished()
        again = job.events("master_started")[1]
        assert again["restarted"]
        for life, times in job.times().items():
            after = times[times > again["t"]]
            assert after.size, f"{life} did nothing more"
            assert after[0] - again["t"] < 2.0, f"{life} waited for a grant"
        assert not job.deaths()
        assert len(job.events("epoch")) == 1


def _until_out_of_work(job: RunningJob) -> None:
    """Leases end: no batch for 20 times as long as one takes."""

    def rests() -> bool:
        newest = max(times[-1] for times in job.times().values())
        return bool(time.time() - newest > 0.6)

    until(rests, "the end of all leases")


@pytest.mark.parametrize("role", ["agent", "supervisor"])
@pytest.mark.proves(form="batches", strategy="ps asp", death="{role}", ends="counted")
def test_a_killed_agent_or_supervisor_is_replaced_and_nobody_else_notices(
    tmp_path: Path, role: str
) -> None:
    with running(tmp_path, "--num-samples", str(2 * N)) as job:
        job.until_committed(N // 3)
        if role == "agent":
            before = job.node("worker-0").agent_pid
            os.kill(before, signal.SIGKILL)
            until(lambda: job.node("worker-0").agent_pid not in (0, before), "a new agent")
        else:
            old = supervisor_pid(job.job)
            assert old is not None
            os.kill(old, signal.SIGKILL)
            until(lambda: supervisor_pid(job.job) not in (None, old), "a new supervisor")
        job.check_finished()
        assert not job.deaths()
        assert len(job.events("epoch")) == 1


@MODES
@pytest.mark.proves(form="batches", strategy="ps {mode}", death="all", ends="counted")
def test_after_the_death_of_everything_the_job_is_resumed_from_its_newest_cut(
    tmp_path: Path, mode: str
) -> None:
    with running(tmp_path, mode=mode) as job:
        job.until_committed(N // 3, cuts=1)
        job.kill_everything()
        newest = _valid_cuts(job)[-1]
        job.resume()
        job.check_finished()
        last = job.told(EpochEvent)[-1]
        assert (last.epoch_no, last.cut_no) == (2, newest.cut.cut_no)
        assert last.in_memory == newest.cut.in_memory


def test_a_damaged_newest_cut_is_named_and_the_one_before_it_is_used(tmp_path: Path) -> None:
    with running(tmp_path) as job:
        job.until_committed(N // 2, cuts=2)
        job.kill_everything()
        before, newest = _valid_cuts(job)[-2:]
        places = LocalCuts(job.job.cuts, job.job.memory).places(newest.cut)
        name = min(read_manifest(*places).files)
        for damaged in copies(name, *places):
            image = bytearray(damaged.read_bytes())
            image[len(image) // 2] ^= 1
            damaged.write_bytes(image)
        job.resume()
        job.check_finished()
        (said,) = job.told(CutDamagedEvent)
        assert str(damaged) in said.reason
        assert said.cut_no == newest.cut.cut_no
        assert job.told(EpochEvent)[-1].clause == f"epoch 2 from cut {before.cut.cut_no}"


def _valid_cuts(job: RunningJob) -> list[CutValid]:
    state = MasterState(ServerHolder(), mode="", samples="exactly-once")
    for record in Journal(job.job.journal).replay():
        if isinstance(record, Records):
            state.apply(record)
    return state.cuts.valid


@MODES
def test_a_cut_that_is_in_memory_only_is_restored_from_one_of_its_copies(
    tmp_path: Path, mode: str
) -> None:
    with slow_disk(3.0), running(tmp_path, mode=mode) as job:
        job.until_committed(N // 3, cuts=1)
        assert not job.events("cut_stored"), "the disk is slow"
        (cut,) = (path for path in job.job.memory.iterdir() if path.name.isdigit())
        server = job.living("server-1")
        os.kill(server.agent_pid, signal.SIGKILL)
        os.kill(server.pid, signal.SIGKILL)
        shutil.rmtree(cut / "server-1")  # the node is gone with its memory
        job.check_finished()
        assert "epoch 2 from cut 1 in memory" in [e.clause for e in job.told(EpochEvent)]
        assert not job.events("cut_damaged")


@MODES
def test_without_any_of_its_copies_in_memory_the_cut_before_it_counts(
    tmp_path: Path, mode: str
) -> None:
    with slow_disk(3.0), running(tmp_path, mode=mode) as job:
        job.until_committed(N // 3, cuts=1)
        for copies in job.job.memory.glob("*/server-*"):
            shutil.rmtree(copies)
        os.kill(job.pid_of("server-1"), signal.SIGKILL)
        job.check_finished()
        assert "epoch 2 from cut 0" in [e.clause for e in job.told(EpochEvent)]
        assert len(job.events("cut_damaged")) == 1


@MODES
def test_a_cut_in_memory_that_is_lost_there_gives_way_to_the_one_on_disk(
    tmp_path: Path, mode: str
) -> None:
    with slow_disk(3.0), running(tmp_path, mode=mode) as job:
        job.until_committed(N // 3, cuts=1)
        job.kill_everything()
        shutil.rmtree(job.job.run_dir)  # the machine was started again
        job.resume()
        job.check_finished()
        (lost,) = job.told(CutDamagedEvent)
        assert "manifest" in lost.reason
        assert job.told(EpochEvent)[-1].clause == "epoch 2 from cut 0"


@pytest.mark.parametrize("how", ["request", "signal", "signals"])
@MODES
def test_an_orderly_stop_keeps_everything_that_was_trained(
    tmp_path: Path, mode: str, how: str
) -> None:
    with running(tmp_path, mode=mode) as job:
        master = job.until_committed(N // 3).master_pid
        if how == "request":
            job.tell(StopJob())
        else:
            supervisor = supervisor_pid(job.job)
            assert supervisor is not None
            # Ray signals all that descends from a command.
            for pid in (supervisor, master) if how == "signals" else (supervisor,):
                os.kill(pid, signal.SIGTERM)
        assert job.end().state == "stopped"
        last = read_manifest(job.cuts()[-1])
        kept = np.flatnonzero(committed_counts(feed_of_job(job.job), last.committed, N))
        trained = np.sort(np.concatenate(list(job.samples().values())))
        assert np.array_equal(trained, kept)
        job.resume()
        job.check_finished()
        everything = np.sort(np.concatenate(list(job.samples().values())))
        assert np.array_equal(everything, np.arange(N)), "a sample was computed twice"


def test_a_worker_beyond_its_memory_limit_is_known_as_out_of_memory(tmp_path: Path) -> None:
    _, note = create_node_group("test-recovery", "probe", None, 1 << 30)
    remove_job("test-recovery")
    if note:
        pytest.skip(note)
    with running(tmp_path, "--hog", workers=NodeSpec(count=1, memory_bytes=2 << 30)) as job:
        job.check_finished()
        (death,) = job.deaths()
        assert death["node"] == "worker-0"
        assert "out of memory" in death["reason"]


def test_workers_come_and_go_while_the_job_runs(tmp_path: Path) -> None:
    # The first one waits in its tenth batch until the others are there.
    flags = ("--together", "3", "--together-at", "10", "--num-samples", str(2 * N))
    with running(tmp_path, *flags, workers=1) as job:
        job.until_committed(8 * 32)
        job.tell(Scale(workers=3))
        until(lambda: job.num_lives() == 3, "3 workers")
        job.tell(Scale(workers=1))
        until(
            lambda: [n.node for n in job.status().nodes if n.role == "worker"] == ["worker-0"],
            "2 workers to leave",
        )
        job.check_finished()
        assert not job.deaths()
        everything = np.concatenate(list(job.samples().values()))
        assert np.array_equal(np.sort(everything), np.arange(2 * N)), "who left lost work"


def test_a_master_that_was_paused_blames_nobody_for_it(tmp_path: Path) -> None:
    with running(tmp_path, timeouts=TimeoutSpec(lost_after_s=1.0)) as job:
        job.until_committed(N // 4)
        master = job.status().master_pid
        os.kill(master, signal.SIGSTOP)
        time.sleep(1.5)
        os.kill(master, signal.SIGCONT)
        job.check_finished()
        assert not job.events("agent_lost")
        assert not job.events("relaunch")


@MODES
def test_two_workers_share_an_evaluation_and_gather_the_final_model(
    tmp_path: Path, mode: str
) -> None:
    with running(tmp_path, "--evaluate", "--step-s", "0.001", mode=mode) as job:
        job.check_finished()
        found = [load_file(path)["seen"].numpy() for path in tmp_path.glob("*.evaluated")]
        assert len(found) == 2
        for seen in found:
            assert np.allclose(seen, np.ones(N), atol=1e-6)
        state = load_file(tmp_path / "model.safetensors")
        held = Counts(job.cuts()[-1])
        assert np.array_equal(state["seen.weight"][:, 0], held.seen)
        assert np.array_equal(state["counters"], held.counters)

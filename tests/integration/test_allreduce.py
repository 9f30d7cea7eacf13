"""Workers that hold the model: whoever dies or joins, no step is lost and every sample counts once."""

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from safetensors.numpy import load_file

from paceline.base.processes import find_job_processes
from paceline.cuts.manifest import read_manifest
from paceline.jobs.facts import read_facts
from paceline.jobs.in_words import paragraph
from paceline.jobs.launch import launch
from paceline.wire.client import Kill, Scale, StopJob
from paceline.wire.events.state import CutDamagedEvent, EpochEvent, GroupRunsEvent
from paceline.wire.spec import (
    CheckpointSpec,
    JobSpec,
    NodeSpec,
    RestartSpec,
    TimeoutSpec,
    WindowSpec,
)
from tests.chaos.oracle import leftovers
from tests.chaos.run import slow_disk
from tests.integration.running import RunningJob, install, until

SCRIPT = Path(__file__).with_name("jobs") / "grouped.py"
N = 4096
BATCH = 64
HANG_S = 3.0


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))


@contextlib.contextmanager
def group(
    out: Path, *flags: str, workers: int = 2, cpu: tuple[float, ...] | None = None, **spec: Any
) -> Iterator[RunningJob]:
    """A job of jobs/grouped.py."""
    out.mkdir(exist_ok=True)
    fields: dict[str, Any] = {
        "script": str(SCRIPT),
        "args": ("--out", str(out), *flags),
        "name": "grouped",
        "strategy": "allreduce",
        "workers": NodeSpec(count=workers, cpu=cpu),
        "restart": RestartSpec(backoff_s=0.1),
        "solution": "none",
        "preflight": False,
    }
    with contextlib.closing(RunningJob(launch(JobSpec(**(fields | spec))), out)) as job:
        yield job


def finals(job: RunningJob) -> dict[str, dict[str, np.ndarray]]:  # type: ignore[type-arg]
    """What each process held at its end."""
    return {path.stem: load_file(path) for path in job.out.glob("*.final")}


def check_finished(job: RunningJob, *, epochs: int = 1, lives: int = 2) -> None:
    """A good end that leaves nothing behind, and in all that were there the same exact model."""
    outcome = job.end()
    assert outcome.state == "finished", outcome
    held = finals(job)
    assert len(held) == lives, sorted(held)
    first, *others = held.values()
    assert np.all(np.abs(first["seen"] - epochs) < 1e-9), np.unique(first["seen"])
    for other in others:
        for name, values in first.items():
            np.testing.assert_array_equal(values, other[name], err_msg=name)
    until(lambda: not leftovers(job.job), "a clean machine")


def trains(job: RunningJob) -> list[str]:
    """Who has trained together, and since which step."""
    return [event.clause for event in job.told(GroupRunsEvent)]


def together(*ranks: int, step: int = 0) -> str:
    """What is told when these workers begin to train together."""
    names = ", ".join(f"worker-{rank}" for rank in ranks)
    verb = "train" if len(ranks) > 1 else "trains"
    return f"{names} {verb} " + (f"from step {step} on" if step else "from the start")


@pytest.mark.proves(form="batches", strategy="allreduce", death="worker", ends="counted")
def test_a_killed_member_costs_its_peers_no_step_and_its_next_life_takes_part(
    tmp_path: Path,
) -> None:
    flags = ("--die", "worker-1:12", "--evaluate", "--epochs", "2")
    with group(tmp_path / "out", *flags) as job:
        check_finished(job, epochs=2)
        assert [death["node"] for death in job.deaths()] == ["worker-1"]
        first, alone, last = trains(job)
        assert (first, alone) == (together(0, 1), together(0, step=12))
        assert last.startswith("worker-0, worker-1 train from step ")
        done = job.samples()
        survivor = next(ids for life, ids in done.items() if life.startswith("worker-0"))
        steps = 2 * N // BATCH
        assert sum(len(ids) for ids in done.values()) - steps * BATCH <= 3 * BATCH
        assert np.unique(survivor).size > N // 2
        evaluated = list(job.out.glob("*.evaluated"))
        assert evaluated
        for path in evaluated:
            assert np.all(np.abs(load_file(path)["seen"] - 2) < 1e-9)


@pytest.mark.soak
def test_who_needs_all_workers_waits_for_a_next_life_that_takes_long(tmp_path: Path) -> None:
    restart = RestartSpec(backoff_s=13.0)
    with group(tmp_path / "out", "--die", "worker-1:12", min_workers=2, restart=restart) as job:
        check_finished(job)
        assert [one.split(" train")[0] for one in trains(job)] == ["worker-0, worker-1"] * 2


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU; by NCCL: two of them")
def test_a_killed_member_is_no_loss_where_tensors_are_on_gpus(tmp_path: Path) -> None:
    with group(tmp_path / "out", "--die", "worker-1:12", "--device", "cuda") as job:
        check_finished(job)
        assert [death["node"] for death in job.deaths()] == ["worker-1"]
        first, alone, last = trains(job)
        assert (first, alone) == (together(0, 1), together(0, step=12))
        assert last.startswith("worker-0, worker-1 train from step ")


@pytest.mark.soak
@pytest.mark.parametrize("node", ["worker-0", "worker-1"])
def test_an_edited_script_ends_the_worker_that_runs_it_and_not_the_job(
    tmp_path: Path, node: str
) -> None:
    with group(tmp_path / "out", "--epochs", "2") as job:
        job.until_committed(N // 8)
        (job.out / "edited").touch()
        job.tell(Kill(node=node))
        until(lambda: job.events("left_out"), "the end of the worker with another model")
        assert job.node(node).state == "failed"
        assert f"{node} has prepared another model than the others" in job.node(node).note
        check_finished(job, epochs=2, lives=1)
        assert [path.suffix for path in job.out.glob("*chief")] == [".chief"]
        told = paragraph(read_facts(job.job))
        assert f"{node} was left out, the others went on" in told


@pytest.mark.parametrize(
    "solution",
    [pytest.param(one, marks=pytest.mark.soak) for one in ("none", "backup_workers")],
)
def test_a_global_batch_follows_the_workers_if_asked_to(solution: str, tmp_path: Path) -> None:
    # A step of another size has another mean: what is counted are updates.
    flags = ("--die", "worker-1:12", "--by-updates", "--epochs", "2", "--per-worker", "16")
    with group(tmp_path / "out", *flags, solution=solution, decide_every_s=0.1) as job:
        check_finished(job, epochs=2)
        files = job.out.glob("worker-0.*.sizes")
        (sizes,) = (np.fromfile(path, np.int64) for path in files)
        kinds = [int(sizes[0]), *(int(b) for a, b in pairwise(sizes) if a != b)]
        assert kinds == [32, 16, 32]
        computed = sum(len(ids) for ids in job.samples().values())
        assert solution != "none" or computed - 2 * N <= 3 * 32


UNEVEN = """
from paceline.policy.actions import AdjustBatch, Share
from paceline.features.stragglers.policy.solution import Solution

class Uneven(Solution, frozen=True):
    def decide(self, seen):
        if len(seen.workers) < 3 or seen.workers[0].accumulation > 1:
            return []
        shares = Share(5, 3), Share(10, 4), Share(9)
        return [AdjustBatch(shares=dict(zip([w.node for w in seen.workers], shares)))]
"""


@pytest.mark.soak  # CI has the same in test_equality
def test_what_an_uneven_and_broken_job_computes_is_what_one_worker_computes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with group(tmp_path / "alone", "--step-s", "0", workers=1) as job:
        check_finished(job, lives=1)
        (alone,) = finals(job).values()
    site = install(tmp_path / "site", "odd", UNEVEN, "paceline.solutions", "odd = odd:Uneven")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")]))
    odd = {"solution": "odd", "decide_every_s": 0.1}
    flags = ("--die", "worker-2:20", "--step-s", "0.01", "--wrapped")
    with group(tmp_path / "three", *flags, workers=3, **odd) as job:
        check_finished(job, lives=3)
        broken = next(iter(finals(job).values()))
        (batches,) = (len(t) for life, t in job.times().items() if life.startswith("worker-1"))
        assert batches > N // BATCH, "some steps in four batches"
    for name, values in alone.items():
        assert np.abs(values - broken[name]).max() < 1e-10, name


def test_a_worker_joins_and_leaves_while_the_others_train(tmp_path: Path) -> None:
    flags = ("--epochs", "3", "--slow-until-told")
    with group(tmp_path / "out", *flags) as job:
        job.until_committed(1)
        job.tell(Scale(workers=3))
        until(lambda: any("worker-2" in said for said in trains(job)), "a third member")
        job.tell(Scale(workers=2))
        until(lambda: "worker-2" not in trains(job)[-1], "two members")
        (job.out / "hurry").touch()
        check_finished(job, epochs=3)
        assert not job.deaths()


@pytest.mark.soak
def test_a_slow_member_gets_less_of_each_step_and_every_sample_counts_once(tmp_path: Path) -> None:
    flags = ("--slow", "worker-1", "--sample-s", "0.0005", "--step-s", "0", "--epochs", "6")
    watched = {
        "solution": "lb_bsp",
        "decide_every_s": 0.3,
        "windows": WindowSpec(short_steps=10, long_steps=20),
    }
    with group(tmp_path / "out", *flags, "--die", "worker-0:200", **watched) as job:
        check_finished(job, epochs=6)
        assert job.events("plan")
        assert [death["node"] for death in job.deaths()] == ["worker-0"]
        done = job.samples()
        (slow,) = (len(ids) for life, ids in done.items() if life.startswith("worker-1"))
        fast = sum(len(ids) for life, ids in done.items() if life.startswith("worker-0"))
        assert fast > 1.5 * slow, done


@pytest.mark.parametrize(
    ("solution", "args"),
    [
        pytest.param("backup_workers", {"count": "1"}, marks=pytest.mark.soak),
        ("partial", {"left_out": "0.4", "chunks": "4"}),
    ],
)
def test_steps_go_on_without_a_late_member_and_every_sample_counts_once(
    tmp_path: Path, solution: str, args: dict[str, str]
) -> None:
    flags = ("--slow", "worker-1", "--sample-s", "0.002", "--step-s", "0", "--by-updates")
    short = {"solution": solution, "solution_args": args | {"every_steps": "1"}}
    dying = ("--die", "worker-0:10", "--epochs", "2", "--num-samples", "1024")
    with group(tmp_path / "out", *flags, *dying, workers=3, **short) as job:
        check_finished(job, epochs=2, lives=3)
        assert job.events("plan")
        assert [death["node"] for death in job.deaths()] == ["worker-0"]
        # What a step lacked came in more steps, at the end of its epoch.
        done = job.samples()
        (slow,) = (len(ids) for life, ids in done.items() if life.startswith("worker-1"))
        whole = next(ids for life, ids in done.items() if life.startswith("worker-2"))
        assert len(whole) > 1.2 * slow, {life: len(ids) for life, ids in done.items()}


@pytest.mark.parametrize(
    ("solution", "args"),
    [
        ("nd", {}),
        ("auto", {"min_iterations": "8", "min_slow_s": "1"}),
    ],
)
@pytest.mark.soak
def test_a_slow_member_is_restarted_in_order_and_its_peers_go_on(
    tmp_path: Path, solution: str, args: dict[str, str]
) -> None:
    # What it takes longer does not follow its samples: to give it fewer is no cure.
    flags = ("--late", "worker-1:0.5", "--slow-until-told", "--by-updates", "--epochs", "4")
    windows = WindowSpec(short_steps=5, long_steps=10)
    watched = {"solution": solution, "solution_args": args, "windows": windows}
    with group(tmp_path / "out", *flags, workers=3, decide_every_s=0.3, **watched) as job:
        until(lambda: len(trains(job)) == 3, "a restart, and its next life")
        whole, alone, again = trains(job)
        assert whole == together(0, 1, 2)
        assert again.startswith("worker-0, worker-1, worker-2 train from step ")
        assert alone.startswith("worker-0, worker-2 train from step ")
        assert {told["node"] for told in job.events("kill_restart")} == {"worker-1"}
        lives = sorted(life.partition(".")[0] for life in job.samples())
        assert lives == ["worker-0", "worker-1", "worker-1", "worker-2"]
        (job.out / "hurry").touch()
        check_finished(job, epochs=4, lives=3)
        assert not job.deaths(), "in order"


@pytest.mark.soak  # CI has it in test_in_short
@pytest.mark.proves(form="batches", strategy="allreduce", death="all", ends="counted")
def test_when_all_members_die_at_once_the_job_goes_on_from_a_cut(tmp_path: Path) -> None:
    checkpoint = CheckpointSpec(every_s=0.3, share=1.0)
    with group(tmp_path / "out", "--epochs", "2", checkpoint=checkpoint) as job:
        job.until_committed(N // 2, cuts=1)
        job.kill_nodes()
        check_finished(job, epochs=2)
        first, second = job.told(EpochEvent)
        assert (first.epoch_no, first.cut_no) == (1, 0)
        assert second.cut_no > 0


@pytest.mark.soak  # CI has it in test_in_short
@pytest.mark.proves(form="batches", strategy="allreduce", death="stop", ends="counted")
def test_a_stopped_job_goes_on_where_it_was(tmp_path: Path) -> None:
    with group(tmp_path / "out", "--epochs", "2", "--slow-until-told") as job:
        job.until_committed(3 * BATCH)
        job.tell(StopJob())
        assert job.end().state == "stopped"
        until(lambda: not leftovers(job.job), "a clean machine")
        (job.out / "hurry").touch()
        done = sum(len(ids) for ids in job.samples().values())
        job.resume()
        check_finished(job, epochs=2)
        again = sum(len(ids) for ids in job.samples().values())
        assert again - 2 * N <= 4 * BATCH, f"{again - 2 * N} of {done} samples were computed again"


@pytest.mark.soak
def test_what_is_in_the_memory_of_two_nodes_is_not_read_from_disk(tmp_path: Path) -> None:
    flags = ("--epochs", "2", "--keep-at", "10", "--slow-until-told")
    with group(tmp_path / "out", *flags, checkpoint=CheckpointSpec(every_s=3600)) as job:
        until(lambda: job.events("cut_stored"), "a cut on disk")
        newest = job.cuts()[-1]
        for path in newest.glob("*.safetensors"):
            os.truncate(path, 100)
        job.kill_nodes()
        (job.out / "hurry").touch()
        check_finished(job, epochs=2)
        second = job.told(EpochEvent)[1]
        assert (second.epoch_no, second.cut) == (2, f"cut {int(newest.name)}")


@pytest.mark.soak
@pytest.mark.parametrize("sync_s", [0.7, pytest.param(6.0, id="longer than others have to end")])
def test_a_job_that_is_stopped_while_a_cut_is_written_makes_another(
    tmp_path: Path, sync_s: float
) -> None:
    often = CheckpointSpec(every_s=0.2, share=1.0, in_memory=False)
    with slow_disk(sync_s), group(tmp_path / "out", "--epochs", "30", checkpoint=often) as job:
        job.until_committed(N // 4, cuts=1)
        job.tell(StopJob())
        assert job.end().state == "stopped"
        # The last one is copied beside the steps that are under way then.
        newest = max(path.parent for path in job.job.cuts.glob("*/manifest.json"))
        kept = sum(map(len, read_manifest(newest).committed))
        assert sum(len(ids) for ids in job.samples().values()) - kept <= 2 * BATCH


@pytest.mark.soak  # CI has one that begins after an evaluation, which comes after the end
def test_a_life_that_begins_after_the_end_holds_the_final_model(tmp_path: Path) -> None:
    with group(tmp_path / "out", "--die-at-end", "worker-1") as job:
        check_finished(job)
        assert [death["node"] for death in job.deaths()] == ["worker-1"]


@pytest.mark.soak
def test_a_last_cut_that_cannot_be_read_costs_what_came_after_the_one_before(
    tmp_path: Path,
) -> None:
    with group(tmp_path / "out", "--stay", "--keep-at", "40") as job:
        until(lambda: job.events("feed_complete"), "the end of the feed")
        _, newest = sorted({path.parent for path in job.job.cuts.glob("*/manifest.json")})[-2:]
        (part,) = newest.glob("*.safetensors")
        for copy in (part, *job.job.memory.glob(f"{newest.name}/*/{part.name}")):
            copy.write_bytes(copy.read_bytes()[:-1])
        pids = [job.pid_of(f"worker-{rank}") for rank in range(2)]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        (tmp_path / "out" / "go").touch()
        check_finished(job)
        assert str(part) in job.told(CutDamagedEvent)[0].reason
        assert len(job.events("feed_complete")) == 2


@pytest.mark.soak
def test_a_life_that_begins_after_an_evaluation_gets_its_results(tmp_path: Path) -> None:
    with group(tmp_path / "out", "--evaluate", "--die-evaluated", "worker-1") as job:
        check_finished(job)
        found = [load_file(path) for path in (tmp_path / "out").glob("*.evaluated")]
        assert len(found) == 2
        assert all(len(one["seen"]) == N and (one["seen"] == 1).all() for one in found)


@pytest.mark.soak
@pytest.mark.parametrize("role", ["master", "agent", "supervisor"])
@pytest.mark.proves(form="batches", strategy="allreduce", death="{role}", ends="counted")
def test_who_does_not_train_may_die(tmp_path: Path, role: str) -> None:
    from tests.chaos.faults import supervisor_pid

    with group(tmp_path / "out", "--epochs", "2") as job:
        status = job.until_committed(N // 4)
        pid = {
            "master": status.master_pid,
            "agent": job.node("worker-0").agent_pid,
            "supervisor": supervisor_pid(job.job),
        }[role]
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        check_finished(job, epochs=2)
        assert not job.deaths()
        assert len(trains(job)) == 1


@pytest.mark.parametrize("how", ["asleep", pytest.param("stopped", marks=pytest.mark.soak)])
def test_a_member_that_hangs_is_named_with_its_stacks_and_replaced(
    tmp_path: Path, how: str
) -> None:
    flags = ("--hang", "worker-1:12") if how == "asleep" else ("--epochs", "2")
    with group(tmp_path / "out", *flags, timeouts=TimeoutSpec(hang_s=HANG_S)) as job:
        if how == "stopped":
            job.until_committed(N // 4)
            os.kill(job.pid_of("worker-1"), signal.SIGSTOP)
        check_finished(job, epochs=1 if how == "asleep" else 2)
        (told,) = job.events("hung")
        assert told["node"] == "worker-1"
        (death,) = job.deaths()
        assert (death["node"], death["reason"]) == ("worker-1", "it hung")
        said = (job.job.logs / "worker-1.stacks").read_text()
        assert ("grouped.py" if how == "asleep" else "T (stopped)") in said


@pytest.mark.soak
@pytest.mark.parametrize(
    ("freezer", "place"), [("worker-0", "hand"), ("worker-1", "take"), ("worker-1", "evaluate")]
)
def test_a_member_that_is_frozen_outside_of_a_step_is_found_and_replaced(
    tmp_path: Path, freezer: str, place: str
) -> None:
    """Where it hands over its state, takes over another's, or evaluates."""
    flags = ["--freeze", f"{freezer}:{place}", "--evaluate"]
    flags += ["--die", "worker-1:30"] if place != "evaluate" else []
    spec: dict[str, Any] = {"timeouts": TimeoutSpec(hang_s=HANG_S)}
    # Without a cut those who copy from the one that freezes begin another life, too.
    spec["checkpoint"] = CheckpointSpec(every_steps=4)
    with group(tmp_path / "out", *flags, **spec) as job:
        frozen = tmp_path / "out" / "frozen"
        until(frozen.exists, "a frozen member")
        until(lambda: job.events("hung"), "it to be found")
        (told,) = job.events("hung")
        assert told["node"] == freezer
        assert told["t"] - frozen.stat().st_mtime < HANG_S + 10.0
        check_finished(job)
        assert [(d["node"], d["reason"]) for d in job.deaths()][-1] == (freezer, "it hung")
        assert "T (stopped)" in (job.job.logs / f"{freezer}.stacks").read_text()


@pytest.mark.soak
def test_storage_that_stands_still_is_waited_for_by_who_reads_a_cut(tmp_path: Path) -> None:
    """For longer than a member may be silent."""
    flags = ("--keep-at", "4", "--read-s", str(2 * HANG_S))
    with group(tmp_path / "out", *flags, timeouts=TimeoutSpec(hang_s=HANG_S)) as job:
        until(lambda: any(c > 0 for c in job.status().valid_cuts), "a cut")
        until(lambda: job.events("cut_stored"), "it to be on disk")
        job.kill_everything()
        assert not [*job.out.glob("*.waited")], "nobody has read a cut"
        job.resume()
        check_finished(job)
        assert [*job.out.glob("*.waited")], "a cut was read, slowly"
        assert not job.events("hung")


@pytest.mark.soak
def test_strangers_at_every_port_of_the_members_break_nothing(tmp_path: Path) -> None:
    with group(tmp_path / "out", "--die", "worker-1:12", "--epochs", "2") as job:
        over = threading.Event()
        knocked: set[tuple[str, int]] = set()
        stranger = threading.Thread(target=knock, args=(job, over, knocked))
        stranger.start()
        try:
            check_finished(job, epochs=2)
        finally:
            over.set()
            stranger.join()
        assert len(knocked) >= 2, "gloo listens in each group"
        assert {host for host, _ in knocked} == {"127.0.0.1"}


def knock(job: RunningJob, over: threading.Event, knocked: set[tuple[str, int]]) -> None:
    """Connect to every TCP port at which a process of the job listens, and talk nonsense."""
    while not over.is_set():
        for process in find_job_processes(job.job.path):
            with contextlib.suppress(psutil.Error):
                for one in psutil.Process(process.pid).net_connections("tcp"):
                    if one.status == psutil.CONN_LISTEN and process.runs(
                        "paceline.runtime.process.zygote"
                    ):
                        _talk_nonsense(one.laddr.port)
                        knocked.add((one.laddr.ip, one.laddr.port))
        time.sleep(0.01)


def _talk_nonsense(port: int) -> None:
    with (
        contextlib.suppress(OSError),
        socket.create_connection(("127.0.0.1", port), timeout=0.5) as sock,
    ):
        sock.sendall(os.urandom(64))

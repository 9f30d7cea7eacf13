"""How real jobs end: what they leave, what they say, with which exit code."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from paceline.cuts.manifest import read_manifest
from paceline.features.formats.process.export import export
from paceline.jobs.launch import launch
from paceline.jobs.outcome import End, Outcome
from paceline.wire.spec import JobSpec, NodeSpec, RestartSpec, TimeoutSpec
from tests.integration.running import RunningJob, until

LOSING = """
import os, signal, sys
from pathlib import Path
import torch
from torch import nn
from torch.utils.data import Dataset, get_worker_info
import paceline as pl

class Data(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        if get_worker_info() is not None:
            try:  # one only, of all loader processes of both workers
                Path(sys.argv[1]).touch(exist_ok=False)
                os.kill(os.getpid(), signal.SIGKILL)
            except FileExistsError:
                pass
        return torch.ones(4), torch.ones(1)

job = pl.init()
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
model, optimizer = job.prepare(model, optimizer)
for x, y in job.batches(Data(), batch_size=16, num_workers=1):
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()
"""
CRASHING = """
import ctypes, torch, paceline as pl
from torch import nn
from torch.utils.data import TensorDataset
job = pl.init()
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
model, optimizer = job.prepare(model, optimizer)
for _ in job.batches(TensorDataset(torch.ones(64, 4)), batch_size=16):
    ctypes.string_at(0)
"""
SPLIT = """
import os, torch, paceline as pl
from torch import nn
from torch.utils.data import TensorDataset, random_split
job = pl.init()
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
model, optimizer = job.prepare(model, optimizer)
own = torch.Generator().manual_seed(job.rank)
train, _ = random_split(TensorDataset(torch.ones(64, 4)), [48, 16], generator=own)
for (x,) in job.batches(train, batch_size=16):
    model(x).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
UNEVEN = """
import pathlib, sys, time, torch, paceline as pl
from torch import nn
from torch.utils.data import TensorDataset
from paceline.runtime.holding.servers import client
begun = pathlib.Path(__file__).with_name("begun")
client.NOTICE_S, client.SETTLE_S = 1.0, 1.0
job = pl.init()
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
model, optimizer = job.prepare(model, optimizer)
for epoch in range(2):
    for (x,) in job.batches(TensorDataset(torch.ones(32, 4)), batch_size=8):
        if epoch:
            begun.touch()
        model(x).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if epoch:
            break
    if not job.is_chief:
        deadline_s = time.monotonic() + 60.0
        while not begun.exists() and time.monotonic() < deadline_s:
            time.sleep(0.01)  # so that the chief's next step is still one of two
        sys.exit()
assert model.state_dict()["weight"].isfinite().all()
"""
LEAVING = Path(__file__).with_name("jobs") / "leaving.py"
BATCH = 8


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))


@contextlib.contextmanager
def job_of(script: Path, out: Path, *args: str, **spec: Any) -> Iterator[RunningJob]:
    """A job of two workers."""
    fields: dict[str, Any] = {
        "script": str(script),
        "args": args,
        "name": "ends",
        "workers": NodeSpec(count=2),
        "restart": RestartSpec(backoff_s=0.1),
        "solution": "none",
        "preflight": False,
    }
    with contextlib.closing(RunningJob(launch(JobSpec(**(fields | spec))), out)) as job:
        yield job


def check_left_early(job: RunningJob, steps: int, tmp_path: Path) -> Outcome:
    """The last cut holds all that was trained, and the model can be had from it."""
    outcome = job.end()
    assert (outcome.end, outcome.exit_code) == (End.STOPPED_EARLY, 3)
    assert outcome.committed == outcome.kept == steps * BATCH
    newest = job.cuts()[-1]
    assert sum(map(len, read_manifest(newest).committed)) == steps * BATCH
    export(tmp_path / "model.safetensors", newest, file_format="safetensors")
    return outcome


def test_members_that_leave_their_loop_early_leave_a_cut_of_what_they_hold(tmp_path: Path) -> None:
    # The first leaves alone, in a step of the second, which does it again without it: it counts once.
    with job_of(LEAVING, tmp_path, "--steps", "5", "9", strategy="allreduce") as job:
        check_left_early(job, 9, tmp_path)
        (line,) = (job.job.logs / "worker-1.log").read_text().splitlines()[-1:]
        model = load_file(tmp_path / "model.safetensors")
        total = sum(float(one.sum(dtype="float64")) for one in model.values())
        assert line == f"LEFT rank 1 sum {total:.9f}"


@pytest.mark.soak
@pytest.mark.parametrize("strategy", ["allreduce", "ps"])
def test_workers_that_split_the_data_differently_end_before_they_train(
    tmp_path: Path, strategy: str
) -> None:
    script = tmp_path / "split.py"
    script.write_text(SPLIT)
    with job_of(script, tmp_path, strategy=strategy, mode="bsp") as job:
        outcome = job.end()
    assert outcome.end is End.FAILED, outcome
    assert outcome.committed == 0
    assert "of the records for worker-" in outcome.error
    assert "give a seed to what shuffles them" in outcome.error


@pytest.mark.soak
@pytest.mark.parametrize(
    ("strategy", "steps", "told"),
    [
        ("allreduce", ("5", "900"), "loop 1 in worker-0, loop 0 in worker-1"),
        ("allreduce", ("900", "5"), "loop 0 in worker-0, loop 1 in worker-1"),
        ("ps", ("5", "900"), "has other samples here than in"),
    ],
)
def test_a_loop_that_some_have_left_for_another_one_is_refused_with_the_remedy(
    tmp_path: Path, strategy: str, steps: tuple[str, str], told: str
) -> None:
    """As by a counter of the script, which begins again in a worker that is started again."""
    flags = ("--steps", *steps, "--again")
    with job_of(LEAVING, tmp_path, *flags, strategy=strategy, mode="bsp") as job:
        outcome = job.end()
        assert outcome.end is End.SCRIPT_FAILED, outcome
        logs = "".join(path.read_text() for path in job.job.logs.glob("worker-*.log"))
    assert "different loops over batches: " in logs
    assert told in logs
    assert "by job.step" in logs
    assert "InternalError" not in logs


@pytest.mark.soak
@pytest.mark.parametrize(
    ("strategy", "who"), [("allreduce", 0), ("allreduce", 1), ("ps", 0), ("ps", 1)]
)
def test_a_new_life_passes_over_a_loop_that_was_left_for_the_one_in_which_it_died(
    tmp_path: Path, strategy: str, who: int
) -> None:
    flags = ("--at-step", "12", "--again", "--out", str(tmp_path))
    plain = subprocess.run(
        [sys.executable, LEAVING, *flags], check=True, stdout=subprocess.PIPE, text=True
    )
    flags += ("--die", f"{who}:60")
    with job_of(LEAVING, tmp_path, *flags, strategy=strategy, mode="bsp") as job:
        outcome = job.end(90.0)
        assert outcome.end is End.STOPPED_EARLY, outcome
        assert outcome.committed == 12 * BATCH + 4096
        assert len(job.events("relaunch")) == 1
        logs = "".join(path.read_text() for path in job.job.logs.glob("worker-*.log"))
    sums = {line.split()[-1] for line in logs.splitlines() if line.startswith("LEFT")}
    expected = float(plain.stdout.split()[-1])
    assert [float(one) for one in sums] == [pytest.approx(expected, abs=1e-5)] * len(sums)


@pytest.mark.soak
def test_who_leaves_a_loop_before_the_others_have_done_its_last_step_waits_with_the_next_one(
    tmp_path: Path,
) -> None:
    flags = ("--at-step", "12", "--again", "--late", "1")
    with job_of(LEAVING, tmp_path, *flags, mode="bsp") as job:
        outcome = job.end()
    assert outcome.end is End.STOPPED_EARLY, outcome
    assert outcome.committed == 12 * BATCH + 4096


@pytest.mark.soak
@pytest.mark.parametrize("linger_s", ["0", "3"])
@pytest.mark.parametrize("who", [0, 1])
def test_a_new_life_passes_over_a_last_loop_that_was_left(
    tmp_path: Path, who: int, linger_s: str
) -> None:
    """Its peer is still busy, or has returned."""
    flags = ("--at-step", "12", "--out", str(tmp_path), "--linger-s", linger_s)
    flags += ("--die-after", str(who))
    with job_of(LEAVING, tmp_path, *flags, strategy="allreduce") as job:
        check_left_early(job, 12, tmp_path)
        assert len(job.events("relaunch")) >= 1
        logs = "".join(path.read_text() for path in job.job.logs.glob("worker-*.log"))
    sums = [line.split()[-1] for line in logs.splitlines() if line.startswith("LEFT")]
    model = load_file(tmp_path / "model.safetensors")
    total = sum(float(one.sum(dtype="float64")) for one in model.values())
    assert sums == [f"{total:.9f}"] * 3, "before the death, after it, and in the peer"


REPLAYED = """
import sys, time, torch, paceline as pl
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

x = torch.randn(256, 4, generator=torch.Generator().manual_seed(1))
y = x.sum(1, keepdim=True)
loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)
job = pl.init()
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
model, optimizer, loader = job.prepare(model, optimizer, loader)
best, worse = float("inf"), 0
for epoch in range(10 if "--on" in sys.argv else 40):
    for features, target in loader:
        loss = nn.functional.mse_loss(model(features), target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.02)
    if "--loss" in sys.argv:
        print(loss.item())
    held_out = nn.functional.mse_loss(model(x), y).item()
    best, worse = (held_out, 0) if held_out < best else (best, worse + 1)
    if worse == 3 and "--on" not in sys.argv:
        break
"""


@pytest.mark.soak
@pytest.mark.parametrize(
    ("flags", "end", "said"),
    [
        (
            (),
            End.SCRIPT_FAILED,
            "the script returned before a loop over batches that the job has begun. Before, it ",
        ),
        (("--loss",), End.SCRIPT_FAILED, "paceline: worker-1 "),
        (("--on",), End.FINISHED, "paceline: this life of worker-1 "),
    ],
)
def test_a_new_life_that_does_the_lines_between_loops_again_is_told_from_an_end(
    flags: tuple[str, ...], end: End, said: str, tmp_path: Path
) -> None:
    """It compares the newest model with itself, and so stops early where no other worker does."""
    script = tmp_path / "replayed.py"
    script.write_text(REPLAYED)
    restart = RestartSpec(backoff_s=0.1)
    spec = {"strategy": "allreduce", "script_state": "declared", "restart": restart}
    with job_of(script, tmp_path, *flags, **spec) as job:
        job.until_committed(6 * 256 + 100)
        os.kill(job.pid_of("worker-1"), signal.SIGKILL)
        outcome = job.end()
        assert outcome.end is end, outcome
        log = "".join(path.read_text() for path in job.job.logs.glob("worker-1*.log"))
    assert f"{said}passed over " in log
    assert "`for epoch in job.epochs(n)`" in log


@pytest.mark.soak  # as the two that follow: CI has members with whole models
def test_members_that_hold_shards_leave_a_cut_together(tmp_path: Path) -> None:
    args = ("--shard", "--steps", "6", "--how", "exit")
    with job_of(LEAVING, tmp_path, *args, strategy="fsdp") as job:
        check_left_early(job, 6, tmp_path)


@pytest.mark.soak
def test_members_that_hold_shards_wait_for_one_with_more_to_do(tmp_path: Path) -> None:
    args = ("--shard", "--steps", "6", "--linger-s", "35")
    with job_of(LEAVING, tmp_path, *args, strategy="fsdp") as job:
        until(job.job.outcome.exists, "the end", 120.0)
        check_left_early(job, 6, tmp_path)


@pytest.mark.soak
def test_a_member_that_holds_a_shard_and_leaves_alone_is_named(tmp_path: Path) -> None:
    args = ("--shard", "--steps", "5", "9")
    timeouts = TimeoutSpec(hang_s=3.0)
    with job_of(LEAVING, tmp_path, *args, strategy="fsdp", timeouts=timeouts) as job:
        outcome = job.end()
        assert outcome.end is End.FAILED
        assert outcome.error.startswith("worker-0 left the loop over job.batches before its end, ")


@pytest.mark.soak
@pytest.mark.parametrize("mode", ["asp", "bsp"])
def test_servers_keep_what_a_worker_that_leaves_early_has_handed_in(
    tmp_path: Path, mode: str
) -> None:
    args, nodes = ("--steps", "6", "--how", "exit"), NodeSpec(count=1)
    with job_of(LEAVING, tmp_path, *args, mode=mode, servers=nodes, workers=nodes) as job:
        check_left_early(job, 6, tmp_path)


@pytest.mark.soak
def test_the_rest_of_a_step_that_nobody_computes_is_not_waited_for_without_end(
    tmp_path: Path,
) -> None:
    script = tmp_path / "uneven.py"
    script.write_text(UNEVEN)
    servers = NodeSpec(count=1)
    with job_of(script, tmp_path / "out", strategy="ps", servers=servers) as job:
        outcome = job.end()
        assert (outcome.end, outcome.committed) == (End.STOPPED_EARLY, 32)
        log = (job.job.logs / "worker-0.log").read_text()
    assert (
        "4 samples that worker-0 has computed are part of a step that other workers have not completed"
        in log
    )
    assert "4 samples that worker-0 has computed are not in the model" in log


@pytest.mark.soak
def test_a_loader_process_that_is_lost_in_the_first_step_ends_no_job(tmp_path: Path) -> None:
    script = tmp_path / "losing.py"
    script.write_text(LOSING)
    with job_of(script, tmp_path, str(tmp_path / "mark"), strategy="allreduce") as job:
        outcome = job.end()
        assert (outcome.end, outcome.committed) == (End.FINISHED, 64), outcome
        (death,) = job.deaths()
        assert death["reason"].startswith("a loader process was lost")


def test_the_cause_is_told_and_not_what_became_of_the_others(tmp_path: Path) -> None:
    script = tmp_path / "crashing.py"
    script.write_text(CRASHING)
    with job_of(script, tmp_path, strategy="allreduce") as job:
        outcome = job.end()
        assert (outcome.end, outcome.exit_code) == (End.FAILED, 1)
        assert "its process ended (signal SIGSEGV) at step 1, for the 3rd" in outcome.error
        assert "Segmentation fault" in outcome.traceback
        assert len(job.deaths()) < 10, "not until the budget is spent"

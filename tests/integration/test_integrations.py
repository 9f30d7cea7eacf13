"""Other libraries' training loops as members: a worker is killed, and nothing shows it."""

import contextlib
import csv
import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from paceline.base.jobdir import JobDir
from paceline.jobs.curves import read_curves
from paceline.jobs.launch import ask, launch
from paceline.runtime.data.order import EpochOrder
from paceline.wire.client import StopJob
from paceline.wire.spec import JobSpec, NodeSpec, RestartSpec
from tests.chaos.oracle import leftovers
from tests.integration.jobs.grouped import Planted
from tests.integration.pair import pair_of, run_alone
from tests.integration.running import RunningJob, until

JOBS = Path(__file__).with_name("jobs")
N, BATCH, EPOCHS, CLIP = 1000, 64, 2, 0.2
NUM_STEPS = EPOCHS * -(-N // BATCH)


def needs(library: str, extra: str) -> pytest.MarkDecorator:
    """Skip where an extra is not installed."""
    return pytest.mark.skipif(
        find_spec(library) is None,
        reason=f"{library} is not installed: make extras, or pip install 'paceline[{extra}]'",
    )


TRAINER = needs("transformers", "huggingface")
ACCELERATE = needs("accelerate", "huggingface")
LIGHTNING = needs("lightning", "lightning")


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))


@contextlib.contextmanager
def training(script: str, out: Path, *flags: str) -> Iterator[RunningJob]:
    """Two workers."""
    out.mkdir()
    spec = JobSpec(
        script=str(JOBS / script),
        args=("--out", str(out), *flags),
        strategy="allreduce",
        workers=NodeSpec(count=2),
        restart=RestartSpec(backoff_s=0.1),
        solution="none",
    )
    job = RunningJob(launch(spec), out)
    try:
        yield job
    finally:
        job.close()


def by_hand() -> dict[str, np.ndarray]:  # type: ignore[type-arg]
    """What a plain loop of one process makes of the same steps."""
    torch.manual_seed(0)
    model = Planted(N)
    learning = {"params": list(model.net.parameters()), "lr": 0.05}
    optimizer = torch.optim.SGD(
        [{"params": [model.seen], "lr": 64.0, "momentum": 0.0}, learning], momentum=0.9
    )
    rates = torch.optim.lr_scheduler.LambdaLR(
        optimizer, [lambda _: 1.0, lambda step: 0.9 ** (step // 10)]
    )
    for epoch in range(EPOCHS):
        order = EpochOrder(N, shard_size=N, seed=JobSpec(script="").data_seed + epoch)
        for start in range(0, N, BATCH):
            ids = order.indices(0, start, min(start + BATCH, N))
            model(torch.from_numpy(ids)).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
            rates.step()
            optimizer.zero_grad()
    return {name: value.numpy() for name, value in model.state_dict().items()}


def test_the_loop_that_others_are_held_against_trains() -> None:
    made = by_hand()
    assert made["seen"].shape == (N,)
    assert np.all(made["seen"] > 0)


def check_killed(script: str, victim: str, at: int, out: Path) -> dict[str, Any]:
    """Train with a death; the model is as if there was none. What was counted: survivor, joiner."""
    flags = ("--per-device", "16", "--accumulation", "2", "--die", f"{victim}:{at}")
    with training(script, out, *flags) as job:
        outcome = job.end()
        assert outcome.state == "finished", outcome
        until(lambda: not leftovers(job.job), "a clean machine")
        assert [death["node"] for death in job.deaths()] == [victim]
        assert len(job.events("group_runs")) == 3, "its next life took no part"
        check_curves(job.job, LOGGED.get(script, ()))

    expected = by_hand()
    finals = sorted(out.glob("*.final"))
    assert len(finals) == 2
    for final in finals:
        found = load_file(final)
        for name, values in expected.items():
            np.testing.assert_allclose(found[name], values, rtol=0, atol=1e-10, err_msg=name)

    logs = {path.stem: json.loads(path.read_text()) for path in out.glob("*.log")}
    assert len(logs) == 2
    assert all(log["largest"] <= 16 for log in logs.values())
    return {"joiner" if name.startswith(victim) else "survivor": log for name, log in logs.items()}


LOGGED = {"hf_trained.py": ("loss", "learning_rate"), "lightning_trained.py": ("train_loss",)}
"""What their Trainers log in each step."""


def check_curves(job: JobDir, names: Sequence[str]) -> None:
    """What the library logs in each step is in the job's curves, at that step, once."""
    curves = read_curves(job.curves).points
    for name in names:
        steps = [point.step for point in curves[name]]
        assert steps == list(range(1, NUM_STEPS + 1)), name
        assert all(math.isfinite(float(point.value)) for point in curves[name])


@pytest.mark.parametrize(
    ("script", "victim", "at"),
    [
        pytest.param("hf_trained.py", "worker-1", 7, marks=TRAINER),
        pytest.param("lightning_trained.py", "worker-0", 20, marks=LIGHTNING),
    ],
)
@pytest.mark.proves(form="trainers", strategy="allreduce", death="worker")
def test_a_worker_killed_in_a_trainer_leaves_no_trace(
    script: str, victim: str, at: int, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    logs = check_killed(script, victim, at, out)
    for log in logs.values():  # what callbacks keep follows to the joiner
        assert log["steps"] == list(range(1, NUM_STEPS + 1))
        assert log["global_step"] == NUM_STEPS
        assert log["evaluated"] == [1.0, 2.0]
    saved = sorted(path.stem for path in (out / "trainer").iterdir())
    assert [name.replace("=", "-").split("-")[-1] for name in saved] == ["16", "32"]


@ACCELERATE
@pytest.mark.proves(form="accelerate", strategy="allreduce", death="worker")
def test_a_worker_killed_in_a_loop_of_accelerate_leaves_no_trace(tmp_path: Path) -> None:
    logs = check_killed("accelerate_trained.py", "worker-0", 14, tmp_path / "out")
    assert [logs[who]["chief"] for who in ("survivor", "joiner")] == [False, True]
    for log in logs.values():
        assert log["num_steps"] == NUM_STEPS // EPOCHS
        assert log["evaluated"] == EPOCHS * N
        # A step is complete with the last batch of this worker's share, and not with each.
        assert log["completed"] == NUM_STEPS


EARLY = [
    pytest.param("huggingface", marks=TRAINER),
    pytest.param("lightning", marks=LIGHTNING),
]


def stopped_early(library: str, out: Path, die: str = ":0") -> list[dict[str, Any]]:
    """What the last life of each worker decided and counted."""
    with training("early_stopped.py", out, "--library", library, "--die", die) as job:
        outcome = job.end()
        assert outcome.state == "finished", outcome
        assert [death["node"] for death in job.deaths()] == [one for one in [die[:-3]] if one]
    return [json.loads(path.read_text()) for path in sorted(out.glob("*.log"))]


@pytest.mark.parametrize("library", EARLY)
def test_who_comes_when_training_has_stopped_early_stops_there(
    library: str, tmp_path: Path
) -> None:
    (expected, other) = stopped_early(library, tmp_path / "undisturbed")
    assert expected == other
    steps, most = expected["steps"][0], 400
    assert expected["waited"] == 2
    assert steps < most
    # In the midst of an epoch, and behind the last step of the last one.
    for at in (steps - 15, steps):
        found = stopped_early(library, tmp_path / str(at), f"worker-1:{at}")
        assert len(found) == 2
        for one in found:
            assert one.keys() == expected.keys()
            for name, value in one.items():
                assert np.allclose(value, expected[name], rtol=0, atol=1e-9), name


@pytest.mark.parametrize(
    ("form", "script"),
    [
        pytest.param("trainers", "hf_trained.py", marks=TRAINER),
        pytest.param("trainers", "lightning_trained.py", marks=LIGHTNING),
        pytest.param("accelerate", "accelerate_trained.py", marks=ACCELERATE),
    ],
)
@pytest.mark.proves(form="{form}", strategy="alone", ends="runs")
def test_started_plainly_it_is_the_library_alone(form: str, script: str, tmp_path: Path) -> None:
    command = [sys.executable, str(JOBS / script), "--out", str(tmp_path), "--per-device", "64"]
    subprocess.run(command, check=True, timeout=100, capture_output=True)
    log = json.loads((tmp_path / "alone.0.log").read_text())
    assert log.get("steps", list(range(1, NUM_STEPS + 1))) == list(range(1, NUM_STEPS + 1))
    assert log["largest"] == 64, "the loader is the library's own"


@LIGHTNING
@pytest.mark.proves(form="trainers", strategy="allreduce", death=("worker", "stop"))
def test_the_best_checkpoint_of_a_trainer_is_known_to_later_lives(tmp_path: Path) -> None:
    script = JOBS / "best_saved.py"
    run_alone(script, tmp_path / "alone")
    (expected,) = (json.loads(one.read_text()) for one in (tmp_path / "alone").glob("*.end"))
    best = expected.pop("best")
    assert (best, expected["stopped"]) == ("checkpoints/epoch=1-step=40.ckpt", 4)
    with pair_of(script, tmp_path / "job", "--step-s", "0.15", batch_size=16) as job:
        job.until_committed(45 * 16)
        os.kill(job.pid_of("worker-0"), signal.SIGKILL)
        job.until_committed(65 * 16)
        ask(job.job, StopJob())
        assert job.end().state == "stopped"
        job.resume()
        job.until_committed(70 * 16)
        os.kill(job.pid_of("worker-1"), signal.SIGKILL)
        outcome = job.end()
        assert outcome.state == "finished", outcome
    ends = [json.loads(one.read_text()) for one in (tmp_path / "job").glob("*.end")]
    assert ends
    for found in ends:
        assert found.pop("best") == best
        assert found == pytest.approx(expected, rel=1e-9)
    # One folder, with the rows of all lives of the chief.
    (folder,) = (tmp_path / "job" / "logged").iterdir()
    assert folder.name == job.job.job_id
    rows = csv.DictReader((folder / "metrics.csv").read_text().splitlines())
    assert {int(row["epoch"]) for row in rows if row["worth"]} >= {0, 1, 3, 4}

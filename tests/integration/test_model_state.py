"""State of a model beside what trains: its buffers, and weights that are loaded after the last loop."""

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from paceline.cli.main import app
from paceline.jobs.launch import launch
from paceline.wire.spec import JobSpec, NodeSpec, RestartSpec
from tests.integration.running import RunningJob

SCRIPT = Path(__file__).with_name("jobs") / "normalised.py"


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path / "home"))


def run(out: Path, *args: str, workers: int = 2, **fields: Any) -> tuple[dict[int, Any], str]:
    """Train to the end: the state of each worker, and what the export of the job says."""
    out.mkdir(exist_ok=True)
    spec = JobSpec(
        script=str(SCRIPT),
        args=("--out", str(out), *args),
        workers=NodeSpec(count=workers),
        restart=RestartSpec(backoff_s=0.1),
        solution="none",
        preflight=False,
        **fields,
    )
    with closing(RunningJob(launch(spec), out)) as job:
        outcome = job.end()
        assert outcome.state == "finished", outcome
        exported = CliRunner().invoke(
            app, ["checkpoint", "export", job.job.job_id, str(out / "model.pt"), "--force"]
        )
        assert exported.exit_code == 0, exported.output
    ends = {int(path.stem): torch.load(path) for path in out.glob("*.end")}
    return ends, exported.stdout


@pytest.mark.soak
@pytest.mark.parametrize("die", ["", "1:15"])
def test_a_cut_of_servers_has_them_and_a_new_life_goes_on_with_them(
    die: str, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    step_s = "0.05" if die else "0"
    ends, said = run(out, "--die", die, "--step-s", step_s, workers=2 if die else 1)
    exported = torch.load(out / "model.pt")
    assert exported.keys() == ends[0].keys() - {"table"}
    assert "10 tensors (4 of them buffers, of the worker that was furthest)" in said
    assert "not in it, since they never changed: table" in said
    assert exported["scale"].dtype == torch.bfloat16
    assert exported["scale"].tolist() == [7.0] * 3
    seen = int(exported["1.num_batches_tracked"])
    assert seen >= 20 if die else seen in (39, 40), seen
    assert exported["1.running_mean"].abs().max() > 1.0
    begun = [tuple(map(int, line.split())) for line in (out / "begun").read_text().splitlines()]
    assert {count for _, count in begun[:2]} == {0}
    if die:
        (rank, count) = begun[2]
        assert rank == 1
        assert count >= 10, "the new life began with the statistics of a new model"


@pytest.mark.soak
@pytest.mark.parametrize(
    ("column", "fields"),
    [
        ("allreduce", {"strategy": "allreduce", "deterministic": True, "blocks": 4}),
        ("allreduce", {"strategy": "allreduce"}),
        ("ps bsp", {"strategy": "ps"}),
    ],
    ids=["deterministic", "allreduce", "servers"],
)
@pytest.mark.proves(form="evaluation", strategy="{column}", ends="runs")
def test_evaluation_leaves_no_trace_in_a_model_in_training_mode(
    column: str, fields: dict[str, Any], tmp_path: Path
) -> None:
    workers = 1 if fields["strategy"] == "ps" else 2  # who gets which batch differs there
    ends, _ = run(tmp_path / "out", workers=workers, **fields)
    assert {int(end["1.num_batches_tracked"]) for end in ends.values()} <= {40, 160}
    assert len(ends) == workers
    if fields.get("deterministic"):
        for name, value in ends[0].items():
            assert torch.equal(value, ends[1][name]), name


@pytest.mark.soak
@pytest.mark.proves(form="best", strategy="ps bsp", ends="runs")
def test_the_best_weights_are_loaded_after_the_last_loop_on_servers(tmp_path: Path) -> None:
    spec = JobSpec(
        script=str(SCRIPT.with_name("reloaded.py")),
        args=("--out", str(tmp_path)),
        workers=NodeSpec(count=2),
        solution="none",
        preflight=False,
    )
    with closing(RunningJob(launch(spec), tmp_path)) as job:
        outcome = job.end()
    assert outcome.state == "finished", outcome
    found = [json.loads(path.read_text()) for path in tmp_path.glob("*.found")]
    assert len(found) == 2
    for one in found:
        assert "job.batches was called after load_state_dict" in one.pop("refused")
        assert one == {"same": True, "evaluated": True, "own": True}

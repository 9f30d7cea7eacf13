"""Every case with all-reduce ends as in plain torch, and bit for bit so with a kill or a resume.

In float64 up to the last digits: sums of other lengths are added up in another order.
"""

import contextlib
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from paceline.cli.launch import launch
from paceline.wire.client import StopJob
from paceline.wire.spec import JobSpec, NodeSpec, RestartSpec
from tests.integration.running import RunningJob, until
from tests.parity.cases import cases, reference, runs

SCRIPT = Path(__file__).with_name("together.py")
PATIENCE_S = 240.0
EVERY = int(os.environ.get("PARITY_EVERY", "1"))
"""Of the cases every n-th is trained."""


def spec_of(out: Path, *flags: str) -> JobSpec:
    return JobSpec(
        script=str(SCRIPT),
        args=("--out", str(out), "--every", str(EVERY), *flags),
        name="parity",
        strategy="allreduce",
        workers=NodeSpec(count=2),
        restart=RestartSpec(backoff_s=0.1),
        solution="none",
        preflight=False,
        deterministic=True,
        blocks=2,
    )


Ends = dict[str, tuple[str, list[Any]]]
"""Of each case a digest of all that it holds, and its weights."""


def ends_of(what: str, out: Path, monkeypatch: pytest.MonkeyPatch) -> Ends:
    """What both workers hold in the end, which is the same."""
    out.mkdir()
    monkeypatch.setenv("PACELINE_HOME", str(out))
    flags = {"killed": ("--die", "1:20", "--step-s", "0.2"), "resumed": ("--step-s", "0.3")}
    with contextlib.closing(RunningJob(launch(spec_of(out, *flags.get(what, ()))), out)) as job:
        if what == "resumed":
            until((out / "under way").exists, "half of the steps", PATIENCE_S)
            job.tell(StopJob())
            assert job.end().state == "stopped"
            job.resume()
        until(job.job.outcome.exists, "the end", PATIENCE_S)
        assert job.end().state == "finished"
        assert not job.events("diverged")
    first, second = (
        msgspec.json.decode(path.read_bytes(), type=Ends) for path in sorted(out.glob("*.end"))
    )
    assert first == second
    return first


@pytest.mark.soak
def test_all_reduce_ends_as_plain_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    undisturbed = ends_of("undisturbed", tmp_path / "undisturbed", monkeypatch)
    trained = [case for case in cases()[::EVERY] if runs(case)]
    assert undisturbed.keys() == {str(case) for case in trained}
    for case in trained:
        if case.dtype == torch.float64:
            wanted = reference(case, parts=2)["model"].values()
            for found, value in zip(undisturbed[str(case)][1], wanted, strict=True):
                there = torch.tensor(found, dtype=torch.float64)
                torch.testing.assert_close(there, value, rtol=1e-9, atol=1e-12, msg=str(case))
    for what in ("killed", "resumed"):
        found = ends_of(what, tmp_path / what, monkeypatch)
        differ = [name for name in undisturbed if found[name] != undisturbed[name]]
        assert not differ, (what, differ)

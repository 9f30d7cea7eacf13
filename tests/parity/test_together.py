"""Every case in a job of two workers ends as in plain torch, undisturbed, with a kill and a resume.

On servers, whose kernels are their own, by the rule of equality. With all-reduce and fsdp bit for
bit as torch itself computes it from the same halves of each batch; only where all-reduce is not
deterministic a step of one worker changes the order of sums, so that it is by the rule again:
there, after a kill or a resume, only the cases in float64 are compared, without Muon.
"""

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from paceline.jobs.launch import launch
from paceline.wire.client import StopJob
from paceline.wire.spec import CheckpointSpec, JobSpec, NodeSpec, RestartSpec
from tests.integration.running import RunningJob, until
from tests.parity.cases import cases, reference
from tests.parity.refusals import Holder, refusal
from tests.parity.rule import allowed, distance

SCRIPT = Path(__file__).with_name("together.py")
PATIENCE_S = 900.0
EVERY = int(os.environ.get("PARITY_EVERY", "1"))
"""Of the cases every n-th is trained."""
DISTURBED = {
    "undisturbed": (),
    "killed": ("--die", "1:20", "--step-s", "0.1"),
    "resumed": ("--step-s", "0.3"),
}
DEATHS = {"undisturbed": "none", "killed": "worker", "resumed": "stop"}
"""What each is in the map of promises."""
SAME_BITS = {"OMP_NUM_THREADS": "1", "MKL_CBWR": "AUTO,STRICT"}
"""Else the bits of a product follow where in memory its factors lie."""
KNOWN = {str(case): case for case in cases()}


def flags_of(holder: str, out: Path, *more: str) -> tuple[str, ...]:
    return ("--holder", holder, "--out", str(out), "--every", str(EVERY), *more)


STRATEGIES = {"servers": "ps", "deterministic": "allreduce"}


def spec_of(holder: str, out: Path, *more: str) -> JobSpec:
    return JobSpec(
        script=str(SCRIPT),
        args=flags_of(holder, out, *more),
        name="parity",
        strategy=STRATEGIES.get(holder, holder),  # type: ignore[arg-type]
        mode="bsp",
        workers=NodeSpec(count=2),
        servers=NodeSpec(count=2),
        checkpoint=CheckpointSpec(every_s=1.0, share=1.0),
        restart=RestartSpec(backoff_s=0.1),
        solution="none",
        preflight=False,
        torch_threads=1,
        env=SAME_BITS,
        deterministic=holder == "deterministic",
        blocks=2,
    )


Ends = dict[str, tuple[str, list[Any]]]
"""Of each case a digest of all that it holds, and its weights."""


def ends_of(holder: str, what: str, out: Path, monkeypatch: pytest.MonkeyPatch) -> Ends:
    """What both workers hold in the end, which is the same."""
    out.mkdir()
    monkeypatch.setenv("PACELINE_HOME", str(out))
    spec = spec_of(holder, out, *DISTURBED[what])
    with contextlib.closing(RunningJob(launch(spec), out)) as job:
        if what == "resumed":
            half = out / "under way"
            until(
                lambda: half.exists() or job.job.outcome.exists(), "half of the steps", PATIENCE_S
            )
            job.tell(StopJob())
            assert job.end().state == "stopped"
            job.resume()
        until(job.job.outcome.exists, "the end", PATIENCE_S)
        assert job.end().state == "finished"
        assert not job.events("diverged")
        assert bool(job.deaths()) == (what == "killed")
    return read_ends(out)


def read_ends(out: Path) -> Ends:
    first, *others = (
        msgspec.json.decode(path.read_bytes(), type=Ends) for path in sorted(out.glob("*.end"))
    )
    assert all(one == first for one in others)
    assert first
    return first


def without_a_job(holder: str, out: Path) -> Ends:
    """What torch itself computes."""
    out.mkdir()
    command = [sys.executable, str(SCRIPT), *flags_of(holder, out, "--plain")]
    size = 2 if holder == "fsdp" else 1
    env = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29519", **SAME_BITS}
    workers = [
        subprocess.Popen(command, env={**env, "RANK": str(rank), "WORLD_SIZE": str(size)})
        for rank in range(size)
    ]
    assert [one.wait(PATIENCE_S) for one in workers] == [0] * size
    return read_ends(out)


def far(found: Ends) -> list[tuple[str, float, float]]:
    """The cases that are farther from plain torch than the rule allows."""
    beyond = []
    for name, (_, weights) in found.items():
        case = KNOWN[name]
        plain = reference(case)
        limit, apart = allowed(case, plain), distance(_named(plain, weights), plain["model"])
        if not apart <= limit:
            beyond.append((name, apart, limit))
    return beyond


def exact(found: Ends) -> Ends:
    """Those of which torch computes nothing in fewer bits than float64, as Muon does."""
    kept = {name: one for name, one in found.items() if KNOWN[name].dtype == torch.float64}
    kept = {name: one for name, one in kept.items() if not name.startswith("Muon")}
    assert kept
    return kept


def _named(plain: dict[str, Any], weights: Iterable[Any]) -> dict[str, torch.Tensor]:
    values = (torch.tensor(one, dtype=torch.float64) for one in weights)
    return dict(zip(plain["model"], values, strict=True))


@pytest.mark.soak
@pytest.mark.timeout(3000)
@pytest.mark.proves(form="batches", strategy="ps bsp", death="{death}")
@pytest.mark.parametrize(("what", "death"), DEATHS.items())
def test_servers_end_as_plain_torch(
    what: str, death: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert far(ends_of("servers", what, tmp_path / what, monkeypatch)) == []


@pytest.mark.soak
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("holder", ["allreduce", "deterministic", "fsdp"])
@pytest.mark.proves(form="batches", strategy="{holder}", death=("none", "worker", "stop"))
def test_groups_end_as_plain_torch(
    holder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = without_a_job(holder, tmp_path / "plain")
    assert far(exact(plain)) == []
    for what in DISTURBED:
        found = ends_of(holder, what, tmp_path / what, monkeypatch)
        assert found.keys() == plain.keys()
        if holder == "allreduce" and what != "undisturbed":
            assert far(exact(found)) == []
            continue
        differ = [name for name in plain if found[name] != plain[name]]
        assert [name for name in differ if not forgets(name, holder, what)] == [], what


def forgets(name: str, holder: str, what: str) -> bool:
    """Gradients that a script sets to 0 are None in a new life, and in each deterministic step."""
    return name.endswith("-zeros") and (
        holder == "deterministic" or (holder, what) == ("fsdp", "killed")
    )


GROUPS = pytest.mark.refuses(form="thawed", strategy="fsdp")
REFUSED = [
    ("servers", "Adadelta-float64"),
    ("servers", "SGD-bfloat16"),
    ("servers", "SGD-float64-clamp_data"),
    ("servers", "SGD-float64-ema"),
    ("servers", "AdamW-float64-reset"),
    ("servers", "AdamW-float64-group"),
    ("allreduce", "SGD-float64-group"),
    pytest.param("fsdp", "SGD-float64-group", marks=GROUPS),
]


@pytest.mark.soak
@pytest.mark.timeout(1000)
@pytest.mark.parametrize(("holder", "name"), REFUSED)
def test_a_refusal_is_what_a_job_ends_with(
    holder: Holder, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))
    spec = spec_of(holder, tmp_path, "--case", name)
    with contextlib.closing(RunningJob(launch(spec), tmp_path)) as job:
        until(job.job.outcome.exists, "the end", PATIENCE_S)
        outcome = job.end()
    assert outcome.state == "failed"
    why = refusal(KNOWN[name], holder)
    assert why is not None
    assert re.search(why.said, outcome.error)
    assert not [*tmp_path.glob("*.end")]

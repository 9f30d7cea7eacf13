"""``deterministic: true``: the model is the same bit for bit, whoever computed what of it."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from paceline.wire.client import Scale
from paceline.wire.events.state import GroupRunsEvent
from paceline.wire.spec import CheckpointSpec
from tests.chaos.oracle import leftovers
from tests.integration.running import RunningJob, install, until
from tests.integration.test_allreduce import (
    UNEVEN,
    finals,
    group,
)

Model = dict[str, np.ndarray]  # type: ignore[type-arg]

DENSE = Path(__file__).with_name("jobs") / "dense.py"
ROUGH = ("--rough", "--num-samples", "2000")
"""The last step of an epoch is a smaller one."""


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))


#: Of BatchNorm: without blocks each member has its own, of all batches that its script computed,
#: also of a step that comes again after a death.
OWN_BUFFERS = ("net.1.running", "net.1.num_batches_tracked")


def end_of(job: RunningJob, *, lives: int, but: tuple[str, ...] = ()) -> Model:
    """What all held at the end, equal among them, ``but`` names that begin so."""
    outcome = job.end()
    assert outcome.state == "finished", outcome
    first, *others = held = [*finals(job).values()]
    assert len(held) == lives
    assert first["seen"].min() >= (0.0 if "scale" in first else 1.0)
    for other in others:
        check_same_bits(first, other, but=but)
    until(lambda: not leftovers(job.job), "a clean machine")
    return first


def undisturbed(out: Path, *flags: str, workers: int = 1, **spec: Any) -> Model:
    """What a job ends with to which nothing happens."""
    with group(
        out, *ROUGH, "--step-s", "0", *flags, workers=workers, deterministic=True, **spec
    ) as job:
        return end_of(job, lives=workers)


def check_same_bits(one: Model, other: Model, *, but: tuple[str, ...] = ()) -> None:
    assert one.keys() == other.keys()
    for name, values in one.items():
        assert name.startswith(but) or values.tobytes() == other[name].tobytes(), name


@pytest.mark.soak
@pytest.mark.parametrize("flags", [(), ("--adam",)])
@pytest.mark.proves(form="batches", strategy="allreduce")
def test_any_number_of_workers_ends_with_the_same_bits(
    tmp_path: Path, flags: tuple[str, ...]
) -> None:
    alone = undisturbed(tmp_path / "1", *flags)
    for workers in (2, 3):
        others = undisturbed(tmp_path / f"{workers}", *flags, workers=workers)
        check_same_bits(alone, others)


@pytest.mark.soak
@pytest.mark.proves(form="batches", strategy="allreduce", death="worker")
def test_whoever_dies_or_joins_or_has_more_to_do_the_bits_are_those_of_one_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = undisturbed(tmp_path / "alone")
    site = install(tmp_path / "site", "odd", UNEVEN, "paceline.solutions", "odd = odd:Uneven")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")]))
    flags = (*ROUGH, "--die", "worker-2:12", "--slow-until-told")
    odd = {"solution": "odd", "decide_every_s": 0.1, "deterministic": True}
    with group(tmp_path / "out", *flags, workers=3, **odd) as job:
        until(lambda: job.events("plan"), "uneven shares")
        until(lambda: members(job)[-2:] == [{0, 1}, {0, 1, 2}], "a death and the next life")
        job.tell(Scale(workers=4))
        until(lambda: members(job)[-1] == {0, 1, 2, 3}, "a fourth member")
        (job.out / "hurry").touch()
        disturbed = end_of(job, lives=4)
        assert [death["node"] for death in job.deaths()] == ["worker-2"]
    check_same_bits(alone, disturbed)


def members(job: RunningJob) -> list[set[int]]:
    """Who has trained together, group by group."""
    groups = [event.members for event in job.told(GroupRunsEvent)]
    return [{int(name.removeprefix("worker-")) for name in members} for members in groups]


@pytest.mark.proves(form=("batches", "clipping", "scaler"), strategy="allreduce")
def test_half_precision_clipping_and_a_schedule_end_with_the_bits_of_one_worker(
    tmp_path: Path,
) -> None:
    held = []
    for workers in (1, 2):
        path = tmp_path / f"{workers}.out"
        args = ("--out", str(path), "--half")
        with group(
            tmp_path, script=str(DENSE), args=args, workers=workers, deterministic=True
        ) as job:
            assert job.end().state == "finished"
            assert members(job) == [{*range(workers)}]
        held.append(load_file(path))
    check_same_bits(*held)


@pytest.mark.soak
@pytest.mark.proves(form="batches", strategy="allreduce", death="all")
def test_after_the_death_of_all_the_bits_are_those_of_an_undisturbed_run(tmp_path: Path) -> None:
    alone = undisturbed(tmp_path / "alone")
    checkpoint = CheckpointSpec(every_s=0.3, share=1.0)
    with group(tmp_path / "out", *ROUGH, deterministic=True, checkpoint=checkpoint) as job:
        job.until_committed(1000, cuts=1)
        job.kill_nodes()
        check_same_bits(alone, end_of(job, lives=2))
        assert len(job.events("epoch")) == 2


@pytest.mark.soak
@pytest.mark.parametrize("flags", [("--half",), ("--half", "--adam")])
@pytest.mark.proves(form="scaler", strategy="allreduce", death="worker")
def test_a_scaler_leaves_the_same_steps_out_and_who_joins_has_its_scale(
    tmp_path: Path, flags: tuple[str, ...]
) -> None:
    alone = undisturbed(tmp_path / "alone", *flags)
    assert alone["scale"] < 2.0**20, "some steps were left out"
    if not flags[1:]:  # else the other optimizer had nothing to leave out
        left_out = int((alone["seen"] == 0).sum())
        assert 0 < left_out < 1000
        assert left_out % 64 in (0, 2000 % 64), "whole steps"
    die = ("--die", "worker-1:36", "--slow-until-told")  # when the scale has changed once
    with group(tmp_path / "out", *ROUGH, *flags, *die, workers=2, deterministic=True) as job:
        until(lambda: members(job) == [{0, 1}, {0}, {0, 1}], "a death and the next life")
        (job.out / "hurry").touch()
        disturbed = end_of(job, lives=2)
        assert job.end().committed == 2000
    check_same_bits(alone, disturbed)


@pytest.mark.soak  # CI has the same death with blocks
def test_a_scaler_without_blocks_leaves_the_same_steps_out_in_all_members(tmp_path: Path) -> None:
    flags = (*ROUGH, "--half", "--die", "worker-1:12", "--slow-until-told")
    with group(tmp_path / "out", *flags, workers=2) as job:
        until(lambda: members(job) == [{0, 1}, {0}, {0, 1}], "a death and the next life")
        (job.out / "hurry").touch()
        held = end_of(job, lives=2, but=OWN_BUFFERS)
    assert 0 < int((held["seen"] == 0).sum()) < 1000
    assert held["scale"] < 2.0**20

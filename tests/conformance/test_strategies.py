"""What every `Strategy` promises to `Job`: in this process where it can be, else as a small job.

A holder joins the suite as one more row of `HOLDERS`.
"""

import contextlib
import math
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import nn

import paceline as pl
from paceline.jobs.launch import launch
from paceline.runtime.holding.servers.in_process import Alone
from paceline.runtime.holding.servers.strategy import OnServers
from paceline.runtime.script.job import begin
from paceline.runtime.script.step_frame import BY_HAND, TWICE
from paceline.wire.spec import CheckpointSpec, JobSpec, NodeSpec
from tests.conformance import promises
from tests.conformance.promises import BATCH, EPOCHS, MAX_NORM, STEPS, N, Planted, Seen
from tests.integration.running import RunningJob, until

PATIENCE_S = 90.0
OUTSIDE_A_LOOP = (None, False)

See = Callable[[Path], list[Seen]]


def local(_out: Path) -> list[Seen]:
    return [promises.observe(pl.init(), Planted(), lambda _: None)]


def tables(_out: Path) -> list[Seen]:
    """A script that has tables, without a job."""
    job = begin(OnServers(Alone(JobSpec(script="train.py"))))
    return [promises.observe(job, Planted(), lambda _: None)]


def in_a_job(*flags: str, workers: int = 2, **spec: Any) -> See:
    def see(out: Path) -> list[Seen]:
        args = ("--out", str(out), "--workers", str(workers), *flags)
        fields: dict[str, Any] = {
            "script": promises.__file__,
            "args": args,
            "workers": NodeSpec(count=workers),
            "checkpoint": CheckpointSpec(every_s=60.0),
            "solution": "none",
            "preflight": False,
            "torch_threads": 1,
        }
        with contextlib.closing(RunningJob(launch(JobSpec(**(fields | spec))), out)) as job:
            until(
                lambda: len(list(out.glob("*.seen"))) == workers or job.job.outcome.exists(),
                "what all workers have seen",
                PATIENCE_S,
            )
        return [
            msgspec.json.decode(path.read_bytes(), type=Seen) for path in sorted(out.glob("*.seen"))
        ]

    return see


HOLDERS: dict[str, See] = {
    "local": local,
    "tables": tables,
    "servers": in_a_job(workers=1, strategy="ps", mode="bsp", servers=NodeSpec(count=1)),
    "replicas": in_a_job(strategy="allreduce"),
    "shards": in_a_job("--shard", strategy="fsdp"),
}


ONE_EACH = {
    "accumulation": "here each batch is a step; give 4 times the batch_size",
    "uneven batches": "steps of several sizes: run the job with --strategy allreduce",
    "a next training": "another model in another job, or with --strategy allreduce",
}
NOT_IN_A_BODY = {"all_gather in a body": "call it between two loops"}
REFUSES: dict[str, dict[str, str]] = {
    "local": {},
    "tables": ONE_EACH,
    "servers": ONE_EACH | NOT_IN_A_BODY,
    "replicas": {},
    "shards": ONE_EACH | NOT_IN_A_BODY,
}
"""The loops that a holder refuses, and the remedy that it names: see the map of promises."""


FORMS = {
    "accumulation": "accumulation",
    "uneven batches": "uneven",
    "a next training": "folds",
    "all_gather in a body": "gather",
}
"""What the map of promises calls them."""


def in_the_map(holder: str) -> Any:
    """Mark what a holder refuses in a job, and what it does as plain torch; alone others say it."""
    if holder in ("local", "tables"):
        return holder
    forms = tuple(FORMS[what] for what in REFUSES[holder])
    marks = [pytest.mark.refuses(form=forms, strategy=holder)] * bool(forms)
    marks.append(pytest.mark.proves(form="batches", strategy=holder, ends="counted"))
    marks.append(pytest.mark.proves(form="agree", strategy=holder, ends="runs"))
    if holder != "servers":
        marks.append(pytest.mark.proves(form="clipping", strategy=holder))
    return pytest.param(holder, marks=marks)


@pytest.mark.parametrize("holder", [in_the_map(one) for one in HOLDERS])
def test_a_holder_keeps_the_promises_of_the_port(
    holder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path / "home"))
    workers = HOLDERS[holder](tmp_path)
    assert workers
    batches_cover_the_feed_once(workers)
    assert {body.begun.step for seen in workers for body in seen.bodies} == {*range(STEPS)}
    for seen in workers:
        step_is_where_the_schedule_is(seen)
        a_batch_is_in_hand_until_its_step(seen)
        evaluate_gives_all_by_position(seen)
        what_is_handed_over_is_kept(seen)
        clipping_is_torchs(seen)
        mistakes_are_refused_with_the_same_words(seen)
        refused = {what: said for what, said in seen.refusals.items() if said}
        assert refused.keys() == REFUSES[holder].keys()
        assert all(remedy in refused[what] for what, remedy in REFUSES[holder].items())


def batches_cover_the_feed_once(workers: Sequence[Seen]) -> None:
    for seen in workers:
        assert seen.held == [-EPOCHS] * N, "every sample is in the model once for each epoch"
    counts = Counter(one for seen in workers for body in seen.bodies for one in body.ids)
    assert counts == dict.fromkeys(range(N), EPOCHS)


def step_is_where_the_schedule_is(seen: Seen) -> None:
    assert seen.before.step in (None, 0)
    places = [(body.begun.step, body.stepped.step) for body in seen.bodies]
    assert places == sorted(set(places))
    assert all(before is not None and after == before + 1 for before, after in places)
    assert seen.after is not None
    assert seen.after.step == STEPS


def a_batch_is_in_hand_until_its_step(seen: Seen) -> None:
    for body in seen.bodies:
        assert (body.begun.global_batch, body.begun.in_step) == (BATCH, True)
        assert (body.stepped.global_batch, body.stepped.in_step) == (BATCH, False)
    for now in (seen.before, seen.after, seen.refused):
        assert now is not None
        assert (now.global_batch, now.in_step) == OUTSIDE_A_LOOP


def evaluate_gives_all_by_position(seen: Seen) -> None:
    assert seen.evaluated == {"id": [*range(N)], "odd": [one % 2 for one in range(N)]}


def what_is_handed_over_is_kept(seen: Seen) -> None:
    assert seen.handed_over == seen.left
    assert min(seen.left) < -EPOCHS, "a step of the loop that went wrong is in the model"


def clipping_is_torchs(seen: Seen) -> None:
    if seen.no_clip:
        assert "in mode bsp a step is the sum of all workers' gradients" in seen.no_clip
        return
    plain = nn.Parameter(torch.zeros(N, dtype=torch.float64))
    plain[:BATCH].mean().backward()
    norm = nn.utils.clip_grad_norm_([plain], MAX_NORM)
    assert plain.grad is not None
    assert math.isclose(seen.norm, float(norm), rel_tol=1e-6)
    torch.testing.assert_close(sorted(seen.clipped), sorted(plain.grad.tolist()))


def mistakes_are_refused_with_the_same_words(seen: Seen) -> None:
    assert seen.twice == TWICE
    assert seen.not_at_all.replace(BY_HAND, "") == (
        "a batch went by without optimizer.step() (1 of 1 prepared optimizers did not step), so "
        "its samples would never count; call it once per batch, and use job.evaluate for batches "
        "that are not trained on"
    )

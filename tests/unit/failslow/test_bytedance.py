"""Published traces get the verdict that their authors published. The traces are not kept here."""

import functools
import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from paceline_experiments.failslow.bytedance import (
    PublishedTrace,
    PublishedVerdict,
    imbalances,
    jobs_in,
    judge_trace,
    main,
    published,
    read_trace,
)

from paceline.features.failslow.policy.profile import summarise
from paceline.features.failslow.policy.suspects import Findings
from paceline.features.failslow.policy.validation import plan_validation

VARIABLE = "PACELINE_STRAGGLER_ANALYSIS"
FOLDER = Path(os.environ.get(VARIABLE, ""))

with_traces = pytest.mark.skipif(
    VARIABLE not in os.environ,
    reason=f"{VARIABLE} does not name the folder `data` of ByteDance-Seed/StragglerAnalysis",
)


@functools.cache
def trace_of(job: str) -> PublishedTrace:
    return read_trace(FOLDER, job)


@with_traces
def test_every_job_gets_its_published_verdict() -> None:
    jobs = jobs_in(FOLDER)
    assert jobs
    for job in jobs:
        trace = trace_of(job)
        found, verdict = judge_trace(trace), published(FOLDER, job)
        workers = [trace.workers[one.ranks[0]] for one in found.suspects]
        assert all(one.kind == "computation" for one in found.suspects)
        assert workers == ([] if verdict.worker is None else [verdict.worker])
        stages = [one.stage for one in imbalances(summarise(trace.window))]
        assert stages == ([] if verdict.stage is None else [verdict.stage])
        assert not found.lone_ranks


@with_traces
def test_a_slow_worker_is_validated_with_few_others() -> None:
    for job in jobs_in(FOLDER):
        if published(FOLDER, job).worker is None:
            continue
        trace = trace_of(job)
        found = judge_trace(trace)
        groups = {call.group for call in trace.window.calls}
        plan = plan_validation(found, groups)
        assert set(found.suspects[0].ranks) <= set(plan.ranks)
        assert len(plan.ranks) <= 0.25 * len(plan_validation(Findings(), groups).ranks)


def write_trace(folder: Path, job: str, slow: tuple[int, int] | None) -> None:
    """Three replicas of two stages, in the columns of the published traces."""
    rows: list[dict[str, object]] = []
    for step, replica, stage in ((s, r, p) for s in (4, 7, 9) for r in range(3) for p in range(2)):
        at_s, forward_s = 0.0, 2.0 if (replica, stage) == slow else 1.0
        forward = [("forward-compute", forward_s), ("forward-send", 0.1)]
        backward = [("backward-recv", 2.2 if slow else 1.2), ("backward-compute", 1.0)]
        last = [("forward-recv", 1.1), ("forward-compute", 1.0), ("backward-compute", 1.0)]
        ops = [*forward, *backward] if stage == 0 else [*last, ("backward-send", 0.1)]
        for kind, duration in [*ops, ("grads-reduce-scatter", 0.2), ("gc", 0.0)]:
            rows.append(
                {
                    "dp_rank": replica, "stage": stage, "rank": 3 * stage + replica, "step": step,
                    "optype": kind, "start_ts": at_s, "duration": duration, "seq_id": 0,
                }
            )  # fmt: skip
            at_s += duration
    pq.write_table(pa.Table.from_pylist(rows), folder / f"trace-{job}.parquet")
    replicas = {"0": 1.01, "1": 1.02, "2": 1.4 if slow else 1.3}
    result = {
        "blocking_slowdown": 1.4,
        "blocking_decompose_by_dp_rank": replicas if slow else {"0": 1.4, "1": 1.4, "2": 1.4},
        "blocking_decompose_by_stage": {"0": 1.38, "1": 0.99},
    }
    (folder / f"result-{job}.json").write_text(json.dumps(result))


def test_a_trace_of_that_form_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_trace(tmp_path, "slow", (2, 0))
    write_trace(tmp_path, "healthy", None)
    assert jobs_in(tmp_path) == ["healthy", "slow"]
    assert published(tmp_path, "slow") == PublishedVerdict(slowdown=1.4, worker=(2, 0))
    assert published(tmp_path, "healthy") == PublishedVerdict(slowdown=1.4, stage=0)
    trace = read_trace(tmp_path, "slow")
    assert {call.group for call in trace.window.calls} == {
        *((0, 1, 2), (3, 4, 5)), *((0, 3), (1, 4), (2, 5)), *((3, 0), (4, 1), (5, 2)),
    }  # fmt: skip
    found = judge_trace(trace)
    assert [(one.kind, one.ranks) for one in found.suspects] == [("computation", (2,))]
    assert judge_trace(read_trace(tmp_path, "healthy")).suspects == ()
    main(tmp_path)
    assert "computation replica 2 stage 0: 1.50 times" in capsys.readouterr().out

"""Published traces of hybrid-parallel jobs, judged by our rules; the traces stay where they are.

``python -m paceline_experiments.failslow.bytedance FOLDER`` prints our findings on each job beside
verdict that its authors published. The folder is the ``data`` of
``github.com/ByteDance-Seed/StragglerAnalysis``.

Reference: Lin et al., "Understanding Stragglers in Large Model Training Using What-if Analysis",
OSDI 2025: a worker, or a stage, is to blame if the job would be fast with it alone mended.
Differs: no operations are replayed. Only the times of computing and of calls are looked at, as in a
job of our own.
"""

import json
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import pyarrow.parquet as pq

from paceline.features.failslow.policy.profile import (
    ProfileSummary,
    ProfileWindow,
    TimedCall,
    summarise,
)
from paceline.features.failslow.policy.suspects import SHARE, Findings, find_suspects

_COMPUTING = ("forward-compute", "backward-compute", "optimizer")
_OF_REPLICAS = {"params-all-gather": "all_gather", "grads-reduce-scatter": "reduce_scatter"}
"""Transfers among the ranks of one stage."""
_OF_ALL = "optimizer-clip-main-grad"
"""The norm of all gradients: all ranks end it together."""
_BETWEEN_STAGES = {
    "forward-send": ("send", 1),
    "forward-recv": ("recv", -1),
    "backward-send": ("send", -1),
    "backward-recv": ("recv", 1),
}
"""Operation of each transfer between stages, and how many stages further the other end is."""
_LEAST = 0.5
"""Least part of a job's slowness that one component must explain to be blamed."""


class PublishedVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """Verdict of the authors' analysis."""

    slowdown: float
    """Ratio of the job's time to its time without stragglers."""
    worker: tuple[int, int] | None = None
    """Replica and stage of one worker."""
    stage: int | None = None
    """Stage that is blamed, whose workers are alike."""


def jobs_in(folder: Path) -> list[str]:
    """Name the jobs of a folder."""
    return sorted(path.stem.removeprefix("trace-") for path in folder.glob("trace-*.parquet"))


def published(folder: Path, job: str) -> PublishedVerdict:
    """Read the authors' verdict: which replica and which stage explain most of the slowness."""
    result = json.loads((folder / f"result-{job}.json").read_text())
    slowdown = result["blocking_slowdown"]

    def to_blame(part: str) -> int | None:
        """Return the one that explains it alone; None: several do, or none."""
        found = [
            int(name)
            for name, alone in result[f"blocking_decompose_by_{part}"].items()
            if alone - 1.0 >= _LEAST * (slowdown - 1.0)
        ]
        return found[0] if len(found) == 1 else None

    replica, stage = to_blame("dp_rank"), to_blame("stage")
    worker = None if replica is None or stage is None else (replica, stage)
    return PublishedVerdict(
        slowdown=slowdown, worker=worker, stage=stage if worker is None else None
    )


class Imbalance(msgspec.Struct, frozen=True, kw_only=True):
    """A stage of the pipeline all of whose ranks compute longer than the other stages.

    That is how the job is divided, as a rule: no component is to blame.
    """

    stage: int
    ranks: tuple[int, ...]
    seconds: float
    reference_s: float
    lost: float
    """Part of a step, per micro-batch in flight: the stage sets the pipeline's pace."""


class PublishedTrace(msgspec.Struct, frozen=True, kw_only=True):
    """A job's operations, as our own trace would have them."""

    window: ProfileWindow
    workers: dict[int, tuple[int, int]]
    """Replica and stage of each worker, by rank. The trace has one of a worker's tensor ranks."""


def read_trace(folder: Path, job: str) -> PublishedTrace:
    """Read a job's trace."""
    table = pq.read_table(folder / f"trace-{job}.parquet")
    rows = table.sort_by([("step", "ascending"), ("start_ts", "ascending")]).to_pylist()
    workers = {row["rank"]: (row["dp_rank"], row["stage"]) for row in rows}
    ranks = {worker: rank for rank, worker in workers.items()}
    spans: dict[int, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    computing_s: dict[int, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    calls: list[TimedCall] = []
    for row in rows:
        rank, step, start_s = row["rank"], row["step"], row["start_ts"]
        end_s = start_s + row["duration"]
        spans[rank][step] += (start_s, end_s)
        if row["optype"] in _COMPUTING:
            computing_s[rank][step] += row["duration"]
        elif (call := _call(row, ranks)) is not None:
            op, group = call
            seq = (step << 16) + row["seq_id"]
            calls.append(TimedCall(rank, group, op, 0, seq, start_s, end_s))
    window = ProfileWindow(
        calls=tuple(calls),
        steps={
            rank: tuple((min(each), max(each)) for each in by_step.values())
            for rank, by_step in spans.items()
        },
        computing_s={rank: tuple(by_step.values()) for rank, by_step in computing_s.items()},
    )
    return PublishedTrace(window=window, workers=workers)


def _call(
    row: dict[str, Any], ranks: dict[tuple[int, int], int]
) -> tuple[str, tuple[int, ...]] | None:
    """Return a call's operation and group; None: the trace does not say who takes part."""
    kind, replica, stage = row["optype"], row["dp_rank"], row["stage"]
    if kind == _OF_ALL:
        return "all_reduce", tuple(sorted(ranks.values()))
    if kind in _OF_REPLICAS:
        return _OF_REPLICAS[kind], tuple(
            rank for (_, where), rank in sorted(ranks.items()) if where == stage
        )
    if kind in _BETWEEN_STAGES:
        op, further = _BETWEEN_STAGES[kind]
        own, other = ranks[replica, stage], ranks.get((replica, stage + further))
        if other is not None:
            return op, (own, other) if op == "send" else (other, own)
    return None


def imbalances(now: ProfileSummary) -> Iterable[Imbalance]:
    """Find stages whose fastest rank computes longer than the slowest usual one of the others."""
    stages: dict[int, list[int]] = defaultdict(list)
    for rank, times in now.ranks.items():
        if times.stage is not None:
            stages[times.stage].append(rank)
    least = {
        stage: min(median(now.ranks[rank].computing_s) for rank in ranks)
        for stage, ranks in stages.items()
    }
    for stage, ranks in stages.items():
        others = [each for name, each in least.items() if name != stage]
        if not others:
            continue
        reference_s = median(others)
        work = median(now.ranks[rank].work for rank in ranks)
        lost = (least[stage] - reference_s) * work / now.step_s
        if lost >= SHARE and len(ranks) > 1:
            yield Imbalance(
                stage=stage,
                ranks=tuple(ranks),
                seconds=least[stage],
                reference_s=reference_s,
                lost=lost,
            )


def judge_trace(trace: PublishedTrace) -> Findings:
    """Find what is slow in a trace; it is slow from its first step, so there is no baseline."""
    return find_suspects(summarise(trace.window))


def main(folder: Path) -> None:
    """Print each job's findings and its published verdict."""
    for job in jobs_in(folder):
        trace = read_trace(folder, job)
        found = judge_trace(trace)
        print(f"{job}: published {published(folder, job)}")
        for one in found.suspects:
            where = ", ".join("replica {} stage {}".format(*trace.workers[r]) for r in one.ranks)
            print(f"  {one.kind} {where}: {one.ratio:.2f} times, {one.lost:.0%} of a step")
        for each in imbalances(summarise(trace.window)):
            ratio = each.seconds / each.reference_s
            print(f"  stage {each.stage}: {ratio:.2f} times the others, {each.lost:.0%} of a step")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

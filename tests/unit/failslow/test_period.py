"""The period of a job's calls: the step, and not its micro-batch."""

import numpy as np
import pytest

from paceline.features.failslow.policy.period import CallKind, PeriodFinder

ALLREDUCE = CallKind("allreduce_", 0, 4096, "float32")
SEND, RECV = CallKind("send", 1, 512), CallKind("recv_", 1, 512)
GATHER, SCATTER = CallKind("_allgather_base_", 2, 8192), CallKind("_reduce_scatter_base_", 2, 8192)
ROOT = CallKind("_allgather_base_", 2, 1000)
NORM = CallKind("allreduce_", 0, 4)


def buckets(*sizes: int) -> list[CallKind]:
    return [CallKind("allreduce_", 0, size) for size in sizes]


def runs(count: int, rng: np.random.Generator) -> list[CallKind]:
    """One step of a tensor-parallel job: gathers and scatters in runs of any length."""
    return [
        *(call for _ in range(count) for call in [GATHER] * rng.integers(1, 4) + [SCATTER]),
        *buckets(1 << 20, 1 << 18),
    ]


PIPELINE = [RECV, SEND, RECV, SEND] * 4 + buckets(1 << 20, 1 << 18)
FSDP = [ROOT] + [GATHER] * 6 + [GATHER, SCATTER] * 6 + [CallKind("_reduce_scatter_base_", 2, 1000)]
SHAPES = {
    "one bucket": ([ALLREDUCE], 1),
    "three buckets": (buckets(4096, 1 << 20, 1 << 18), 3),
    "equal buckets and the norm": ([ALLREDUCE] * 4 + [NORM], 5),
    "pipeline": (PIPELINE, len(PIPELINE)),
    "32 micro-batches": ([RECV, SEND] * 4 * 32 + buckets(1, 2, 3, 4), 260),
    "32 micro-batches, a tail as long": ([RECV, SEND] * 4 * 32 + [NORM] * 8, 264),
    # Equal gathers in a row count once: 6 of the forward pass and the backward pass's first.
    "fsdp": (FSDP, 14),
}


def walk(
    finder: PeriodFinder, steps: list[list[CallKind]], seed: int = 0
) -> tuple[list[float], list[float]]:
    """Feed steps of about a second; return times that were found, and those of a step hook."""
    rng = np.random.default_rng(seed)
    now_s, seen, true = 0.0, [], []
    for calls in steps:
        took_s = 1.0 + 0.05 * rng.standard_normal()
        offsets = np.linspace(0.05, 0.95, len(calls)) + rng.uniform(-0.01, 0.01, len(calls))
        for call, offset in zip(calls, offsets, strict=True):
            found = finder.add(call, now_s + took_s * float(offset))
            if found is not None:
                seen.append(found)
        now_s += took_s
        true.append(took_s)
    return seen, true


@pytest.mark.parametrize("name", SHAPES)
def test_the_step_is_found_and_timed_as_a_step_hook_does(name: str) -> None:
    calls, period = SHAPES[name]
    finder = PeriodFinder()
    walk(finder, [calls] * 12)
    assert finder.period == period
    seen, true = walk(finder, [calls] * 100)
    # The first of them began in the walk before.
    assert len(seen) in (99, 100)
    assert np.mean(seen[1:]) == pytest.approx(np.mean(true), rel=0.012)
    assert np.median(seen[1:]) == pytest.approx(np.median(true), rel=0.012)


def test_calls_of_the_start_do_not_hide_the_period() -> None:
    start = [CallKind("broadcast_", 0, size) for size in range(60)] + [NORM] * 3
    finder = PeriodFinder()
    walk(finder, [start, *([buckets(10, 20, 30)] * 60)])
    assert finder.period == 3


def test_runs_of_any_length_count_once() -> None:
    rng = np.random.default_rng(0)
    finder = PeriodFinder()
    walk(finder, [runs(5, rng) for _ in range(12)])
    assert finder.period == 12


def test_a_micro_batch_is_dropped_when_the_first_step_ends() -> None:
    finder = PeriodFinder()
    micro, tail = [RECV, SEND] * 4, buckets(1, 2, 3, 4)
    periods = []
    for _ in range(8):
        for call in micro * 32 + tail:
            finder.add(call, 0.0)
            periods.append(finder.period)
    first = periods[:256]
    assert {one for one in first if one is not None} == {2}
    assert {one for one in periods[256:] if one is not None} == {260}


def test_a_period_that_has_held_for_long_goes_on_after_an_evaluation() -> None:
    finder = PeriodFinder()
    walk(finder, [buckets(10, 20, 30)] * 200)
    walk(finder, [[NORM, SEND, RECV, NORM]])
    assert finder.period is None
    walk(finder, [buckets(10, 20, 30)] * 6)
    assert finder.period == 3


def test_calls_of_ever_new_sizes_have_no_period_and_cost_bounded_memory() -> None:
    finder = PeriodFinder(longest=64)
    for size in range(10_000):
        assert finder.add(CallKind("send", 0, size), float(size)) is None
    assert finder.period is None
    assert len(finder._seen) <= 4096

"""What a script draws in its steps: others in each worker, and not again in a later life."""

import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from paceline.base.samples import Span
from paceline.runtime.data.work import Work
from paceline.runtime.script.job import Job, begin
from paceline.runtime.variables.variables import Variables
from paceline.wire.messages.feeds import Feed
from paceline.wire.spec import JobSpec, NodeSpec


def feed_of(number: int) -> Feed:
    sizes = {"num_samples": 100, "batch_size": 10, "shard_size": 100}
    return Feed(feed=number, purpose="train", epochs=1, shuffle=True, seed=0, **sizes)


def drawn(job: Job, feed: int, start: int) -> tuple[float, ...]:
    """By the model, for the first batch of a life."""
    line = feed_of(feed).line()
    job._draws.begin(job._strategy, feed_of(feed), Work(feed, (Span(line, start, start + 4),), 4))
    return torch.rand(1).item(), random.random(), np.random.rand()


def life(rank: int, **spec: Any) -> Job:
    spec_ = JobSpec(script="x", seed=7, **spec)
    strategy = SimpleNamespace(rank=rank, spec=spec_, is_alone=False, variables=Variables())
    job = begin(strategy)  # type: ignore[arg-type]
    job._draws.first_feed = 0
    return job


def test_each_life_goes_on_with_numbers_of_its_own() -> None:
    places = [(rank, feed, start) for rank in (0, 1) for feed in (0, 2) for start in (0, 4, 40)]
    first, again = ([drawn(life(rank), *at) for rank, *at in places] for _ in range(2))
    assert first == again  # same seed, no disturbance: same run
    assert len({value for values in first for value in values}) == 3 * len(places)


def test_the_only_worker_goes_on_as_a_script_without_a_job() -> None:
    job = life(0, workers=NodeSpec(count=1))
    before = torch.get_rng_state()
    undisturbed = torch.rand(3).tolist()
    torch.set_rng_state(before)
    assert drawn(job, 0, 0)[0] == undisturbed[0]
    job._draws.leave()
    assert [drawn(job, 0, start)[0] for start in (10, 20)] == undisturbed[1:]


def test_after_a_loop_all_workers_draw_the_same() -> None:
    """By which scripts divide their data for the next fold. The first one begins as if alone."""
    seen = []
    for rank in (0, 1):
        job = life(rank, workers=NodeSpec(count=2))
        before = torch.get_rng_state()
        undisturbed = torch.rand(1).item()
        torch.set_rng_state(before)
        assert (drawn(job, 0, 0)[0] == undisturbed) == (rank == 0)
        job._draws.leave()
        seen.append((torch.rand(1).item(), drawn(job, 2, 0)))
        job._draws.leave()
    assert seen[0][0] == seen[1][0]
    assert not set(seen[0][1]) & set(seen[1][1])


def test_until_the_first_batch_all_lives_draw_the_same() -> None:
    """By which scripts divide their data, and fill their models."""
    splits = []
    for rank in (0, 1):
        life(rank)
        splits.append(torch.randperm(20).tolist())
    assert splits[0] == splits[1]


def test_where_each_block_has_a_seed_a_life_needs_none() -> None:
    firsts = [drawn(life(rank, strategy="allreduce", deterministic=True), 0, 40) for rank in (0, 1)]
    assert firsts[0] == firsts[1]

"""AntDT-DD on workers of two speeds: what it measures, and what it makes of that."""

from pathlib import Path

import pytest

from paceline.features.stragglers.policy.decision_log import Decided, Failed, TookEffect, log_of
from paceline.features.stragglers.stories import read_log
from paceline.policy.actions import AdjustBatch, Profile
from paceline.policy.observation import Observation
from tests.integration.test_allreduce import BATCH, N, check_finished, group

CORES = (0.6, 0.6, 0.2, 0.2)
EPOCHS = 5
"""All is measured before the job is over, also where the others are quick while one is away."""
FAST, SLOW = ("worker-0", "worker-1"), ("worker-2", "worker-3")


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))


@pytest.mark.soak
def test_dd_profiles_two_classes_and_divides_by_them_though_a_worker_dies_of_it(
    tmp_path: Path,
) -> None:
    # In a batch of 8, half of its share, which nobody gets but for being profiled.
    flags = ("--step-s", "0", "--compute", "40", "--die-of", "worker-3:8", "--epochs", str(EPOCHS))
    spec = {"workers": 4, "cpu": CORES, "torch_threads": 1, "solution": "dd"}
    with group(tmp_path / "out", *flags, **spec) as job:
        check_finished(job, epochs=EPOCHS, lives=4)
        if job.events("no_limits"):
            pytest.skip("this machine sets no cpu quotas, so its workers are alike")
        assert [death["node"] for death in job.deaths()] == ["worker-3"]
        lines = read_log(log_of(job.job))
        assert not [line for line in lines if isinstance(line, Failed)]
        decided = [line for line in lines if isinstance(line, Decided)]
        kinds = {worker.node: worker.kind for worker in decided[-1].observation.workers}
        assert len(kinds) == 4
        assert len({kinds[node] for node in FAST}) == len({kinds[node] for node in SLOW}) == 1
        assert len(set(kinds.values())) == 2

        told = [(line.no, n, action) for line in decided for n, action in enumerate(line.actions)]
        sizes = [size for line in decided for size in sizes_asked_for(line)]
        assert sizes == [2, 4, 8, 16, 32], "each was measured once, in spite of the death"
        effects = {(line.no, line.index) for line in lines if isinstance(line, TookEffect)}
        assert {(no, n) for no, n, action in told if isinstance(action, Profile)} <= effects

        divisions = [action.shares for _, _, action in told if isinstance(action, AdjustBatch)]
        shares = {node: s.batch_size * s.accumulation for node, s in divisions[-1].items()}
        assert sum(shares.values()) == BATCH
        assert min(shares[node] for node in FAST) >= 1.5 * max(shares[node] for node in SLOW)
        slow = [one for w in decided[-1].observation.workers if w.node in SLOW for one in w.profile]
        assert max(one.batch_size for one in slow) == BATCH // 4, "it gets no more than that"
        # What was profiled is beyond the samples of the job, and little else is.
        given = sum(len(ids) for ids in job.samples().values()) - EPOCHS * N
        measured = sum(measured_by(decided[-1].observation).values())
        (asked_for_8,) = (line for line in decided if 8 in sizes_asked_for(line))
        lost = measured_by(asked_for_8.observation)["worker-3"] + 5 * 8
        # Of a size some batches may be under way when it is known what they take.
        more = 4 * (5 - 1) * sum(sizes)
        assert measured <= given <= measured + lost + more + 3 * BATCH


def measured_by(seen: Observation) -> dict[str, int]:
    """Samples that each worker was profiled with in this life."""
    return {
        worker.node: sum(one.batches * one.batch_size for one in worker.profile)
        for worker in seen.workers
    }


def sizes_asked_for(line: Decided) -> set[int]:
    return {
        size
        for action in line.actions
        if isinstance(action, Profile)
        for size in action.sizes.values()
    }

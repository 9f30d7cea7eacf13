"""What holds for every policy, whatever happens; and that the checks find what is planted."""

from collections import Counter

import pytest
from msgspec.structs import replace

from paceline.features.cluster.policy import placement
from paceline.features.cluster.policy.facts import ClusterFacts
from paceline.features.cluster.policy.policies import antman
from paceline.features.cluster.policy.policies.antman import AntMan
from paceline.features.cluster.policy.policies.plain import Fifo, YarnCs
from tests.unit.scheduling.histories import History

NUM_HISTORIES = 240


def run(seeds: range) -> Counter[str]:
    """What happened in histories of these seeds."""
    seen = Counter[str]()
    for seed in seeds:
        history = History(seed)
        history.run()
        seen.update(history.seen, jobs=history.num_jobs, histories=1)
        seen[type(history.policy).__name__] += 1
    return seen


def test_random_histories_keep_all_invariants() -> None:
    seen = run(range(NUM_HISTORIES))
    assert seen["histories"] == NUM_HISTORIES
    assert all(seen[policy.__name__] > 30 for policy in (AntMan, Fifo, YarnCs))
    assert seen["StartJob"] == seen["jobs"] > 10 * NUM_HISTORIES
    # The histories would prove nothing about what does not occur in them.
    assert min(seen[name] for name in ("UpgradeJob", "ReserveDevices", "ReleaseDevices")) >= 5


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_ten_thousand_histories() -> None:
    assert run(range(1_000, 11_000))["histories"] == 10_000


@pytest.mark.parametrize("flaw", ["quota", "guaranteed", "cap", "overlap", "gang", "node"])
def test_a_planted_flaw_is_found(flaw: str, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = AntMan(max_opportunistic=2, wait_s=0.0, busy=1.1)
    if flaw == "quota":
        monkeypatch.setattr(ClusterFacts, "used_by", lambda _self, _tenant: 0)
    elif flaw == "guaranteed":
        counts = ClusterFacts.on_devices
        monkeypatch.setattr(
            ClusterFacts,
            "on_devices",
            lambda self, kind: {} if kind == "guaranteed" else counts(self, kind),
        )
    elif flaw == "cap":
        policy = replace(policy, max_opportunistic=1)
        found = antman.on_leftovers
        monkeypatch.setattr(
            antman, "on_leftovers", lambda facts, job, loads, most: found(facts, job, loads, 9)
        )
    elif flaw == "overlap":
        monkeypatch.setattr(ClusterFacts, "reserved", lambda _self, but="": set())
    elif flaw == "gang":
        monkeypatch.setattr(
            antman, "on_leftovers", lambda facts, job, _loads, _most: (facts.devices[0].name,)
        )
    else:
        some = placement.choose
        monkeypatch.setattr(
            placement,
            "choose",
            lambda devices, cost, job: some(devices, cost, replace(job, one_node=False)),
        )
    with pytest.raises(AssertionError):
        any(History(seed, policy).run() for seed in range(200))

"""What a job that finds its size begins with, and what is refused before it begins."""

import os
from pathlib import Path

import pytest

from paceline.base.errors import ConfigError
from paceline.features.sizes import spec as sizing
from paceline.features.sizes.policy import registry
from paceline.features.sizes.policy.planner import ResourcePolicy
from paceline.features.sizes.policy.policies.none import KeepSize
from paceline.features.sizes.spec import bounds_of
from paceline.jobs.spec_file import resolve
from paceline.policy.plugins import Plugins
from paceline.wire.spec import JobSpec

GIB = 1 << 30


@pytest.fixture(autouse=True)
def _two_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1})
    policies = Plugins("resource policy", "paceline.resources", ResourcePolicy, {"rm": KeepSize})
    monkeypatch.setattr(registry, "RESOURCES", policies)


def sized(**flags: str) -> JobSpec:
    found = {"resources.policy": "none"} | {k.replace("__", "."): v for k, v in flags.items()}
    return resolve("train.py", found)


def test_without_a_policy_nothing_is_limited() -> None:
    assert sized(workers="3").workers.cpu is None


def test_nodes_begin_with_a_core_each_as_far_as_the_bound_goes() -> None:
    spec = sized(resources__policy="rm", workers="3", servers="1")
    assert spec.workers.cpu == spec.servers.cpu == (0.5,), "two cores of this machine for four"
    spec = sized(resources__policy="rm", resources__cores="32", servers="1")
    assert spec.workers.cpu == spec.servers.cpu == (1.0,)
    spec = sized(resources__policy="rm", workers__cpu="1.5", servers="1")
    assert spec.workers.cpu == (1.5,) and spec.servers.cpu == (0.5,)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"resources__policy": "rmm"}, "did you mean rm"),
        ({"resources__policy": "rm", "strategy": "fsdp"}, "workers come and go together"),
        ({"resources__policy": "rm", "workers": "30"}, "resources.cores: got 2, expected at least"),
        (
            {"resources__policy": "rm", "resources__workers": "2", "workers": "3"},
            "the job begins with 3 workers, and at most 2 may be",
        ),
        ({"resources__policy": "rm", "resources__cores": "0"}, "resources.cores"),
        (
            {"resources__policy": "rm", "resources__cores": "0.03", "servers": "1"},
            "got 0.03, expected at least 0.02 for each of 2 nodes",
        ),
        (
            {
                "resources__policy": "rm",
                "resources__memory": "1GiB",
                "workers.memory": "1GiB",
                "servers": "1",
            },
            "servers.memory is not set, so nothing bounds",
        ),
        (
            {"resources__policy": "rm", "mode": "asp", "samples": "at-least-once"},
            "whose servers cannot hand over",
        ),
        (
            {"resources__policy": "rm", "resources__node_memory": "1GiB"},
            "resources.node_memory: got 1.0 GiB, but workers.memory is not set",
        ),
        (
            {
                "resources__policy": "rm",
                "resources__node_memory": "1GiB",
                "workers.memory": "1GiB",
                "servers.memory": "2GiB",
            },
            "resources.node_memory: got 1.0 GiB, expected at least the 2.0 GiB of servers.memory",
        ),
        ({"resources__policy": "rm", "resources__node_memory": "none"}, "resources.node_memory"),
        ({"resources__policy": "rm", "resources_args__nonsense": "1"}, "has no parameter nonsense"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_starts(
    flags: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        sized(**flags)


def test_a_node_may_have_the_memory_of_this_machine_or_what_the_spec_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sizing, "machine_memory", lambda: 64 * GIB)
    assert bounds_of(sized(resources__policy="rm")).largest_server_bytes == 64 * GIB
    own = {"workers.memory": "1GiB", "servers.memory": "2GiB", "servers.max_memory": "8GiB"}
    bounds = bounds_of(sized(resources__policy="rm", **own))
    assert (bounds.max_node_bytes, bounds.largest_server_bytes) == (64 * GIB, 8 * GIB)
    bounds = bounds_of(sized(resources__policy="rm", resources__node_memory="4GiB", **own))
    assert bounds.largest_server_bytes == 4 * GIB
    # More than the machine has is no error: nothing is bounded by it.
    own = {"workers.memory": "1GiB", "servers.memory": "128GiB"}
    assert bounds_of(sized(resources__policy="rm", **own)).max_node_bytes == 128 * GIB

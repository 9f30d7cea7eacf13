"""Threads of torch follow a quota, but never a number that was set otherwise."""

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from paceline.base.cgroups import Hierarchy, NodeGroup
from paceline.runtime.process import quota_threads
from paceline.runtime.process.process import Process
from paceline.runtime.process.quota_threads import QuotaThreads, follow_quota
from paceline.wire.spec import JobSpec, NodeSpec


@pytest.fixture(autouse=True)
def _threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = torch.get_num_threads()
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(6)))
    yield
    torch.set_num_threads(before)


@pytest.fixture
def group(tmp_path: Path) -> NodeGroup:
    (tmp_path / "cpu.max").write_text("5000 10000")
    return NodeGroup({"cpu": Hierarchy(2, tmp_path)})


def job(**fields: Any) -> JobSpec:
    return JobSpec(script="train.py", workers=NodeSpec(count=2), **fields)


def test_threads_follow_the_quota_up_to_those_of_a_node_without_one(group: NodeGroup) -> None:
    torch.set_num_threads(1)
    threads = QuotaThreads(job(), group, begun_with=1)
    seen = []
    for quota in (0.5, 1.5, 2.0, 4.0, None, 0.3):
        group.set_cpu(quota)
        threads.look()
        threads.follow()
        seen.append(torch.get_num_threads())
    assert seen == [1, 2, 2, 3, 3, 1]


def test_the_quota_is_read_again_and_again_until_the_script_sets_the_threads(
    group: NodeGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quota_threads, "EVERY_S", 0.01)
    torch.set_num_threads(1)
    threads = QuotaThreads(job(), group, begun_with=1)
    looking = threading.Thread(target=threads.keep_looking)
    looking.start()
    group.set_cpu(2.0)
    deadline_s = time.monotonic() + 10.0
    while torch.get_num_threads() == 1 and time.monotonic() < deadline_s:
        threads.follow()
        time.sleep(0.01)
    assert torch.get_num_threads() == 2
    torch.set_num_threads(1)
    threads.follow()
    looking.join(10.0)
    assert not looking.is_alive()


def test_threads_that_a_script_has_set_stay(group: NodeGroup) -> None:
    torch.set_num_threads(1)
    threads = QuotaThreads(job(), group, begun_with=1)
    threads.look()
    threads.follow()
    torch.set_num_threads(5)
    group.set_cpu(2.0)
    threads.look()
    threads.follow()
    torch.set_num_threads(1)  # as at the beginning, but the script's word all the same
    threads.look()
    threads.follow()
    assert torch.get_num_threads() == 1


@pytest.mark.parametrize(
    ("spec", "follows"),
    [
        (job(), True),
        (job(torch_threads=2), False),
        (job(strategy="allreduce", deterministic=True), False),
    ],
)
def test_threads_stay_where_the_job_names_them_or_bits_depend_on_them(
    spec: JobSpec, follows: bool, group: NodeGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quota_threads, "find_node_group", lambda _job, _node: group)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    nothing = lambda: None  # noqa: E731
    process = SimpleNamespace(
        spec=spec, node="worker-0", job=SimpleNamespace(job_id="job"), between_steps=nothing
    )
    follow_quota(cast("Process", process))
    assert (process.between_steps is not nothing) == follows


def test_threads_stay_where_no_quota_can_be_in_force(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quota_threads, "find_node_group", lambda _job, _node: NodeGroup({}))
    nothing = lambda: None  # noqa: E731
    process = SimpleNamespace(
        spec=job(), node="worker-0", job=SimpleNamespace(job_id="job"), between_steps=nothing
    )
    follow_quota(cast("Process", process))
    assert process.between_steps is nothing

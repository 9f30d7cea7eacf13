"""The check before the first step, on nodes and links that are slow in earnest."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from paceline_experiments.failslow.networks import PORT, Networks, can_make_networks, connected

from paceline.base.cgroups import find_node_group, find_trees
from paceline.features.failslow.events import CheckedEvent, read
from paceline.features.failslow.policy.node_checks import find_slow
from paceline.features.failslow.wire import NodeSpeed
from paceline.jobs.history import read_events
from paceline.wire.messages.base import Link
from paceline.wire.spec import TimeoutSpec
from tests.integration.running import RunningJob, running, until
from tests.integration.test_allreduce import check_finished, group

MEMBER = Path(__file__).with_name("jobs") / "linked.py"
QUOTA = 0.25
QUICK, SLOW = "100mbit burst 32k latency 50ms", "200kbit burst 4k latency 2s"
SHAPES = {QUICK: 100e6, SLOW: 200e3}
"""Of the slow link, with its bits per second; a MiB takes the second one a minute."""


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))


def speeds(job: RunningJob) -> dict[str, NodeSpeed]:
    """Of all nodes that were checked."""
    events = read(read_events(job.job.events))
    return {event.node: event.speed for event in events if isinstance(event, CheckedEvent)}


def throttle(job: RunningJob, node: str) -> None:
    """Give the node a quota before it has begun."""
    until(lambda: any(e["node"] == node for e in job.events("node_started")), f"{node} to start")
    find_node_group(job.job.job_id, node).set_cpu(QUOTA)


@pytest.mark.soak
@pytest.mark.skipif(
    os.geteuid() != 0 or "cpu" not in find_trees(), reason="needs root, to set a cpu quota"
)
def test_a_throttled_node_is_named_before_the_first_step(tmp_path: Path) -> None:
    with group(tmp_path / "out", workers=3, preflight=True) as job:
        throttle(job, "worker-1")
        check_finished(job, lives=3)
        told = [event.sentence() for event in read_events(job.job.events)]
        slow = "worker-1 is slow: a quota of 0.25 cores for 1 thread, 0.25 of the median"
        assert slow in told
        assert speeds(job)["worker-1"].cpu_quota == QUOTA
        # It could run for its quota and what a period's end allows beyond it.
        assert speeds(job)["worker-1"].cpu_share < 2 * QUOTA


@pytest.mark.soak
def test_all_members_are_checked_once_with_their_links_whatever_dies_later(tmp_path: Path) -> None:
    with group(tmp_path / "out", "--die", "worker-1:12", workers=3, preflight=True) as job:
        check_finished(job, lives=3)
        checked = job.events("checked")
        assert sorted(event["node"] for event in checked) == ["worker-0", "worker-1", "worker-2"]
        assert len(speeds(job)) == 3
        for name, speed in speeds(job).items():
            assert {link.node for link in speed.links} == set(speeds(job)) - {name}
            assert all(link.bytes_per_s > 1e6 and link.rtt_s > 0 for link in speed.links)


@pytest.mark.soak
def test_a_member_that_hangs_in_the_check_is_named_and_replaced(tmp_path: Path) -> None:
    flags = ("--check", "worker-1:hang")
    with group(tmp_path / "out", *flags, preflight=True, timeouts=TimeoutSpec(hang_s=1.5)) as job:
        check_finished(job)
        (told,) = job.events("hung")
        assert told["node"] == "worker-1"
        assert "grouped.py" in (job.job.logs / "worker-1.stacks").read_text()


@pytest.mark.soak
def test_a_check_that_fails_is_told_once_and_the_job_goes_on_without(tmp_path: Path) -> None:
    with group(tmp_path / "out", "--check", "worker-1:fail", preflight=True) as job:
        check_finished(job)
        (told,) = job.events("check_failed")
        assert (told["node"], told["reason"]) == ("worker-1", "links: ValueError('no such link')")
        assert len(job.events("group_broken")) <= 2
        assert set(speeds(job)) == {"worker-0", "worker-1"}
        assert not job.deaths()


@pytest.mark.soak
def test_workers_of_servers_are_checked_and_nobody_is_where_it_is_not_wanted(
    tmp_path: Path,
) -> None:
    with running(tmp_path, preflight=True) as job:
        job.check_finished()
        assert {event["node"] for event in job.events("checked")} == {"worker-0", "worker-1"}
    with group(tmp_path / "out", workers=1) as job:
        check_finished(job, lives=1)
        assert not job.events("checked")


@contextlib.contextmanager
def member_in(networks: Networks, rank: int, store: Path) -> Iterator[subprocess.Popen[str]]:
    """One of three members, in the network of its rank."""
    command = [sys.executable, str(MEMBER), str(store), str(rank), "3", networks.address(rank)]
    enter = ["nsenter", "-t", str(networks.pids[rank]), "-n"]
    pipe = subprocess.PIPE
    member = subprocess.Popen([*enter, *command], stdin=pipe, stdout=pipe, text=True)
    try:
        yield member
    finally:
        member.kill()
        member.communicate()


@pytest.mark.soak
@pytest.mark.parametrize("shape", [QUICK, SLOW])
def test_a_node_behind_a_slow_link_is_told_from_its_peers(tmp_path: Path, shape: str) -> None:
    if not can_make_networks():
        pytest.skip("needs root, ip and tc, to shape the link of a network namespace")
    with connected(3) as networks, contextlib.ExitStack() as ends:
        networks.within(networks.pids[1], f"tc qdisc add dev {PORT} root tbf rate {shape}")
        members = [
            ends.enter_context(member_in(networks, rank, tmp_path / "store")) for rank in range(3)
        ]
        for member in members:
            assert member.stdout is not None
            assert member.stdout.readline() == "ready\n"
        for member in members:
            print("go", file=member.stdin, flush=True)
        found = {}
        for rank, member in enumerate(members):
            assert member.stdout is not None
            links = msgspec.json.decode(member.stdout.readline(), type=tuple[Link, ...])
            found[f"worker-{rank}"] = NodeSpeed(
                threads=1, matmul_flops=1.0, copy_bytes_per_s=1.0, links=links
            )
    (slow,) = find_slow(found)
    assert (slow.nodes, slow.what) == (("worker-1",), "links")
    for link in found["worker-1"].links:
        assert link.bytes_per_s < 1.5 * SHAPES[shape] / 8

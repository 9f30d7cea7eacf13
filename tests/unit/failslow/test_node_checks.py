"""The check of nodes: who is paired with whom, who is slow, and what is kept of it."""

import itertools

import msgspec
import pytest
import torch

from paceline.features.failslow import check_table as tables
from paceline.features.failslow.events import CheckedEvent, CheckFailedEvent, SlowNodeEvent
from paceline.features.failslow.policy.node_checks import find_slow, found_slow
from paceline.features.failslow.process import node_speed
from paceline.features.failslow.protocol.checks import Checks
from paceline.features.failslow.wire import Checked, NodeChecked, NodeSpeed
from paceline.runtime.group.links import pair_up
from paceline.wire.messages.base import Link

FINE = NodeSpeed(threads=1, matmul_flops=50e9, copy_bytes_per_s=10e9)


def cluster(
    rates: dict[tuple[int, int], float], rtts_s: dict[tuple[int, int], float] | None = None
) -> dict[str, NodeSpeed]:
    """Four nodes, every link of 3 GB/s and 0.1 ms but these."""
    return {
        f"n{one}": msgspec.structs.replace(
            FINE,
            links=tuple(
                Link(
                    f"n{other}",
                    rates.get((min(one, other), max(one, other)), 3e9),
                    (rtts_s or {}).get((min(one, other), max(one, other)), 1e-4),
                )
                for other in range(4)
                if other != one
            ),
        )
        for one in range(4)
    }


@pytest.mark.parametrize("size", [2, 3, 4])
def test_in_a_small_group_everyone_meets_all_others(size: int) -> None:
    met = list(itertools.chain.from_iterable(pair_up(size)))
    assert sorted(met) == list(itertools.combinations(range(size), 2))


@pytest.mark.parametrize("size", [5, 6, 7, 16, 33, 100, 1000])
def test_in_a_large_group_few_rounds_pair_everyone_with_others_each_time(size: int) -> None:
    rounds = pair_up(size)
    assert len(rounds) <= size.bit_length() + 1
    for pairs in rounds:
        seated = list(itertools.chain.from_iterable(pairs))
        assert len(set(seated)) == len(seated) == size - size % 2
    met = list(itertools.chain.from_iterable(rounds))
    assert len(set(met)) == len(met)
    for rank in range(size):
        assert sum(rank in pair for pair in met) >= 2


def test_nobody_is_paired_with_itself() -> None:
    assert pair_up(0) == pair_up(1) == []


def test_equal_nodes_are_not_slow_and_a_single_one_is_held_against_nobody() -> None:
    assert find_slow(cluster({})) == []
    assert find_slow({"n0": msgspec.structs.replace(FINE, cpu_share=0.01)}) == []


@pytest.mark.parametrize(
    ("change", "what", "told"),
    [
        ({"matmul_flops": 30e9}, "matmul", "matmul 30 GFLOP/s, 0.60 of the median"),
        ({"copy_bytes_per_s": 5e9}, "memory", "memory 5 GB/s, 0.50 of the median"),
        ({"cpu_share": 0.3}, "cpu", "its threads ran 30% of the time, 0.30 of the median"),
        (
            {"cpu_share": 0.25, "cpu_quota": 0.25},
            "cpu quota",
            "a quota of 0.25 cores for 1 thread, 0.25 of the median",
        ),
    ],
)
def test_a_node_is_slow_by_what_it_has_less_of(
    change: dict[str, float], what: str, told: str
) -> None:
    speeds = {"n0": FINE, "n1": msgspec.structs.replace(FINE, **change), "n2": FINE}
    (slow,) = find_slow(speeds)
    assert (slow.nodes, slow.what) == (("n1",), what)
    assert found_slow(slow, speeds).sentence() == f"n1 is slow: {told}"


def test_workers_that_take_turns_on_their_cores_are_not_slow() -> None:
    shares = [1.0, 0.5, 0.5]  # three threads on two cores
    speeds = {f"n{k}": msgspec.structs.replace(FINE, cpu_share=s) for k, s in enumerate(shares)}
    assert find_slow(speeds) == []


def test_equal_quotas_and_quotas_beyond_the_threads_are_not_slow() -> None:
    speeds = {f"n{k}": msgspec.structs.replace(FINE, cpu_quota=2.0 + k) for k in range(3)}
    assert find_slow(speeds) == []


def test_a_node_all_of_whose_links_are_slow_is_named_and_else_the_link() -> None:
    (node,) = find_slow(cluster({(0, 2): 1e8, (1, 2): 1e8, (2, 3): 1e8}))
    assert (node.nodes, node.what) == (("n2",), "links")
    speeds = cluster({(0, 2): 1e8})
    (link,) = find_slow(speeds)
    assert (link.nodes, link.what) == (("n0", "n2"), "link")
    assert found_slow(link, speeds).clause == "n0 - n2: 0.1 GB/s, 0.03 of the median"
    speeds = cluster({}, {(1, 3): 0.05})
    (link,) = find_slow(speeds)
    told = "n1 - n3: round trip 50.0 ms, 500.0 times the median"
    assert found_slow(link, speeds).clause == told


def test_links_of_who_waits_for_a_core_say_nothing() -> None:
    speeds = cluster({(0, 2): 1e8, (1, 2): 1e8, (2, 3): 1e8})
    speeds["n2"] = msgspec.structs.replace(speeds["n2"], cpu_share=0.6)
    assert find_slow(speeds) == []


def test_a_node_is_checked_once_and_judged_when_all_are_there() -> None:
    checks = Checks(wanted=True)
    workers = ["worker-0", "worker-1"]
    assert checks.is_due("worker-0")
    assert not checks.is_due("server-0")
    assert not Checks(wanted=False).is_due("worker-0")
    checks.apply(NodeChecked(node="worker-0", speed=FINE))
    assert checks.judge(workers) == []
    assert not checks.is_due("worker-0")
    slow = msgspec.structs.replace(FINE, matmul_flops=1e9)
    checks.apply(NodeChecked(node="worker-1", speed=slow))
    (found,) = checks.judge(workers)
    assert found.nodes == ("worker-1",)
    assert checks.judge(workers) == []

    after_restart = Checks(wanted=True)
    for record in checks.records():
        after_restart.apply(record)
    assert after_restart.speeds == checks.speeds
    assert not after_restart.is_due("worker-1")


def test_a_message_that_is_repeated_is_kept_and_told_once() -> None:
    checks, workers = Checks(wanted=True), ["worker-0", "worker-1"]
    slow = msgspec.structs.replace(FINE, matmul_flops=1e9)
    first = Checked(inc=1, speed=FINE, error="no link to worker-1")
    told = checks.heard("worker-0", first, workers)
    assert [type(one) for one in told] == [CheckFailedEvent, NodeChecked, CheckedEvent]
    assert checks.heard("worker-0", first, workers) == []
    told = checks.heard("worker-1", Checked(inc=2, speed=slow), workers)
    assert [type(one) for one in told] == [NodeChecked, CheckedEvent, SlowNodeEvent]
    assert checks.heard("worker-1", Checked(inc=2, speed=slow), workers) == []


def test_a_measurement_sees_what_the_process_gets() -> None:
    speed = node_speed.measure_node(torch.device("cpu"))
    assert speed.matmul_flops > 1e8
    assert speed.copy_bytes_per_s > 1e7
    assert 0 < speed.cpu_share <= 1
    assert speed.threads == torch.get_num_threads()


def test_people_are_told_of_slow_nodes_only_and_may_look_at_all() -> None:
    slow = msgspec.structs.replace(FINE, matmul_flops=1e9, links=(Link("worker-0", 1e9, 2e-3),))
    events = [
        CheckedEvent(node="worker-0", inc=1, speed=FINE),
        CheckedEvent(node="worker-1", inc=2, speed=slow),
        SlowNodeEvent(node="worker-1", what="matmul", value=1e9, ratio=0.04, threads=1),
    ]
    assert [event.is_news for event in events] == [False, False, True]
    assert events[2].sentence() == "worker-1 is slow: matmul 1 GFLOP/s, 0.04 of the median"
    first, second = tables.rows(events)
    assert first == ("worker-0", "50.0 GFLOP/s", "10.0 GB/s", "100 %", "-", "-", "-", "")
    assert second[-3:] == ("1.00 to 1.00 GB/s", "2.00 ms", "matmul 0.04")


def on_servers(rates: dict[tuple[int, int], float], servers: int = 2) -> dict[str, NodeSpeed]:
    """Three workers, every link to a server of 1 GB/s but these."""
    return {
        f"worker-{one}": msgspec.structs.replace(
            FINE,
            links=tuple(
                Link(f"server-{other}", rates.get((one, other), 1e9), 1e-4)
                for other in range(servers)
            ),
        )
        for one in range(3)
    }


def test_a_slow_link_to_a_server_is_named_with_both_ends() -> None:
    assert find_slow(on_servers({})) == []
    for servers in (1, 2):
        speeds = on_servers({(1, 0): 1e8}, servers)
        (link,) = find_slow(speeds)
        assert (link.nodes, link.what) == (("server-0", "worker-1"), "link")
        told = "a link is slow: server-0 - worker-1: 0.1 GB/s, 0.10 of the median"
        assert found_slow(link, speeds).sentence() == told


def test_a_server_all_of_whose_links_are_slow_is_named_itself() -> None:
    speeds = on_servers({(one, 1): 1e8 for one in range(3)})
    (node,) = find_slow(speeds)
    told = "server-1 is slow: its links carry at most 0.1 GB/s, 0.10 of the median"
    assert found_slow(node, speeds).sentence() == told

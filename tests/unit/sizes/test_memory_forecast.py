"""Tables that grow: what servers will need, when a cure is due, and which."""

import os
from pathlib import Path
from typing import Any

import memory_forecast as benchmark
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.features.sizes.policy.history import AvoidedSize, SizingHistory
from paceline.features.sizes.policy.memory_forecast import (
    KEY_BYTES,
    RESERVE,
    JobAhead,
    ServerMemory,
    forecast,
    forecasts,
    memory_plan,
    rows_at,
    rows_soon,
)
from paceline.features.sizes.policy.observation import (
    ModelFacts,
    NodeUse,
    ResourceBounds,
    ResourceObservation,
    RowsSeen,
    TableRows,
)
from paceline.policy.job_size import JobSize

MIB = 1 << 20


def points(law: Any, last: int = 1_000, count: int = 20) -> tuple[RowsSeen, ...]:
    steps = [last * number // count for number in range(1, count + 1)]
    return tuple(RowsSeen(at, round(law(at))) for at in steps)


# --------------------------------------------------------------------------- rows


@pytest.mark.parametrize("exponent", [0.3, 0.5, 0.8, 1.0])
def test_heaps_law_is_found_and_followed(exponent: float) -> None:
    seen = points(lambda at: 100_000 * (at / 1_000) ** exponent)
    assert rows_at(seen, 5_000) == pytest.approx(100_000 * 5**exponent, rel=0.01)


def test_a_table_that_has_all_keys_grows_no_more() -> None:
    assert rows_at(points(lambda _: 500), 1e9) == 500.0
    assert rows_at((RowsSeen(0, 0),), 1e9) == 0.0
    assert rows_soon(points(lambda _: 500), 1e9) == 0.0


def test_a_single_look_promises_as_many_rows_for_as_many_samples() -> None:
    assert rows_at((RowsSeen(10, 30),), 100) == pytest.approx(300.0)


def test_a_burst_counts_three_times_as_long_as_it_is_new() -> None:
    flat = points(lambda _: 1_000)
    burst = (*flat, RowsSeen(1_010, 1_005))
    assert rows_soon(burst, 100) == pytest.approx(3.0 * 0.5 * 100)
    calm = (*burst, *(RowsSeen(1_010 + 10 * number, 1_005) for number in range(1, 20)))
    assert rows_soon(calm, 100) == 0.0


@given(
    st.lists(st.tuples(st.integers(1, 1_000), st.integers(0, 1_000)), min_size=1, max_size=30),
    st.floats(1.0, 100.0),
)
def test_a_forecast_is_no_less_than_now_and_no_more_than_in_proportion(
    steps: list[tuple[int, int]], times: float
) -> None:
    totals = np.cumsum(np.array(steps), axis=0).tolist()
    seen = tuple(RowsSeen(samples, rows) for samples, rows in totals)
    now = seen[-1]
    then = rows_at(seen, now.samples * times)
    assert now.rows <= then * (1 + 1e-9)
    assert then <= now.rows * times * (1 + 1e-9)


# --------------------------------------------------------------------------- servers


def table(seen: tuple[RowsSeen, ...], row_bytes: int = 1_000 - KEY_BYTES) -> TableRows:
    return TableRows(table="users", row_bytes=row_bytes, seen=seen)


def ahead(tables: tuple[TableRows, ...], **fields: Any) -> JobAhead:
    default = {"done": 1_000, "last": 2_000, "lead": 0.0, "servers": 2, "tables": tables}
    return JobAhead(**(default | fields))


LINEAR = points(lambda at: 80 * at)
"""80,000 rows of 1,000 bytes after 1,000 samples: 40 MB on each of two servers."""


def server(used: int = 140_000_000, limit: int = 1 << 40) -> ServerMemory:
    return ServerMemory(node="server-0", limit_bytes=limit, used_bytes=used, base_bytes=100_000_000)


def test_a_server_needs_what_its_share_of_the_rows_takes() -> None:
    found = forecast(server(), ahead((table(LINEAR),)))
    # 40,000 rows become 80,000. On the way, at 65,536, the table doubles: there are two copies.
    assert found.end_bytes == 140_000_000 + (131_072 - 40_000) * 1_000
    # 60,000 rows are within the room for 65,536.
    assert found.near_bytes == 140_000_000 + 20_000 * 1_000
    assert not found.is_due


def test_cuts_in_memory_are_counted_by_what_is_seen() -> None:
    one, three = (
        forecast(server(used), ahead((table(LINEAR),))) for used in (140_000_000, 220_000_000)
    )
    assert three.near_bytes - 220_000_000 == 3 * (one.near_bytes - 140_000_000)
    small = points(lambda at: at / 10)
    assert forecast(server(100_000_000), ahead((table(small),))).near_bytes == 100_000_000 + round(
        1.5 * 25 * 1_000
    )


def test_a_cure_is_due_before_the_limit_is_reached() -> None:
    assert forecast(server(limit=159_999_999), ahead((table(LINEAR),))).is_due
    assert not forecast(server(limit=160_000_001), ahead((table(LINEAR),))).is_due
    # Nothing more comes: only the reserve counts.
    over = ahead((table(LINEAR),), last=1_000)
    assert not forecast(server(limit=round(140_000_000 / (1 - RESERVE)) + 1), over).is_due
    assert forecast(server(limit=round(140_000_000 / (1 - RESERVE)) - 1), over).is_due
    # A cure that takes long is due sooner: 3 * 80 * 2 * 500 rows, on two servers.
    slow = forecast(server(), ahead((table(LINEAR),), lead=500.0))
    assert slow.near_bytes == 140_000_000 + 3 * 80 * 1_000 // 2 * 1_000


def test_the_end_may_be_unknown() -> None:
    found = forecast(server(), ahead((table(LINEAR),), last=None))
    assert found.end_bytes is None
    assert found.wanted_bytes == round(2 * found.near_bytes * 1.25)


# --------------------------------------------------------------------------- the cure


def seen(limit: int = 150 * MIB, servers: int = 2, **fields: Any) -> ResourceObservation:
    nodes = [NodeUse(node="worker-0", role="worker", samples_per_s=10.0)]
    nodes += [
        NodeUse(
            node=f"server-{number}",
            role="server",
            granted_bytes=limit,
            used_bytes=140_000_000,
            base_bytes=100_000_000,
        )
        for number in range(servers)
    ]
    default: dict[str, Any] = {
        "now_s": 0.0,
        "mode": "asp",
        "batch_size": 8,
        "samples_done": 1_000,
        "samples_total": 2_000,
        "size": JobSize(workers=1, servers=servers, server_memory=limit),
        "nodes": tuple(nodes),
        "model": ModelFacts(tables=(table(LINEAR),)),
    }
    return ResourceObservation(**(default | fields))


def cure(history: SizingHistory | None = None, **fields: Any) -> JobSize | None:
    plan = memory_plan(seen(**fields), history or SizingHistory())
    assert plan is None or (plan.aim, plan.relieves, plan.present_per_s) == ("safe", "memory", 10.0)
    return plan.target if plan else None


def test_a_healthy_job_keeps_its_memory() -> None:
    assert cure(limit=400 * MIB) is None
    assert cure(limit=0) is None
    assert forecasts(seen(limit=0)) == []
    assert forecasts(seen(nodes=())) == []


def test_servers_get_what_they_need_until_the_end() -> None:
    end = 140_000_000 + (131_072 - 40_000) * 1_000
    found = cure()
    assert found is not None
    assert (found.servers, found.server_memory) == (2, -(-round(end * 1.25) // MIB) * MIB)


def test_where_nodes_may_not_be_as_large_more_servers_share_the_rows() -> None:
    found = cure(bounds=ResourceBounds(max_node_bytes=200 * MIB))
    assert found == JobSize(workers=1, servers=3, server_memory=200 * MIB)


@pytest.mark.parametrize("bound", ["max_node_bytes", "max_server_bytes"])
def test_buckets_move_while_there_is_room_for_a_second_store(bound: str) -> None:
    # Both servers use 140 MB, 40 MB of it for rows: 181 MB more while a third one comes.
    enough = {"limit": 400 * MIB, "samples_total": 1_100}
    assert cure(**enough, bounds=ResourceBounds(**{bound: 400 * MIB})) is None
    tight = ResourceBounds(**{bound: 300 * MIB})
    assert cure(limit=300 * MIB, samples_total=1_100, bounds=tight) is None, "it will do"
    scarce = {"limit": 300 * MIB, "samples_total": 9_000}
    assert cure(**scarce) is None, "a limit can be raised later"
    assert cure(**scarce, bounds=tight) == JobSize(workers=1, servers=5, server_memory=300 * MIB)


def test_what_is_within_the_bounds_is_better_than_nothing() -> None:
    bounds = ResourceBounds(max_node_bytes=200 * MIB, max_servers=2)
    assert cure(bounds=bounds) == JobSize(workers=1, servers=2, server_memory=200 * MIB)
    assert cure(bounds=ResourceBounds(max_node_bytes=150 * MIB, max_servers=2)) is None


def test_a_cure_that_was_refused_is_not_asked_for_again() -> None:
    first = cure()
    assert first is not None
    avoided = AvoidedSize(origin=seen().size, target=first, until_s=99.0, why="refused")
    history = SizingHistory().with_avoided(avoided)
    second = cure(history)
    assert second is not None
    assert second.servers > 2


# --------------------------------------------------------------------------- streams


def check_floors(judged: list[benchmark.Judged]) -> None:
    reached, below = sum(one.reached for one in judged), sum(one.below for one in judged)
    assert min(reached, below) > 500
    assert sum(one.misses for one in judged) == 0
    assert sum(one.false_alarms for one in judged) <= 0.1 * below


def test_generated_streams_meet_no_limit_by_surprise() -> None:
    rng = np.random.default_rng(9)
    check_floors(
        [benchmark.judge(benchmark.grown(keys)) for _, keys in benchmark.generated(40_000, rng)]
    )


@pytest.mark.skipif(
    "PACELINE_MOVIELENS" not in os.environ, reason="PACELINE_MOVIELENS names no folder"
)
def test_the_tables_of_movielens_meet_no_limit_by_surprise() -> None:
    folder = Path(os.environ["PACELINE_MOVIELENS"])
    streams = benchmark.movielens(folder, np.random.default_rng(0))
    check_floors([benchmark.judge(benchmark.grown(keys)) for _, keys in streams])

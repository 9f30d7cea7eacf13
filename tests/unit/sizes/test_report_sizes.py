"""What the report says and shows of changes of a job's size."""

import math

from msgspec import structs

from paceline.features.report.charts import Chart
from paceline.features.report.content import page_of
from paceline.features.report.size_curve import SizePoint, has_changed_quota, size_curve
from paceline.features.sizes.events import SizeChangedEvent, SizePlannedEvent
from paceline.features.sizes.section import size_rows, tell
from paceline.jobs.facts import Facts
from paceline.jobs.history import MetricsPoint, NodePoint
from paceline.jobs.sections import Section
from paceline.wire.events.base import Event
from paceline.wire.events.job import ScaledEvent
from paceline.wire.events.nodes import ServersChangedEvent, ServersNotChangedEvent
from tests.unit.jobs.test_facts import START, facts, points
from tests.unit.report.test_report_page import gap_of

ORDERED = ScaledEvent(t=4.0, role="server", count=4, before=2)
CHANGED = ServersChangedEvent(t=9.5, count=4, joined=("server-2", "server-3"))


def rows(*events: Event) -> list[tuple[str, str]]:
    told = facts(*START, *events)
    return [(row.letter, row.words) for row in size_rows(told)]


def test_a_change_of_servers_is_marked_with_how_long_it_took() -> None:
    assert rows(ORDERED, CHANGED) == [("A", "servers 2 -> 4, 5.50 s after the order")]


def test_servers_that_leave_and_workers_that_come_have_letters_of_their_own() -> None:
    worker = ScaledEvent(t=10.0, role="worker", count=3, before=2)
    gone = ServersChangedEvent(t=12.0, count=1, left=("server-1", "server-2", "server-3"))

    assert rows(ORDERED, CHANGED, worker, gone) == [
        ("A", "servers 2 -> 4, 5.50 s after the order"),
        ("B", "workers 2 -> 3"),
        ("C", "servers 4 -> 1"),
    ]


def test_a_change_that_did_not_happen_has_a_row_and_no_mark() -> None:
    ((letter, words),) = rows(ORDERED, ServersNotChangedEvent(t=9.0, count=2))

    assert letter == ""
    assert words.startswith("servers not changed: still 2")


def test_a_change_by_plan_is_marked_once_when_all_of_it_is_in_effect() -> None:
    plan = SizePlannedEvent(t=3.9, plan="4 servers")
    done = SizeChangedEvent(t=9.6, size="2 workers, 4 servers", took_s=5.7)

    told = rows(plan, ORDERED, CHANGED, done)

    assert [letter for letter, _ in told] == ["", "", "A"]


def test_seconds_without_samples_during_a_change_are_told() -> None:
    still = points([0, 0, 100, 200, 200, 200, 200, 200, 300, 400])
    told = structs.replace(facts(*START, ORDERED, CHANGED), points=tuple(still))

    found: list[Section] = []
    tell(told, found.append)
    (section,) = found
    ((_, _, words),) = section.rows
    assert [letter for letter, _ in section.marks] == ["A"]

    assert words == "servers 2 -> 4, 5.50 s after the order; no samples for 4.00 s"


def test_the_plots_over_time_show_the_letters() -> None:
    told = facts(*START, ORDERED, CHANGED)

    charts = {one.name: one for one in page_of(told).charts}
    for name in ("throughput", "batch-times"):
        assert "A" in [mark.label for mark in charts[name].marks]


# --------------------------------------------------------------------------- the curve


def measured(t: float, workers: int, servers: int, cores: float | None) -> MetricsPoint:
    names = [f"worker-{k}" for k in range(workers)] + [f"server-{k}" for k in range(servers)]
    return MetricsPoint(t, int(100 * t), 100.0, {name: NodePoint(cores=cores) for name in names})


SMALL = [measured(t, 1, 1, 0.25) for t in range(1, 11)]
LARGE = [measured(t, 3, 2, 0.5) for t in range(60, 81)]


def grown(*parts: list[MetricsPoint], events: tuple[Event, ...] = ()) -> Facts:
    found = [point for part in parts for point in part]
    return structs.replace(facts(*START, *events), points=tuple(found), ended_s=80.0)


def test_each_measurement_has_the_nodes_of_the_job_and_their_cores() -> None:
    assert size_curve([SMALL[0], LARGE[0]]) == [
        SizePoint(1, 1, 1, 0.5),
        SizePoint(60, 3, 2, 2.5),
    ]
    half = MetricsPoint(1.0, 0, 0.0, {"worker-0": NodePoint(cores=1.0), "server-0": NodePoint()})
    (unknown,) = size_curve([half])
    assert math.isnan(unknown.cores)


def test_a_size_has_changed_by_a_letter_or_by_a_quota() -> None:
    assert not sizes(grown(SMALL))
    assert sizes(grown(SMALL, events=(ORDERED, CHANGED)))
    more = [measured(t, 1, 1, 0.75) for t in range(11, 20)]
    assert has_changed_quota([*SMALL, *more]) and sizes(grown(SMALL, more))
    assert not has_changed_quota([measured(t, 1, 1, None) for t in range(1, 11)])


def sizes(told: Facts) -> dict[str, Chart]:
    return {one.title: one for one in page_of(told).charts if one.name.startswith("size-")}


def test_the_size_is_drawn_if_it_changed() -> None:
    drawn = sizes(grown(SMALL, LARGE, events=(ORDERED, CHANGED)))
    assert [one.name for one in drawn["Nodes"].series] == ["workers", "servers"]
    assert drawn["Cores granted"].columns[1][-1] == 2.5
    assert [mark.label for mark in drawn["Nodes"].marks] == ["A"]
    assert sizes(grown(SMALL)) == {}


def test_without_quotas_the_nodes_are_drawn_alone() -> None:
    unlimited = [measured(t, 1 + t // 5, 1, None) for t in range(1, 11)]
    assert [*sizes(grown(unlimited, events=(ORDERED, CHANGED)))] == ["Nodes"]


def test_the_size_has_a_gap_where_nothing_was_measured() -> None:
    drawn = sizes(grown(SMALL, LARGE, events=(ORDERED, CHANGED)))
    assert len(drawn) == 2
    for one in drawn.values():
        assert gap_of(one) == (10.0, 60.0)

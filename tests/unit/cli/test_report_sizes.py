"""What the report says of changes of a job's size."""

from msgspec import structs

from paceline.cli.report import figures
from paceline.cli.report.size_story import size_rows, table_rows
from paceline.wire.events.base import Event
from paceline.wire.events.job import ScaledEvent, SizeChangedEvent, SizePlannedEvent
from paceline.wire.events.nodes import ServersChangedEvent, ServersNotChangedEvent
from tests.unit.cli.test_cli_report import START, facts, points

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

    ((_, _, words),) = table_rows(told)

    assert words == "servers 2 -> 4, 5.50 s after the order; no samples for 4.00 s"


def test_the_plots_over_time_show_the_letters() -> None:
    told = facts(*START, ORDERED, CHANGED)

    for drawing in (figures.throughput(told), figures.batch_times(told)):
        assert ">A</text>" in drawing

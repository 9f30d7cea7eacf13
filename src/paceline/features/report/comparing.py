"""Two jobs beside each other: their figures, and the same charts with the lines of both."""

from collections.abc import Iterator, Sequence
from html import escape
from itertools import chain
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from paceline.features.report.charts import COLOURS, Chart, ChartMark, Series
from paceline.features.report.content import Page, PageBlock, figure, table_as_html
from paceline.features.report.tiles import tiles
from paceline.jobs.facts import Facts

ALIKE = ("throughput",)
"""Charts over time that are drawn of both; the curves of both are, too."""
NOT_SETTINGS = ("name", "sources.")
"""Beginnings of keys of a spec that say nothing about how a job runs."""


class ComparedJob(NamedTuple):
    """One of the jobs."""

    facts: Facts
    page: Page


def page_of_both(jobs: Sequence[ComparedJob]) -> Page:
    """Put both jobs on one page."""
    charts = [*_common(jobs)]
    names = list(dict.fromkeys(one.name for job in jobs for one in tiles(job.facts)))
    values = [{one.name: f"{one.value} ({one.note})" for one in tiles(job.facts)} for job in jobs]
    rows = [(name, *(found.get(name, "-") for found in values)) for name in names]
    columns = ("", *(job.page.title for job in jobs))
    states = [("state", *(job.page.state for job in jobs))]
    settings = [(name, *row) for name, *row in _differences([job.facts for job in jobs])]
    links = " and ".join(
        f'<a href="/jobs/{escape(job.page.title)}">{escape(job.page.title)}</a>' for job in jobs
    )
    blocks = [
        PageBlock(name="links", html=f"<p>{links}</p>"),
        PageBlock(name="both", html=table_as_html(columns, [*states, *rows], "story")),
        PageBlock(name="settings", html=_settings(columns, settings)),
        *map(figure, charts),
    ]
    return Page(
        title=" and ".join(job.page.title for job in jobs),
        state="two jobs",
        blocks=tuple(blocks),
        charts=tuple(charts),
    )


def _settings(columns: Sequence[str], rows: Sequence[tuple[str, ...]]) -> str:
    if not rows:
        return "<h2>Settings</h2><p>They are alike.</p>"
    return f"<h2>Settings that differ</h2>{table_as_html(columns, rows, 'story')}"


def _differences(jobs: Sequence[Facts]) -> list[tuple[str, ...]]:
    """Keys of the specs whose values differ."""
    specs = [dict(_leaves(msgspec.to_builtins(one.spec))) for one in jobs]
    names = [name for name in dict.fromkeys(chain(*specs)) if not name.startswith(NOT_SETTINGS)]
    found = [(name, *(str(spec.get(name, "-")) for spec in specs)) for name in names]
    return [row for row in found if len(set(row[1:])) > 1]


def _leaves(values: dict[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of a spec, each with the keys that lead to it."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


def _common(jobs: Sequence[ComparedJob]) -> list[Chart]:
    """The charts that both have, or one of them."""
    found: dict[str, list[tuple[int, Chart]]] = {}
    for number, job in enumerate(jobs):
        for one in job.page.charts:
            if one.over == "samples" or one.name in ALIKE:
                found.setdefault(one.name, []).append((number, one))
    titles = [job.page.title for job in jobs]
    return [_joined(parts, titles) for parts in found.values()]


def _joined(parts: Sequence[tuple[int, Chart]], titles: Sequence[str]) -> Chart:
    """One chart with the last line of each: of throughput that is the mean over some seconds."""
    dates = sorted({at for _, one in parts for at in one.columns[0] if at is not None})
    columns: list[list[float | None]] = [[*dates]]
    for _, one in parts:
        values = dict(zip(one.columns[0], one.columns[-1], strict=True))
        columns.append([values.get(at) for at in dates])
    series = tuple(
        Series(name=titles[number], colour=COLOURS[number], width=2) for number, _ in parts
    )
    marks = tuple(_coloured(mark, number) for number, one in parts for mark in one.marks)
    return replace(
        parts[0][1],
        caption="a line that was not measured for a while goes straight on",
        series=series,
        columns=tuple(columns),
        joined=True,
        until=max(one.until for _, one in parts),
        marks=marks,
        bands=(),
        dots=(),
    )


def _coloured(mark: ChartMark, number: int) -> ChartMark:
    return replace(mark, colour=COLOURS[number])

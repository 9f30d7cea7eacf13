"""Sections of a job's report. Features bring them, and each tells one thing of the job."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from paceline.base.features import call_parts
from paceline.jobs.facts import Facts


class PlotMarks(NamedTuple):
    """Moments of one kind in a plot."""

    label: str
    shape: str
    """Shape of the marks: ``v``, ``^``, ``D`` (a diamond), ``s`` (a square), ``o`` or ``x``."""
    colour: str
    times_s: Sequence[float]
    """Seconds since the job's start."""


class PlotSpan(NamedTuple):
    """A time in which something was wrong, in seconds since the job's start."""

    since_s: float
    until_s: float
    usual: float | None = None
    """Value from the span before this one to its end, had nothing been wrong; None: unknown."""


class Plot(NamedTuple):
    """A value over the time of a job, which the report draws."""

    name: str
    """Name that no other drawing of the page has."""
    label: str
    """Name of the value, with its unit."""
    values: Mapping[float, float]
    """Values by seconds since the job's start."""
    top: float
    """Values above it are cut off."""
    caption: str
    spans: Sequence[PlotSpan] = ()
    usual_label: str = ""
    """Name of what is usual in spans."""
    marks: Sequence[PlotMarks] = ()


class Section(NamedTuple):
    """Section of what a feature tells: on the page, in the text, as numbers, in the last paragraph.

    A part `sections` of a `paceline.base.features.Feature` makes it.
    """

    name: str
    """Name of the section's numbers in ``paceline report --json``."""
    title: str = ""
    """Heading on the page. Empty: only the sentence and the numbers are shown."""
    line: str = ""
    """One line above the table, or in its place."""
    columns: tuple[str, ...] = ()
    rows: Sequence[tuple[str, ...]] = ()
    """Rows of a table, each as long as ``columns``."""
    note: str = ""
    """A line below the table on the page."""
    marks: Sequence[tuple[str, float]] = ()
    """Letters for the charts over time, each with a moment in Unix time."""
    plot: Plot | None = None
    """Chart that the page draws above the table."""
    html: str = ""
    """Further content of the page, as HTML."""
    sentence: str = ""
    """Sentence about it in the paragraph at a job's end. A job with one did not go well."""
    numbers: Mapping[str, Any] | None = None
    """Values that msgspec can write as JSON, by names that stay."""
    leads: bool = False
    """True: the section is on the page before the charts of the job."""
    ends: bool = False
    """True: the section comes after all that the report tells by itself."""


def sections_of(facts: Facts) -> list[Section]:
    """Collect the sections of all features."""
    found: list[Section] = []

    def add(section: Section) -> None:
        if not isinstance(section, Section):
            raise TypeError(f"a section is {section!r}, and no paceline.jobs.sections.Section")
        msgspec.json.encode(section.numbers)
        found.append(section)

    call_parts("sections", facts, add)
    return found

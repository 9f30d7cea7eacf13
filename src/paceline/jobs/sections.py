"""Sections of a job's report. Features bring them, and each tells one thing of the job."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from paceline.base.features import call_parts
from paceline.jobs.facts import Facts


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
    """Letters for the drawings over time, each with a moment in Unix time."""
    picture: Callable[[], str] | None = None
    """Draws something for the page, as HTML. Pages that are written at once do without."""
    html: str = ""
    """Further content of the page, as HTML."""
    sentence: str = ""
    """Sentence about it in the paragraph at a job's end. A job with one did not go well."""
    numbers: Mapping[str, Any] | None = None
    """Values that msgspec can write as JSON, by names that stay."""
    leads: bool = False
    """True: the section is on the page before the drawings of the job."""


def sections_of(facts: Facts) -> list[Section]:
    """Collect the sections of all features."""
    found: list[Section] = []

    def add(section: Section) -> None:
        if not isinstance(section, Section):
            raise TypeError(f"a section is {section!r}, and no paceline.jobs.sections.Section")
        found.append(section)

    call_parts("sections", facts, add)
    return found


def marks_of(facts: Facts) -> list[tuple[str, float]]:
    """Collect the marks of all sections."""
    return [mark for section in sections_of(facts) for mark in section.marks]

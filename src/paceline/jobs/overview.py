"""Tables about more than one job, which features bring to the page of all jobs."""

from collections.abc import Sequence
from typing import NamedTuple


class OverviewTable(NamedTuple):
    """Table of what a feature knows of several jobs: a queue, the past.

    A part `overview` of a `paceline.base.features.Feature` makes it.
    """

    title: str
    """Heading of the table."""
    line: str = ""
    """One line above the table, or in its place."""
    columns: tuple[str, ...] = ()
    rows: Sequence[tuple[str, ...]] = ()
    """Rows of the table, each as long as ``columns``."""

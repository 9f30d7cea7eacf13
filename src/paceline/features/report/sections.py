"""The report's own sections: what was slow in a script."""

from collections.abc import Callable

from paceline.features.report import slow
from paceline.jobs.facts import Facts
from paceline.jobs.sections import Section


def tell(facts: Facts, add: Callable[[Section], None]) -> None:
    """Add the sections that a job has something for."""
    if slow.was_watched(facts):
        add(_slow(facts))


def _slow(facts: Facts) -> Section:
    """What was slow in a script; of other jobs decisions tell that."""
    well = slow.well(facts)
    return Section(
        "slow",
        "What was slow",
        line=well,
        columns=slow.COLUMNS,
        rows=slow.rows(facts),
        picture=(lambda: _step_times(facts)) if slow.step_times(facts) else None,
        html="" if well else slow.matrices(facts),
        sentence=slow.sentence(facts),
        leads=True,
    )


def _step_times(facts: Facts) -> str:
    from paceline.features.report import figures  # with Matplotlib
    from paceline.features.report.page import GREY, figure_as_html

    caption = f"time of a step: median of the ranks; what rises above is cut off; {GREY}"
    return figure_as_html(figures.step_times(facts), caption)

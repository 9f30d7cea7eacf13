"""Slow parts and checks of nodes, shown of a job that has no master any more."""

from paceline.base.jobdir import JobDir
from paceline.features.failslow import check_table
from paceline.features.failslow.slowness import relieved_parts, slownesses
from paceline.features.failslow.telling import is_script
from paceline.jobs.history import read_events
from paceline.wire.client import Shown, ShownTable


def shown(job: JobDir) -> Shown:
    """Show what was slow in a script at its end, and what the checks of its nodes found."""
    events = read_events(job.events)
    found = slownesses(events) if is_script(job) else []
    last = found[-1:]
    rows = check_table.rows(events)
    return Shown(
        slow=last[0].parts if last and last[0].until_s is None else (),
        relieved=relieved_parts(found),
        tables=(ShownTable(check_table.COLUMNS, tuple(rows)),) if rows else (),
    )

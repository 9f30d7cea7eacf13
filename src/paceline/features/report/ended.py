"""The page of a job that has ended: at once without drawings, then with them."""

import os

from paceline.base.optional import complaint
from paceline.features.report.drawing import draw_within
from paceline.features.report.page import write_report
from paceline.jobs.ended import EndedJob
from paceline.jobs.facts import UNREADABLE


def leave_page(ended: EndedJob) -> None:
    """Write the report, or say why there is none: it can be had later.

    First without drawings: they may take longer than anybody waits for a prompt.
    """
    job, tell = ended.job, ended.tell
    if not ended.facts.committed or os.environ.get("PACELINE_REPORT") == "off":
        return
    try:
        mark = write_report(ended.facts, job, drawn=False)
        if lacks := complaint("a drawing of it", "matplotlib"):
            tell(f"report: {job.report} without drawings; {lacks}")
            return
        drawn = draw_within(job, mark, ended.wait_s)
    except UNREADABLE as error:
        tell(f"no report.html: {error}; make it with `paceline report --html PATH`")
        return
    later = {
        True: "",
        False: f" without drawings: `paceline report {job.job_id}` says why",
        None: f" (its drawings follow; `paceline report {job.job_id}` makes them, too)",
    }
    tell(f"report: {job.report}{later[drawn]}")

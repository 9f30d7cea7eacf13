"""The page of a job that has ended."""

import os

from paceline.features.report.following import log_tails
from paceline.features.report.page import write_report
from paceline.jobs.ended import EndedJob
from paceline.jobs.facts import UNREADABLE


def leave_page(ended: EndedJob) -> None:
    """Write the report, or say why there is none: it can be had later."""
    job, tell = ended.job, ended.tell
    if not ended.facts.committed or os.environ.get("PACELINE_REPORT") == "off":
        return
    try:
        write_report(ended.facts, job, log_tails(job))
    except UNREADABLE as error:
        tell(f"no report.html: {error}; make it with `paceline report --html PATH`")
        return
    tell(f"report: {job.report}")

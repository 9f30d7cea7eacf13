"""``paceline report`` and ``paceline ui``: the page of a job, while it runs and afterwards."""

from paceline.base.features import Feature

FEATURE = Feature(
    name="report",
    about="says what became of a job, and shows it as a page, also while it runs",
    verbs="paceline.features.report.verbs:add_to",
    hints=(
        ("dashboard", "`paceline ui`"),
        ("web", "`paceline ui`"),
        ("plot", "`paceline report JOB`"),
        ("draw", "`paceline report JOB`"),
        ("summary", "`paceline report JOB`"),
        ("html", "`paceline report JOB`"),
    ),
    web="paceline.features.report.serving:serve_beside",
    ended="paceline.features.report.ended:leave_page",
)

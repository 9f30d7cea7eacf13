"""``paceline report``, and the page that a job leaves: facts from its directory, told and drawn."""

from paceline.base.features import Feature

FEATURE = Feature(
    name="report",
    about="says what became of a job, and draws it as a page of its own",
    verbs="paceline.features.report.verbs:add_to",
    hints=(
        ("plot", "`paceline report JOB`"),
        ("draw", "`paceline report JOB`"),
        ("summary", "`paceline report JOB`"),
        ("html", "`paceline report JOB`"),
    ),
    ended="paceline.features.report.ended:leave_page",
)

"""``paceline rehearse`` and ``paceline check``: what a script does when its job is disturbed."""

from paceline.base.features import Feature

FEATURE = Feature(
    name="rehearse",
    about="disturbs short jobs of a script, and says whether each ends as undisturbed",
    verbs="paceline.features.rehearse.verbs:add_to",
    hints=(
        ("test", "`paceline check SCRIPT`"),
        ("try", "`paceline check SCRIPT`"),
        ("doctor", "`paceline check SCRIPT`"),
    ),
)

"""``paceline history``: what is kept of jobs that have ended, shown to people."""

from paceline.base.features import Feature

FEATURE = Feature(
    name="history",
    about="shows jobs that have ended, also removed ones, and the size a new one would begin with",
    verbs="paceline.features.history.verbs:add_to",
)

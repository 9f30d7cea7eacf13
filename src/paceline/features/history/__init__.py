"""The history of jobs: what is kept of those that have ended, for people and for later jobs."""

from paceline.base.features import Feature

FEATURE = Feature(
    name="history",
    about="remembers jobs that ended, also removed ones; new ones begin with the size of like jobs",
    switch="every job; off: history",
    keys=("history",),
    verbs="paceline.features.history.verbs:add_to",
    lacks="paceline.features.history.checking:lacks",
    checked="paceline.features.history.checking:check_history",
    prepared="paceline.features.history.preparing:prepared",
    overview="paceline.features.history.overview:tell",
    master="paceline.features.history.master:HistoryPart",
)

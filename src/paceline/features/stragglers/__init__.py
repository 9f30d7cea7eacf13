"""Stragglers: a solution watches how fast nodes are, and acts on those that hold up the job."""

from paceline.base.features import Feature

FEATURE = Feature(
    name="stragglers",
    about="acts on nodes that are slower than the others: by shares, short steps, restarts",
    switch="--solution; every job but those of strategies that cannot be acted on",
    keys=("solution", "solution_args", "windows", "decide_every_s"),
    checked="paceline.features.stragglers.checked:check_solution",
    master="paceline.features.stragglers.master:StragglersPart",
    shown="paceline.features.stragglers.slow:shown",
    explained="paceline.features.stragglers.telling:explain",
    replayed="paceline.features.stragglers.telling:DECISIONS",
    reasons="paceline.features.stragglers.reasons:reasons",
    sections="paceline.features.stragglers.telling:tell",
)

"""Job sizes: a job finds how many nodes it needs and what each may use, and keeps its memory."""

from paceline.base.features import Feature

FEATURE = Feature(
    name="sizes",
    about="finds how many workers and servers a job needs, and raises memory before it runs out",
    switch="--auto, resources.policy; memory: servers.max_memory, workers.max_memory",
    keys=("resources", "servers.max_memory", "workers.max_memory"),
    lacks="paceline.features.sizes.spec:lacks",
    checked="paceline.features.sizes.spec:check_resources",
    completed="paceline.features.sizes.spec:sized",
    master="paceline.features.sizes.master:SizesPart",
    explained="paceline.features.sizes.log:explain",
    replayed="paceline.features.sizes.log:SIZES",
    reasons="paceline.features.sizes.reasons:reasons",
    sections="paceline.features.sizes.section:tell",
)

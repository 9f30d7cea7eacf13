"""``paceline cluster``: jobs of several people in a queue for the devices of one machine."""

from paceline.base.features import Feature

FEATURE = Feature(
    name="cluster",
    about="queues jobs of several people for the devices of this machine",
    verbs="paceline.features.cluster.verbs:add_to",
    hints=(
        ("queue", "`paceline cluster queue`"),
        ("squeue", "`paceline cluster queue`"),
        ("sbatch", "`paceline cluster submit SCRIPT`"),
    ),
    reasons="paceline.features.cluster.reasons:reasons",
    overview="paceline.features.cluster.overview:tell",
)

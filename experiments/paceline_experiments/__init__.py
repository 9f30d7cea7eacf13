"""The papers' experiments: jobs in virtual time (``paceline sim``) and real ones (``bench``)."""

from paceline.base.features import Feature

FEATURE = Feature(
    name="experiments",
    about="runs the papers' experiments, in virtual time (sim) and with real jobs (bench)",
    verbs="paceline_experiments.verbs:add_to",
)

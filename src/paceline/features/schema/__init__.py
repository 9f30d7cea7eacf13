"""``paceline schema``: the job spec as JSON Schema, for editors."""

from paceline.base.features import Feature

FEATURE = Feature(
    name="schema",
    about="describes the job spec as JSON Schema, by which editors complete and check YAML files",
    verbs="paceline.features.schema.verbs:add_to",
)

"""``paceline checkpoint export``: the model of a cut as a file that other programs read."""

from paceline.base.features import Feature

FEATURE = Feature(
    name="formats",
    about="exports the model of a cut as a file of safetensors or torch, with a signed receipt",
    verbs="paceline.features.formats.verbs:add_to",
    hints=(
        ("export", "`paceline checkpoint export JOB OUT`"),
        ("save", "`paceline checkpoint export JOB OUT`"),
        ("convert", "`paceline checkpoint export JOB OUT`"),
    ),
)

"""Click logs with a known answer, and public data sets in the same layout."""

from paceline.base.features import Feature

FEATURE = Feature(
    name="data",
    about="makes click logs whose best AUC is known, and converts public data sets",
    verbs="paceline.features.data.verbs:add_to",
)

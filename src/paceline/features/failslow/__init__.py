"""Fail-slow: nodes and links that are slow, before the first step and in running scripts."""

from paceline.base.features import Feature

FEATURE = Feature(
    name="failslow",
    about="finds slow nodes and links: checks nodes before they train, watches scripts",
    switch="preflight (on), watch (on; with strategy script)",
    verbs="paceline.features.failslow.verbs:add_to",
    hints=(
        ("slow", "`paceline failslow JOB`"),
        ("diagnose", "`paceline failslow JOB`"),
    ),
    keys=("preflight", "watch"),
    checked="paceline.features.failslow.spec:check",
    master="paceline.features.failslow.master:FailSlowPart",
    agent="paceline.features.failslow.agent:make",
    process="paceline.features.failslow.process.part:make",
    shown="paceline.features.failslow.shown:shown",
    explained="paceline.features.failslow.telling:explain",
    replayed="paceline.features.failslow.cures:LOG",
    reasons="paceline.features.failslow.reasons:reasons",
    sections="paceline.features.failslow.sections:tell",
)

"""What was decided against stragglers, and what came of it: rows of the report."""

from paceline.jobs.facts import Facts
from paceline.jobs.wording import clock

COLUMNS = ("at", "decided against stragglers", "why", "what came of it")


def decision_rows(facts: Facts) -> list[tuple[str, ...]]:
    """Per action: when, what, why, what came of it."""
    return [
        (
            clock(story.t - facts.started_s),
            story.what,
            "; ".join(filter(None, (story.seen, story.rule))),
            "; ".join(filter(None, (story.became, story.outcome))) or "-",
        )
        for story in facts.decisions
    ]

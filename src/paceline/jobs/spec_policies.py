"""Checks of a job spec that ask policies: their names and parameters are their own."""

from paceline.jobs.spec_draft import SpecDraft, traits_of


def check_sinks(draft: SpecDraft) -> None:
    """Refuse sinks to which nothing would come."""
    prefix = "log_to."
    for key in [key for key in draft.places if key.startswith(prefix)]:
        if not traits_of(draft).trains:
            got = f"it with strategy {draft.get('strategy')}, whose scripts log on their own"
            draft.complain(key, got, "it where job.log is called", "remove it")

"""Keys of fail-slow in a spec: values that it cannot follow."""

from paceline.jobs.spec_draft import SpecDraft, traits_of
from paceline.wire.strategies import those


def check(draft: SpecDraft) -> None:
    """Refuse a check before the first step of a script that paceline does not steer."""
    if not draft.is_sound(["strategy"]) or traits_of(draft).trains:
        return
    if "preflight" in draft.places and draft.get("preflight"):
        got = f"true with strategy {draft.get('strategy')}, whose nodes are measured later"
        trained = f"it with strategy {those(lambda row: row.trains)} only"
        draft.complain("preflight", got, trained, "remove it")

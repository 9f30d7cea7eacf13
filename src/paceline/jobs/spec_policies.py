"""Checks of a job spec that ask policies: their names and parameters are their own."""

import difflib

from paceline.base.errors import ConfigError
from paceline.jobs.spec_draft import SpecDraft, traits_of, where


def check_resources(draft: SpecDraft) -> None:
    """Refuse a resource policy that there is not, or that this job cannot follow."""
    key, name = "resources.policy", str(draft.get("resources.policy"))
    if name == "none":
        return
    from paceline.policy.resources.registry import RESOURCES  # with numpy, 0.15 s

    if name not in RESOURCES.names():
        near = difflib.get_close_matches(name, RESOURCES.names(), 1)
        remedy = f"did you mean {near[0]}?" if near else "write rm, or --auto"
        draft.complain(key, repr(name), f"one of {', '.join(RESOURCES.names())}", remedy)
        return
    prefix = "resources_args."
    args = {k.removeprefix(prefix): v for k, v in draft.values.items() if k.startswith(prefix)}
    for arg, value in args.items():
        try:
            RESOURCES.make(name, {arg: value})
        except ConfigError as error:
            draft.complaints.append(f"{where(draft.places[prefix + arg], prefix + arg)}: {error}")
    if draft.is_sound(["strategy", "backend", "samples"]):
        _check_resizable(draft, key, name)


def _check_resizable(draft: SpecDraft, key: str, name: str) -> None:
    remedy, traits = "remove it, or --auto", traits_of(draft)
    if traits.lives == "in_rounds":
        got = f"{name} with strategy {draft.get('strategy')}, whose workers come and go together"
        draft.complain(key, got, "strategy ps or allreduce", remedy)
    elif draft.get("backend") != "local":
        got = f"{name} with backend {draft.get('backend')}, whose nodes keep their sizes"
        draft.complain(key, got, "backend local", remedy)
    elif draft.get("samples") != "exactly-once":
        got = f"{name} with samples {draft.get('samples')}, whose servers cannot hand over"
        draft.complain(key, got, "samples exactly-once", remedy)


def check_sinks(draft: SpecDraft) -> None:
    """Refuse sinks to which nothing would come."""
    prefix = "log_to."
    for key in [key for key in draft.places if key.startswith(prefix)]:
        if not traits_of(draft).trains:
            got = f"it with strategy {draft.get('strategy')}, whose scripts log on their own"
            draft.complain(key, got, "it where job.log is called", "remove it")

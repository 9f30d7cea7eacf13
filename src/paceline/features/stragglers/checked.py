"""What a job's spec says of stragglers, checked: the solution, its parameters, the job's mode."""

import difflib
from typing import cast, get_args

from paceline.base.errors import ConfigError
from paceline.jobs.spec_draft import COMMAND_LINE, SpecDraft, how_to_write, traits_of, where
from paceline.wire.strategies import Mode


def check_solution(draft: SpecDraft) -> None:
    """Refuse a solution that there is not, that is no such job's, or that has no such parameters.

    Names and parameters are the solutions' own; they are asked, not listed here.
    """
    key = "solution"
    if not draft.is_sound([key]):
        return
    name = str(draft.get(key))
    prefix = "solution_args."
    args = {k.removeprefix(prefix): v for k, v in draft.values.items() if k.startswith(prefix)}
    if name == "none" and not args:
        return
    # Not at the top: with numpy, 0.15 s, which a job without a solution does without.
    from paceline.features.stragglers.policy.registry import kind_of, names, solution

    if name not in names():
        near = difflib.get_close_matches(name, names(), 1)
        usual = how_to_write(draft.places[key], key, "auto")
        remedy = f"did you mean {near[0]}?" if near else usual
        draft.complain(key, repr(name), f"one of {', '.join(names())}", remedy)
        return
    place = draft.places.get(key, COMMAND_LINE)
    try:
        kind = kind_of(name)
    except ConfigError as error:
        draft.complaints.append(f"{where(place, key)}: {error}")
        return
    for arg, value in args.items():
        try:
            solution(name, {arg: value})
        except ConfigError as error:
            draft.complaints.append(f"{where(draft.places[prefix + arg], prefix + arg)}: {error}")
    modes = kind.modes
    sound = draft.is_sound(["mode", "strategy"])
    mode = traits_of(draft).pace(cast(Mode, draft.get("mode"))) if sound else ""
    if sound and mode not in modes:
        there = [each for each in get_args(Mode) if each in modes]
        made_for = f"jobs in mode {' or '.join(there)}" if there else "all-reduce"
        got = f"{name}, which is made for {made_for}, in mode {mode}"
        draft.complain(key, got, "another one", how_to_write(place, key, "auto"))

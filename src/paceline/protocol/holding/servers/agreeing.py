"""Agreement among the contributions of a synchronous step, and what they lack together."""

from collections.abc import Sequence

from paceline.base.errors import ConfigError
from paceline.base.numbering import Inc
from paceline.base.samples import SampleSet
from paceline.protocol.reasons import different_loops
from paceline.wire.messages.data import Differs, Part

Settings = dict[str, float]
LOOP = "the loop"
"""See `Differs.what`."""


def missing(parts: Sequence[Part]) -> int:
    """Samples of a step's slice that these contributions lack; < 0: some are in them twice."""
    covered = SampleSet(span for part in parts for span in part.spans)
    if len(covered) != sum(len(span) for part in parts for span in part.spans):
        return -1
    return sum(len(span) for span in parts[0].slice) - len(covered) if parts else 0


def odd_ones(parts: Sequence[Part], server: Inc) -> list[Differs]:
    """Workers whose slices or hyper-parameters are not those of most, with what differs.

    Of two camps of the same size the one with the oldest life is right: who joined last is the one
    that may have missed something.
    """
    camps: dict[tuple[object, object, object], list[Part]] = {}
    for part in parts:
        camps.setdefault((part.slice, part.rates, part.changed), []).append(part)
    if len(camps) < 2:
        return []
    lives = {camp: {part.inc for part in of_it} for camp, of_it in camps.items()}
    right = max(lives, key=lambda camp: (len(lives[camp]), -min(lives[camp])))
    usual, others = camps[right][0], tuple(sorted(lives[right]))
    found = {}
    for camp, of_it in camps.items():
        for part in of_it if camp != right else ():
            found[part.inc] = Differs(
                epoch_no=part.epoch_no,
                server=server,
                inc=part.inc,
                step=part.step,
                what=_difference(part, usual),
                others=others,
            )
    return list(found.values())


def refusal(message: Differs) -> ConfigError:
    """The error with which the worker must end."""
    others = ", ".join(map(str, message.others))
    if message.what == LOOP:
        detail = f"step {message.step} has other samples here than in incarnations {others}"
        return ConfigError(different_loops(detail))
    return ConfigError(
        f"step {message.step}: {message.what} as in the workers of incarnations {others}; all "
        "workers of a step must have the same: use schedulers that are given to job.prepare, or "
        "set it by job.step at the beginning of a batch"
    )


def _named(part: Part) -> Settings:
    rates = {f"lr of group {group}": rate for group, rate in enumerate(part.rates)}
    return rates | {f"{name} of group {group}": value for group, name, value in part.changed}


def _difference(part: Part, usual: Part) -> str:
    if part.slice != usual.slice:
        return LOOP
    mine, theirs = _named(part), _named(usual)
    name = next(one for one in {**mine, **theirs} if mine.get(one) != theirs.get(one))
    as_at_first = "as at job.prepare"
    return f"{name} is {mine.get(name, as_at_first)}, not {theirs.get(name, as_at_first)}"

"""Whether members still hold the same, as a pure state machine: replicas are watched.

As it enters a step each member tells the others, in the gather of that step, a digest of the
hyper-parameters with which it made its last update, and from time to time a checksum of what it
holds. All members see the same numbers, so all come to the same verdict: who differs, and whether
most of them agree. What differs is found by `differences`, from tables that members exchange only
then (``watcher.py``).
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from paceline.base.numbering import StepNo

BUDGET = 0.001
"""Checksums cost less than this part of the time of steps."""
FIRST_EVERY, LEAST_EVERY, MOST_EVERY = 50, 10, 10_000
"""Steps from one checksum to the next: before the first was timed, and within which limits."""
REPEAT_STEPS = 1000
"""A member that differs again within so many steps is not healed again."""
MOST_BEGUN = 3
"""Times that it copies from the first member, which may change, before a training's first step."""


class Word(NamedTuple):
    """Word of a member about its state as it enters a step; 0: nothing."""

    settings: int
    """A digest of the hyper-parameters of the last update, if it has made that itself."""
    checksum: int
    """Checksum of what the member holds, where one is due."""
    check_at: int
    """The number of complete steps at which the next checksum is due."""
    every: int
    """Steps that should lie between two checksums, by the time that one takes here."""


class Difference(NamedTuple):
    """A difference between the members of a group."""

    in_settings: bool
    """Whether the members differ in hyper-parameters; False: in what they hold."""
    minority: tuple[int, ...]
    """Ranks of those that differ from most; none: no more than half of them agree."""
    begins: bool = False
    """Nothing is trained so far: ``minority`` are those that differ from the first member."""


class Watch:
    """The machine of one member."""

    def __init__(self) -> None:
        #: The last update that we have made: the step, and the digest of its hyper-parameters.
        self._updated = (0, 0)
        self.check_at = 0
        self.every = FIRST_EVERY
        self._healed_at: int | None = None
        self._num_begun = 0

    def is_due(self, step: StepNo) -> bool:
        """Whether a checksum of what is held after this step is to be made."""
        return step >= self.check_at

    def word(self, step: StepNo, checksum: int) -> Word:
        """Return our word as we enter the step after ``step``."""
        updated, settings = self._updated
        return Word(settings if updated == step else 0, checksum, self.check_at, self.every)

    def updating(self, step: StepNo, settings: int) -> None:
        """We make the update that completes this step, with hyper-parameters of this digest."""
        self._updated = step, settings

    def timed(self, checksum_s: float, step_s: float) -> None:
        """A checksum took so long, and the steps since the one before so long each."""
        wish = math.ceil(checksum_s / (BUDGET * step_s)) if step_s > 0 else MOST_EVERY
        self.every = min(max(wish, LEAST_EVERY), MOST_EVERY)

    def agree(self, step: StepNo, words: Sequence[Word]) -> None:
        """Fix when the next checksum is due, as all members do; ``step``: complete steps."""
        due = max(word.check_at for word in words)
        self.check_at = due if step < due else step + max(word.every for word in words)

    def copied(self) -> None:
        """Note that we hold a copy of another's state: the last update was not ours."""
        self._updated = (0, 0)

    def heal(self, step: StepNo, *, begins: bool = False) -> bool:
        """We differ from most, and are to copy what they hold; False: too often.

        ``begins``: we differ from the first member, where a training begins.
        """
        if begins:
            self._num_begun += 1
            return self._num_begun <= MOST_BEGUN
        last, self._healed_at = self._healed_at, step
        return last is None or step - last > REPEAT_STEPS


def judge(words: Sequence[Word], *, begins: bool = False) -> Difference | None:
    """Whether members differ in what they have told; None: they agree.

    ``begins``: in the first step of a training, whose models are as the scripts have built them.
    """
    if len({(word.settings, word.checksum) for word in words}) == 1:
        return None
    for in_settings in (True, False):
        values = (word.settings if in_settings else word.checksum for word in words)
        told = {rank: value for rank, value in enumerate(values) if value}
        counts = Counter(told.values()).most_common(1)
        if not counts or counts[0][1] == len(told):
            continue
        value, number = counts[0]
        agree = begins or 2 * number > len(told)
        value = told[min(told)] if begins else value
        minority = tuple(rank for rank, one in told.items() if one != value) if agree else ()
        return Difference(in_settings, minority, begins)
    return None


def differences(tables: Sequence[Mapping[int, str]], names: Mapping[int, str]) -> list[str]:
    """Names of the values that are not alike in all members, in the order of ``names``.

    Args:
        tables: of each member, by the digest of its name, each value as text.
        names: by their digests.
    """
    return [
        name for key, name in names.items() if len({table.get(key, "") for table in tables}) > 1
    ]


def in_words(nodes: Sequence[str], values: Sequence[str]) -> str:
    """Say which members have which value: ``0.1 in worker-0 and worker-2, 0.2 in worker-1``."""
    having: dict[str, list[str]] = {}
    for node, value in sorted(zip(nodes, values, strict=True)):
        having.setdefault(value, []).append(node)
    return ", ".join(f"{value or 'none'} in {' and '.join(who)}" for value, who in having.items())

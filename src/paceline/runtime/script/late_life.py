"""A life that comes late: it enters the loop that the others are in, or passes over finished ones.

A life begins with its first batch. A loop that its script comes to before is finished, or is the
one in which the others are, or will be.
"""

import sys
from collections.abc import Callable

from paceline.base.errors import ConfigError
from paceline.runtime.process.process import current
from paceline.runtime.script.course import ScriptCourse
from paceline.runtime.script.draws import Draws
from paceline.runtime.script.strategy import Entry, Strategy

MOST_BEHIND = 100
"""Loops that a script may begin behind the end of the others'."""


class LateLife:
    """One life of a worker, until it has had a batch.

    Args:
        strategy: returns the one in hand.
        course: where the script is.
        draws: knows whether this life has had a batch.
    """

    def __init__(
        self, strategy: Callable[[], Strategy], course: ScriptCourse, draws: Draws
    ) -> None:
        self._strategy, self._course, self._draws = strategy, course, draws
        self._num_behind = 0
        """Loops that were begun behind the end of others' scripts."""
        self._num_passed = 0
        """Loops over batches that were done before this life came there, in no epoch."""
        self._num_apart = 0
        """Passed loops behind which this script does not hold what the others' did."""
        self._has_told = False

    def begin_training(self) -> None:
        """The script trains what it has prepared next."""
        if (process := current()) is not None:
            process.forget_remark()
        self._num_passed = self._num_apart = 0

    def entry(self, site: str) -> Entry | None:
        """The loop that the job is in, if this life has had no batch, and opens it from there."""
        entries, variables = self._strategy().entries, self._strategy().variables
        if entries is None or self._draws.has_begun:
            return None
        variables.began_at = self._course.coming
        entry = entries.newest()
        here = entry is not None and entry.site == site and entry.place > self._course.coming
        return entry if here else None

    def next_entry(self, site: str) -> Entry | None:
        """Wait for the next loop of others, if this life has had no batch.

        So the body of the script never runs for a loop of which it had none.
        """
        entries, variables = self._strategy().entries, self._strategy().variables
        if entries is None or self._draws.has_begun or variables.has_left:
            return None
        entry = entries.next_after(variables.place)
        return entry if entry is not None and entry.site == site else None

    def is_behind_end(self) -> bool:
        """Tell whether this life, which had no batch, begins a loop that nobody else ever had.

        It goes through its data until it has counted enough batches, and has counted none: it would
        train alone once more what the others have trained. What stands behind the loops that it
        passes is done; if these do not end, it ends.

        Raises:
            SystemExit: they do not end.
        """
        entries = self._strategy().entries
        if entries is None or self._draws.has_begun or not self._num_passed:
            return False
        if not entries.end_before(self._course.coming):
            return False
        self.begins_behind_end()
        return True

    def begins_behind_end(self) -> None:
        """Count a loop that only this life begins, as the others' scripts have ended.

        Raises:
            SystemExit: there is no end of them.
        """
        self._num_behind += 1
        if self._num_behind > MOST_BEHIND:
            sys.stderr.write(_WORDS_AT_END)
            raise SystemExit(0)

    def stand_by(self) -> None:
        """Go on behind a loop of which this life has had no batch, as others did."""
        entries = self._strategy().entries
        follows = self._strategy().variables.take(ended=True)
        if follows and entries is not None:
            entries.came_in()
        self.pass_loop(follows=follows)

    def pass_loop(self, *, follows: bool = False) -> None:
        """A loop over batches had none for this worker.

        ``follows``: what its script holds is what others' scripts held behind it.
        """
        process, entries = current(), self._strategy().entries
        if process is None or self._draws.has_begun:
            return
        if entries is not None:
            process.stands_by = entries.fate_of_bystander
        if self._course.epoch is not None:
            return
        self._num_passed += 1
        process.check_returned = self._check_returned
        if not follows:
            self._num_apart += 1
            process.remark = _passed_words(self._num_apart)

    def tell_passed(self) -> None:
        """Say, in the first loop with a batch, what this life has done again."""
        process = current()
        if process is not None:
            process.stands_by = None
        follows = self._strategy().variables.took  # what it holds now is what the others hold
        if process is not None and self._num_apart and not (self._has_told or follows):
            self._has_told = True
            sys.stderr.write(f"paceline: this life of {process.node} {process.remark}\n")

    def _check_returned(self) -> None:
        """Raise ConfigError if the script has left out a loop in which others have trained."""
        underway = self._strategy().underway(self._course.coming)
        if underway is not None and underway.at > 0:
            raise ConfigError(
                "the script returned before a loop over batches that the job has begun. Before, it "
                f"{_passed_words(self._num_passed)}. Decide with job.agree when to stop; then go "
                "on with `paceline run --resume`"
            )


_WORDS_AT_END = (
    "paceline: the other workers' scripts have returned. This life began later, and its script "
    "begins one loop after the other behind their last one, since it has not counted all batches: "
    "it ends here, without what its script does after its loops. If only this worker does that "
    "(job.is_chief), do it by hand: `paceline checkpoint export` writes the model. A script that "
    "decides by job.step when to stop ends as the others do\n"
)


def _passed_words(num_loops: int) -> str:
    loops, each = ("a loop", "it") if num_loops == 1 else (f"{num_loops} loops", "each")
    return (
        f"passed over {loops} that earlier lives or other workers had done, and did what stands "
        f"after {each} again, with the newest model and no batch. Number the epochs with "
        "`for epoch in job.epochs(n)`, and keep in job.state what the script remembers"
    )

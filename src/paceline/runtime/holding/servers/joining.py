"""Takeover of the script's state by a worker that joins, or whose model went back to a cut.

It pulls the model for its work first, and asks for the state of the model's position then. B pulls
for step 25; A completes step 25 without B, and step 26, while B asks for the state at 24; servers
keep two, which are those of 25 and 26. Then B's work is over, so B gives it back and pulls again.
"""

from paceline.runtime.data.work import Work
from paceline.runtime.holding.servers.port import TrainingPort
from paceline.runtime.holding.servers.schedule import Schedule
from paceline.wire.messages.feeds import Feed


class Joining:
    """Takeovers by one worker, in one loop.

    Args:
        trainer: asked for the state.
        schedule: becomes it.
    """

    def __init__(self, trainer: TrainingPort, schedule: Schedule) -> None:
        self._trainer, self._schedule = trainer, schedule
        self._given_back = 0
        """Number of the step whose work was given back last."""

    @property
    def is_due(self) -> bool:
        """Whether the script goes on from another state than its own."""
        return self._schedule.restores != self._trainer.restores

    def take_over(self, feed: Feed, work: Work, counted: int | None) -> bool:
        """Become the script that the model was trained with: of others, or before a restore.

        Args:
            feed: what is trained on.
            work: the batch that the model was pulled for.
            counted: samples of the feed in that model; None: every batch is a step.

        Returns:
            False: others have completed the step of this work; it must be given back.
        """
        is_first, position = self._schedule.restores < 0, None
        if is_first and self._trainer.keeps_script:
            self._schedule.keep_first()
        if work.step:
            position = work.step - 1 if counted is None else self._schedule.at(feed, counted)
        # Read before asking: a restore while we wait for the answer is one more to take over.
        restores = self._trainer.restores
        found = self._trainer.script(position)
        if found is None and position is not None:
            newest = self._trainer.script(None)
            # What is handed in is one step ahead of the model at most. If the same step comes
            # again, nobody has completed it: the state is of a cut that counted steps, of which
            # there were more than global batches.
            ahead = newest is not None and newest[0] > position + 1
            if ahead and work.step != self._given_back:
                self._given_back = work.step
                return False
            if newest is not None and position:
                found = position, newest[1]
        if found is not None:
            self._schedule.load(*found)
        elif is_first:  # nobody has trained, or it was not kept
            self._schedule.position = max(position or 0, self._schedule.position)
        else:  # all that was trained is undone: cut 0 holds a model, and no script's state
            self._schedule.begin_again(position or 0)
        self._schedule.restores = restores
        return True
